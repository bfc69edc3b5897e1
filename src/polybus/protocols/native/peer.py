"""The client's end of one native connection: greeting, requests that wait, calls that come in.

Invariant: everything that waits on this connection ends when the connection does, with `ConnectionLost`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from polybus._version import __version__
from polybus.errors import ConnectionLost, LimitExceeded, PolybusError, RemoteProtocolError
from polybus.model.message import Status
from polybus.protocols.native import wire
from polybus.protocols.native.names import check_sendable
from polybus.protocols.native.wire import Frame
from polybus.transports.connection import Connection
from polybus.transports.outbox import Outbox

log = logging.getLogger("polybus.client")

PING_AFTER: Final = 15.0  # seconds of silence
LOST_AFTER: Final = 45.0


class Waiting(Protocol):
    """What waits for the answer to a request."""

    def part(self, frame: bytes) -> None:
        """A Reply that others follow."""

    def end(self, frame: bytes) -> None:
        """The last frame of the answer, of whatever kind."""

    def fail(self, error: PolybusError) -> None:
        """No answer will come."""


class Answer:
    """Waits for one frame that is no part of a stream."""

    __slots__ = ("future",)

    def __init__(self, future: asyncio.Future[Frame]) -> None:
        self.future = future

    def part(self, frame: bytes) -> None:
        raise RemoteProtocolError("a part of a reply to a request that is no call")

    def end(self, frame: bytes) -> None:
        if self.future.done():
            return
        parsed = wire.parse(frame)
        if parsed.kind == wire.ERROR:
            self.future.set_exception(wire.parse_error(parsed))
        else:
            self.future.set_result(parsed)

    def fail(self, error: PolybusError) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class Owner(Protocol):
    """Whose connection it is."""

    def call_came(self, peer: Peer, frame: Frame) -> None: ...
    def cancel_came(self, ident: int) -> None: ...
    def publication_came(self, name: str, payload: bytes, headers: Mapping[str, str]) -> None: ...
    def delivery_came(self, frame: Frame) -> None: ...
    def error_came(self, frame: Frame) -> None: ...
    def goodbye_came(self, reason: str) -> None: ...
    def connection_ended(self, peer: Peer) -> None: ...


class Peer:
    """The session at the client's end."""

    def __init__(self, connection: Connection, owner: Owner, token: str, max_frame: int) -> None:
        self.outbox: Outbox = None  # type: ignore[assignment]  # set by connection_made
        self.pending: dict[int, Waiting] = {}
        self.hello = wire.Hello(versions=[])
        self.lost = False
        self.ended = asyncio.Event()
        self._connection = connection
        self._owner = owner
        self._token = token
        self._loop = asyncio.get_running_loop()
        self._frames = wire.Frames(max_frame)
        self._preface: bytes | None = b""
        self._next_id = 0
        self._queue: list[bytes] = []
        self._room: asyncio.Future[None] | None = None
        self._heard = True
        self._heard_at = 0.0
        self._error: PolybusError | None = None

    # -- Session -------------------------------------------------------------------------------------------------------

    def connection_made(self, outbox: Outbox) -> None:
        self.outbox = outbox
        outbox.on_drained = self._drained
        self._heard_at = self._connection.opened_at

    def data_received(self, data: bytes) -> None:
        self._heard = True
        if self._preface is not None:
            data = self._take_preface(self._preface + data)
        for frame in self._frames.feed(data):
            _length, kind, flags, name_size, ident, _arg, meta_size = wire.unpack_head(frame)
            if wire.HEAD + name_size + meta_size > len(frame):
                raise RemoteProtocolError("name and meta are longer than their frame")
            if kind == wire.REPLY and flags & wire.MORE:
                waiting = self.pending.get(ident)
                if waiting is not None:
                    waiting.part(frame)
            elif kind in ENDS and (ident or kind != wire.ERROR):
                waiting = self.pending.pop(ident, None)
                if waiting is not None:
                    self._end(waiting, frame)
                elif kind == wire.ERROR:
                    self._owner.error_came(wire.parse(frame))
            else:
                self._handle(wire.parse(frame))

    def eof_received(self) -> None:
        pass

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        error = self._error or ConnectionLost(
            f"the connection to {self._connection.address} ended: "
            f"{exc or self.outbox.close_reason or 'closed by the node'}"
        )
        waiting, self.pending = self.pending, {}
        for each in waiting.values():
            each.fail(error)
        self._drained()
        self.ended.set()
        self._owner.connection_ended(self)

    def tick(self, now: float) -> None:
        if self._heard:
            self._heard = False
            self._heard_at = now
        silent = now - self._heard_at
        if silent > LOST_AFTER:
            self.outbox.abort("the node is silent")
        elif silent > PING_AFTER:
            self.send(wire.encode(wire.PING))

    # -- sending -------------------------------------------------------------------------------------------------------

    def send(self, frame: bytes) -> None:
        """Queue a frame; all of one turn of the event loop go out in one write."""
        if not self._queue:
            self._loop.call_soon(self.flush)
        self._queue.append(frame)

    def flush(self) -> None:
        """Write what is queued."""
        queue, self._queue = self._queue, []
        if queue and not self.lost:
            self.outbox.write(queue[0] if len(queue) == 1 else b"".join(queue))

    def take_id(self) -> int:
        """An id that no request of this connection has had."""
        self._next_id += 1
        return self._next_id

    async def room(self) -> None:
        """Return once the node takes data again; at once in the usual case."""
        while self.outbox.congested and not self.lost:
            if self._room is None:
                self._room = self._loop.create_future()
            await asyncio.shield(self._room)

    def check_size(self, size: int) -> None:
        """Refuse a payload that cannot fit, before anything is sent.

        Raises:
            LimitExceeded.
        """
        if size + wire.HEAD > self.hello.max_frame:
            raise LimitExceeded(
                "bytes in one frame", limit=self.hello.max_frame, actual=size + wire.HEAD
            )

    def wait(self, ident: int, waiting: Waiting) -> None:
        """Let something wait for the answer to a request.

        Raises:
            ConnectionLost: the connection has ended already.
        """
        if self.lost:
            raise ConnectionLost(f"the connection to {self._connection.address} has ended")
        self.pending[ident] = waiting

    async def request(
        self,
        kind: int,
        name: str = "",
        payload: bytes = b"",
        *,
        meta: bytes = b"",
        timeout: float | None = None,
    ) -> Frame:
        """Send a request and wait for its answer.

        Raises:
            TimeoutError: after `timeout` seconds; and whatever error the node answers with.
        """
        check_sendable(name)
        self.check_size(len(payload) + len(meta) + len(name))
        ident = self.take_id()
        future: asyncio.Future[Frame] = self._loop.create_future()
        try:
            async with asyncio.timeout(timeout):
                await self.room()
                self.wait(ident, Answer(future))
                self.send(wire.encode(kind, ident, name, payload, meta=meta))
                return await future
        finally:
            self.pending.pop(ident, None)

    async def greet(self, timeout: float) -> None:
        """Preface and Hello, both ways.

        Raises:
            NotAuthorized, RemoteProtocolError, ConnectionLost, TimeoutError.
        """
        hello = wire.Hello(
            versions=[wire.VERSION],
            agent=f"polybus-python/{__version__}",
            max_frame=self._frames.limit,
            token=self._token,
        )
        self.send(wire.PREFACE)
        self.hello.max_frame = wire.MAX_FRAME
        answer = await self.request(wire.HELLO, meta=wire.encode_meta(hello), timeout=timeout)
        self.hello = wire.parse_meta(answer.meta, wire.Hello)

    # -- what comes ----------------------------------------------------------------------------------------------------

    def _take_preface(self, data: bytes) -> bytes:
        verdict = wire.take_preface(data)
        if verdict is None:
            self._preface = data
            return b""
        if not verdict:
            self._error = RemoteProtocolError(
                f"{self._connection.address} does not speak this wire: it began with {data[:8]!r}"
            )
            raise self._error
        self._preface = None
        return data[len(wire.PREFACE) :]

    def _end(self, waiting: Waiting, frame: bytes) -> None:
        try:
            waiting.end(frame)
        except RemoteProtocolError as exc:
            waiting.fail(exc)  # it waits in no table any more, so nothing else would end it
            raise

    def _handle(self, frame: Frame) -> None:
        handler = HANDLERS.get(frame.kind)
        if handler is None:
            raise RemoteProtocolError(f"unknown kind of frame {frame.kind:#04x}")
        handler(self, frame)

    def _call(self, frame: Frame) -> None:
        self._owner.call_came(self, frame)

    def _cancel(self, frame: Frame) -> None:
        self._owner.cancel_came(frame.id)

    def _publication(self, frame: Frame) -> None:
        self._owner.publication_came(frame.name, frame.payload, wire.parse_headers(frame.meta))

    def _delivery(self, frame: Frame) -> None:
        self._owner.delivery_came(frame)

    def _ping(self, frame: Frame) -> None:
        self.send(wire.encode(wire.PONG, frame.id))

    def _pong(self, frame: Frame) -> None:
        pass  # any frame is a sign of life

    def _goodbye(self, frame: Frame) -> None:
        self._owner.goodbye_came(frame.payload.decode("utf-8", "replace"))

    def _complaint(self, frame: Frame) -> None:
        # An error that answers no request: the node closes after it, and this is why.
        self._error = wire.parse_error(frame)

    def _drained(self) -> None:
        room, self._room = self._room, None
        if room is not None and not room.done():
            room.set_result(None)

    def answer(self, ident: int, status: Status, payload: bytes, *, more: bool = False) -> None:
        """A reply, or one part of it, to a call that came in."""
        if len(payload) + wire.HEAD > self.hello.max_frame:
            status, more = Status.TOO_LARGE, False
            payload = f"a reply of {len(payload)} bytes does not fit a frame".encode()
        flags = wire.MORE if more else 0
        self.send(wire.encode(wire.REPLY, ident, "", payload, flags=flags, arg=status))


ENDS: Final = frozenset((wire.REPLY, wire.OK, wire.ERROR, wire.HELLO, wire.PRODUCED, wire.CHUNKS))
"""Kinds that end a request."""

HANDLERS: Final[dict[int, Callable[[Peer, Frame], None]]] = {
    wire.CALL: Peer._call,
    wire.CANCEL: Peer._cancel,
    wire.PUBLICATION: Peer._publication,
    wire.DELIVERY: Peer._delivery,
    wire.PING: Peer._ping,
    wire.PONG: Peer._pong,
    wire.GOODBYE: Peer._goodbye,
    wire.ERROR: Peer._complaint,
}
"""What a node sends of its own accord."""
