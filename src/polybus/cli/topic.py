"""`polybus topic`: durable topics, from a shell."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, TypeVar

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

import polybus
from polybus.cli.bus import body_fields, run, run_until_stopped, url_option
from polybus.cli.durable import (
    BYTES,
    MILLISECONDS,
    Moment,
    need_yes,
    print_fields,
    show_time,
    yes_option,
)
from polybus.cli.output import (
    json_option,
    print_done,
    print_json,
    print_json_line,
    print_table,
)
from polybus.client import Bus
from polybus.core.engine import TopicInfo
from polybus.errors import Conflict, NoSuchTopic
from polybus.model.record import Record
from polybus.model.units import DURATION
from polybus.storage.verify import verify_folder

F = TypeVar("F", bound=Callable[..., Any])

LAST: Final = 10  # records that `tail` shows unasked
LOOK_S: Final = 0.25  # between looks for new records in `tail --follow`


@click.group()
def topic() -> None:
    """Look at durable topics and change them."""


def options_of_a_topic(verb: F) -> F:
    """The flags that name a topic's options; those not given are None."""
    for option in (
        click.option("--dedup-ids", type=click.IntRange(0), help="Ids remembered to find repeats."),
        click.option("--dedup", "dedup_ms", type=MILLISECONDS, help="How long ids are remembered."),
        click.option(
            "--compression", type=click.Choice(["none", "zlib"]), help="Of payloads on disk."
        ),
        click.option(
            "--durability",
            type=click.Choice(["sync", "os"]),
            help="`os` acknowledges before the disk has it.",
        ),
        click.option(
            "--retain-consumed/--no-retain-consumed",
            default=None,
            help="Drop what every group has passed.",
        ),
        click.option("--retain-bytes", type=BYTES, help="Keep so much; 0 is all."),
        click.option(
            "--retain", "retain_ms", type=MILLISECONDS, help="Keep so long; 0 is for ever."
        ),
    ):
        verb = option(verb)
    return verb


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _row(info: TopicInfo) -> dict[str, object]:
    return {
        "topic": info.name,
        "records": info.end - info.first,
        "first": info.first,
        "end": info.end,
        "bytes": info.bytes,
        "newest": show_time(info.newest_ms),
    }


@topic.command("ls")
@url_option
@json_option
def ls(url: str | None, as_json: bool) -> None:
    """List all topics."""

    async def verb() -> None:
        async with polybus.connect(url) as bus:
            found = sorted(await bus.topics(), key=lambda info: info.name)
        if as_json:
            print_json(found)
        else:
            print_table([_row(info) for info in found], as_json)

    run(verb())


@topic.command("info")
@click.argument("name")
@url_option
@json_option
def info(name: str, url: str | None, as_json: bool) -> None:
    """Show a topic with its options."""

    async def verb() -> None:
        async with polybus.connect(url) as bus:
            _print_topic(await bus.topic(name), as_json)

    run(verb())


def _show_duration(ms: int, none: str) -> str:
    return DURATION.show(ms / 1000) if ms else none


def _print_topic(info: TopicInfo, as_json: bool) -> None:
    if as_json:
        print_json(info)
        return
    options = msgspec.to_builtins(info.options)
    extra = options.pop("extra")
    print_fields(
        {
            **_row(info),
            "oldest": show_time(info.oldest_ms),
            "created": show_time(info.created_ms),
            "retain": _show_duration(options.pop("retain_ms"), "for ever"),
            "dedup": _show_duration(options.pop("dedup_ms"), "off"),
            **options,
            **extra,
        }
    )


@topic.command("add")
@click.argument("name")
@options_of_a_topic
@url_option
@json_option
def add(name: str, url: str | None, as_json: bool, **options: Any) -> None:
    """Declare a topic that is not there yet."""

    async def verb() -> None:
        async with polybus.connect(url) as bus:
            if await _exists(bus, name):
                raise Conflict(
                    f"the topic {name} is there already; `polybus topic edit` changes it"
                )
            _print_topic(await bus.declare_topic(name, **_given(options)), as_json)

    run(verb())


async def _exists(bus: Bus, name: str) -> bool:
    try:
        await bus.topic(name)
    except NoSuchTopic:
        return False
    return True


@topic.command("edit")
@click.argument("name")
@options_of_a_topic
@url_option
@json_option
def edit(name: str, url: str | None, as_json: bool, **options: Any) -> None:
    """Change options of a topic; those not named stay."""
    if not _given(options):
        raise click.UsageError("name at least one option to change")

    async def verb() -> None:
        async with polybus.connect(url) as bus:
            _print_topic(await bus.edit_topic(name, **_given(options)), as_json)

    run(verb())


@topic.command("rm")
@click.argument("name")
@yes_option
@url_option
@json_option
def rm(name: str, yes: bool, url: str | None, as_json: bool) -> None:
    """Remove a topic with its records and groups."""
    need_yes(yes, f"Remove the topic {name} with all its records?")

    async def verb() -> None:
        async with polybus.connect(url) as bus:
            await bus.remove_topic(name)
        print_done(f"removed {name}", as_json, removed=name)

    run(verb())


@topic.command("empty")
@click.argument("name")
@yes_option
@url_option
@json_option
def empty(name: str, yes: bool, url: str | None, as_json: bool) -> None:
    """Drop all records of a topic; offsets go on."""
    need_yes(yes, f"Drop all records of the topic {name}?")

    async def verb() -> None:
        async with polybus.connect(url) as bus:
            await bus.empty_topic(name)
        print_done(f"emptied {name}", as_json, emptied=name)

    run(verb())


@topic.command("tail")
@click.argument("name")
@click.option(
    "-n",
    "--last",
    metavar="N",
    type=click.IntRange(0),
    help="How many at most [default: the last 10, or all from where --from or --since say].",
)
@click.option(
    "--from", "start", metavar="OFFSET", type=click.IntRange(0), help="From this offset on."
)
@click.option("--since", type=Moment(), help="From this time on; 2h is two hours ago.")
@click.option("-f", "--follow", is_flag=True, help="Go on with what comes, until Ctrl-C.")
@url_option
@json_option
def tail(
    name: str,
    last: int | None,
    start: int | None,
    since: int | None,
    follow: bool,
    url: str | None,
    as_json: bool,
) -> None:
    """Print the last records of a topic. No group is moved."""
    if start is not None and since is not None:
        raise click.UsageError("--from and --since both say where to begin; give one")

    async def verb() -> None:
        async with polybus.connect(url) as bus:
            info = await bus.topic(name)
            end = None if follow else info.end
            begin = start if since is None else await bus.offset_at(name, since)
            if begin is None:
                at = max(info.first, info.end - (LAST if last is None else last))
            else:
                at = begin
                if last is not None:
                    end = at + last if end is None else min(end, at + last)
            while end is None or at < end:
                records = await bus.fetch(name, at, end=end)
                _print_records(records, as_json)
                if records:
                    at = records[-1].offset + 1
                else:
                    await asyncio.sleep(LOOK_S)

    run_until_stopped(verb())


def _print_records(records: Iterable[Record], as_json: bool) -> None:
    for record in records:
        if as_json:
            fields = {
                "offset": record.offset,
                "time_ms": record.time_ms,
                "key": record.key.decode(errors="backslashreplace"),
                "tag": record.tag,
                "headers": dict(record.headers),
                "id": record.id,
            }
            print_json_line(fields | body_fields(record.payload))
            continue
        headers = "".join(f" {key}={value}" for key, value in record.headers.items())
        marks = "".join(
            f" {mark}={value}"
            for mark, value in (
                ("key", record.key.decode(errors="backslashreplace")),
                ("tag", record.tag),
            )
            if value
        )
        body = record.payload.decode(errors="backslashreplace")
        click.echo(f"{record.offset} {show_time(record.time_ms)}{marks}{headers} {body}")


@topic.command("verify", short_help="Check a data folder that no node uses.")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), default="polybus-data")
@json_option
@click.pass_context
def verify(ctx: click.Context, folder: Path, as_json: bool) -> None:
    """Check every checksum, offset and time in a data folder that no node uses. Changes nothing."""
    console = Console(stderr=True)
    columns = (BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(str(folder))
        found = verify_folder(
            folder, lambda done, total: progress.update(task, completed=done, total=total)
        )
    if as_json:
        print_json(found)
    else:
        for problem in found.problems:
            click.echo(f"{problem.where} at byte {problem.position}: {problem.reason}")
        click.echo(
            f"{found.topics} topics, {found.segments} segments, {found.chunks} chunks, "
            f"{found.records} records, {found.frames} commits: {len(found.problems)} problems"
        )
    ctx.exit(1 if found.problems else 0)
