"""`polybus pipeline`: the Spark programs of `polybus.spark.pipelines` from the command line.

Invariant: Spark is imported when a pipeline runs, and an error of a pipeline ends in one line.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import mkstemp
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from polybus.cli.bus import url_option
from polybus.cli.durable import MILLISECONDS, Moment
from polybus.cli.output import json_option, print_json, print_table
from polybus.errors import ALL as ERRORS
from polybus.errors import ConfigError, PolybusError

if TYPE_CHECKING:
    from polybus.spark.pipelines.running import Bus, Watch

STDERR: Final = 2
F = TypeVar("F", bound=Callable[..., Any])
OWN_ERROR: Final = re.compile(
    r"^polybus\.errors\.(" + "|".join(error.__name__ for error in ERRORS) + r"): (.*)$", re.M
)


class Interval(click.ParamType[str]):
    """A time span as the other verbs take it (`30s`) or as Spark's SQL spells it (`30 seconds`)."""

    name = "interval"
    _sql = re.compile(r"[1-9]\d*\s+(millisecond|second|minute|hour|day|week)s?", re.IGNORECASE)

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if self._sql.fullmatch(value):
            return value
        if span := MILLISECONDS.convert(value, param, ctx):
            return f"{span} milliseconds"
        self.fail(f"{value!r} is no time at all", param, ctx)


class Time(click.ParamType[str]):
    """A moment as the other verbs take it, as Spark's SQL spells it."""

    name = "time"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not value:
            return ""
        moment = Moment().convert(value, param, ctx)
        return datetime.fromtimestamp(moment / 1000, UTC).isoformat()


def common(command: F) -> F:
    """The options that every pipeline has."""
    for option in reversed(
        (
            url_option,
            click.option(
                "--token",
                envvar="POLYBUS_TOKEN",
                default="",
                help="Who we are, for nodes that ask.",
            ),
            click.option("--master", help="Spark cluster; default: this machine's cores."),
            json_option,
        )
    ):
        command = option(command)
    return command


def lake_option(command: F) -> F:
    """The folder of the lake."""
    return click.option(
        "--lake", required=True, help="Folder of the lake, on any file system of Spark."
    )(command)


def once_option(command: F) -> F:
    """Whether the pipeline ends."""
    return click.option("--once", is_flag=True, help="Do what is there and end (AvailableNow).")(
        command
    )


@contextmanager
def session(name: str, url: str | None, token: str, master: str | None) -> Iterator[Bus]:
    """A Spark session for one pipeline; what polybus raised inside Spark comes out as itself.

    What the JVM says goes to a file, which is kept and named when the error is not one of ours.
    """
    try:
        from polybus.spark.pipelines.running import Bus
        from polybus.spark.sessions import session as start
    except ImportError as exc:
        raise ConfigError(f"{exc.name} is missing: install the extra polybus[spark]") from exc
    # PySpark prints the traces of what it raises as well.
    logging.getLogger("DataFrameQueryContextLogger").disabled = True
    descriptor, log = mkstemp(prefix=f"polybus-{name}-", suffix=".log")
    unexplained = False
    try:
        with errors_into(descriptor):
            spark = start(f"polybus {name}", master)
        try:
            yield Bus(spark, url or "", token)
        finally:
            spark.stop()
    except (PolybusError, click.Abort):
        raise
    except OSError as exc:
        raise ConfigError(str(exc)) from exc
    except Exception as exc:
        error = own_error(exc)
        unexplained = type(error) is PolybusError
        if unexplained:
            error = PolybusError(f"{error.text}; {log} has all that Spark said")
        raise error from exc
    finally:
        os.close(descriptor)
        if not unexplained:
            Path(log).unlink()


@contextmanager
def errors_into(descriptor: int) -> Iterator[None]:
    """The error output of processes that are started meanwhile goes elsewhere, for as long as they live."""
    kept = os.dup(STDERR)
    os.dup2(descriptor, STDERR)
    try:
        yield
    finally:
        os.dup2(kept, STDERR)
        os.close(kept)


def own_error(exc: Exception) -> PolybusError:
    """The polybus error that a Spark error tells of, or the first line of what it says."""
    found = OWN_ERROR.findall(str(exc))
    if not found:
        first = str(exc).strip().partition("\n")[0] or type(exc).__name__
        return PolybusError(f"Spark failed: {first[:500]}")
    name, text = found[-1]
    cls = next(error for error in ERRORS if error.__name__ == name)
    error = cls.__new__(cls)
    PolybusError.__init__(error, text.strip())
    return error


@contextmanager
def watching(what: str) -> Iterator[Watch]:
    """A bar with rows, rows per second and lag, on a terminal."""
    console = Console(stderr=True)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description} {task.fields[rows]:,} rows"),
        BarColumn(),
        TextColumn("{task.fields[rate]:,.0f} rows/s, lag {task.fields[lag]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=None, rows=0, rate=0.0, lag="?")

        def watch(progress: Any) -> None:
            known = progress.lag >= 0
            bar.update(
                task,
                completed=progress.rows,
                total=progress.rows + progress.lag if known else None,
                rows=progress.rows,
                rate=progress.rows_per_second,
                lag=f"{progress.lag:,}" if known else "?",
            )

        yield watch


@click.group()
def pipeline() -> None:
    """Archive, measure and replay topics with Spark."""


@pipeline.command()
@click.argument("topics")
@lake_option
@once_option
@click.option(
    "--as-json",
    "parse",
    is_flag=True,
    help="Also keep payloads as columns; what is no JSON is rejected.",
)
@click.option("--delta", is_flag=True, help="As a Delta table in LAKE/delta.")
@click.option(
    "--max-rows",
    type=click.IntRange(1),
    default=5_000_000,
    show_default=True,
    help="Most records of one batch.",
)
@common
def archive(
    topics: str,
    lake: str,
    once: bool,
    parse: bool,
    delta: bool,
    max_rows: int,
    url: str | None,
    token: str,
    master: str | None,
    as_json: bool,
) -> None:
    """Keep TOPICS (names and patterns, joined by commas) in a Parquet lake, each record exactly once."""
    with session("archive", url, token, master) as bus, watching("archive") as watch:
        from polybus.spark.pipelines.archive import archive as run

        kept, rejected = run(
            bus, topics, lake, as_json=parse, delta=delta, once=once, max_rows=max_rows, watch=watch
        )
    say({"archived": kept, **({"rejected": rejected} if parse else {})}, as_json)


@pipeline.command()
@lake_option
@common
def compact(lake: str, url: str | None, token: str, master: str | None, as_json: bool) -> None:
    """Merge the small files of a lake."""
    with session("compact", url, token, master) as bus:
        from polybus.spark.pipelines.archive import compact as run

        before, after = run(bus, lake)
    say({"folders_before": before, "folders_after": after}, as_json)


@pipeline.command()
@lake_option
@once_option
@click.option("--topic", default="polybus.journal", show_default=True, help="The journal.")
@click.option("--window", type=Interval(), default="1 minute", show_default=True)
@click.option(
    "--lateness",
    type=Interval(),
    default="2 minutes",
    show_default=True,
    help="How late a row may come.",
)
@common
def traffic(
    lake: str,
    once: bool,
    topic: str,
    window: str,
    lateness: str,
    url: str | None,
    token: str,
    master: str | None,
    as_json: bool,
) -> None:
    """Count the journal per window, protocol and name, into the lake and the topic polybus.traffic."""
    with session("traffic", url, token, master) as bus, watching("traffic") as watch:
        from polybus.spark.pipelines.traffic import run_traffic

        done = run_traffic(
            bus, lake, topic=topic, window=window, lateness=lateness, once=once, watch=watch
        )
    say({"rows": done.rows, "late": done.late}, as_json)


@pipeline.command()
@click.argument("topics")
@lake_option
@once_option
@click.option(
    "--patience",
    type=Interval(),
    default="1 minute",
    show_default=True,
    help="How long a reply may take.",
)
@common
def latency(
    topics: str,
    lake: str,
    once: bool,
    patience: str,
    url: str | None,
    token: str,
    master: str | None,
    as_json: bool,
) -> None:
    """Join captured requests in TOPICS with their replies; unanswered ones go to polybus.unanswered."""
    with session("latency", url, token, master) as bus, watching("latency") as watch:
        from polybus.spark.pipelines.lake import read
        from polybus.spark.pipelines.latency import latency as measure
        from polybus.spark.pipelines.latency import run_latency

        run_latency(bus, topics, lake, patience=patience, once=once, watch=watch)
        found = measure(read(bus.spark, lake, "calls")).orderBy("name").collect()
    show(found, as_json)


@pipeline.command()
@click.option("--topic", default="polybus.journal", show_default=True, help="The journal.")
@click.option("--svg", type=click.Path(path_type=Path), help="Also draw it into this file.")
@common
def graph(
    topic: str, svg: Path | None, url: str | None, token: str, master: str | None, as_json: bool
) -> None:
    """Show who calls whom, across systems."""
    with session("graph", url, token, master) as bus:
        from polybus.spark.pipelines.graph import draw, edges
        from polybus.spark.pipelines.journal import journal_rows

        found = edges(journal_rows(bus.read(topic))).collect()
        if svg is not None:
            svg.write_text(draw(found), encoding="utf-8")
    show(found, as_json)


@pipeline.command()
@click.argument("topics", default="")
@click.option("--samples", type=click.IntRange(0), default=3, show_default=True)
@click.option("--requeue", is_flag=True, help="Put them back into the topics they came from.")
@click.option("--where", default="", help="SQL condition on the letters that are put back.")
@common
def deadletters(
    topics: str,
    samples: int,
    requeue: bool,
    where: str,
    url: str | None,
    token: str,
    master: str | None,
    as_json: bool,
) -> None:
    """Show dead letters in TOPICS by cause.

    Without TOPICS those of all topics are shown, which lie in topics that end in .dead.
    """
    with session("deadletters", url, token, master) as bus:
        from polybus.spark.pipelines.deadletters import requeue as put_back
        from polybus.spark.pipelines.deadletters import run_deadletters

        if requeue:
            say({"requeued": put_back(bus, topics, where)}, as_json)
            return
        found = run_deadletters(bus, topics, samples).collect()
    show(found, as_json)


@pipeline.command()
@click.argument("source")
@click.argument("target")
@click.option("--lake", help="Read SOURCE from this lake instead of the node.")
@click.option("--since", type=Time(), default="", help="Only records of this time or later.")
@click.option("--until", type=Time(), default="", help="Only records before this time.")
@click.option("--where", default="", help="SQL condition on the records.")
@click.option("--rate", type=click.FloatRange(0), default=0.0, help="Records per second at most.")
@click.option(
    "--run", default="", help="Names the replay: repeated, it publishes only what is missing."
)
@common
def replay(
    source: str,
    target: str,
    lake: str | None,
    since: str,
    until: str,
    where: str,
    rate: float,
    run: str,
    url: str | None,
    token: str,
    master: str | None,
    as_json: bool,
) -> None:
    """Publish the records of SOURCE (names and patterns, joined by commas) into topic TARGET again, in their order."""
    with session("replay", url, token, master) as bus, watching("replay") as watch:
        from polybus.spark.pipelines.replay import from_lake, select
        from polybus.spark.pipelines.replay import replay as publish

        records = from_lake(bus, lake, source) if lake else bus.read(source, pushdown="true")
        chosen = select(records, since, until, where)
        count = publish(bus, chosen, target, rate=rate, run=run, watch=watch)
    say({"replayed": count}, as_json)


@pipeline.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--topic", default="polybus.journal", show_default=True, help="The journal.")
@click.option("--since", type=Time(), default="", help="Only rows of this time or later.")
@click.option("--until", type=Time(), default="", help="Only rows before this time.")
@click.option("--title", default="Traffic on the bus", show_default=True)
@click.option("--png", type=click.Path(path_type=Path), help="Folder for the charts as pictures.")
@common
def report(
    file: Path,
    topic: str,
    since: str,
    until: str,
    title: str,
    png: Path | None,
    url: str | None,
    token: str,
    master: str | None,
    as_json: bool,
) -> None:
    """Write one HTML page about a period of the journal to FILE."""
    with session("report", url, token, master) as bus:
        from polybus.spark.pipelines.journal import journal_rows
        from polybus.spark.pipelines.replay import select
        from polybus.spark.pipelines.report import write_report

        rows = journal_rows(select(bus.read(topic), since, until)).persist()
        figures = write_report(rows, file, title, png)
    say({"rows": figures.totals["rows"], "file": str(file)}, as_json)


def show(rows: Iterable[Any], as_json: bool) -> None:
    """Rows of Spark as a table, with numbers that can be read."""
    found = [row.asDict() for row in rows]
    if not as_json:
        found = [
            {
                key: round(value, 4) if isinstance(value, float) else value
                for key, value in row.items()
            }
            for row in found
        ]
    print_table(found, as_json)


def say(found: dict[str, object], as_json: bool) -> None:
    """What a pipeline did."""
    if as_json:
        print_json(found)
    else:
        click.echo(", ".join(f"{key.replace('_', ' ')}: {value}" for key, value in found.items()))
