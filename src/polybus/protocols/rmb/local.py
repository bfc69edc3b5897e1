"""Requests of local clients: verified, resolved, kept with a deadline, and sent on their way.

Invariant: every message that names a `ret` gets as many answers there as it has destinations, whatever is wrong with
it; one that names none is counted and said in the log, since nobody could be told.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from polybus.model.ids import random_id
from polybus.protocols.rmb import failures
from polybus.protocols.rmb.message import (
    DEFAULT_EXP,
    MAX_TRY,
    Message,
    Unreadable,
    encode,
    parse_lenient,
    salvage,
    stamp,
)
from polybus.protocols.rmb.pending import Waiting, save
from polybus.protocols.rmb.queues import UPLOAD_CMD, is_own_key, is_reserved
from polybus.protocols.rmb.resp import Command

if TYPE_CHECKING:
    from polybus.protocols.rmb.room import RmbRoom

log = logging.getLogger("polybus.rmb")

MAX_PENDING_BYTES: Final = 512 * 1024 * 1024  # of payloads; half of what a node's connections share
# Messages whose destinations are being looked up; the rest stays in Redis
MAX_LOOKING: Final = 1000


class Local:
    """The local queue's side of a room."""

    def __init__(self, room: RmbRoom) -> None:
        self.room = room
        self._looking = 0
        self._free = asyncio.Event()
        self._free.set()

    async def capacity(self) -> None:
        """Wait while too many messages wait for a directory on the network."""
        await self._free.wait()

    def take(self, texts: list[bytes]) -> None:
        """Messages from `msgbus.system.local`, oldest first."""
        room = self.room
        commands: list[Command] = []
        for text in texts:
            room.stats.local += 1
            try:
                m = parse_lenient(text)
            except Unreadable as exc:
                self._refuse(salvage(exc), exc.text, commands)
                continue
            problem = self._problem(m, len(text))
            if problem:
                self._refuse(m, problem, commands)
            elif all(d == room.own or room.directory.knows(d) for d in m.dst):
                self.accept(m, text, commands)
            else:
                room.spawn(self._accept_later(m, text))
        room.redis.write(commands)

    def _problem(self, m: Message, size: int) -> str:
        """Why a message cannot be sent; empty when it can (texts of protocol page §1.1)."""
        if m.ver != 1:
            return "protocol version mismatch"
        if not m.cmd:
            return "missing command request"
        if not m.dst:
            return "missing twin destination"
        if not m.ret:
            return "return queue not defined"
        if is_own_key(m.ret):
            return f"return queue {m.ret} is the bus's own"
        if is_reserved(m.cmd) and self.room.own in m.dst:
            return f"command {m.cmd} is reserved"
        if size > self.room.options.max_body:
            return f"message is larger than {self.room.options.max_body} bytes"
        if len(self.room.pending) + len(m.dst) > self.room.options.max_pending:
            return f"more than {self.room.options.max_pending} requests wait for answers"
        if self.room.pending.held_bytes > MAX_PENDING_BYTES:
            return f"more than {MAX_PENDING_BYTES} bytes wait for answers"
        denied = (self.room.denied(self.room.own, d, m.cmd) for d in m.dst)
        return next((f"401 unauthorized: {text}" for text in denied if text), "")

    def _refuse(self, m: Message, text: str, commands: list[Command]) -> None:
        """Answer a message that is not accepted at all: every destination gets the error."""
        room = self.room
        room.stats.refused += 1
        if not m.ret or is_own_key(m.ret):
            log.warning("dropped a message that cannot be answered: %s", text)
            return
        for dst in m.dst or [room.own]:
            reply = failures.refusal(room.generation, room.own, m, dst, m.err or text)
            commands += room.layout.deliver(m.ret, encode(reply, room.generation))

    async def _accept_later(self, m: Message, text: bytes) -> None:
        """Look up the destinations that nobody knows yet; other messages go on meanwhile."""
        self._looking += 1
        if self._looking >= MAX_LOOKING:
            self._free.clear()
        try:
            for d in m.dst:
                if d != self.room.own:
                    await self.room.look_up(d)
        finally:
            self._looking -= 1
            if self._looking < MAX_LOOKING:
                self._free.set()
        commands: list[Command] = []
        self.accept(m, text, commands)
        self.room.redis.write(commands)

    def accept(self, m: Message, text: bytes, commands: list[Command]) -> None:
        """Keep a verified message and queue it for each of its destinations."""
        room = self.room
        generation = room.generation
        self._stamp(m)
        kept = (
            text if generation in ("v1", "v2") else b""
        )  # what the first generation's backlog holds
        if (m.now + m.exp) * 1000 <= room.wall_ms():
            self._refuse(m, failures.too_late(generation, m.exp), commands)
            return
        known = [d for d in m.dst if d == room.own or room.directory.get(d) is not None]
        if len(known) < len(m.dst):
            self._refuse_unknown(m, known, commands)
        if m.cmd == UPLOAD_CMD and known:
            room.uploads.send(m, known)
            return
        waiting, forward = [], []
        for d in known:
            uid = m.uid or self._fresh(m)
            if (uid, d) in room.pending:
                uid = (
                    random_id()
                )  # another client uses the same id now; its own comes back in the answer
            entry = Waiting(uid, d, m, kept)
            room.pending.add(entry)
            waiting.append(entry)
            if d != room.own:
                entry.watched = room.watch_request(m, d, room.party.identity.text)
                forward.append(entry)
        if not waiting:
            return
        commands.append(save(waiting))
        for uid in dict.fromkeys(entry.uid for entry in waiting):
            ttl = m.now + m.exp - room.wall_ms() // 1000
            commands += room.layout.store(m.copy(uid=uid), text, max(1, ttl))
            own = [entry.dst for entry in forward if entry.uid == uid]
            if own:
                commands += room.layout.forward(uid, own)
        for entry in waiting:
            if entry.dst == room.own:
                room.serving.serve_own(entry)

    def _fresh(self, m: Message) -> str:
        """An id for a message without one: the same for all its destinations."""
        m.uid = random_id() if self.room.generation in ("rs", "documented") else ""
        return m.uid or random_id()

    def _stamp(self, m: Message) -> None:
        room = self.room
        now = room.wall_ms() // 1000
        m.src = room.own
        m.sig = None
        m.pxy = False
        if room.generation in ("rs", "documented"):
            m.now, m.exp = stamp(now, m)
            m.tries = min(max(m.tries, 1), MAX_TRY)
        else:
            # The first generation sends the client's own time, and counts from there.
            m.exp = m.exp or DEFAULT_EXP
            m.now = m.now if 0 < m.now <= now else now

    def _refuse_unknown(self, m: Message, known: list[int], commands: list[Command]) -> None:
        room = self.room
        unknown = [d for d in m.dst if d not in known]
        text = failures.not_found(room.generation, unknown[0])
        if room.generation == "documented":
            known.clear()
            self._refuse(m, text, commands)
            return
        if room.generation == "rs":
            m.uid = m.uid or random_id()
        for d in unknown:
            room.stats.refused += 1
            reply = failures.refusal(
                room.generation, room.own, m, d, failures.not_found(room.generation, d)
            )
            commands += room.layout.deliver(m.ret, encode(reply, room.generation))
