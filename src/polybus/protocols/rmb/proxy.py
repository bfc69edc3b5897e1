"""Proxying: the request of a twin out of reach, in the envelope of one that is not (protocol page §3.6).

Invariant: the payload is served only when its own signature holds; the answer, an error included, goes back to the
envelope's sender.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from polybus.errors import PolybusError, Refused
from polybus.protocols.rmb.answers import decode_dat, encode_dat
from polybus.protocols.rmb.message import Message, encode, parse_lenient
from polybus.protocols.rmb.pending import Waiting
from polybus.protocols.rmb.queues import PROXY_REPLY, is_reserved
from polybus.protocols.rmb.serving import reply_to
from polybus.protocols.rmb.signature import digest, parse_signature, verify

if TYPE_CHECKING:
    from polybus.protocols.rmb.room import RmbRoom

log = logging.getLogger("polybus.rmb")


class Proxy:
    """The proxying side of a room."""

    def __init__(self, room: RmbRoom) -> None:
        self.room = room

    def take(self, envelope: Message) -> None:
        """A verified envelope."""
        self.room.spawn(self._take(envelope))

    async def _take(self, envelope: Message) -> None:
        room = self.room
        try:
            payload = await self._open(envelope)
        except PolybusError as exc:
            room.forward.reply(reply_to(envelope, room.own, err=exc.text), envelope.src)
            return
        waiting = Waiting(envelope.uid, room.own, payload)
        waiting.answer = lambda reply: self._answer(envelope, reply)
        room.pending.add(waiting)
        room.serving.serve_own(waiting)

    async def _open(self, envelope: Message) -> Message:
        """The request inside.

        Raises:
            Unreadable, Refused, BadSignature.
        """
        room = self.room
        payload = parse_lenient(decode_dat(envelope.dat))
        if room.own not in payload.dst:
            raise Refused("invalid payload message destination")
        if payload.now + payload.exp <= room.wall_ms() // 1000:
            raise Refused("message validation failed: message has expired")
        if is_reserved(payload.cmd) or (envelope.uid, room.own) in room.pending:
            raise Refused("the payload cannot be served")
        twin = await room.look_up(payload.src)
        if twin is None or twin.public_key is None:
            raise Refused(f"source twin {payload.src} not found")
        problem = verify(parse_signature(payload.sig), digest(payload), twin.public_key)
        if problem:
            raise Refused(problem)
        if denied := room.denied(payload.src, room.own, payload.cmd):
            raise Refused(f"401 unauthorized: {denied}")
        return payload

    def _answer(self, envelope: Message, reply: Message) -> None:
        room = self.room
        inner = reply.copy(src=room.own, ret=PROXY_REPLY, sig=None, pxy=False)
        inner.sig = room.signer.sign(digest(inner))
        answer = reply_to(envelope, room.own, dat=encode_dat(encode(inner, "rs")))
        room.forward.reply(answer, envelope.src)
