"""A T2 bus inside a program, reached in three ways: `python examples/t2_server.py [FOLDER]`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from polybus.protocols.t2.client import Connector
from polybus.protocols.t2.server import ServerBuilder


async def main(folder: str = ".") -> None:
    path = Path(folder) / "my_bus"
    builder = ServerBuilder().serve_unix_socket(path).serve_memory().serve_tcp("127.0.0.1:0")
    stopper, memory = await builder.build()
    assert memory is not None

    # The server is listening on all three now.
    port = stopper.addresses[1].port
    connectors = {
        "memory": memory,
        "unix": Connector.unix(path),
        "tcp": Connector.tcp(f"127.0.0.1:{port}"),
    }
    for name, connector in connectors.items():
        async with await connector.connect() as client:
            print(name, "reaches", await client.publish_bytes("hello", b"anybody?"), "subscribers")

    stopper.stop()  # or leave `async with stopper`, or drop it
    await stopper.join()
    print("stopped")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
