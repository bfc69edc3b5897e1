"""Answers on their way to local clients: from other twins, from our own handlers, and errors.

Invariant: an answer is given out once per destination, only from the twin that was asked, with the client's own `ret`,
`tag` and id in it.
"""

from __future__ import annotations

import base64
import binascii
import logging
from typing import TYPE_CHECKING

from polybus.core.watch import Watched
from polybus.model.message import Status
from polybus.protocols.rmb import failures
from polybus.protocols.rmb.message import Message, Unreadable, encode, parse_lenient
from polybus.protocols.rmb.pending import Waiting, forget
from polybus.protocols.rmb.resp import Command

if TYPE_CHECKING:
    from polybus.protocols.rmb.room import RmbRoom

log = logging.getLogger("polybus.rmb")


class Answers:
    """The answering side of a room."""

    def __init__(self, room: RmbRoom) -> None:
        self.room = room

    # -- from the reply queue --

    def take(self, texts: list[bytes]) -> None:
        """What our handlers pushed to `msgbus.system.reply`, oldest first."""
        for text in texts:
            try:
                m = parse_lenient(text)
            except Unreadable as exc:
                self.room.stats.replies_dropped += 1
                log.warning("dropped an unreadable answer of a handler: %s", exc.text)
                continue
            self.from_handler(m)

    def from_handler(self, m: Message) -> None:
        """An answer to whoever asked: a client here, a caller on another wire, or another twin."""
        room = self.room
        taken = room.taken
        asked_by = m.dst[0] if len(m.dst) == 1 else None
        if asked_by is None or not taken.holds(m.uid, asked_by):
            waiting = room.pending.take(m.uid, room.own)
            if waiting is not None:
                self.deliver(waiting, m.copy(src=room.own))
                return
            if asked_by is None or asked_by == room.own:
                # Handlers that lose the caller: one real library answers errors to itself (protocol page §4).
                asked_by = taken.only(m.uid)
        if asked_by is None:
            room.stats.replies_dropped += 1
            log.warning("dropped the answer %s of a handler: nobody waits for it", m.uid)
            return
        _note_answer(taken.drop(m.uid, asked_by), m)
        room.forward.reply(m, asked_by)

    # -- to clients --

    def from_twin(self, m: Message) -> bool:
        """An answer that came over HTTP; False when that twin was not asked or has answered already."""
        waiting = self.room.pending.take(m.uid, m.src)
        if waiting is None:
            return False
        self.deliver(waiting, m)
        return True

    def deliver(self, waiting: Waiting, m: Message) -> None:
        """Give an answer to the client; the entry has been taken out of the pending ones."""
        room = self.room
        _note_answer(waiting.watched, m)
        commands: list[Command] = [forget(waiting)]
        commands += room.layout.drop(waiting.uid)
        if callable(waiting.answer):
            room.redis.write(commands)
            waiting.answer(m)
            return
        original = waiting.message
        given = m.copy(ret=original.ret, tag=original.tag, uid=original.uid or m.uid)
        if waiting.dst == room.own:
            given.dst = [room.own]
        room.stats.answered += 1
        room.redis.write(room.layout.deliver(given.ret, encode(given, room.generation)) + commands)

    def fail(self, waiting: Waiting, text: str) -> None:
        """Answer a request that failed, unless it has been answered meanwhile."""
        room = self.room
        if room.pending.get(*waiting.key) is not waiting:
            return
        room.pending.take(*waiting.key)
        room.stats.failed += 1
        self.deliver_error(waiting, failures.reply_with(room.generation, room.own, waiting, text))

    def expire(self) -> None:
        """Answer what is past its deadline."""
        room = self.room
        for waiting in room.pending.due(room.wall_ms()):
            room.pending.take(*waiting.key)
            room.stats.expired += 1
            self.deliver_error(waiting, failures.expired(room.generation, room.own, waiting))

    def deliver_error(self, waiting: Waiting, m: Message) -> None:
        """Give an error to the client, in the shape it has already."""
        room = self.room
        _note_answer(waiting.watched, m)
        commands: list[Command] = [forget(waiting)]
        commands += room.layout.drop(waiting.uid)
        if callable(waiting.answer):
            waiting.answer(m)
        else:
            commands += room.layout.deliver(m.ret, encode(m, room.generation))
        room.redis.write(commands)


def _note_answer(watched: Watched | None, m: Message) -> None:
    """Write the row of a call that has ended."""
    if watched is None:
        return
    if m.failed:
        watched.answered((m.err or "").encode(), Status.FAILED, m.err or "")
    else:
        watched.answered(decode_dat(m.dat))


def decode_dat(dat: str) -> bytes:
    """The payload in `dat`: base64 by convention, the text itself when it is none (protocol page §4)."""
    try:
        return base64.b64decode(dat, validate=True)
    except (binascii.Error, ValueError):
        return dat.encode("utf-8", "surrogatepass")


def encode_dat(payload: bytes) -> str:
    """A payload as it stands in `dat`."""
    return base64.b64encode(payload).decode()
