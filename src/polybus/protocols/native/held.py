"""Calls that found no room in their service's queue and wait for some (DESIGN 4).

Invariant: what waits is bounded in bytes, and no call waits longer than its time to wait: a full target never pauses
its callers, and its callers always hear of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from polybus.model.message import Call

MAX_HELD_BYTES: Final = 16 * 1024 * 1024  # as much as one sender may have waiting in a queue


class HeldCalls:
    """The calls one session could not pass on yet, oldest first."""

    __slots__ = ("_bytes", "_waiting")

    def __init__(self) -> None:
        self._waiting: list[tuple[float, Call, bytes]] = []
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def hold(self, call: Call, frame: bytes, until: float) -> bool:
        """Keep a call; False when there is no room for it here either."""
        if self._bytes + len(frame) > MAX_HELD_BYTES:
            return False
        self._waiting.append((until, call, frame))
        self._bytes += len(frame)
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
        self._bytes = sum(len(frame) for _until, _call, frame in self._waiting)
