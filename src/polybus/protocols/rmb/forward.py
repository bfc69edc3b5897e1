"""Sending to other twins: requests from the forward queue, and the answers of our handlers.

Invariant: a request that could not be delivered is answered with the reason; an attempt is made again only when the
peer was not reached, each time with a new stamp, a new signature and a fresh look at the peer's address. A twin that
takes its time has a share of the workers and no more; what is for it beyond that is held, and others pass by.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from polybus.protocols.rmb import failures
from polybus.protocols.rmb.hops import hops_of, with_hops
from polybus.protocols.rmb.message import MAX_TRY, REPLY_QUEUE, Generation, Message, encode, stamp
from polybus.protocols.rmb.peers import Answer
from polybus.protocols.rmb.pending import Waiting, forget, save
from polybus.protocols.rmb.queues import BACKLOG, COUNTER, RETRY
from polybus.protocols.rmb.resp import Command
from polybus.protocols.rmb.signature import digest
from polybus.protocols.rmb.twins import Twin

if TYPE_CHECKING:
    from polybus.protocols.rmb.room import RmbRoom

log = logging.getLogger("polybus.rmb")

PATHS: Final[dict[Generation, tuple[str, str]]] = {
    "rs": ("/zbus-remote", "/zbus-reply"),
    "v1": ("/zbus-remote", "/zbus-reply"),
    "v2": ("/zbus-remote", "/zbus-reply"),
    "documented": ("/rmb-remote", "/rmb-reply"),
}
MAX_PAUSE: Final = 2.0  # seconds; the pause between attempts doubles up to here
SHARE: Final = 4  # a twin has one part in so many of the workers
HELD: Final = 8  # times as many as there are workers: what is held beyond that stays in Redis

Reply = tuple[Message, int]
"""An answer of a handler and the twin that it is for."""


def is_accepted(generation: Generation, status: int) -> bool:
    """Whether a peer's answer means that it has the message; the first generation never looks (protocol page §1.3)."""
    if generation == "v1":
        return status > 0
    return status == 200 or (status == 202 and generation != "v2")


class Forward:
    """The sending side of a room."""

    def __init__(self, room: RmbRoom) -> None:
        self.room = room
        self.in_progress = 0
        self._share = max(1, room.options.workers // SHARE)
        self._sending: Counter[int] = Counter()
        self._held: dict[int, deque[Waiting | Reply]] = {}
        self._held_count = 0
        self._free = asyncio.Event()
        self._free.set()

    async def capacity(self) -> None:
        """Wait until another message may be taken."""
        await self._free.wait()

    def held_replies(self) -> Iterator[Reply]:
        """Answers that have not been begun with."""
        for queue in self._held.values():
            yield from (each for each in queue if isinstance(each, tuple))

    def _begin(self, dst: int, work: Waiting | Reply) -> None:
        """Start on it, or hold it while its twin has its share of the workers."""
        if self._sending[dst] >= self._share:
            self._held.setdefault(dst, deque()).append(work)
            self._held_count += 1
        else:
            self._sending[dst] += 1
            self.in_progress += 1
            self._start(work)
        self._note_capacity()

    def _start(self, work: Waiting | Reply) -> None:
        if isinstance(work, tuple):
            self._reply(*work, 1)
        elif self.room.pending.get(*work.key) is work:
            self._attempt(work)
        else:
            self._end(work.dst)  # it has expired while it was held

    def _end(self, dst: int) -> None:
        self._sending[dst] -= 1
        self.in_progress -= 1
        if dst in self._held:
            # Not at once: what fails at once would nest as deep as the queue is long.
            asyncio.get_running_loop().call_soon(self._next, dst)
        elif not self._sending[dst]:
            del self._sending[dst]
        self._note_capacity()

    def _next(self, dst: int) -> None:
        """Start on what was held for a twin."""
        queue = self._held.get(dst)
        if queue is None:
            return
        work = queue.popleft()
        self._held_count -= 1
        if not queue:
            del self._held[dst]
        self._begin(dst, work)

    def _note_capacity(self) -> None:
        workers = self.room.options.workers
        if self.in_progress < workers and self._held_count < workers * HELD:
            self._free.set()
        else:
            self._free.clear()

    # -- requests --

    def take(self, items: list[bytes]) -> None:
        """Entries of the forward queue, oldest first."""
        room = self.room
        for item in items:
            uid, dst = room.layout.parse_forward(item.decode("utf-8", "replace"))
            for d in room.pending.asked(uid) if dst is None else [dst]:
                waiting = room.pending.get(uid, d)
                # Gone when it was answered or has expired; busy when the same entry stands in the queue twice.
                if waiting is not None and not waiting.busy and d != room.own:
                    self.send(waiting)

    def send(self, waiting: Waiting) -> None:
        """Send a request; one whose caller lives no longer than this node comes here without a queue."""
        waiting.busy = True
        self._begin(waiting.dst, waiting)

    def _attempt(self, waiting: Waiting) -> None:
        """Look the twin up and send."""
        room = self.room
        if not room.directory.knows(waiting.dst):
            room.spawn(self._attempt_later(waiting))
            return
        twin = room.directory.get(waiting.dst)
        if twin is None:
            text = failures.not_found(room.generation, waiting.dst)
            self._fail(waiting, text)
            return
        generation = twin.generation or room.generation
        now, exp = stamp(room.wall_ms() // 1000, waiting.message)
        if exp <= 0:
            self._fail(waiting, failures.too_late(room.generation, waiting.message.exp))
            return
        if exp > waiting.attempts:
            # Each attempt is another message, so that a peer which has seen the last one does not take it for a replay.
            now, exp = now + waiting.attempts, exp - waiting.attempts
        waiting.attempts += 1
        original = waiting.message
        m = original.copy(uid=waiting.uid, dst=[waiting.dst], now=now, exp=exp, tag=None)
        if generation in ("v1", "v2"):
            m.ret = REPLY_QUEUE
            self._number(waiting, m, twin, generation)
        else:
            self._sign(waiting, m, twin, generation)

    async def _attempt_later(self, waiting: Waiting) -> None:
        twin = await self.room.look_up(waiting.dst)
        if twin is None:
            self._fail(waiting, failures.not_found(self.room.generation, waiting.dst))
        else:
            self._attempt(waiting)

    def _sign(self, waiting: Waiting, m: Message, twin: Twin, generation: Generation) -> None:
        room = self.room
        signed = digest(m)

        def done(sig: str) -> None:
            m.sig = waiting.sig = sig
            self._post(waiting, twin, generation, encode(m, "rs"))

        room.bulk.submit(lambda: room.signer.sign(signed), done)

    def _number(self, waiting: Waiting, m: Message, twin: Twin, generation: Generation) -> None:
        """First-generation peers get `<dst>.<n>` with a new number for each attempt (protocol page §1.3)."""
        room = self.room
        original = waiting.message
        if generation == "v1":
            m.now, m.exp = original.now, original.exp
        m.tries = max(0, original.tries - (waiting.attempts - 1))

        def numbered(replies: list[object] | None) -> None:
            if replies is None or isinstance(replies[0], Exception):
                self._retry(waiting, generation, "Redis went away")
                return
            old = waiting.uid
            commands: list[Command] = [forget(waiting)]
            number = f"{waiting.dst}.{replies[0]}"
            room.pending.rename(waiting, with_hops(number, hops_of(old)))
            m.uid = waiting.uid
            commands.append(save([waiting]))
            if room.generation in ("v1", "v2"):
                commands += [("HDEL", BACKLOG, old), ("HSET", BACKLOG, m.uid, waiting.text)]
                commands.append(("HDEL", RETRY, old))
            room.redis.write(commands)
            self._post(waiting, twin, generation, encode(m, generation))

        room.redis.send([("INCR", f"{COUNTER}{waiting.dst}")], numbered)

    def _post(self, waiting: Waiting, twin: Twin, generation: Generation, body: bytes) -> None:
        room = self.room

        def answered(answer: Answer) -> None:
            if is_accepted(generation, answer.status):
                waiting.busy = False
                room.stats.forwarded += 1
                self._end(waiting.dst)
            elif answer.status:
                text = answer.body[:256].decode("utf-8", "replace")
                phrase = answer.phrase
                self._fail(waiting, failures.refused(room.generation, waiting.dst, phrase, text))
            else:
                self._retry(waiting, generation, answer.reason)

        room.peers.post(twin.place, PATHS[generation][0], body, answered)

    def _retry(self, waiting: Waiting, generation: Generation, reason: str) -> None:
        room = self.room
        room.directory.forget(waiting.dst)
        tries = waiting.message.tries
        first = generation in ("v1", "v2")
        allowed = 1 + tries if first else min(max(tries, 1), MAX_TRY)
        if waiting.attempts < allowed and room.pending.get(*waiting.key) is waiting:
            room.stats.retries += 1
            if room.generation in ("v1", "v2"):
                self._note_retry(waiting)
            pause = min(room.options.retry_pause * 2 ** (waiting.attempts - 1), MAX_PAUSE)
            room.later(pause, lambda: self._attempt(waiting))
            return
        if first:
            waiting.message = waiting.message.copy(tries=0, now=room.wall_ms() // 1000)
            waiting.message.uid = waiting.message.uid or waiting.uid
        self._fail(waiting, failures.unreachable(room.generation, waiting.dst, reason))

    def _note_retry(self, waiting: Waiting) -> None:
        """The entry that the first generation keeps between attempts."""
        m = waiting.message
        left = max(0, m.tries - waiting.attempts)
        entry = m.copy(
            uid=waiting.uid, dst=[waiting.dst], tries=left, now=self.room.wall_ms() // 1000
        )
        text = encode(entry, self.room.generation)
        self.room.redis.write([("HSET", RETRY, waiting.uid, text)])

    def _fail(self, waiting: Waiting, text: str) -> None:
        waiting.busy = False
        self._end(waiting.dst)
        self.room.answers.fail(waiting, text)

    # -- answers of our handlers --

    def reply(self, m: Message, dst: int) -> None:
        """Send an answer to the twin that asked."""
        self._begin(dst, (m, dst))

    def _reply(self, m: Message, dst: int, attempt: int) -> None:
        room = self.room
        if not room.directory.knows(dst):
            room.spawn(self._reply_later(m, dst, attempt))
            return
        twin = room.directory.get(dst)
        now, exp = stamp(room.wall_ms() // 1000, m)
        if twin is None or exp <= 0:
            self._drop(m, dst, "the twin is not known" if twin is None else "it has expired")
            return
        generation = twin.generation or room.generation
        sent = m.copy(src=room.own, dst=[dst], tag=None, sig=None, pxy=False)
        if generation != "v1":
            sent.now, sent.exp = now, exp

        def post(body: bytes) -> None:
            room.peers.post(twin.place, PATHS[generation][1], body, answered)

        def answered(answer: Answer) -> None:
            if is_accepted(generation, answer.status):
                room.stats.replies_sent += 1
                self._end(dst)
            elif answer.status:
                self._drop(m, dst, answer.phrase)
            elif attempt < max(min(m.tries, MAX_TRY), 3):
                room.directory.forget(dst)
                pause = min(room.options.retry_pause * 2 ** (attempt - 1), MAX_PAUSE)
                room.later(pause, lambda: self._reply(m, dst, attempt + 1))
            else:
                self._drop(m, dst, answer.reason)

        self._encode_reply(sent, generation, twin, post)

    def _encode_reply(
        self, sent: Message, generation: Generation, twin: Twin, post: Callable[[bytes], None]
    ) -> None:
        room = self.room
        if not room.signs_for(twin):
            post(encode(sent, generation))
            return
        signed = digest(sent)

        def done(sig: str) -> None:
            sent.sig = sig
            post(encode(sent, "rs"))

        room.bulk.submit(lambda: room.signer.sign(signed), done)

    async def _reply_later(self, m: Message, dst: int, attempt: int) -> None:
        if await self.room.look_up(dst) is None:
            self._drop(m, dst, "the twin is not known")
        else:
            self._reply(m, dst, attempt)

    def _drop(self, m: Message, dst: int, reason: str) -> None:
        self.room.stats.replies_dropped += 1
        self._end(dst)
        log.warning("dropped the answer %s to twin %d: %s", m.uid, dst, reason)
