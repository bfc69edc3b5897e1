"""How long calls take: a few counters per service instead of a list of times.

Invariant: memory does not grow with the number of calls, and a percentile is right within the width of a bucket
(15 %).
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import Final

FIRST_S: Final = 50e-6
FACTOR: Final = 1.3
BOUNDS: Final = tuple(FIRST_S * FACTOR**n for n in range(56))  # the last is 92 s
WINDOW_S: Final = 30.0

# The few bounds that go to Prometheus, where every one of them is a series.
EXPORTED: Final = (0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0)


class Durations:
    """One service: the window that is being filled and the one before it."""

    __slots__ = ("_before", "_now", "_since")

    def __init__(self, now: float) -> None:
        self._now = [0] * (len(BOUNDS) + 1)
        self._before = self._now
        self._since = now

    def add(self, seconds: float, now: float) -> None:
        """Count one call."""
        if now - self._since > WINDOW_S:
            self._turn(now)
        self._now[bisect_left(BOUNDS, seconds)] += 1

    def percentile(self, share: float, now: float) -> float | None:
        """Seconds within which this share of the calls of the last windows ended; None without calls."""
        if now - self._since > WINDOW_S:
            self._turn(now)
        if self._before is self._now:
            counts = self._now
        else:
            counts = [a + b for a, b in zip(self._now, self._before, strict=True)]
        total = sum(counts)
        if not total:
            return None
        for index, below in enumerate(accumulate(counts)):
            if below >= share * total:
                upper = BOUNDS[min(index, len(BOUNDS) - 1)]
                return upper / FACTOR**0.5 if index < len(BOUNDS) else upper
        return BOUNDS[-1]

    def _turn(self, now: float) -> None:
        stale = now - self._since > 2 * WINDOW_S
        self._before = [0] * len(self._now) if stale else self._now
        self._now = [0] * len(self._now)
        self._since = now


class Histogram:
    """All calls of a protocol since the start, in the buckets that are exported."""

    __slots__ = ("counts", "total_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(EXPORTED) + 1)
        self.total_s = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(EXPORTED, seconds)] += 1
        self.total_s += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative counts by upper bound, as Prometheus has them."""
        bounds = [*map(str, EXPORTED), "+Inf"]
        return list(zip(bounds, map(float, accumulate(self.counts)), strict=True))
