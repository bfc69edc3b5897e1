"""A running polybus: builds the parts, joins them, runs, drains and stops them.

Invariant: this is the only module that knows all the parts. After `stop` returns nothing of the node is
left: no task, no socket, no file.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from polybus.core.endpoint import Endpoint
from polybus.core.policy import Policy
from polybus.core.router import Router
from polybus.core.topics import Topics
from polybus.errors import ConfigError, StorageError
from polybus.model.clock import Clock, SystemClock
from polybus.monitor.durations import Histogram
from polybus.monitor.monitor import Monitor
from polybus.monitor.sources import Sources
from polybus.protocols.native.local import close_door, open_door
from polybus.protocols.zbus.wire import WIRE as ZBUS
from polybus.server.access import Access
from polybus.server.config import Config
from polybus.server.config import Policy as PolicySettings
from polybus.server.health import Health, LoopLag, State
from polybus.server.metrics import Metrics, TimedFiles
from polybus.server.recording import Recording
from polybus.server.wires import Pinned, Wire, wires
from polybus.storage.engine import EmbeddedEngine
from polybus.transports.connection import Connection, Connections, SessionFactory
from polybus.transports.linger import Linger, processors
from polybus.transports.listener import Listener
from polybus.transports.memory import connect_memory
from polybus.transports.outbox import Bounds, Budget, KiB
from polybus.transports.session import Session
from polybus.transports.sniff import Patience, Rule, Sniffer
from polybus.transports.tls import server_context
from polybus.transports.url import Address, parse_address

log = logging.getLogger("polybus.node")

TICK: Final = 0.1  # seconds; how late a call's deadline may be noticed
SESSION_TICKS: Final = 10  # sessions count in seconds, so each gets every tenth tick
SESSION_TURNS: Final = 5  # in which a tick goes through its part of the sessions
DRAIN_POLL: Final = 0.02
DRAIN_SHARE: Final = 0.9  # of `limits.drain`; the rest is for what ends after the calls
FIRST_PIECE: Final = 64 * KiB  # of a new peer's input, at once: some 5,000 small frames


class Node:
    """The whole bus in one object: `async with Node(config) as node: …`."""

    def __init__(
        self,
        config: Config | None = None,
        *,
        clock: Clock | None = None,
        policy: Policy | None = None,
        name: str = "",
    ) -> None:
        """Take the settings and check all that can be checked without touching the network.

        Args:
            name: While the node runs, `memory:NAME` leads to it inside this process.

        Raises:
            ConfigError: a bad address, an unknown protocol pin, or an unusable TLS file.
        """
        self.config = config or Config()
        self.name = name
        self.clock = clock or SystemClock()
        self.access = Access(self.config.policy, policy)
        self.router = Router(self.clock, self.access.policy, max_names=self.config.limits.names)
        self.access.join(self.router)
        self.engine: EmbeddedEngine | None = None
        self.topics: Topics | None = None
        syncs = Histogram()
        if self.config.data is not None:
            self.engine = EmbeddedEngine(self.config.data, self.clock, files=TimedFiles(syncs))
            self.topics = Topics(self.engine, self.clock)
        limits = self.config.limits
        self.connections = Connections(
            self.clock,
            Bounds(
                pending_bytes=limits.pending_bytes,
                write_timeout=limits.write_timeout,
                slow_subscriber=limits.slow_subscriber,
            ),
            Budget(limits.memory_budget),
            FIRST_PIECE,
        )
        if limits.linger and processors() > 1:
            self.connections.linger = Linger(self.clock, limits.linger, self._threads_work)
        self.recording = Recording(self.router, self.topics, self.config)
        self.connections.on_refused = self.recording.refused
        self.monitor = Monitor(self._sources())
        self._stop_requested = asyncio.Event()
        self.wires: dict[str, Wire] = wires(
            self.router,
            self.topics,
            self.config,
            self.access,
            self._stop_requested.set,
            (self.monitor, Metrics(self.monitor, syncs)),
        )
        self._patience = Patience(limits.first_byte, limits.decide)
        self._listeners = [self._listener(parse_address(text)) for text in self.config.listen]
        self._lag = LoopLag()
        self._state: State = "new"
        self._ticking: asyncio.Task[None] | None = None
        self._released = False
        self._hurried = False

    # -- life ------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the data folder and listen on every address; when this returns, all of them accept.

        Raises:
            ConfigError: an address is taken or cannot be bound.
            StorageError: the data folder cannot be used. In either case nothing is left open.
        """
        try:
            if self.engine is not None and self.topics is not None:
                await self.engine.start()
                await self.topics.start()
            await self.recording.start()
            for listener in self._listeners:
                await listener.start()
            for wire in self.wires.values():
                await wire.start(self.addresses)
        except BaseException:
            await self._release()
            raise
        self.router.chores.later = asyncio.get_running_loop().call_soon
        self._ticking = asyncio.create_task(self._tick(), name="polybus tick")
        self.monitor.start()
        open_door(self.connect_memory, self.name)
        self._state = "ready"

    async def wait(self) -> None:
        """Return when a client has stopped the node, or raise what ended it from within."""
        assert self._ticking is not None, "the node was not started"
        asked = asyncio.create_task(self._stop_requested.wait())
        try:
            await asyncio.wait((asked, self._ticking), return_when=asyncio.FIRST_COMPLETED)
        finally:
            asked.cancel()
        if self._ticking.done():
            self._ticking.result()

    async def drain(self) -> None:
        """Take nothing new and let what is in flight finish; `stop` then ends within `limits.drain`."""
        if self._state != "ready":
            return
        self._state = "draining"
        close_door(self.connect_memory, self.name)
        for listener in self._listeners:
            # Who comes now is refused at once instead of waiting for nothing, and may find another node here.
            await listener.stop()
        self.router.drain()
        # Sessions whose wire can say goodbye do so at their next tick.
        self.connections.tick(self.clock.monotonic())
        within_s = self.config.limits.drain * DRAIN_SHARE
        if self.pending_calls:
            log.info("waiting up to %.3g s for %d calls in flight", within_s, self.pending_calls)
        await _becomes(lambda: self._hurried or not self.pending_calls, within_s)
        if self.pending_calls:
            log.warning("%d calls were given up when the drain ended", self.pending_calls)

    def hurry(self) -> None:
        """Give up what is in flight: a drain ends at once, and so does one that begins later."""
        self._hurried = True

    async def stop(self) -> None:
        """Drain, close every connection, and give all that was taken free. May be called twice."""
        await self.drain()
        self._state = "stopped"
        await self._settle_produced()
        await self.connections.close_all("node stopped")
        if self._ticking is not None:
            self._ticking.cancel()
            await asyncio.gather(self._ticking, return_exceptions=True)
        await self._release()

    async def _settle_produced(self) -> None:
        """Take no more input and let the producers have their acknowledgements."""
        for connection in tuple(self.connections.open):
            connection.outbox.pause_reading()
        if self.engine is not None and self._ticking is not None and not self._ticking.done():
            self.recording.tick()
            try:
                await self.engine.move_all()
            except (StorageError, OSError) as exc:
                log.warning("stopping while the disk does not take data: %s", exc)

    def _threads_work(self) -> bool:
        return self.engine is not None and self.engine.works

    async def _release(self) -> None:
        if self._released:
            return
        self._released = True
        for listener in self._listeners:
            await listener.stop()
        await self.monitor.stop()
        for wire in self.wires.values():
            await wire.stop()
        self.router.chores.finish()
        if self.engine is not None and self.topics is not None:
            await self.topics.stop()
            await self.engine.stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    # -- permissions -----------------------------------------------------------------------------

    def take_policy(self, settings: PolicySettings) -> None:
        """Go by other rules, tokens and limits from now on.

        Who holds a name, a subscription or a place in a group that the new rules do not allow is disconnected, and
        learns why when it asks again.

        Raises:
            ConfigError: something in them is wrong; the old ones stay.
        """
        self.access.replace(settings)
        for endpoint in tuple(self.router.endpoints):
            if not self._may_stay(endpoint):
                log.info("%s of %s does not go by the new rules", endpoint.peer, endpoint.identity)
                endpoint.close("the rules have changed")

    def _may_stay(self, endpoint: Endpoint) -> bool:
        if endpoint.identity.kind == "local":
            return True
        if not self.access.knows(endpoint.identity) or not self.router.may_keep(endpoint):
            return False
        # A Zbus client is asked at each consume, by the token of that request.
        consumed = self.topics.groups.topics_of(endpoint) if self.topics is not None else []
        return endpoint.wire == ZBUS or all(
            self.router.policy.may(endpoint.identity, "consume", topic) for topic in consumed
        )

    # -- faces -----------------------------------------------------------------------------------

    @property
    def addresses(self) -> list[Address]:
        """Where the node listens, with the ports that were really taken."""
        return [listener.address for listener in self._listeners]

    @property
    def notes(self) -> list[str]:
        """What a wire has to say beside the addresses, such as where its own server listens."""
        found = [note for wire in self.wires.values() for note in wire.notes()]
        return [*found, *filter(None, [self.access.note(self.addresses)])]

    @property
    def pending_calls(self) -> int:
        """Calls that wait for an answer, on any wire."""
        return self.router.calls.pending + sum(wire.pending() for wire in self.wires.values())

    def health(self) -> Health:
        """The node at this moment."""
        return Health(
            self._state, len(self.connections.open), self.pending_calls, self._lag.worst_s
        )

    def connect_memory(
        self, client: Connections, factory: SessionFactory, pin: str = ""
    ) -> Connection:
        """Join a client's session to this node inside the process; returns the client's connection.

        Args:
            client: The registry that the client's side belongs to.
            factory: Makes the client's session.
            pin: The protocol, as in an address; told from the first bytes when empty.
        """
        near, _far = connect_memory(self.connections, self._session_factory(pin), client, factory)
        return near

    # -- parts -----------------------------------------------------------------------------------

    def _sources(self) -> Sources:
        return Sources(
            router=self.router,
            connections=self.connections,
            topics=self.topics,
            health=self.health,
            addresses=lambda: [str(address) for address in self.addresses],
            data=self.config.data,
        )

    def _listener(self, address: Address) -> Listener:
        asked = address.options or address.scheme == "tls"
        tls = server_context(**address.options) if asked else None
        factory = self._session_factory(address.pin)
        return Listener(address, self.connections, factory, tls, self._patience)

    def _session_factory(self, pin: str) -> SessionFactory:
        if pin and pin not in self.wires:
            known = ", ".join(self.wires)
            raise ConfigError(f"unknown protocol {pin!r} before the +; known are {known}")
        rules = [Rule(w.name, w.matches, w.serve) for w in self.wires.values()]

        def session(connection: Connection) -> Session:
            if pin:
                return Pinned(connection, self.wires[pin])
            return Sniffer(connection, rules, self._patience)

        return session

    async def _tick(self) -> None:
        count = 0
        while True:
            self._lag.expect(self.clock.monotonic() + TICK)
            await asyncio.sleep(TICK)
            now = self.clock.monotonic()
            self._lag.observe(now)
            self.router.tick(now)
            self.recording.tick()
            if self.topics is not None:
                self.topics.tick(now)
                await asyncio.sleep(0)  # groups and connections may be thousands: a turn for each
            for turn in range(SESSION_TURNS):
                part = count % SESSION_TICKS * SESSION_TURNS + turn
                self.connections.tick(now, part, SESSION_TICKS * SESSION_TURNS)
                await asyncio.sleep(0)
            count += 1


async def _becomes(condition: Callable[[], bool], within_s: float) -> bool:
    """Whether a condition comes true in time.

    Polled, since it is asked once in a node's life: an event would be paid for at every call.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + within_s
    while not condition() and loop.time() < until:  # noqa: ASYNC110
        await asyncio.sleep(DRAIN_POLL)
    return condition()
