"""A real node with a page, and an HTTP client reduced to what the tests need."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from polybus.core.endpoint import Identity
from polybus.core.policy import Policy, Verb
from polybus.server import Config, Node


class ReadOnly:
    """Everybody may look and nobody may change anything."""

    epoch = 0

    def may(self, identity: Identity, verb: Verb, name: str) -> bool:
        return verb not in ("admin", "declare")


class Shut:
    """Nobody from outside may do anything."""

    epoch = 0

    def may(self, identity: Identity, verb: Verb, name: str) -> bool:
        return identity.kind == "local"


@dataclass
class Answer:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


@dataclass
class Watched:
    """A running node and its address."""

    node: Node

    @property
    def port(self) -> int:
        return self.node.addresses[0].port

    @property
    def url(self) -> str:
        return f"polybus://127.0.0.1:{self.port}"

    async def ask(
        self,
        path: str,
        body: object = None,
        method: str = "",
        headers: dict[str, str] | None = None,
    ) -> Answer:
        """One request on a connection of its own."""
        content = b"" if body is None else msgspec.json.encode(body)
        method = method or ("GET" if body is None else "POST")
        lines = [f"{method} {path} HTTP/1.1", f"host: 127.0.0.1:{self.port}", "connection: close"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        lines += [f"content-length: {len(content)}", "", ""]
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write("\r\n".join(lines).encode() + content)
        raw = await reader.read()
        writer.close()
        await writer.wait_closed()
        return parse(raw)

    async def get(self, path: str) -> Any:
        """The JSON at a path of the API, which must be there."""
        answer = await self.ask("/api/v1" + path)
        assert answer.status == 200, answer.body
        return answer.json

    async def post(self, path: str, body: object) -> Answer:
        return await self.ask("/api/v1" + path, body)

    @asynccontextmanager
    async def events(self, path: str) -> AsyncIterator[Events]:
        """An open stream of server-sent events."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"200" in head.split(b"\r\n")[0]
        assert b"text/event-stream" in head
        try:
            yield Events(reader)
        finally:
            writer.close()
            await writer.wait_closed()


@dataclass
class Events:
    """The events of a stream, one by one."""

    reader: asyncio.StreamReader

    async def next(self, wanted: str) -> Any:
        """The data of the next event of a kind; others are passed over."""
        while True:
            raw = await self.reader.readuntil(b"\n\n")
            kind, _, data = raw.strip().partition(b"\n")
            if kind == f"event: {wanted}".encode():
                return msgspec.json.decode(data.removeprefix(b"data: "))


def parse(raw: bytes) -> Answer:
    head, _, body = raw.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    return Answer(int(first.split(" ")[1]), headers, body)


@asynccontextmanager
async def watched(
    folder: Path | None, policy: Policy | None = None, **config: Any
) -> AsyncIterator[Watched]:
    """A node on any free port."""
    listen = ("tcp://127.0.0.1:0",)
    async with Node(Config(listen=listen, data=folder, **config), policy=policy) as node:
        yield Watched(node)
