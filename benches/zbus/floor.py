"""The least that answering consumes costs a program in Python: `python benches/zbus/floor.py PORT`.

As `floor.c`, on the event loop that the node runs on: requests without a body are each answered with a message of
1 KiB under their id. There is no topic, no group and no log, and no request is understood, so a node of one event loop
cannot be faster on the same machine under a load that keeps the loop busy. With one consumer it sleeps between two
messages, where a node stays awake.
"""

from __future__ import annotations

import asyncio
import re
import sys
from typing import Any, Final

import uvloop

ID: Final = re.compile(rb"\r\nid: (.{36})\r\n")
ANSWER: Final = (
    b"HTTP/1.1 200 OK\r\ntopic: Floor\r\nversion: 0.8.0\r\nconnection: Keep-Alive\r\n"
    b"content-type: text/plain; charset=utf-8\r\nsender: 00000000-0000-0000-0000-000000000000\r\n"
    b"host: 127.0.0.1:15555\r\nremote-addr: /127.0.0.1:40000\r\noffset: 100\r\nid: %b\r\n"
    b"origin_id: 00000000-0000-0000-0000-000000000001\r\ncontent-length: 1024\r\n\r\n" + b"x" * 1024
)


class Floor(asyncio.Protocol):
    """One client, whose reads bring whole requests: it has few waiting."""

    def connection_made(self, transport: Any) -> None:
        self.write = transport.write

    def data_received(self, data: bytes) -> None:
        self.write(b"".join([ANSWER % ident for ident in ID.findall(data)]))


async def serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Floor, "127.0.0.1", port)
    print("ready", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
