"""Calls that found no room in their service's queue and wait for some (DESIGN 4).

Invariant: what waits is bounded in bytes, and no call waits longer than its time to wait: a full target never pauses
its callers, and its callers always hear of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sized
from typing import Final

from polybus.model.message import Call

MAX_HELD_BYTES: Final = 16 * 1024 * 1024  # as much as one sender may have waiting in a queue
CALL_COST: Final = 600  # bytes that a call takes here beside its frame


class HeldCalls:
    """The calls one session could not pass on yet, oldest first."""

    __slots__ = ("_bytes", "_waiting")

    def __init__(self) -> None:
        self._waiting: list[tuple[float, Call, bytes]] = []
        self._bytes = 0

    def __len__(self) -> int:
        """What they take in bytes."""
        return self._bytes

    def hold(self, call: Call, frame: bytes, until: float) -> bool:
        """Keep a call; False when there is no room for it here either."""
        size = len(frame) + CALL_COST
        if self._bytes and self._bytes + size > MAX_HELD_BYTES:
            return False
        self._waiting.append((until, call, frame))
        self._bytes += size
        return True

    def retry(self, offer: Callable[[bytes, int], bool]) -> None:
        """Pass on what still has somebody waiting, as far as there is room."""
        self._keep(lambda _until, call, frame: not offer(frame, call.caller.id))

    def expire(self, now: float) -> list[Call]:
        """Take out the calls whose time is over."""
        over = [call for until, call, _frame in self._waiting if until <= now]
        self._keep(lambda until, _call, _frame: until > now)
        return [call for call in over if call.open or not call.wants_reply]

    def _keep(self, wanted: Callable[[float, Call, bytes], bool]) -> None:
        # A call that ended meanwhile (cancelled, or past its deadline) is of no interest to the service any more.
        self._waiting = [
            entry
            for entry in self._waiting
            if (entry[1].open or not entry[1].wants_reply) and wanted(*entry)
        ]
        self._bytes = sum(len(frame) + CALL_COST for _until, _call, frame in self._waiting)


class Kept:
    """All that a session keeps, counted when the node looks (`Outbox.input`)."""

    __slots__ = ("_parts",)

    def __init__(self, *parts: Sized) -> None:
        self._parts = parts

    def __len__(self) -> int:
        return sum(map(len, self._parts))
