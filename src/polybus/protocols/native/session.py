"""The node's side of the native wire: the live verbs.

Invariant: every request with an id gets exactly one end (Ok, Error or a final Reply), whatever happens to others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Final

from polybus._version import __version__
from polybus.core.router import Router
from polybus.core.toll import Toll
from polybus.core.topics import Topics
from polybus.errors import (
    LimitExceeded,
    LocalProtocolError,
    PolybusError,
    RemoteProtocolError,
)
from polybus.model.message import NO_HEADERS, Call, Publication, Reply, Status
from polybus.model.record import Delivery
from polybus.protocols.native import wire
from polybus.protocols.native.durable import Durable
from polybus.protocols.native.names import WIRE, to_pattern, to_service
from polybus.protocols.native.party import Batch, NativeParty
from polybus.protocols.native.questions import ask
from polybus.protocols.native.settings import DEFAULTS, Settings
from polybus.protocols.native.wire import Frame
from polybus.transports.connection import Connection
from polybus.transports.outbox import Outbox, Pause

HELLO_TIMEOUT: Final = 10.0  # seconds from the connection to the client's Hello
PING_AFTER: Final = 60.0  # of silence; a client that lives answers
CLOSE_AFTER: Final = 180.0
STATUSES: Final = tuple(Status)

Head = tuple[int, int, int, int, int, int, int]
"""Length, kind, flags, name size, id, argument, meta size."""


class NativeSession(NativeParty):
    """Session and endpoint in one."""

    __slots__ = (
        "_connection",
        "_durable",
        "_frames",
        "_goodbye_said",
        "_goodbyes",
        "_greeted",
        "_heard",
        "_heard_at",
        "_preface",
        "_resting",
        "_toll",
        "_topics",
        "lists",
    )

    def __init__(
        self,
        connection: Connection,
        router: Router,
        settings: Settings = DEFAULTS,
        topics: Topics | None = None,
    ) -> None:
        super().__init__(router, settings)
        self._topics = topics
        self._durable: Durable | None = None
        self._connection = connection
        self._frames = wire.Frames(settings.max_frame)
        self._preface: bytes | None = b""
        self._heard = True
        self._heard_at = 0.0
        self._greeted = False
        self._goodbye_said = False
        self._goodbyes: list[int] = []
        """Those of the client that are answered once all its names are given up."""
        self._toll = Toll()
        self._resting = False
        """Whether its input waits because its topics were too costly to match."""
        self.lists: list[int] = []
        """The Asks for a list of services that are not answered yet; the first of them is being made."""

    # -- Session -------------------------------------------------------------------------------------------------------

    def connection_made(self, outbox: Outbox) -> None:
        self.outbox = outbox
        outbox.input = self._frames
        self.peer = self._connection.peer
        self._heard_at = self._connection.opened_at

    def data_received(self, data: bytes) -> None:
        self._heard = True
        if self._preface is not None:
            data = self._take_preface(self._preface + data)
        traffic = self.traffic
        traffic.bytes_in += len(data)
        if self._resting:
            self._frames.keep(data)  # what was on its way when reading was paused
            return
        self._take_frames(data)

    def _take_frames(self, data: bytes) -> None:
        traffic = self.traffic
        batch = self.batch = Batch()
        frames = self._frames.feed(data)
        try:
            for frame in frames:
                traffic.messages_in += 1
                head = wire.unpack_head(frame)
                if wire.HEAD + head[3] + head[6] > len(frame):
                    raise RemoteProtocolError("name and meta are longer than their frame")
                hot = HOT.get(head[1])
                if hot is not None and self._greeted:
                    hot(self, frame, head)
                else:
                    self._handle(wire.parse(frame))
                if self._resting:
                    frames.close()  # the rest stays where it is
        except RemoteProtocolError as exc:
            self.send(wire.encode_error(0, exc))
            raise
        finally:
            self.batch = None
            batch.flush()

    def eof_received(self) -> None:
        pass

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._held = None
        self.router.detach(self)
        if self._durable is not None:
            self._durable.left()
        self._made.clear()
        self._taken.clear()

    def tick(self, now: float) -> None:
        if not self._greeted:
            if now - self._connection.opened_at > HELLO_TIMEOUT:
                self.outbox.close("no Hello")
            return
        if self._heard or self._resting:
            self._heard = False
            self._heard_at = now
        silent = now - self._heard_at
        if silent > CLOSE_AFTER:
            self.outbox.abort("silent for too long")
        elif silent > PING_AFTER:
            self.send(wire.encode(wire.PING))
        if self.router.draining and not self._goodbye_said:
            self._goodbye_said = True
            self.send(wire.encode(wire.GOODBYE, 0, "", b"the node is stopping"))
        if self._held:
            for call in self._held.expire(now):
                self._stall(call)
        if self._toll.pay() and self._resting and not self.outbox.closing:
            self._resting = False
            self.outbox.resume_reading(Pause.DEBT)
            self._take_frames(b"")
        if self._resting:
            self.send(wire.encode(wire.PING))  # its own pings wait with the rest of its input

    # -- durable topics ------------------------------------------------------------------------------------------------

    def durable(self) -> Durable:
        """The durable side, made when it is first asked for: most clients never do.

        Raises:
            LocalProtocolError: this node has no durable topics.
        """
        if self._durable is None:
            if self._topics is None:
                raise LocalProtocolError("this node has no durable topics")
            self._durable = Durable(self, self._topics)
        return self._durable

    def deliver_record(self, delivery: Delivery) -> None:
        self.durable().deliver(delivery)

    # -- what is hot ---------------------------------------------------------------------------------------------------

    def _call(self, frame: bytes, head: Head) -> None:
        _length, _kind, flags, name_size, ident, arg, meta_size = head
        meta_at = wire.HEAD + name_size
        made = self._made
        if ident in made:
            raise RemoteProtocolError(f"the id {ident} is in use by another call")
        call = Call(
            self,
            wire.to_text(frame[wire.HEAD : meta_at]),
            None,
            token=ident,
            deadline=self.router.clock.monotonic() + arg / 1000 if arg else None,
            headers=_headers(frame, meta_at, meta_size) if meta_size else NO_HEADERS,
            wants_reply=ident != 0 and not flags & wire.NO_REPLY,
            wire=WIRE,
            frame=frame,
            decode=wire.payload_of,
        )
        if call.wants_reply:
            made[ident] = call  # before it is routed: its answer may come while `Router.call` runs
        try:
            self.router.call(call)
        except PolybusError as exc:
            made.pop(ident, None)
            self.answer_error(ident if call.wants_reply else 0, exc)

    def _reply(self, frame: bytes, head: Head) -> None:
        _length, _kind, flags, name_size, ident, arg, meta_size = head
        if arg >= len(STATUSES):
            raise RemoteProtocolError(f"unknown status {arg}")
        call = self._taken.get(ident)
        if call is None:
            return  # late, or cancelled meanwhile
        final = not flags & wire.MORE
        if final:
            del self._taken[ident]
        self.router.reply(
            Reply(
                call,
                None,
                STATUSES[arg],
                final=final,
                headers=_headers(frame, wire.HEAD + name_size, meta_size)
                if meta_size
                else NO_HEADERS,
                wire=WIRE,
                frame=frame,
                decode=wire.payload_of,
            )
        )

    def _produce(self, frame: bytes, head: Head) -> None:
        try:
            self.durable().produce(frame, head)
        except LocalProtocolError as exc:
            self.answer_error(head[4], exc)

    def _publish(self, frame: bytes, head: Head) -> None:
        _length, _kind, _flags, name_size, ident, _arg, meta_size = head
        meta_at = wire.HEAD + name_size
        text = wire.to_text(frame[wire.HEAD : meta_at])
        headers = _headers(frame, meta_at, meta_size) if meta_size else NO_HEADERS
        router = self.router
        before = router.visited
        try:
            topic = _checked_topic(text)
            taken = router.publish(
                Publication(
                    self,
                    topic,
                    topic,
                    None,
                    headers=headers,
                    wire=WIRE,
                    frame=wire.as_publication(frame),
                    decode=wire.payload_of,
                )
            )
        except PolybusError as exc:
            self.answer_error(ident, exc)
        else:
            self.answer(ident, {"receivers": taken})
            if router.visited != before and self._toll.charge_walk(router.visited - before):
                self._resting = True
                self.outbox.pause_reading(Pause.DEBT)

    # -- the rest ------------------------------------------------------------------------------------------------------

    def _handle(self, frame: Frame) -> None:
        handler = HANDLERS.get(frame.kind)
        if handler is None and frame.kind not in HOT:
            raise RemoteProtocolError(f"unknown kind of frame {frame.kind:#04x}")
        if handler is None or self._greeted != (frame.kind != wire.HELLO):
            raise RemoteProtocolError("the first frame, and no other, is a Hello")
        try:
            handler(self, frame)
        except RemoteProtocolError:
            raise
        except PolybusError as exc:
            self.answer_error(frame.id, exc)

    def _take_preface(self, data: bytes) -> bytes:
        verdict = wire.take_preface(data)
        if verdict is None:
            self._preface = data
            return b""
        self.send(wire.PREFACE)
        if not verdict:
            raise RemoteProtocolError(f"unknown preface {data[:5].hex(' ')}")
        self._preface = None
        return data[len(wire.PREFACE) :]

    def _hello(self, frame: Frame) -> None:
        hello = wire.parse_meta(frame.meta, wire.Hello)
        if wire.VERSION not in hello.versions:
            raise RemoteProtocolError(
                f"no version in common: it speaks {hello.versions}, this node {[wire.VERSION]}"
            )
        try:
            self.identity = self._settings.identify(self._connection, hello.token)
            self.router.attach(self)
        except PolybusError as exc:
            self.send(wire.encode_error(frame.id, exc))
            limited = isinstance(exc, LimitExceeded)
            self.outbox.close("too many connections" if limited else "not authorized")
            return
        self._max_peer_frame = min(self._settings.max_frame, max(hello.max_frame, wire.HEAD))
        self._greeted = True
        answer = wire.Hello(
            versions=[wire.VERSION],
            agent=f"polybus/{__version__}",
            features=["durable"] if self._topics is not None else [],
            max_frame=self._settings.max_frame,
            identity=str(self.identity),
        )
        self.send(wire.encode(wire.HELLO, frame.id, meta=wire.encode_meta(answer)))

    def _register(self, frame: Frame) -> None:
        self.router.register(self, to_service(frame.name), frame.name)
        self.answer(frame.id)

    def _unregister(self, frame: Frame) -> None:
        self.answer(frame.id, {"removed": self.router.unregister(self, frame.name)})

    def _cancel(self, frame: Frame) -> None:
        call = self._made.pop(frame.id, None)
        if call is not None:
            self.router.cancel(call)

    def _subscribe(self, frame: Frame) -> None:
        topic = to_pattern(frame.name)
        self.router.subscribe(self, topic, topic)
        self.answer(frame.id)

    def _unsubscribe(self, frame: Frame) -> None:
        removed = self.router.unsubscribe(self, frame.name, frame.name)
        self.answer(frame.id, {"removed": removed})

    def _ping(self, frame: Frame) -> None:
        self.send(wire.encode(wire.PONG, frame.id))

    def _pong(self, frame: Frame) -> None:
        pass  # any frame is a sign of life

    def _goodbye(self, frame: Frame) -> None:
        self._goodbyes.append(frame.id)
        if len(self._goodbyes) == 1:
            self.router.chores.add(self._give_names_up())

    def _give_names_up(self) -> Iterator[None]:
        while names := tuple(self.registrations or ()):
            for name in names:
                self.router.unregister(self, name)
                yield
        for ident in self._goodbyes:
            self.answer(ident)
        self._goodbyes.clear()


_checked_topic = lru_cache(maxsize=4096)(to_pattern)  # publishers repeat their topics


def _headers(frame: bytes, at: int, size: int) -> Mapping[str, str]:
    return wire.parse_headers(frame[at : at + size])


def _durably(
    handler: Callable[[Durable, Frame], None],
) -> Callable[[NativeSession, Frame], None]:
    return lambda session, frame: handler(session.durable(), frame)


HOT: Final[dict[int, Callable[[NativeSession, bytes, Head], None]]] = {
    wire.CALL: NativeSession._call,
    wire.REPLY: NativeSession._reply,
    wire.PUBLISH: NativeSession._publish,
    wire.PRODUCE: NativeSession._produce,
}
"""What comes often, and is taken apart by whoever handles it."""

HANDLERS: Final[dict[int, Callable[[NativeSession, Frame], None]]] = {
    wire.HELLO: NativeSession._hello,
    wire.PING: NativeSession._ping,
    wire.PONG: NativeSession._pong,
    wire.GOODBYE: NativeSession._goodbye,
    wire.REGISTER: NativeSession._register,
    wire.UNREGISTER: NativeSession._unregister,
    wire.CANCEL: NativeSession._cancel,
    wire.SUBSCRIBE: NativeSession._subscribe,
    wire.UNSUBSCRIBE: NativeSession._unsubscribe,
    wire.CONSUME: _durably(Durable.consume),
    wire.CREDIT: _durably(Durable.credit),
    wire.ACK: _durably(Durable.ack),
    wire.NACK: _durably(Durable.nack),
    wire.LEAVE: _durably(Durable.leave),
    wire.FETCH: _durably(Durable.fetch),
    wire.ASK: ask,
}
"""What else a client may send; a PolybusError that is no protocol error is the answer to that frame."""
