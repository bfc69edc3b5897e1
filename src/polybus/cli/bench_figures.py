"""What a measurement says: rates, and percentiles of how long single messages took.

Invariant: figures come from what was counted and timed, never from what was planned.
"""

from __future__ import annotations

import csv
import math
import statistics
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import IO


@dataclass(slots=True)
class Tally:
    """What one client did: counts, from when to when, and how long each message or batch took."""

    msgs: int = 0
    bytes: int = 0
    began: float = math.inf
    ended: float = 0.0
    seconds: array[float] = field(default_factory=lambda: array("d"))

    def add(self, msgs: int, size: int, began: float, ended: float) -> None:
        """Count messages that went together, and time them."""
        self.count(msgs, size, began, ended)
        self.seconds.append(ended - began)

    def count(self, msgs: int, size: int, began: float, ended: float) -> None:
        """Count messages whose time says nothing."""
        self.msgs += msgs
        self.bytes += size
        self.began = min(self.began, began)
        self.ended = max(self.ended, ended)

    @property
    def rate(self) -> float:
        span = self.ended - self.began
        return self.msgs / span if self.msgs and span > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Figures:
    """A measurement. Times are None where single messages were not timed; `lost` is what was sent and never came."""

    bench: str
    clients: int
    msgs: int
    lost: int
    bytes: int
    seconds: float
    msgs_per_s: float
    bytes_per_s: float
    p50_ms: float | None
    p90_ms: float | None
    p99_ms: float | None
    max_ms: float | None
    client_min: float
    client_avg: float
    client_max: float
    client_stddev: float


def figures(bench: str, tallies: Sequence[Tally], lost: int = 0) -> Figures:
    """All clients together; the time is from the first message of any to the last of any."""
    msgs = sum(tally.msgs for tally in tallies)
    size = sum(tally.bytes for tally in tallies)
    span = 0.0
    if msgs:
        span = max(tally.ended for tally in tallies) - min(tally.began for tally in tallies)
    times = sorted(second for tally in tallies for second in tally.seconds)
    rates = [tally.rate for tally in tallies]
    return Figures(
        bench=bench,
        clients=len(tallies),
        msgs=msgs,
        lost=lost,
        bytes=size,
        seconds=span,
        msgs_per_s=msgs / span if span else 0.0,
        bytes_per_s=size / span if span else 0.0,
        p50_ms=percentile_ms(times, 0.50),
        p90_ms=percentile_ms(times, 0.90),
        p99_ms=percentile_ms(times, 0.99),
        max_ms=percentile_ms(times, 1.0),
        client_min=min(rates),
        client_avg=statistics.fmean(rates),
        client_max=max(rates),
        client_stddev=statistics.pstdev(rates),
    )


def percentile_ms(times: Sequence[float], share: float) -> float | None:
    """The smallest of the sorted `times` that this share of them does not exceed, in milliseconds."""
    if not times:
        return None
    return times[max(0, math.ceil(share * len(times)) - 1)] * 1000


def row(found: Figures) -> dict[str, object]:
    """The figures for people."""

    def ms(value: float | None) -> str:
        return "-" if value is None else f"{value:.3f} ms"

    return {
        "bench": found.bench,
        "clients": found.clients,
        "msgs": found.msgs,
        "seconds": f"{found.seconds:.2f}",
        "msgs/s": f"{found.msgs_per_s:,.0f}",
        "bytes/s": f"{show_bytes(found.bytes_per_s)}",
        "p50": ms(found.p50_ms),
        "p90": ms(found.p90_ms),
        "p99": ms(found.p99_ms),
        "max": ms(found.max_ms),
    }


def show_bytes(count: float) -> str:
    """A size with three digits or so: `1.5 MiB`."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.3g} {unit}" if count < 1000 else f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.2f} GiB"


def write_csv(stream: IO[str], rows: Sequence[Figures]) -> None:
    """The figures with their names in the first line."""
    names = [item.name for item in fields(Figures)]
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([getattr(found, name) for name in names] for found in rows)
