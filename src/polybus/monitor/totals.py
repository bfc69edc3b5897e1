"""What a sample consists of: sums at one moment, the point that is kept of them, and rates of many counters.

Invariant: plain numbers, which know nothing of where they come from.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from polybus.core.endpoint import Traffic

SMOOTHING: Final = 0.5  # weight of the newest second in the rate of a topic or service


@dataclass(slots=True)
class Point:
    """One sample, as far as it is kept."""

    time_ms: int
    in_rate: dict[str, float]
    out_rate: dict[str, float]
    calls_rate: float
    produce_rate: float
    failures_rate: float
    connections: int
    lag: int
    loop_lag_ms: float


@dataclass(slots=True)
class Totals:
    """Sums at one moment."""

    at: float = 0.0
    wires: dict[str, Traffic] = field(default_factory=dict)
    services: dict[str, Traffic] = field(default_factory=dict)
    registered: Counter[str] = field(default_factory=Counter)
    connected: Counter[str] = field(default_factory=Counter)
    pending_bytes: int = 0
    topics: int = 0
    records: int = 0
    produced: int = 0
    stored_bytes: int = 0
    groups: int = 0
    lag: int = 0
    in_flight: int = 0
    redelivered: int = 0
    dead: int = 0


class Rates:
    """Rates of many counters by key; what is not counted any more is forgotten."""

    __slots__ = ("_last", "_rates")

    def __init__(self) -> None:
        self._last: dict[object, int] = {}
        self._rates: dict[object, float] = {}

    def get(self, key: object) -> float:
        return self._rates.get(key, 0.0)

    def take(self, counts: dict[object, int], seconds: float) -> None:
        """The counters as they stand now."""
        last, old = self._last, self._rates
        fresh = {}
        for key, count in counts.items():
            rate = max(0, count - last.get(key, count)) / seconds
            smooth = SMOOTHING * rate + (1 - SMOOTHING) * old.get(key, rate)
            if smooth > 0.005:
                fresh[key] = smooth
        self._rates = fresh
        self._last = counts
