"""Requests that wait for answers: one entry for each destination, in memory and in Redis.

Invariant: an entry leaves exactly once, by an answer of the twin that was asked or by an error, at its deadline at the
latest; what Redis holds of it survives the node, so a request that was accepted is answered even after a restart.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from polybus.core.watch import Watched
from polybus.model.ids import counter
from polybus.protocols.rmb.message import Message, encode, parse_lenient
from polybus.protocols.rmb.queues import PENDING
from polybus.protocols.rmb.resp import Command

Key = tuple[str, int]
"""The id on the wire and the twin that was asked."""


class Waiting:
    """One request to one twin. `message` has the client's own `uid` and `ret`; `uid` is the one on the wire."""

    __slots__ = (
        "answer",
        "attempts",
        "busy",
        "deadline_ms",
        "dst",
        "message",
        "sig",
        "size",
        "text",
        "uid",
        "watched",
    )

    def __init__(self, uid: str, dst: int, message: Message, text: bytes = b"") -> None:
        self.uid = uid
        self.dst = dst
        self.message = message
        self.text = text
        """What the client wrote, for the first generation's backlog."""
        self.size = len(message.dat) + len(text)
        self.deadline_ms = (message.now + message.exp) * 1000
        self.attempts = 0
        self.busy = False
        """Whether it is being sent."""
        self.sig: str | None = None
        self.answer: object = None
        """Who in this process gets the answer instead of a queue in Redis."""
        self.watched: Watched | None = None
        """What the journal and captures have noted of it."""

    @property
    def key(self) -> Key:
        return self.uid, self.dst


class Pending:
    """All of them."""

    def __init__(self) -> None:
        self._by_key: dict[Key, Waiting] = {}
        self._by_uid: dict[str, list[int]] = {}
        self._deadlines: list[tuple[int, int, Waiting]] = []
        self._next = counter()
        self.held_bytes = 0
        """Payloads that are kept with the entries."""

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[Waiting]:
        return iter(self._by_key.values())

    def __contains__(self, key: Key) -> bool:
        return key in self._by_key

    def get(self, uid: str, dst: int) -> Waiting | None:
        return self._by_key.get((uid, dst))

    def asked(self, uid: str) -> list[int]:
        """The twins whose answers to `uid` are still missing."""
        return list(self._by_uid.get(uid, ()))

    def add(self, waiting: Waiting) -> None:
        self._insert(waiting)
        heapq.heappush(self._deadlines, (waiting.deadline_ms, self._next(), waiting))

    def take(self, uid: str, dst: int) -> Waiting | None:
        """Remove an entry; None when it has been removed already."""
        waiting = self._by_key.pop((uid, dst), None)
        if waiting is not None:
            self.held_bytes -= waiting.size
            asked = self._by_uid[uid]
            asked.remove(dst)
            if not asked:
                del self._by_uid[uid]
        return waiting

    def rename(self, waiting: Waiting, uid: str) -> None:
        """Give an entry another id; the first generation numbers every attempt anew (protocol page §1.3)."""
        self.take(*waiting.key)
        waiting.uid = uid
        self._insert(waiting)

    def due(self, now_ms: int) -> Iterator[Waiting]:
        """Those whose time is over; whoever asks has to `take` them."""
        deadlines = self._deadlines
        while deadlines and (deadlines[0][0] <= now_ms or not self._is_here(deadlines[0][2])):
            waiting = heapq.heappop(deadlines)[2]
            if self._is_here(waiting):
                yield waiting
        # Answers usually come long before the deadline: without this their entries would pile up.
        if len(deadlines) > 1024 and len(deadlines) > 4 * len(self._by_key):
            self._deadlines = [entry for entry in deadlines if self._is_here(entry[2])]
            heapq.heapify(self._deadlines)

    def _is_here(self, waiting: Waiting) -> bool:
        return self._by_key.get(waiting.key) is waiting

    def _insert(self, waiting: Waiting) -> None:
        self._by_key[waiting.key] = waiting
        self.held_bytes += waiting.size
        self._by_uid.setdefault(waiting.uid, []).append(waiting.dst)


def save(waiting: list[Waiting]) -> Command:
    """What makes entries survive the node."""
    parts: list[str | bytes] = []
    for entry in waiting:
        parts += [f"{entry.uid}.{entry.dst}", encode(entry.message, "rs")]
    return ("HSET", PENDING, *parts)


def forget(waiting: Waiting) -> Command:
    """What ends that."""
    return ("HDEL", PENDING, f"{waiting.uid}.{waiting.dst}")


def restore(field: bytes, value: bytes) -> Waiting:
    """An entry from Redis.

    Raises:
        Unreadable, ValueError: somebody else wrote there.
    """
    uid, _, dst = field.decode().rpartition(".")
    return Waiting(uid, int(dst), parse_lenient(value), value)
