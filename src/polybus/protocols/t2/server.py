"""A T2 bus inside a program, as the original's `ServerBuilder` gives one.

    stopper, connector = await ServerBuilder().serve_unix_socket("my_bus").serve_memory().build()

Invariant: the server lives until it is stopped: by `stop()`, by leaving the stopper's context, by dropping the stopper,
or by a client's Stop; then all its listeners and connections are closed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import weakref
from types import TracebackType
from typing import Final, Self

from polybus.core.endpoint import ANONYMOUS, Identity
from polybus.core.router import Router
from polybus.errors import RemoteProtocolError
from polybus.model.clock import SystemClock
from polybus.protocols.t2.client import Connector, split_host
from polybus.protocols.t2.room import T2Options, T2Room
from polybus.protocols.t2.session import T2Session
from polybus.transports.connection import Connection, Connections, SessionFactory
from polybus.transports.listener import Listener
from polybus.transports.memory import connect_memory
from polybus.transports.outbox import Outbox
from polybus.transports.session import Session
from polybus.transports.tls import server_context
from polybus.transports.url import Address

log = logging.getLogger("polybus.t2.server")  # in the words of the original's program

TICK: Final = 1.0  # seconds


class ServerBuilder:
    """Collects where a bus listens; `build` starts it."""

    def __init__(self, options: T2Options | None = None) -> None:
        self._options = options or T2Options()
        self._addresses: list[Address] = []
        self._memory = False

    def serve_unix_socket(self, path: str | os.PathLike[str]) -> Self:
        """Listen on a Unix socket; a stale one is replaced, any other file there is left alone."""
        self._addresses.append(Address("unix", path=os.path.abspath(path)))
        return self

    def serve_tcp(self, address: str) -> Self:
        """Listen on `host:port`; port 0 takes a free one."""
        host, port = split_host(address)
        self._addresses.append(Address("tcp", host, port))
        return self

    def serve_tls(self, address: str, *, cert: str, key: str, ca: str) -> Self:
        """Listen on `host:port` for clients whose certificate `ca` has signed; all three are PEM files."""
        host, port = split_host(address)
        options = {"cert": cert, "key": key, "ca": ca}
        self._addresses.append(Address("tls", host, port, options=options))
        return self

    def serve_memory(self) -> Self:
        """Let clients of this process connect without a socket."""
        self._memory = True
        return self

    async def build(self) -> tuple[Stopper, Connector | None]:
        """Start the bus; its stopper, and the connector for clients of this process if it was asked for.

        Raises:
            ConfigError: an address is taken or cannot be used; nothing is left open then.
        """
        server = Server(self._options, self._addresses)
        await server.start()
        connector = Connector(server.connect, self._options.matching) if self._memory else None
        return Stopper(server), connector


class Server:
    """A running bus; held by its own task until it is stopped."""

    def __init__(self, options: T2Options, addresses: list[Address]) -> None:
        clock = SystemClock()
        self._router = Router(clock)
        self._clock = clock
        self._connections = Connections(clock)
        self._stop = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._room = T2Room(self._router, options, self._stop.set)
        self._listeners = [self._listener(address) for address in addresses]
        self._running: asyncio.Task[None] | None = None

    def _listener(self, address: Address) -> Listener:
        tls = server_context(**address.options) if address.options else None
        return Listener(address, self._connections, self._session, tls)

    def _session(self, connection: Connection) -> Session:
        return EmbeddedSession(self._room, connection)

    async def start(self) -> None:
        started: list[Listener] = []
        try:
            for listener in self._listeners:
                await listener.start()
                started.append(listener)
        except BaseException:
            for listener in started:
                await listener.stop()
            raise
        self._running = self._loop.create_task(self._run(), name="t2 server")

    async def connect(self, client: Connections, factory: SessionFactory) -> Connection:
        """Join a client of this process."""
        near, _far = connect_memory(self._connections, self._session, client, factory)
        return near

    @property
    def addresses(self) -> list[Address]:
        return [listener.address for listener in self._listeners]

    def stop(self) -> None:
        """Ask for the end; from any thread, at any time."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stop.set)

    async def join(self) -> None:
        """Return when everything is closed."""
        assert self._running is not None
        await asyncio.shield(self._running)

    async def _run(self) -> None:
        stopped = self._loop.create_task(self._stop.wait())
        while not stopped.done():
            await asyncio.wait((stopped,), timeout=TICK)
            now = self._clock.monotonic()
            self._router.tick(now)
            self._connections.tick(now)
        for listener in self._listeners:
            await listener.stop()
        await self._connections.close_all("the server has stopped")


class EmbeddedSession(T2Session):
    """A session that learns who its peer is when the connection is up."""

    __slots__ = ("_connection",)

    def __init__(self, room: T2Room, connection: Connection) -> None:
        # A Unix socket or this very process: as local as can be.
        local = connection.transport_kind in ("memory", "unix")
        super().__init__(room, Identity("local") if local else ANONYMOUS)
        self._connection = connection

    def connection_made(self, outbox: Outbox) -> None:
        self.peer = self._connection.peer
        if self._connection.transport_kind in ("tcp", "tls"):
            log.info("Accepted connection from %s", self.peer)
        log.info("Client #%d connected", self.number)
        super().connection_made(outbox)

    def data_received(self, data: bytes) -> None:
        try:
            super().data_received(data)
        except RemoteProtocolError as exc:
            log.info("Client #%d: Error: %s", self.number, exc.text)
            raise

    def connection_lost(self, exc: Exception | None) -> None:
        log.info("Client #%d disconnected", self.number)
        super().connection_lost(exc)


class Stopper:
    """Ends a bus: by `stop()`, by leaving its context, or by being dropped."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._dropped = weakref.finalize(self, server.stop)
        self._dropped.atexit = False

    @property
    def addresses(self) -> list[Address]:
        """Where the bus listens, with the ports that were really taken."""
        return self._server.addresses

    def stop(self) -> None:
        """Stop the bus; `join` tells when it has stopped. May be called twice."""
        self._dropped()

    async def join(self) -> None:
        """Return when the bus has stopped, whoever stopped it."""
        await self._server.join()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        await self.join()
