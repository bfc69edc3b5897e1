"""`make matrix`: plays every cell and prints who reaches whom, how each case ends, and what cannot be played.

The invariant: a cell that ends otherwise than the matrix says is printed, and the program then ends with code 1.
"""

from __future__ import annotations

import asyncio
import logging
import statistics
import sys
import time
from collections import Counter
from contextlib import AsyncExitStack
from typing import Final

from rich.console import Console
from rich.progress import track
from rich.table import Table

from tests.matrix.callers import CALLERS, Caller
from tests.matrix.cells import CASES, CELLS, Cell
from tests.matrix.play import ENDING, GREETING, payload_of, play
from tests.matrix.services import SERVICES, Service
from tests.matrix.stage import NARROWED, Stage

CALLS: Final = 30  # whose median is the latency
ENDS: Final = ("ok", "refused", "n/a")
GIVES: Final = ("success", "512 KiB", "not UTF-8")

Outcome = str
Outcomes = dict[Cell, Outcome]
Latencies = dict[tuple[type[Caller], type[Service]], float]


async def outcome_of(cell: Cell, stage: Stage) -> Outcome:
    """`ok`, `refused` in the caller's own words, or what was wrong."""
    ended, service = await play(cell, stage)
    word, text = cell.expected
    if ended.word != word or text not in ended.text:
        return f"{ended.word} {ended.text[:60]!r} instead of {word} {text!r}"
    if cell.case in GIVES:
        return "ok" if ended.body == payload_of(cell) else "another payload came back"
    if cell.case == "too large" and service.seen:
        return "the service saw it"
    return "refused"


async def latency_of(caller: type[Caller], kind: type[Service], stage: Stage) -> float:
    """Seconds of a call, one after another; the median."""
    service = await stage.service(kind)
    taken = []
    async with caller(stage) as calling:
        for _ in range(CALLS):
            start = time.perf_counter()
            await calling.call(service.base, "echo", GREETING)
            taken.append(time.perf_counter() - start)
    return statistics.median(taken)


async def run(console: Console) -> tuple[Outcomes, Latencies]:
    outcomes: Outcomes = {}
    async with AsyncExitStack() as stack:
        jumping = await stack.enter_async_context(Stage())
        stages = {
            narrow: await stack.enter_async_context(Stage(narrow))
            for narrow in dict.fromkeys(NARROWED.values())
        }
        for cell in track(CELLS, "playing", console=console, transient=True):
            if cell.impossible:
                outcomes[cell] = "n/a"
            elif cell.case in ENDING:
                outcomes[cell] = await outcome_of(cell, jumping)
            else:
                narrow = NARROWED[cell.service.name] if cell.case == "too large" else ""
                outcomes[cell] = await outcome_of(cell, stages[narrow])
        latencies: Latencies = {
            (caller, kind): await latency_of(caller, kind, stages[""])
            for caller in CALLERS
            for kind in SERVICES
        }
    return outcomes, latencies


def counted(found: list[Outcome]) -> list[str]:
    count = Counter(o if o in ENDS else "WRONG" for o in found)
    return [f"{count[end]} {end}" for end in (*ENDS, "WRONG") if count[end]]


def pairs_table(outcomes: Outcomes, latencies: Latencies) -> Table:
    table = Table("caller \\ service", *(kind.name for kind in SERVICES), title="Calls")
    for caller in CALLERS:
        row = [caller.name]
        for kind in SERVICES:
            found = [o for c, o in outcomes.items() if (c.caller, c.service) == (caller, kind)]
            row.append("\n".join([f"{latencies[caller, kind] * 1000:.2f} ms", *counted(found)]))
        table.add_row(*row, end_section=True)
    return table


def cases_table(outcomes: Outcomes) -> Table:
    table = Table("caller \\ case", *CASES, title="How a call ends, over the five services")
    for caller in CALLERS:
        row = [caller.name]
        for case in CASES:
            found = [o for c, o in outcomes.items() if (c.caller, c.case) == (caller, case)]
            row.append("\n".join(counted(found)))
        table.add_row(*row, end_section=True)
    return table


def main() -> int:
    logging.disable(logging.CRITICAL)  # services that fail on purpose say so
    console = Console(width=None if sys.stdout.isatty() else 110)
    outcomes, latencies = asyncio.run(run(console))
    console.print(pairs_table(outcomes, latencies))
    console.print(cases_table(outcomes))
    reasons = Counter(cell.impossible for cell in CELLS if cell.impossible)
    for reason, number in reasons.most_common():
        console.print(f"n/a in {number}: {reason}")
    wrong = {c: o for c, o in outcomes.items() if o not in ENDS}
    for cell, outcome in wrong.items():
        console.print(f"WRONG {cell.id}: {outcome}", markup=False)
    played = len(CELLS) - sum(reasons.values())
    console.print(f"{played - len(wrong)} of {played} cells end as they must")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
