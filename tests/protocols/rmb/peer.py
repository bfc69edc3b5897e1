"""A peer that is no polybus: keeps what was posted to it and answers as it is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class ForeignPeer:
    """An HTTP server of a few lines; `answers` are statuses in turn, 0 cuts the connection, the last one stays."""

    def __init__(self) -> None:
        self.answers: list[int] = [202]
        self.posted: list[tuple[str, dict[str, str], bytes]] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                headers = dict(line.split(": ", 1) for line in head[1:] if line)
                body = await reader.readexactly(int(headers["content-length"]))
                self.posted.append((head[0].split(" ")[1], headers, body))
                status = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
                if status == 0:
                    return
                reason = {200: "OK", 202: "Accepted", 204: "No Content", 400: "Bad Request"} | {
                    401: "Unauthorized",
                    404: "Not Found",
                    500: "Internal Server Error",
                }
                writer.write(
                    f"HTTP/1.1 {status} {reason[status]}\r\ncontent-length: 0\r\n\r\n".encode()
                )
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()


@asynccontextmanager
async def foreign_peer() -> AsyncIterator[ForeignPeer]:
    peer = ForeignPeer()
    server = await asyncio.start_server(peer.serve, "127.0.0.1", 0)
    peer.port = server.sockets[0].getsockname()[1]
    try:
        yield peer
    finally:
        server.close()
