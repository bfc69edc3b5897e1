"""`polybus bench`: how fast a node is, as its users see it.

Invariant: results go to stdout, progress to stderr; a node that was started for the run is gone when it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Coroutine, Iterator, Sequence
from time import perf_counter
from typing import Any, Final, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from polybus.cli import bench_load as loads
from polybus.cli.bench_figures import Figures, Tally, row, write_csv
from polybus.cli.bench_load import Durable, Load, Watch
from polybus.cli.bus import Duration, url_option
from polybus.cli.durable import BYTES
from polybus.cli.loop import loop_factory
from polybus.cli.output import json_option, print_json, print_table
from polybus.errors import PeerUnavailable
from polybus.server.load import CONFIG_FILE, GSB_URL, SETTINGS
from polybus.transports.url import DEFAULT_PORT

F = TypeVar("F", bound=Callable[..., Any])
Bench = Callable[[Load, Watch], Coroutine[Any, Any, list[Figures]]]

MSGS: Final = 10_000
STOP_S: Final = 15.0  # a node drains for 10 s at most
SERVE: Final = "from polybus.cli.main import main; main()"


@click.group()
def bench() -> None:
    """Measure a node: publishing, subscribing, calling, storing.

    Without --url, POLYBUS_URL and a context, this machine's port 15555 is measured; if nobody listens there, a node is
    started for the run. Compare only what was measured on the same machine with the same flags.
    """


def load_options(verb: F) -> F:
    """The flags that all benches have."""
    for option in (
        click.option("--csv", metavar="FILE", help="Write the figures as CSV; `-` is stdout."),
        click.option("--no-progress", is_flag=True, help="No progress bar."),
        click.option(
            "--throughput", type=click.FloatRange(min=0), default=0, help="Most msgs/s in all."
        ),
        click.option("--sleep", type=Duration(), default="0s", help="Pause after each message."),
        click.option(
            "--duration", type=Duration(), help="End after so long; instead of, or beside, --msgs."
        ),
        click.option(
            "--batch",
            type=click.IntRange(1),
            default=100,
            show_default=True,
            help="Under way at once, per client.",
        ),
        click.option("--size", type=BYTES, default="128B", show_default=True, help="Of a body."),
        click.option(
            "--msgs",
            type=click.IntRange(1),
            help=f"In all [default: {MSGS}, or as --duration allows].",
        ),
        click.option(
            "--clients", type=click.IntRange(1), default=1, show_default=True, help="Connections."
        ),
    ):
        verb = option(verb)
    return verb


@bench.command("pub")
@click.option("--name", help="What to publish to [default: a name of its own].")
@click.option(
    "--acks",
    type=click.Choice(["none", "explicit"]),
    default="explicit",
    show_default=True,
    help="Whether each publication is confirmed.",
)
@load_options
@url_option
@json_option
def pub(name: str | None, acks: str, **flags: Any) -> None:
    """Publish, and measure how fast the node takes it."""

    def body(load: Load, watch: Watch) -> Coroutine[Any, Any, list[Figures]]:
        where = name or loads.fresh_name()
        return loads.bench_pub(load, watch, name=where, confirmed=acks == "explicit")

    _measure(body, **flags)


@bench.command("sub", short_help="How long messages are on their way.")
@click.option("--name", help="What to subscribe to [default: a name of its own].")
@load_options
@url_option
@json_option
def sub(name: str | None, **flags: Any) -> None:
    """Subscribe with each client to one publisher, and measure how long messages are on their way."""

    def body(load: Load, watch: Watch) -> Coroutine[Any, Any, list[Figures]]:
        return loads.bench_sub(load, watch, name=name or loads.fresh_name())

    _measure(body, **flags)


@bench.command("call")
@click.option("--service", help="What to call [default: a service of its own that echoes].")
@load_options
@url_option
@json_option
def call(service: str | None, **flags: Any) -> None:
    """Call a service, and measure whole round trips."""

    def body(load: Load, watch: Watch) -> Coroutine[Any, Any, list[Figures]]:
        return loads.bench_call(load, watch, service=service)

    _measure(body, **flags)


@bench.command("durable", short_help="Store records, then consume them.")
@click.option("--topic", help="Where to store [default: a topic of its own, removed at the end].")
@click.option("--create", is_flag=True, help="Declare --topic if it is missing.")
@click.option("--purge", is_flag=True, help="Drop all records of --topic first.")
@click.option("--dedup", is_flag=True, help="Give each record an id.")
@click.option(
    "--acks",
    type=click.Choice(["explicit", "all"]),
    default="explicit",
    show_default=True,
    help="`all`: a batch goes and is acknowledged as one.",
)
@click.option("--consume/--no-consume", default=True, help="Read it all as a group afterwards.")
@load_options
@url_option
@json_option
def durable(
    topic: str | None,
    create: bool,
    purge: bool,
    dedup: bool,
    acks: str,
    consume: bool,
    **flags: Any,
) -> None:
    """Store records, each acknowledged once it is on disk, then consume them."""
    if topic is None and (create or purge):
        raise click.UsageError("--create and --purge need --topic")
    how = Durable(topic, create, purge, dedup, acks == "all", consume)

    def body(load: Load, watch: Watch) -> Coroutine[Any, Any, list[Figures]]:
        return loads.bench_durable(load, watch, how)

    _measure(body, stores=True, **flags)


def _measure(
    body: Bench,
    *,
    url: str | None,
    msgs: int | None,
    csv: str | None,
    no_progress: bool,
    as_json: bool,
    stores: bool = False,
    **rest: Any,
) -> None:
    if msgs is None and rest["duration"] is None:
        msgs = MSGS
    if csv == "-" and as_json:
        raise click.UsageError("--json and --csv - both want stdout")
    with contextlib.ExitStack() as stack:
        # Opened first: a file that cannot be written would lose what was measured.
        stream = None if csv is None else stack.enter_context(click.open_file(csv, "w"))
        if url is None and not _somebody_listens():
            url = stack.enter_context(own_node(stores))
            click.echo(
                f"nobody listens on port {DEFAULT_PORT}: measuring a node of its own", err=True
            )
        load = Load(url=url or f"polybus://127.0.0.1:{DEFAULT_PORT}", msgs=msgs, **rest)
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            found = runner.run(_watched(body, load, no_progress))
        if stream is not None:
            write_csv(stream, found)
    if as_json:
        print_json(found)
    elif csv != "-":
        _print(found)


def _print(found: Sequence[Figures]) -> None:
    print_table([row(one) for one in found], as_json=False)
    for one in found:
        if one.clients > 1:
            click.echo(
                f"{one.bench}, each client: min {one.client_min:,.0f}, avg {one.client_avg:,.0f}, "
                f"max {one.client_max:,.0f}, stddev {one.client_stddev:,.0f} msgs/s"
            )
        if one.lost:
            click.echo(f"{one.bench}: {one.lost} messages never came")


async def _watched(body: Bench, load: Load, no_progress: bool) -> list[Figures]:
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[msgs]} msgs"),
        TimeElapsedColumn(),
    )
    shown: list[asyncio.Task[None]] = []
    with Progress(
        *columns, console=console, disable=no_progress or not console.is_terminal
    ) as progress:

        def watch(phase: str, tallies: Sequence[Tally]) -> None:
            end_of_phase()
            shown.append(asyncio.create_task(_show(progress, phase, load, tallies)))

        def end_of_phase() -> None:
            if shown:
                shown.pop().cancel()

        try:
            return await body(load, watch)
        finally:
            end_of_phase()


async def _show(progress: Progress, phase: str, load: Load, tallies: Sequence[Tally]) -> None:
    """Keep one bar up to date, by messages where their number is known and by time otherwise."""
    fan_out = load.clients if phase == "sub" else 1
    total = load.msgs * fan_out if load.msgs is not None else load.duration or math.inf
    task = progress.add_task(phase, total=total, msgs=0)
    began = perf_counter()
    try:
        while True:
            await asyncio.sleep(0.1)
            msgs = sum(tally.msgs for tally in tallies)
            done = msgs if load.msgs is not None else perf_counter() - began
            progress.update(task, completed=done, msgs=msgs)
    finally:
        progress.update(task, completed=total, msgs=sum(tally.msgs for tally in tallies))


def _somebody_listens() -> bool:
    try:
        socket.create_connection(("127.0.0.1", DEFAULT_PORT), timeout=1).close()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def own_node(stores: bool) -> Iterator[str]:
    """A node with the default settings in a process of its own, on a free port.

    One that stores does so in the current folder, not in the one for temporary files: that is often memory, where a
    sync costs nothing.

    Raises:
        PeerUnavailable: it did not start; what it said about that is on stderr.
    """
    with contextlib.ExitStack() as stack:
        data = ""
        if stores:
            folder = tempfile.TemporaryDirectory(prefix="polybus-bench-", dir=".")
            data = stack.enter_context(folder)
        command = (sys.executable, "-c", SERVE, "serve", "--listen", "tcp://127.0.0.1:0")
        settings = tuple(setting.variable for setting in SETTINGS.values())
        process = subprocess.Popen(
            [*command, "--data", data],
            env={k: v for k, v in os.environ.items() if k not in (*settings, CONFIG_FILE, GSB_URL)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            first = process.stdout.readline()
            # Its end, before any `ready`, is an empty line for ever.
            while (line := process.stdout.readline()) != "ready\n":
                if not line:
                    raise PeerUnavailable("the node for this run did not start")
            yield first.removeprefix("listening ").rstrip("\n")
        finally:
            process.terminate()
            try:
                process.communicate(timeout=STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
