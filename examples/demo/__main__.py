"""Five systems at work on one bus: `python -m examples.demo [--seconds 30] [--data FOLDER] [--real] [--no-spark]`.

Invariant: it ends with code 0 only if nothing failed but what is meant to, and it leaves no process behind.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

import polybus
from examples.demo import gsb, pipelines, real, rmb, sdk, t2, zbus
from examples.demo.habits import Day
from examples.demo.stage import DidNotStart, Stage
from examples.demo.table import show
from polybus.client import Bus

START_S = 60  # a Java program on a busy machine takes its time
PROGRAMS = (gsb, t2, zbus, rmb, sdk)


class NotThere(Exception):
    """A program did not offer its service in time."""


async def play(stage: Stage, day: Day, parts: list[real.Part], opening: list[str]) -> None:
    """All programs at work for a day."""
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, day.interrupt)
    for line in opening:  # not before: whoever reads it may press Ctrl-C
        say(line)
    names = {name for each in PROGRAMS for name in each.NAMES}
    async with contextlib.AsyncExitStack() as stack:
        bus = await stack.enter_async_context(polybus.connect(f"polybus://{stage.address}"))
        habits = await stack.enter_async_context(real.program(stage, parts))
        for each in PROGRAMS:
            habits += await stack.enter_async_context(each.program(stage))
        await wait_for_services(bus, names | {part.service for part in parts} - {""}, day)
        over = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(show(bus, Console(), over))
            await day.spend(habits)
            over.set()


async def wait_for_services(bus: Bus, names: set[str], day: Day) -> None:
    """Begin when everybody is there, or not at all."""
    until = asyncio.get_running_loop().time() + START_S
    while missing := names - {str(found["shared"]) for found in await bus.services()}:
        if day.interrupted:
            return
        if asyncio.get_running_loop().time() > until:
            raise NotThere(f"nobody answers {', '.join(sorted(missing))}")
        await asyncio.sleep(0.05)


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(prog="demo", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=30, help="how long the programs work")
    parser.add_argument("--data", type=Path, default=Path("demo-data"), help="folder of what stays")
    parser.add_argument("--real", action="store_true", help="build the programs of others first")
    parser.add_argument("--no-spark", action="store_true", help="leave the pipelines out")
    return parser.parse_args()


def say(text: str) -> None:
    """At once, also into a pipe."""
    print(text, flush=True)


def perform(given: argparse.Namespace) -> Day:
    """The demo itself."""
    day = Day(given.seconds)
    with Stage(given.data.resolve()) as stage:
        parts, without = real.find(stage)
        taking = ["GSB, T2, Zbus, RMB and SDK in Python", *(part.title for part in parts)]
        opening = [f"bus: {stage.address}, the same port for GSB, T2, Zbus and the SDK"]
        opening.append(f"take part: {', '.join(taking)}")
        if without:
            opening.append(f"without: {', '.join(without)}")
        asyncio.run(play(stage, day, parts, opening))
    for surprise in day.surprises:
        print(f"failed: {surprise}", file=sys.stderr)
    say(f"journal and captures are in {stage.folder}")
    return day


def evaluate(folder: Path, began: datetime, wanted: bool) -> None:
    """The report, or how to get it."""
    missing = pipelines.missing()
    if wanted and not missing:
        say("Spark is starting …")
        say(f"report: {pipelines.run(folder, began)}")
    else:
        say(f"the report{f' needs {missing}, and then' if missing else ''} is made by:")
        say(pipelines.how_to(folder))


def interrupt(*_: object) -> None:
    """SIGTERM as Ctrl-C: what was started is ended first."""
    raise KeyboardInterrupt


def main() -> int:
    """Play, then let the pipelines tell what happened."""
    given = arguments()
    if given.real:
        real.build()
    began = datetime.now(UTC)
    try:
        signal.signal(signal.SIGTERM, interrupt)
        day = perform(given)
        signal.signal(signal.SIGTERM, interrupt)  # again: the event loop has reset it
        evaluate(given.data.resolve(), began, not (given.no_spark or day.interrupted))
    except KeyboardInterrupt:
        return 130
    except (NotThere, pipelines.SparkFailed, DidNotStart) as exc:
        print(exc, file=sys.stderr)
        return 1
    return 1 if day.surprises else 0


if __name__ == "__main__":
    sys.exit(main())
