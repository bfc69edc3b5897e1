"""The client's end of one connection to a router of the Golem Service Bus.

Invariant: everything that waits on this connection ends when the connection does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Protocol

from polybus.errors import ConnectionLost, RemoteProtocolError
from polybus.protocols.gsb.wire import (
    CURRENT,
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
from polybus.transports.outbox import Outbox
from polybus.transports.pieces import Pieces

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
    """The replies to one call as they come; None in the queue says that the connection has ended."""

    __slots__ = ("queue", "request_id")

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self.queue: asyncio.Queue[CallReply | None] = asyncio.Queue()


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
        lost = ConnectionLost("the connection to the router ended")
        for waiting in self._waiting.values():
            for future in waiting:
                if not future.done():
                    future.set_exception(lost)
            waiting.clear()
        for replies in self._calls.values():
            replies.queue.put_nowait(None)
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
                    replies.queue.put_nowait(reply)
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
            future.set_exception(ConnectionLost("the connection to the router ended"))
        else:
            self._waiting[_REPLY_KINDS[kind]].append(future)
            self.send(kind, body)
        return future

    def call(self, request: CallRequest) -> Replies:
        replies = Replies(request.request_id)
        self._calls[request.request_id] = replies
        if self.ended.is_set():
            replies.queue.put_nowait(None)
        else:
            self.send(Kind.CALL_REQUEST, encode_call(request))
        return replies

    def forget(self, replies: Replies) -> None:
        self._calls.pop(replies.request_id, None)

    def reply(self, request_id: str, code: int, data: bytes, partial: bool = False) -> None:
        if not self.ended.is_set():
            self.send(Kind.CALL_REPLY, encode_reply(request_id, code, data, partial))

    async def room(self) -> None:
        """Wait until the connection takes more."""
        while self.outbox.congested:
            self._drained.clear()
            await self._drained.wait()
