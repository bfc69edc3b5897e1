"""The live table: what the journal tells of the demo, while it grows.

Invariant: every number comes out of `polybus.journal`, as the pipelines read it; the programs count nothing.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table

from polybus.client import Bus
from polybus.model.journal import TOPIC, Row, parse_row

SYSTEMS: Final = {"gsb": "GSB", "t2": "T2", "zbus": "Zbus", "rmb": "RMB", "native": "SDK"}
KEPT: Final = 10_000  # durations; of a longer demo the percentiles are those of its last calls
LOOK_S: Final = 0.5
LINE_S: Final = 5.0  # between two lines where there is no terminal


@dataclass(slots=True)
class Calls:
    """Calls of one kind: how many, how many of them failed, and how long they took."""

    count: int = 0
    failed: int = 0
    durations_us: deque[int] = field(default_factory=lambda: deque(maxlen=KEPT))

    def add(self, row: Row) -> None:
        self.count += 1
        self.failed += row.status != 0
        if row.duration_us >= 0:
            self.durations_us.append(row.duration_us)

    def within(self, share: float) -> str:
        """The time that this share of the calls took at most."""
        if not self.durations_us:
            return "–"
        ordered = sorted(self.durations_us)
        found = ordered[min(int(len(ordered) * share), len(ordered) - 1)] / 1000
        return f"{found:.1f} ms" if found < 10 else f"{found:.0f} ms"


class Tally:
    """All rows so far, by system and by pair of systems."""

    def __init__(self) -> None:
        self.all = Calls()
        self.calls: dict[str, Calls] = defaultdict(Calls)
        self.pairs: dict[tuple[str, str], Calls] = defaultdict(Calls)
        self.kinds: Counter[tuple[str, str]] = Counter()
        self.first_us = 0
        self.last_us = 0

    def add(self, row: Row) -> None:
        self.first_us = self.first_us or row.time_us
        self.last_us = max(self.last_us, row.time_us)
        caller = SYSTEMS.get(row.wire_in, row.wire_in)
        self.kinds[row.kind, caller] += 1
        if row.kind == "call":
            service = SYSTEMS.get(row.wire_out, row.wire_out) or "nobody"
            for calls in (self.all, self.calls[caller], self.pairs[caller, service]):
                calls.add(row)

    @property
    def seconds(self) -> float:
        return max((self.last_us - self.first_us) / 1e6, 0.001)

    def total(self, kind: str) -> int:
        return sum(count for (found, _), count in self.kinds.items() if found == kind)


class Follower:
    """Reads the journal on from where it was."""

    def __init__(self, bus: Bus, tally: Tally) -> None:
        self._bus = bus
        self._tally = tally
        self._at: int | None = None

    async def look(self) -> None:
        """Take what came since the last look; the first look is at the end of what was there before."""
        if self._at is None:
            self._at = (await self._bus.topic(TOPIC)).end
        while records := await self._bus.fetch(TOPIC, self._at):
            self._at = records[-1].offset + 1
            for record in records:
                self._tally.add(parse_row(record.payload))


def _table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left")
    for row in rows:
        table.add_row(*row)
    return table


def render(tally: Tally) -> RenderableType:
    """Both tables."""
    headings = ("calls", "calls/s", "failed", "p50", "p99", "published", "produced", "consumed")
    systems = []
    for system in SYSTEMS.values():
        calls = tally.calls[system]
        counts = (tally.kinds[kind, system] for kind in ("publish", "produce", "deliver"))
        systems.append(
            (
                *(system, f"{calls.count:,}", f"{calls.count / tally.seconds:,.0f}"),
                *(f"{calls.failed:,}", calls.within(0.5), calls.within(0.99)),
                *(f"{count:,}" if count else "–" for count in counts),
            )
        )
    pairs = []
    for caller in SYSTEMS.values():
        cells = [tally.pairs[caller, service] for service in SYSTEMS.values()]
        pairs.append(
            (caller, *(f"{c.count:,} / {c.within(0.99)}" if c.count else "–" for c in cells))
        )
    return Group(
        _table("", ("system", *headings), systems),
        "",
        _table(
            "who calls whom: calls / p99",
            ("caller", *SYSTEMS.values()),
            pairs,
        ),
    )


def line(tally: Tally) -> str:
    """The same in one line, for a log."""
    calls = tally.all
    return (
        f"{tally.seconds:4.0f} s  {calls.count:,} calls, {calls.failed:,} failed, "
        f"p50 {calls.within(0.5)}, p99 {calls.within(0.99)}; {tally.total('publish'):,} published, "
        f"{tally.total('produce'):,} produced, {tally.total('deliver'):,} consumed"
    )


async def show(bus: Bus, console: Console, over: asyncio.Event) -> Tally:
    """Follow the journal until it is over, in place on a terminal, else line by line; the tables come last."""
    tally = Tally()
    follower = Follower(bus, tally)
    await follower.look()
    waits, next_line = 0, LINE_S
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while not over.is_set():
            try:
                async with asyncio.timeout(LOOK_S):
                    await over.wait()
            except TimeoutError:
                waits += 1
            await follower.look()
            if console.is_terminal:
                live.update(render(tally), refresh=True)
            elif waits * LOOK_S >= next_line or over.is_set():
                next_line += LINE_S
                console.print(line(tally), highlight=False, soft_wrap=True)
    await asyncio.sleep(LOOK_S)  # a row is in the log a tenth of a second after its end
    await follower.look()
    console.print(render(tally), highlight=False)
    return tally
