"""Our client, with nothing to say for longer than the 90 s after which a silent one is closed.

    python -m tests.interop.t2.idle tcp:127.0.0.1:4242 python_idle

Ends with 0 when the connection, its subscription and its claim still stand then.
"""

from __future__ import annotations

import asyncio
import os
import sys

from polybus.protocols.t2.client import Connector

IDLE_S = 95


async def main(address: str) -> None:
    kind, _, where = address.partition(":")
    connector = Connector.tcp(where) if kind == "tcp" else Connector.unix(where)
    topic = f"python_idle/{os.getpid()}"
    async with await connector.connect() as client:
        messages = await client.subscribe_bytes(topic)
        requests = await client.serve_bytes(topic)
        await asyncio.sleep(IDLE_S)
        assert await client.publish_bytes(topic, b"still there") == 1
        # A run beside this one may have published to everybody.
        while await messages.recv() != (topic, b"still there"):
            pass
        asking = asyncio.create_task(client.request_bytes(topic, b"?"))
        _topic, request_id, _payload = await requests.recv()
        await client.respond_bytes(request_id, b"!")
        assert await asking == b"!"


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
