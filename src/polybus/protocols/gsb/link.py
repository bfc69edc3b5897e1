"""The client's end of one connection to a router of the Golem Service Bus.

Invariant: everything that waits on this connection ends when the connection does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Protocol

from polybus.errors import (
    ConnectionLost,
    LimitExceeded,
    PolybusError,
    RemoteProtocolError,
    SlowConsumer,
)
from polybus.protocols.gsb.wire import (
    CURRENT,
    MAX_ENVELOPE,
    CallReply,
    CallRequest,
    Kind,
    encode_call,
    encode_reply,
    parse_broadcast,
    parse_call,
    parse_code,
    parse_reply,
)
from polybus.transports.outbox import MiB, Outbox
from polybus.transports.pieces import Pieces

MAX_UNREAD_BYTES: Final = 64 * MiB  # parts of one streamed reply, as one frame may have

_REPLY_KINDS: Final = {
    Kind.REGISTER_REQUEST: Kind.REGISTER_REPLY,
    Kind.UNREGISTER_REQUEST: Kind.UNREGISTER_REPLY,
    Kind.SUBSCRIBE_REQUEST: Kind.SUBSCRIBE_REPLY,
    Kind.UNSUBSCRIBE_REQUEST: Kind.UNSUBSCRIBE_REPLY,
    Kind.BROADCAST_REQUEST: Kind.BROADCAST_REPLY,
}


class Owner(Protocol):
    """Whose connection it is."""

    def request_came(self, link: Link, request: CallRequest) -> None: ...
    def broadcast_came(self, caller: str, topic: str, data: bytes) -> None: ...
    def link_ended(self, link: Link) -> None: ...


class Replies:
    """The replies to one call as they come, and at last the error that ended it early."""

    __slots__ = ("_queue", "_unread", "request_id")

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self._queue: asyncio.Queue[CallReply | PolybusError] = asyncio.Queue()
        self._unread = 0

    def put(self, reply: CallReply) -> None:
        """Add one; a stream that nobody reads ends instead of filling the memory."""
        if self._unread > MAX_UNREAD_BYTES:
            return  # it has failed already
        self._unread += len(reply.data)
        if self._unread > MAX_UNREAD_BYTES and reply.partial:
            self.fail(SlowConsumer("parts of a reply were not read in time", self._unread))
        else:
            self._queue.put_nowait(reply)

    def fail(self, error: PolybusError) -> None:
        """Nothing more will come."""
        self._queue.put_nowait(error)

    async def next(self) -> CallReply:
        """The oldest one, waiting for it; raises the error that was put in its place."""
        reply = await self._queue.get()
        if isinstance(reply, PolybusError):
            raise reply
        self._unread -= len(reply.data)
        return reply


class Link:
    """The session at the client's end of one connection."""

    def __init__(self, owner: Owner, max_frame: int) -> None:
        self._owner = owner
        self._max_frame = max_frame
        self._pieces = Pieces()
        self._calls: dict[str, Replies] = {}
        # Replies carry no id: each kind is answered in the order of its requests (protocol page §3).
        self._waiting: dict[Kind, deque[asyncio.Future[tuple[int, str]]]] = {
            kind: deque() for kind in _REPLY_KINDS.values()
        }
        self._drained = asyncio.Event()
        self.ended = asyncio.Event()
        self.outbox: Outbox = None  # type: ignore[assignment]  # set when the connection is made

    # -- Session --

    def connection_made(self, outbox: Outbox) -> None:
        self.outbox = outbox
        outbox.on_drained = self._drained.set

    def data_received(self, data: bytes) -> None:
        whole = self._pieces.add(data)
        if whole is None:
            return
        pos, size, need = 0, len(whole), CURRENT.header
        while size - pos >= CURRENT.header:
            need = CURRENT.length(whole, pos)
            if need > self._max_frame:
                raise RemoteProtocolError(f"a frame of {need} bytes is over {self._max_frame}")
            if size - pos < need:
                break
            self._take(*CURRENT.parse(whole[pos : pos + need]))
            pos += need
            need = CURRENT.header
        if pos < size:
            self._pieces.keep(whole[pos:], need)

    def eof_received(self) -> None:
        pass

    def connection_lost(self, exc: Exception | None) -> None:
        lost = _lost()
        for waiting in self._waiting.values():
            for future in waiting:
                if not future.done():
                    future.set_exception(lost)
            waiting.clear()
        for replies in self._calls.values():
            replies.fail(lost)
        self._drained.set()
        self.ended.set()
        self._owner.link_ended(self)

    def tick(self, now: float) -> None:
        pass

    def _take(self, kind: Kind, body: bytes) -> None:
        match kind:
            case Kind.CALL_REPLY:
                reply = parse_reply(body)
                replies = self._calls.get(reply.request_id)
                if replies is not None:
                    replies.put(reply)
            case Kind.CALL_REQUEST:
                self._owner.request_came(self, parse_call(body))
            case Kind.BROADCAST_REQUEST:
                came = parse_broadcast(body)
                self._owner.broadcast_came(came.caller, came.topic, came.data)
            case Kind.PING:
                self.send(Kind.PONG)
            case Kind.HELLO | Kind.PONG:
                pass
            case _ if self._waiting.get(kind):
                future = self._waiting[kind].popleft()
                if not future.done():
                    future.set_result(parse_code(body))
            case _:
                raise RemoteProtocolError(f"the router sent {kind.name} unasked")

    # -- sending --

    def send(self, kind: Kind, body: bytes = b"") -> None:
        self.outbox.write(CURRENT.encode(kind, body))

    def request(self, kind: Kind, body: bytes) -> asyncio.Future[tuple[int, str]]:
        """Send a request whose reply has no id."""
        future: asyncio.Future[tuple[int, str]] = asyncio.get_running_loop().create_future()
        if self.ended.is_set():
            future.set_exception(_lost())
        else:
            self._waiting[_REPLY_KINDS[kind]].append(future)
            self.send(kind, body)
        return future

    def call(self, request: CallRequest) -> Replies:
        """Send a call whose replies are wanted.

        Raises:
            LimitExceeded: no frame takes it.
            ConnectionLost.
        """
        if self.ended.is_set():
            raise _lost()
        replies = Replies(request.request_id)
        self.push(request)
        self._calls[request.request_id] = replies
        return replies

    def push(self, request: CallRequest) -> None:
        """Send a call; raises LimitExceeded."""
        body = encode_call(request)
        self._check_size(body)
        self.send(Kind.CALL_REQUEST, body)

    def forget(self, replies: Replies) -> None:
        self._calls.pop(replies.request_id, None)

    def reply(self, request_id: str, code: int, data: bytes, partial: bool = False) -> None:
        """Send a reply, or a part of one; raises LimitExceeded."""
        body = encode_reply(request_id, code, data, partial)
        self._check_size(body)
        if not self.ended.is_set():
            self.send(Kind.CALL_REPLY, body)

    def _check_size(self, body: bytes) -> None:
        # A router closes the connection over it, and with it end all other calls.
        size = len(body) + MAX_ENVELOPE
        if size > self._max_frame:
            raise LimitExceeded("bytes in one frame", limit=self._max_frame, actual=size)

    async def room(self) -> None:
        """Wait until the connection takes more."""
        while self.outbox.congested:
            self._drained.clear()
            await self._drained.wait()


def _lost() -> ConnectionLost:
    return ConnectionLost("the connection to the router ended")
