"""`polybus top`: a node as it works, in a terminal.

Invariant: all numbers are answers of the node to the questions that every client may ask; a rate is the difference of
two answers.
"""

from __future__ import annotations

import asyncio
import errno
import os
from dataclasses import dataclass, field
from time import perf_counter
from typing import Final, NoReturn

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table

import polybus
from polybus.cli.bench_figures import show_bytes
from polybus.cli.bus import Duration, run_until_stopped, url_option
from polybus.cli.output import json_option, print_json_line
from polybus.client import Bus
from polybus.core.engine import TopicInfo
from polybus.core.group_options import GroupInfo
from polybus.errors import LocalProtocolError, NoSuchTopic

ROWS: Final = 15  # of each table; the busiest


@dataclass(frozen=True, slots=True)
class Service:
    """A name that is answered."""

    name: str
    wire: str
    peer: str
    calls: int


@dataclass(frozen=True, slots=True)
class Sample:
    """A node at one moment."""

    at: float
    services: tuple[Service, ...]
    topics: tuple[TopicInfo, ...] = ()
    groups: tuple[GroupInfo, ...] = ()


@dataclass(slots=True)
class WireRow:
    """One protocol. `connections` are those that answer a name or are members of a group."""

    wire: str
    services: int = 0
    members: int = 0
    calls: int = 0
    calls_per_s: float = 0.0
    peers: set[str] = field(default_factory=set)

    @property
    def connections(self) -> int:
        return len(self.peers)


@dataclass(frozen=True, slots=True)
class ServiceRow:
    name: str
    wire: str
    peer: str
    calls: int
    calls_per_s: float


@dataclass(frozen=True, slots=True)
class TopicRow:
    topic: str
    records: int
    bytes: int
    records_per_s: float
    groups: int
    lag: int
    in_flight: int


@dataclass(frozen=True, slots=True)
class View:
    """What is shown: the busiest first."""

    wires: list[WireRow]
    services: list[ServiceRow]
    topics: list[TopicRow]


async def look(bus: Bus) -> Sample:
    """Ask the node; one without durable topics has none to show."""
    services = tuple(
        Service(str(found["name"]), str(found["wire"]), str(found["peer"]), int(found["calls"]))
        for found in await bus.services()
    )
    try:
        topics = tuple(await bus.topics())
    except LocalProtocolError:
        return Sample(perf_counter(), services)
    groups: list[GroupInfo] = []
    for topic in topics:
        try:
            groups += await bus.groups(topic.name)
        except NoSuchTopic:  # removed since it was listed
            continue
    return Sample(perf_counter(), services, topics, tuple(groups))


def view(now: Sample, before: Sample | None) -> View:
    """Two looks as rates; all are 0 at the first."""
    span = now.at - before.at if before is not None else 0.0
    past_calls = {(s.wire, s.name): s.calls for s in before.services} if before else {}
    past_ends = {topic.name: topic.end for topic in before.topics} if before else {}

    def rate(count: int, past: int | None) -> float:
        # Less than before: it is a new one of the same name.
        return (count - past) / span if past is not None and span > 0 and count >= past else 0.0

    services = [
        ServiceRow(s.name, s.wire, s.peer, s.calls, rate(s.calls, past_calls.get((s.wire, s.name))))
        for s in now.services
    ]
    topics = []
    for topic in now.topics:
        groups = [group for group in now.groups if group.topic == topic.name]
        topics.append(
            TopicRow(
                topic.name,
                topic.end - topic.first,
                topic.bytes,
                rate(topic.end, past_ends.get(topic.name)),
                len(groups),
                max((group.lag for group in groups), default=0),
                sum(group.in_flight for group in groups),
            )
        )
    services.sort(key=lambda row: (-row.calls_per_s, -row.calls, row.name))
    topics.sort(key=lambda row: (-row.records_per_s, -row.lag, row.topic))
    return View(_wires(services, now.groups), services, topics)


def _wires(services: list[ServiceRow], groups: tuple[GroupInfo, ...]) -> list[WireRow]:
    rows: dict[str, WireRow] = {}
    for service in services:
        row = rows.setdefault(service.wire, WireRow(service.wire))
        row.services += 1
        row.calls += service.calls
        row.calls_per_s += service.calls_per_s
        row.peers.add(service.peer)
    for group in groups:
        for member in group.members:
            row = rows.setdefault(member.wire, WireRow(member.wire))
            row.members += 1
            row.peers.add(member.peer)
    return sorted(rows.values(), key=lambda row: row.wire)


def _table(title: str, headings: tuple[str, ...], rows: list[tuple[object, ...]]) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for number, heading in enumerate(headings):
        table.add_column(
            heading, justify="left" if number == 0 or heading in ("wire", "peer") else "right"
        )
    for row in rows[:ROWS]:
        table.add_row(*map(str, row))
    if len(rows) > ROWS:
        table.add_row(f"… {len(rows) - ROWS} more")
    return table


def render(url: str, shown: View) -> RenderableType:
    """The view as tables, the busiest rows of each."""
    wires = _table(
        "wires",
        ("wire", "services", "group members", "connections", "calls", "calls/s"),
        [
            (w.wire, w.services, w.members, w.connections, w.calls, f"{w.calls_per_s:,.0f}")
            for w in shown.wires
        ],
    )
    services = _table(
        "services",
        ("name", "wire", "peer", "calls", "calls/s"),
        [(s.name, s.wire, s.peer, s.calls, f"{s.calls_per_s:,.0f}") for s in shown.services],
    )
    topics = _table(
        "topics",
        ("topic", "records", "bytes", "records/s", "groups", "lag", "in flight"),
        [
            (
                *(t.topic, t.records, show_bytes(t.bytes), f"{t.records_per_s:,.0f}"),
                *(t.groups, t.lag, t.in_flight),
            )
            for t in shown.topics
        ],
    )
    return Group(f"polybus at {url}", "", wires, "", services, "", topics)


def fields_of(shown: View) -> dict[str, object]:
    """The view for programs."""
    wires = [
        {
            "wire": row.wire,
            "services": row.services,
            "members": row.members,
            "connections": row.connections,
            "calls": row.calls,
            "calls_per_s": row.calls_per_s,
        }
        for row in shown.wires
    ]
    return {"wires": wires, "services": shown.services, "topics": shown.topics}


class _Screen(Console):
    """A console whose reader may go away: rich would end the program from within a task, which shows a traceback."""

    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


@click.command(short_help="Show a node as it works, live.")
@click.option(
    "--interval", type=Duration(), default="1s", show_default=True, help="Between two looks."
)
@click.option("--count", type=click.IntRange(1), help="End after so many looks.")
@url_option
@json_option
def top(interval: float, count: int | None, url: str | None, as_json: bool) -> None:
    """Show the wires, services and topics of a node as they work, the busiest first, until Ctrl-C.

    On a terminal the view is drawn in place; otherwise, and with --json, each look is printed below the last.
    Connections are those that answer a name or are members of a group.
    """
    console = _Screen()

    async def verb() -> None:
        async with polybus.connect(url) as bus:
            before, looks = None, 0
            with Live(console=console, screen=False, auto_refresh=False) as live:
                while True:
                    now = await look(bus)
                    shown = view(now, before)
                    if as_json:
                        print_json_line(fields_of(shown))
                    elif console.is_terminal:
                        live.update(render(bus.url, shown), refresh=True)
                    else:
                        console.print(render(bus.url, shown))
                    before, looks = now, looks + 1
                    if looks == count:
                        return
                    await asyncio.sleep(interval)

    run_until_stopped(verb())
