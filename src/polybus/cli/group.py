"""`polybus group`: the groups that consume durable topics, from a shell."""

from __future__ import annotations

from typing import Any

import click
import msgspec

import polybus
from polybus.cli.bus import run, url_option
from polybus.cli.durable import Moment, need_yes, print_fields, yes_option
from polybus.cli.output import json_option, print_done, print_json, print_table
from polybus.core.group_options import BEGINNING, END, GroupInfo, Start


@click.group()
def group() -> None:
    """Look at the groups of topics and move them."""


def _row(info: GroupInfo) -> dict[str, object]:
    flags = ("paused", "exclusive", "delete_on_exit")
    marks = [flag.replace("_", "-") for flag in flags if getattr(info.options, flag)]
    if not info.options.ack:
        marks.append("no-ack")
    return {
        "topic": info.topic,
        "group": info.name,
        "remaining": info.remaining,
        "in flight": info.in_flight,
        "waiting": info.waiting,
        "members": len(info.members),
        "filter": info.options.filter or "-",
        "marks": ",".join(marks) or "-",
    }


@group.command("ls")
@click.argument("topic", required=False)
@url_option
@json_option
def ls(topic: str | None, url: str | None, as_json: bool) -> None:
    """List the groups of TOPIC, or of all topics."""

    async def verb() -> None:
        async with polybus.connect(url) as bus:
            names = [topic] if topic else sorted(info.name for info in await bus.topics())
            found = [info for name in names for info in await bus.groups(name)]
        if as_json:
            print_json(found)
        else:
            print_table([_row(info) for info in found], as_json)

    run(verb())


@group.command("info")
@click.argument("topic")
@click.argument("name", metavar="GROUP")
@url_option
@json_option
def info(topic: str, name: str, url: str | None, as_json: bool) -> None:
    """Show a group with its options, numbers and members."""

    async def verb() -> None:
        async with polybus.connect(url) as bus:
            _print_group(await bus.group(topic, name), as_json)

    run(verb())


def _print_group(info: GroupInfo, as_json: bool) -> None:
    if as_json:
        print_json(info)
        return
    fields: dict[str, Any] = msgspec.to_builtins(info)
    members, options = fields.pop("members"), fields.pop("options")
    extra = options.pop("extra")
    print_fields({**fields, **options, **extra})
    if members:
        click.echo()
        print_table(members, as_json)


@group.command("reset")
@click.argument("topic")
@click.argument("name", metavar="GROUP")
@click.option("--to", metavar="OFFSET", help="To the `beginning`, the `end` or an offset.")
@click.option("--msgid", default="", help="With an offset: the id the record there must have.")
@click.option("--time", "time_ms", type=Moment(), help="To the first record of this time or later.")
@click.option("--copy", "other", metavar="GROUP", help="To where another group is.")
@url_option
@json_option
def reset(
    topic: str,
    name: str,
    to: str | None,
    msgid: str,
    time_ms: int | None,
    other: str | None,
    url: str | None,
    as_json: bool,
) -> None:
    """Move a group to another position; what is in flight is forgotten."""
    start = _start(to, msgid, time_ms, other)

    async def verb() -> None:
        async with polybus.connect(url) as bus:
            _print_group(await bus.reset_group(topic, name, start), as_json)

    run(verb())


def _start(to: str | None, msgid: str, time_ms: int | None, other: str | None) -> Start:
    if sum(value is not None for value in (to, time_ms, other)) != 1:
        raise click.UsageError("say where to, with one of --to, --time and --copy")
    if msgid and not (to and to.isdecimal()):
        raise click.UsageError("--msgid needs --to with an offset")
    if other is not None:
        return Start("copy", group=other)
    if time_ms is not None:
        return Start("time", time_ms=time_ms)
    if to in ("beginning", "end"):
        return BEGINNING if to == "beginning" else END
    if to is None or not to.isdecimal():
        raise click.BadParameter(f"{to!r} is neither `beginning`, `end` nor an offset")
    return Start("offset", offset=int(to), msgid=msgid)


@group.command("rm")
@click.argument("topic")
@click.argument("name", metavar="GROUP")
@yes_option
@url_option
@json_option
def rm(topic: str, name: str, yes: bool, url: str | None, as_json: bool) -> None:
    """Forget a group and its position; its members are told."""
    need_yes(yes, f"Forget the group {name} on the topic {topic}?")

    async def verb() -> None:
        async with polybus.connect(url) as bus:
            await bus.remove_group(topic, name)
        print_done(f"removed {name} on {topic}", as_json, topic=topic, removed=name)

    run(verb())
