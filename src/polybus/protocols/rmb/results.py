"""Requests of the grid proxy: `/zbus-cmd` puts one in, `/zbus-result` looks at what came back (protocol page §2).

Invariant: a return queue is a random id made here, and lives half an hour at most.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, Final

import msgspec

from polybus.http.request import Request
from polybus.model.ids import random_id
from polybus.protocols.rmb.answers import decode_dat
from polybus.protocols.rmb.message import Message, Unreadable, encode, parse_lenient
from polybus.protocols.rmb.pending import Waiting
from polybus.protocols.rmb.queues import RETURN_TTL

if TYPE_CHECKING:
    from polybus.protocols.rmb.room import RmbRoom

_JSON: Final = {"content-type": "application/json"}


class _Wanted(msgspec.Struct):
    retqueue: str = ""


class Results:
    """The grid proxy's side of a room."""

    def __init__(self, room: RmbRoom) -> None:
        self.room = room

    def begin(self, request: Request, m: Message) -> None:
        """A verified request: its caller is told where the answer will be."""
        room = self.room
        queue = random_id()
        m = m.copy(uid=m.uid or random_id(), dst=[room.own], tag=None)
        if (m.uid, room.own) in room.pending:
            m.uid = random_id()
        waiting = Waiting(m.uid, room.own, m.copy(ret=queue))

        def arrived(reply: Message) -> None:
            text = encode(reply.copy(ret=queue, pxy=True), "v2")
            room.redis.write([("LPUSH", queue, text), ("EXPIRE", queue, RETURN_TTL)])

        waiting.answer = arrived
        room.pending.add(waiting)
        room.serving.serve_own(waiting)
        body = msgspec.json.encode(queue).decode()
        request.respond(200, _JSON, f'{{"retqueue": {body}}}'.encode())

    def take(self, request: Request) -> None:
        """What has come back until now; it stays there."""
        try:
            wanted = msgspec.json.decode(request.body, type=_Wanted).retqueue
            if uuid.UUID(wanted).version != 4:
                raise ValueError("another version")
        except (msgspec.DecodeError, UnicodeDecodeError, ValueError):
            _fail(request, 400, "Invalid Retqueue, it should be a valid UUID")
            return

        def answered(replies: list[Any] | None) -> None:
            if replies is None or not isinstance(replies[0], list):
                _fail(request, 500, "redis is not there")
            else:
                request.respond(200, _JSON, self._list(replies[0]))

        self.room.redis.send([("LRANGE", wanted, 0, -1)], answered)

    def _list(self, texts: list[bytes]) -> bytes:
        now = self.room.wall_ms() // 1000
        found = []
        for text in texts:
            try:
                m = parse_lenient(text)
            except Unreadable:
                continue
            m.dat = decode_dat(m.dat).decode("utf-8", "replace")
            found.append(encode(m.copy(now=now), "v2"))
        return b"[" + b",".join(found) + b"]"


def _fail(request: Request, status: int, text: str) -> None:
    quoted = msgspec.json.encode(text).decode()
    request.respond(status, _JSON, f'{{"status": "error", "message": {quoted}}}'.encode())
