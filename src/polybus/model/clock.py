"""Time as a value that is handed in, so that nothing below the node reads a wall clock.

Invariant: `monotonic` never goes back; deadlines are always in its unit and `wall_ms` is for records only.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Where the node's time comes from."""

    def monotonic(self) -> float:
        """Seconds that only grow; for deadlines and idle rules."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970; for what is written down."""


class SystemClock:
    """The machine's clocks."""

    # Twice per read of every connection
    monotonic = staticmethod(time.monotonic)

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000


class ManualClock:
    """A clock that tests move by hand."""

    def __init__(self, monotonic: float = 1000.0, wall_ms: int = 1_700_000_000_000) -> None:
        self._monotonic = monotonic
        self._wall_ms = wall_ms

    def monotonic(self) -> float:
        return self._monotonic

    def wall_ms(self) -> int:
        return self._wall_ms

    def advance(self, seconds: float) -> float:
        """Let `seconds` pass and return the new monotonic time."""
        self._monotonic += seconds
        self._wall_ms += round(seconds * 1000)
        return self._monotonic
