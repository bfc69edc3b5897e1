"""The protocol rooms as the node sees them: one list, in the order in which first bytes are judged.

Invariant: a room appears here once; the node beside it names none, but for the native wire's door to
programs in the same process.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from polybus.core.router import Router
from polybus.core.subscriptions import PATTERNS
from polybus.core.topics import Topics
from polybus.http.head import sniff as http_sniff
from polybus.http.session import HttpSession
from polybus.http.settings import HttpSettings
from polybus.http.site import Site
from polybus.monitor.monitor import Monitor
from polybus.protocols.gsb import wire as gsb_wire
from polybus.protocols.gsb.room import GsbOptions, GsbRoom
from polybus.protocols.gsb.session import GsbSession
from polybus.protocols.native import wire as native_wire
from polybus.protocols.native.session import NativeSession
from polybus.protocols.native.settings import Settings
from polybus.protocols.t2.room import T2Options, T2Room
from polybus.protocols.t2.session import T2Session
from polybus.protocols.t2.session import sniff as t2_sniff
from polybus.protocols.zbus.options import ZbusOptions
from polybus.protocols.zbus.room import ZbusRoom
from polybus.protocols.zbus.uplink import Uplinks
from polybus.server.access import Access
from polybus.server.config import Config
from polybus.server.identity import identity_of
from polybus.server.metrics import Metrics
from polybus.server.watching import trackers_of, twins_of
from polybus.transports.connection import Connection
from polybus.transports.outbox import Outbox
from polybus.transports.session import Session
from polybus.transports.url import Address

if TYPE_CHECKING:
    from polybus.protocols.rmb.room import RmbRoom


def _nothing_pending() -> int:
    return 0


async def _nothing_to_start(addresses: Sequence[Address]) -> None:
    pass


async def _nothing_to_stop() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Wire:
    """One protocol: how its first bytes look and who serves it."""

    name: str
    matches: Callable[[bytes], bool | None]
    serve: Callable[[Connection], Session]
    """Makes the session of a connection that is up."""
    pending: Callable[[], int] = _nothing_pending
    """Calls in flight that the room keeps in a table of its own instead of the core's."""
    start: Callable[[Sequence[Address]], Awaitable[None]] = _nothing_to_start
    """Told where the node listens, once it does."""
    stop: Callable[[], Awaitable[None]] = _nothing_to_stop
    """Ends what the room runs by itself."""
    notes: Callable[[], Sequence[str]] = tuple
    """What else to say once the node runs, a line each."""


class Pinned:
    """Stands in for the session of a pinned listener until the connection is up.

    A session is made from the peer's identity, which only an open connection has.
    """

    def __init__(self, connection: Connection, wire: Wire) -> None:
        self._connection = connection
        self._wire = wire

    def connection_made(self, outbox: Outbox) -> None:
        self._connection.session = self._wire.serve(self._connection)
        self._connection.session.connection_made(outbox)

    # Nothing but `connection_made` can come first.
    def data_received(self, data: bytes) -> None:
        raise AssertionError("data before the connection was made")

    def eof_received(self) -> None:
        raise AssertionError("end of data before the connection was made")

    def connection_lost(self, exc: Exception | None) -> None:
        raise AssertionError("end before the connection was made")

    def tick(self, now: float) -> None:
        raise AssertionError("tick before the connection was made")


def wires(
    router: Router,
    topics: Topics | None,
    config: Config,
    access: Access,
    on_stop: Callable[[], None],
    faces: Sequence[Monitor | Metrics] = (),
) -> dict[str, Wire]:
    """Every wire of a node by the name that pins it in an address.

    Args:
        topics: the durable half, on a node that has one.
        access: who clients are, and what they may.
        faces: what people and programs look at the node through, served over HTTP.
        on_stop: called when a client whose wire can say so, and who may, stops the node.
    """
    found = [_native(router, topics, config, access)]
    twin = None
    if config.rmb.twin:
        # Imported here: what it needs comes with an extra.
        from polybus.server.twin import rmb_room, rmb_wire

        twin = rmb_room(router, config)
        found.append(rmb_wire(twin, on_stop))
    found += [
        _http(router, topics, config, access, faces, twin),
        _gsb(router, config),
        _t2(router, config, on_stop),
    ]
    return {wire.name: wire for wire in found}


def _native(router: Router, topics: Topics | None, config: Config, access: Access) -> Wire:
    limits = config.limits
    settings = Settings(limits.max_frame, limits.forward_timeout, access.identify)
    router.add_wire(NativeSession.wire, PATTERNS)

    def serve(connection: Connection) -> Session:
        return NativeSession(connection, router, settings, topics)

    return Wire("native", native_wire.matches, serve)


def _gsb(router: Router, config: Config) -> Wire:
    limits = config.limits
    options = GsbOptions(limits.max_frame, config.gsb.ping_timeout, limits.forward_timeout)
    room = GsbRoom(router, options)

    def serve(connection: Connection) -> Session:
        return GsbSession(room, identity_of(connection), connection.peer)

    def pending() -> int:
        return sum(e.in_flight for e in router.endpoints if isinstance(e, GsbSession))

    return Wire("gsb", gsb_wire.sniff, serve, pending)


def _t2(router: Router, config: Config, on_stop: Callable[[], None]) -> Wire:
    room = T2Room(router, T2Options(config.t2.matching, config.t2.stop), on_stop)

    def serve(connection: Connection) -> Session:
        return T2Session(room, identity_of(connection), connection.peer)

    return Wire("t2", t2_sniff, serve, room.in_flight)


def _http(
    router: Router,
    topics: Topics | None,
    config: Config,
    access: Access,
    faces: Sequence[Monitor | Metrics],
    twin: RmbRoom | None = None,
) -> Wire:
    """Everything that begins with an HTTP method; Zbus clients do too."""
    name = config.zbus.advertise.rpartition(":")[0].lower()
    hosts = {"localhost", socket.gethostname().lower(), name, *map(str.lower, config.http.hosts)}
    origins = tuple(map(str.lower, config.http.origins))
    site = Site(
        HttpSettings(max_body=config.http.max_body, origins=origins, hosts=frozenset(hosts))
    )

    site.identify = access.who_asks
    site.guard = access.guard(router)
    site.wants_token = access.wants_token
    sources = [face.sources for face in faces if isinstance(face, Monitor)]
    for face in faces:
        face.register(site)
    if twin is not None:
        twin.remote.register(site)
        for each in sources:
            each.twins = partial(twins_of, twin)

    def serve(connection: Connection) -> Session:
        return HttpSession(site, identity_of(connection), connection.peer)

    if topics is None:
        return Wire("http", http_sniff, serve)
    room = ZbusRoom(router, topics, _zbus_options(config), access)
    access.other = room.tokens.rule
    site.application = room.connect
    for each in sources:
        each.trackers = partial(trackers_of, room)
    uplinks = Uplinks(room)

    async def start(addresses: Sequence[Address]) -> None:
        if not config.zbus.advertise:
            room.advertise, room.ssl = _reachable(addresses)
        uplinks.start()

    async def stop() -> None:
        await uplinks.stop()
        room.close()

    return Wire("http", http_sniff, serve, room.pending, start, stop)


def _zbus_options(config: Config) -> ZbusOptions:
    zbus = config.zbus
    advertise = zbus.advertise.removeprefix("[SSL]")
    return ZbusOptions(
        advertise=advertise,
        ssl=advertise != zbus.advertise,
        masks=zbus.masks,
        filters=zbus.filters,
        rpc_urls=zbus.rpc_urls,
        deduplicate=zbus.deduplicate,
        trackers=zbus.trackers,
        tokens=zbus.tokens,
        certificate=zbus.certificate,
        max_body=config.http.max_body,
    )


def _reachable(addresses: Sequence[Address]) -> tuple[str, bool]:
    """What clients can connect to, and whether that speaks TLS only."""
    for address in addresses:
        if address.scheme != "unix" and address.pin in ("", "http"):
            host = address.host
            if host in ("0.0.0.0", "::"):
                host = _own_address()
            return f"{host}:{address.port}", address.scheme == "tls"
    return "127.0.0.1:15555", False


def _own_address() -> str:
    """The address of this machine that others most likely reach it by; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        found: str = probe.getsockname()[0]
        return found
