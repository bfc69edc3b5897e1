"""What happened before the page was opened: traffic by window and the graph of calls, out of the pipelines' topics.

Invariant: an answer looks at a bounded number of the newest records, in turns, and is kept for `KEPT_S` for all who
ask; a record that is no row is counted and left out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from heapq import nlargest
from operator import add
from typing import Annotated, Final, Generic, TypeVar

import msgspec
from msgspec import Meta

from polybus.core.topics import Topics
from polybus.errors import CorruptRecord
from polybus.model import journal
from polybus.model.clock import Clock
from polybus.model.record import Record
from polybus.monitor.records import READ, read
from polybus.monitor.shapes import Shape
from polybus.monitor.turns import Turns

TRAFFIC: Final = "polybus.traffic"  # written by `polybus pipeline traffic`
JOURNAL: Final = journal.TOPIC
MAX_ROWS: Final = 10_000  # looked at for one answer
MAX_WINDOWS: Final = 240  # four hours of minutes
MAX_NAMES: Final = 100
MAX_EDGES: Final = 100  # more cannot be told apart
MAX_TIMES: Final = 1000  # durations kept per edge for its p99
MAX_US: Final = 2**62  # of a time in a row
KEPT_S: Final = 10.0

Number = Annotated[int, Meta(ge=0, le=2**48)]
"""Of one row: sums of all that are looked at still fit into JSON."""


class Window(msgspec.Struct):
    """One row of `polybus.traffic`, as Spark writes it: what is null is left out."""

    start: datetime
    end: datetime
    protocol: str
    name: str
    calls: Number = 0
    publications: Number = 0
    bytes: Number = 0
    errors: Number = 0
    p99_ms: float | None = None


class Series(Shape):
    """One protocol over the windows."""

    protocol: str
    calls: list[int]
    publications: list[int]
    errors: list[int]
    bytes: list[int]


class NameTraffic(Shape):
    """One name over all windows; `worst_p99_ms` is that of its slowest window."""

    protocol: str
    name: str
    calls: int
    publications: int
    errors: int
    bytes: int
    worst_p99_ms: float | None


class TrafficHistory(Shape):
    """Traffic by window, oldest first; every list of a series has the length of `times_ms`, which are the starts.
    `present` says whether the topic is there. Names are those of all rows that were looked at, the busiest first."""

    topic: str
    present: bool
    rows: int
    rejected: int
    window_ms: int
    times_ms: list[int]
    series: list[Series]
    names: list[NameTraffic]


class Edge(Shape):
    """Calls of one caller to one name."""

    caller: str
    name: str
    protocol_in: str
    protocol_out: str
    calls: int
    errors: int
    rate: float
    p99_ms: float | None


class CallGraph(Shape):
    """Who called whom in the newest rows of the journal; the busiest edges come first."""

    topic: str
    present: bool
    rows: int
    rejected: int
    from_ms: int
    to_ms: int
    edges: list[Edge]


T = TypeVar("T")


class Kept(Generic[T]):
    """An answer that is worked out at most every `KEPT_S`, however many ask."""

    def __init__(self, clock: Clock, make: Callable[[Topics], Awaitable[T]]) -> None:
        self._clock = clock
        self._make = make
        self._found: T | None = None
        self._at = 0.0

    async def get(self, topics: Topics) -> T:
        now = self._clock.monotonic()
        if self._found is None or now - self._at > KEPT_S:
            self._found, self._at = await self._make(topics), now
        return self._found


async def newest(topics: Topics, topic: str, take: Callable[[Record], None]) -> None:
    """Show the newest records to `take`, in log order."""
    info = topics.info(topic)
    position, end = max(info.first, info.end - MAX_ROWS), info.end
    turns = Turns()
    while position < end:
        found = await read(topics, topic, position, READ)
        if not found:
            return
        for record in found:
            take(record)
            if turns.over():
                await turns.rest()
        position = found[-1].offset + 1


# -- traffic --------------------------------------------------------------------------------------------------


class Windows:
    """Rows of traffic, summed up as they come."""

    def __init__(self) -> None:
        self.rows = 0
        self.rejected = 0
        self.step = 0
        self.sums: dict[tuple[int, str], list[int]] = {}
        self.names: dict[tuple[str, str], NameTraffic] = {}
        self._decode = msgspec.json.Decoder(Window).decode

    def take(self, record: Record) -> None:
        """One record."""
        try:
            row = self._decode(record.payload)
        except msgspec.DecodeError:
            self.rejected += 1
            return
        start, end = _ms(row.start), _ms(row.end)
        self.step = max(1000, min(self.step or end - start, end - start))
        counts = (row.calls, row.publications, row.errors, row.bytes)
        sums = self.sums.setdefault((start, row.protocol), [0, 0, 0, 0])
        sums[:] = map(add, sums, counts)
        total = self.names.get((row.protocol, row.name))
        if total is None:
            total = NameTraffic(row.protocol, row.name, 0, 0, 0, 0, None)
            self.names[row.protocol, row.name] = total
        total.calls += row.calls
        total.publications += row.publications
        total.errors += row.errors
        total.bytes += row.bytes
        if row.p99_ms is not None:
            total.worst_p99_ms = max(total.worst_p99_ms or 0.0, row.p99_ms)
        self.rows += 1

    def times(self) -> list[int]:
        """The starts of the newest windows without a gap."""
        if not self.sums:
            return []
        starts = [start for start, _ in self.sums]
        last = max(starts)
        first = max(min(starts), last - (MAX_WINDOWS - 1) * self.step)
        # Counted back from the newest: that one must be among them, whatever older rows begin at.
        return list(range(last, first - 1, -self.step))[::-1]

    def series(self, times: list[int]) -> list[Series]:
        """The sums of each protocol in those windows."""
        found: dict[str, Series] = {}
        for (start, protocol), sums in self.sums.items():
            if start < times[0]:
                continue
            series = found.get(protocol)
            if series is None:
                empty = [[0] * len(times) for _ in range(4)]
                series = found[protocol] = Series(protocol, *empty)
            index = (start - times[0]) // self.step
            lists = (series.calls, series.publications, series.errors, series.bytes)
            for values, count in zip(lists, sums, strict=True):
                values[index] += count
        return [found[protocol] for protocol in sorted(found)]


async def traffic(topics: Topics) -> TrafficHistory:
    """Traffic by window, as far as the pipeline has written it."""
    windows, present = Windows(), topics.has(TRAFFIC)
    if present:
        await newest(topics, TRAFFIC, windows.take)
    times = windows.times()
    return TrafficHistory(
        topic=TRAFFIC,
        present=present,
        rows=windows.rows,
        rejected=windows.rejected,
        window_ms=windows.step,
        times_ms=times,
        series=windows.series(times),
        names=nlargest(MAX_NAMES, windows.names.values(), lambda n: n.calls + n.publications),
    )


def _ms(moment: datetime) -> int:
    # Spark leaves the zone out where its session has none.
    return round(moment.replace(tzinfo=moment.tzinfo or UTC).timestamp() * 1000)


# -- the graph of calls ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class Calls:
    """What is known of one edge."""

    last: journal.Row
    count: int = 0
    errors: int = 0
    times_us: deque[int] = field(default_factory=lambda: deque(maxlen=MAX_TIMES))

    def edge(self, seconds: float) -> Edge:
        """It, for the page."""
        times = sorted(self.times_us)
        return Edge(
            caller=self.last.caller,
            name=self.last.name,
            protocol_in=self.last.wire_in,
            protocol_out=self.last.wire_out,
            calls=self.count,
            errors=self.errors,
            rate=round(self.count / seconds, 3),
            p99_ms=times[(len(times) - 1) * 99 // 100] / 1000 if times else None,
        )


async def call_graph(topics: Topics) -> CallGraph:
    """Who called whom, as the journal tells."""
    edges: dict[tuple[str, str], Calls] = {}
    rows = rejected = earliest = latest = 0

    def take(record: Record) -> None:
        nonlocal rows, rejected, earliest, latest
        row = _row(record.payload)
        if row is None:
            rejected += 1
            return
        rows += 1
        if row.kind != "call":
            return
        calls = edges.get((row.caller, row.name))
        if calls is None:
            calls = edges[row.caller, row.name] = Calls(row)
        calls.last = row
        calls.count += 1
        calls.errors += row.status != 0
        if row.duration_us >= 0:
            calls.times_us.append(row.duration_us)
        earliest = min(earliest or row.time_us, row.time_us)
        latest = max(latest, row.time_us)

    present = topics.has(JOURNAL)
    if present:
        await newest(topics, JOURNAL, take)
    seconds = max((latest - earliest) / 1_000_000, 1.0)
    busiest = nlargest(MAX_EDGES, edges.values(), lambda calls: calls.count)
    return CallGraph(
        topic=JOURNAL,
        present=present,
        rows=rows,
        rejected=rejected,
        from_ms=earliest // 1000,
        to_ms=latest // 1000,
        edges=[calls.edge(seconds) for calls in busiest],
    )


def _row(payload: bytes) -> journal.Row | None:
    """A row whose elements are what they should be: anybody who may produce can write to the topic."""
    try:
        row = journal.parse_row(payload)
    except CorruptRecord:
        return None
    texts: tuple[object, ...] = (row.wire_in, row.wire_out, row.name, row.caller)
    numbers: tuple[object, ...] = (row.time_us, row.duration_us, row.status)
    sound = all(isinstance(text, str) for text in texts)
    sound = sound and all(isinstance(n, int) and -MAX_US < n < MAX_US for n in numbers)
    return row if sound else None
