"""One client serves a topic, another asks: `python examples/t2_request_response.py`."""

from __future__ import annotations

import asyncio

from polybus.protocols.t2.client import Client
from polybus.protocols.t2.server import ServerBuilder
from polybus.protocols.t2.typed import RequestProtocol

# A prefix, the type of the requests and the type of the responses.
HELLO = RequestProtocol("hello", str, str)


async def serve(client: Client, ready: asyncio.Event) -> None:
    async with await client.serve(HELLO, "") as requests:
        ready.set()
        _topic, request_id, name = await requests.recv()
        await client.respond(HELLO, request_id, f"Hello {name}")


async def main() -> None:
    stopper, connector = await ServerBuilder().serve_memory().build()
    assert connector is not None
    async with stopper, await connector.connect() as one, await connector.connect() as two:
        ready = asyncio.Event()
        serving = asyncio.create_task(serve(one, ready))
        await ready.wait()
        print(await two.request(HELLO, "", "Alice"))
        await serving


if __name__ == "__main__":
    asyncio.run(main())
