"""The protocol rooms as the node sees them: one list, in the order in which first bytes are judged.

Invariant: a room appears here once; the node beside it names none, but for the native wire's door to
programs in the same process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from polybus.core.endpoint import Identity
from polybus.core.router import Router
from polybus.core.subscriptions import PATTERNS
from polybus.core.topics import Topics
from polybus.protocols.gsb import wire as gsb_wire
from polybus.protocols.gsb.room import GsbOptions, GsbRoom
from polybus.protocols.gsb.session import GsbSession
from polybus.protocols.native import wire as native_wire
from polybus.protocols.native.session import NativeSession
from polybus.protocols.native.settings import Settings
from polybus.protocols.t2.room import T2Options, T2Room
from polybus.protocols.t2.session import T2Session
from polybus.protocols.t2.session import sniff as t2_sniff
from polybus.server.config import Config
from polybus.server.identity import identity_of
from polybus.transports.connection import Connection
from polybus.transports.outbox import Outbox
from polybus.transports.session import Session


def _nothing_pending() -> int:
    return 0


@dataclass(frozen=True, slots=True)
class Wire:
    """One protocol: how its first bytes look and who serves it."""

    name: str
    matches: Callable[[bytes], bool | None]
    serve: Callable[[Connection], Session]
    """Makes the session of a connection that is up."""
    pending: Callable[[], int] = _nothing_pending
    """Calls in flight that the room keeps in a table of its own instead of the core's."""


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
    router: Router, topics: Topics | None, config: Config, on_stop: Callable[[], None]
) -> dict[str, Wire]:
    """Every wire of a node by the name that pins it in an address.

    Args:
        topics: the durable half, on a node that has one.
        on_stop: called when a client whose wire can say so, and who may, stops the node.
    """
    found = (_native(router, topics, config), _gsb(router, config), _t2(router, config, on_stop))
    return {wire.name: wire for wire in found}


def _native(router: Router, topics: Topics | None, config: Config) -> Wire:
    def identify(connection: Connection, token: str) -> Identity:
        return identity_of(connection)

    settings = Settings(config.limits.max_frame, config.limits.forward_timeout, identify)
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

    return Wire("t2", t2_sniff, serve, room.pending.__len__)
