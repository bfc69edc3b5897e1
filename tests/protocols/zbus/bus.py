"""A node's Zbus side without sockets: topics on an engine in memory, clients that are lists of bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self

from polybus.core.policy import Policy
from polybus.core.router import Router
from polybus.core.topics import Topics
from polybus.http.session import HttpSession
from polybus.http.settings import HttpSettings
from polybus.http.site import Site
from polybus.model.clock import ManualClock
from polybus.protocols.zbus.options import ZbusOptions
from polybus.protocols.zbus.room import ZbusRoom
from polybus.protocols.zbus.wire import Message, MessageReader, encode_request
from polybus.transports.connection import Connections
from tests.core.memory_engine import MemoryEngine
from tests.protocols.wiretap import Peer

ADDRESS = "127.0.0.2:15555"


class Client:
    """One connection to the bus."""

    def __init__(self, bus: Bus, peer: str) -> None:
        self.bus = bus
        self.session: HttpSession | None = None

        def serve(connection: Any) -> HttpSession:
            self.session = HttpSession(bus.site, None, peer)
            return self.session

        self.peer = Peer(bus.connections, serve)
        self._reader = MessageReader()
        self._seen: list[Message] = []

    async def send(self, data: bytes, splits: Iterable[int] = ()) -> list[Message]:
        """Send bytes, let the bus work, and return what came back."""
        self.peer.send(data, splits)
        await settle()
        return self.received()

    async def ask(self, cmd: str, body: bytes = b"", **headers: str) -> list[Message]:
        """Send one command; `_` in front of a keyword keeps it free for Python."""
        named = {"cmd": cmd} | {k.strip("_"): v for k, v in headers.items()}
        return await self.send(encode_request(named, body))

    async def one(self, cmd: str, body: bytes = b"", **headers: str) -> Message:
        """Send one command that has exactly one answer."""
        (message,) = await self.ask(cmd, body, **headers)
        return message

    async def get(self, url: str, **headers: str) -> Message:
        """A plain HTTP GET."""
        lines = "".join(f"{k.replace('_', '-')}: {v}\r\n" for k, v in headers.items())
        (message,) = await self.send(f"GET {url} HTTP/1.1\r\n{lines}\r\n".encode())
        return message

    def received(self) -> list[Message]:
        """What came since the last look."""
        return self._reader.feed(self.peer.received())

    async def hang_up(self, exc: Exception | None = None) -> None:
        """Go; with an error as a connection that was reset."""
        if not self.peer.gone:
            self.peer.gone = True
            self.peer.tap.closed = True
            self.peer.connection.connection_lost(exc)
        await settle()


class Bus:
    """`async with Bus() as bus`."""

    def __init__(
        self,
        *,
        engine: MemoryEngine | None = None,
        http: HttpSettings | None = None,
        clock: ManualClock | None = None,
        policy: Policy | None = None,
        **options: Any,
    ) -> None:
        self.clock = clock or ManualClock()
        self.engine = engine or MemoryEngine()
        self.router = Router(self.clock, policy)
        self.topics = Topics(self.engine, self.clock)
        self.room = ZbusRoom(
            self.router, self.topics, ZbusOptions(**{"advertise": ADDRESS, **options})
        )
        self.site = Site(http)
        self.site.application = self.room.connect
        self.connections = Connections(self.clock)
        self._clients = 0

    async def __aenter__(self) -> Self:
        await self.engine.start()
        await self.topics.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.room.close()
        await self.topics.stop()

    def client(self, peer: str = "") -> Client:
        self._clients += 1
        return Client(self, peer or f"127.0.0.1:{40000 + self._clients}")

    async def tick(self, seconds: float = 0.1) -> None:
        now = self.clock.advance(seconds)
        self.router.tick(now)
        self.topics.tick(now)
        self.connections.tick(now)
        await settle()


async def settle() -> None:
    """Let everything that is due happen."""
    for _ in range(25):
        await asyncio.sleep(0)
