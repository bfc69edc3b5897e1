"""A native node whose network is lists of bytes: sessions, clients and the core behind them."""

from __future__ import annotations

from polybus.core.policy import Policy
from polybus.core.router import Router
from polybus.core.subscriptions import PATTERNS
from polybus.core.topics import Topics
from polybus.model.clock import ManualClock
from polybus.protocols.native import wire
from polybus.protocols.native.session import NativeSession
from polybus.protocols.native.settings import Settings
from polybus.protocols.native.wire import Frame
from polybus.transports.connection import Connection, Connections
from polybus.transports.outbox import Bounds
from tests.protocols.wiretap import Peer

HELLO = wire.PREFACE + wire.encode(
    wire.HELLO, 1, meta=wire.encode_meta(wire.Hello(versions=[wire.VERSION]))
)


class Room:
    """A node with a manual clock; `connect` gives clients."""

    def __init__(
        self,
        policy: Policy | None = None,
        settings: Settings | None = None,
        topics: Topics | None = None,
        clock: ManualClock | None = None,
        bounds: Bounds | None = None,
    ) -> None:
        self.clock = clock or ManualClock()
        self.router = Router(self.clock, policy)
        self.router.add_wire("native", PATTERNS)
        self.connections = Connections(self.clock, bounds or Bounds())
        self.settings = settings or Settings()
        self.topics = topics

    def session(self, connection: Connection) -> NativeSession:
        return NativeSession(connection, self.router, self.settings, self.topics)

    def client(self) -> Client:
        """A connection that has said nothing yet."""
        return Client(self)

    def connect(self) -> Client:
        """One that is greeted."""
        client = self.client()
        client.send(HELLO)
        client.tap.written.clear()
        return client

    def pass_time(self, seconds: float) -> None:
        now = self.clock.advance(seconds)
        self.router.tick(now)
        self.connections.tick(now)


class Client(Peer):
    """One client, by frames."""

    def __init__(self, room: Room) -> None:
        super().__init__(room.connections, room.session)
        self.room = room

    def say(
        self,
        kind: int,
        ident: int = 0,
        name: str = "",
        payload: bytes = b"",
        *,
        flags: int = 0,
        arg: int = 0,
        meta: object = None,
    ) -> None:
        """Send one frame."""
        raw = wire.encode_meta(meta) if meta is not None else b""
        self.send(wire.encode(kind, ident, name, payload, flags=flags, arg=arg, meta=raw))

    def heard(self) -> list[Frame]:
        """The frames that came since the last look."""
        return [wire.parse(frame) for frame in wire.Frames().feed(self.received())]

    def one(self) -> Frame:
        """The only frame that came since the last look."""
        (frame,) = self.heard()
        return frame

    def ask(self, kind: int, ident: int, name: str = "", payload: bytes = b"") -> Frame:
        """Send a frame and take the one that answers it."""
        self.say(kind, ident, name, payload)
        return self.one()

    def serve(self, name: str) -> None:
        assert self.ask(wire.REGISTER, 1000, name).kind == wire.OK
