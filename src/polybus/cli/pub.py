"""`polybus pub` and `polybus sub`: publications, live or stored, from a shell."""

from __future__ import annotations

from collections.abc import Mapping

import click
import msgspec

import polybus
from polybus.cli.bus import (
    body_of,
    header_option,
    print_message,
    run,
    run_until_stopped,
    url_option,
)
from polybus.cli.output import json_option, print_json
from polybus.cli.produce import Stored, produce_lines
from polybus.model.record import NewRecord


@click.command(short_help="Publish to subscribers, or store in a topic.")
@click.argument("name")
@click.argument("body", required=False)
@click.option(
    "--topic",
    is_flag=True,
    help="Store in the durable topic NAME; without BODY, each line of stdin.",
)
@click.option("--key", default="", help="Key of the stored records.")
@click.option("--tag", default="", help="Tag of the stored records.")
@click.option("--create", is_flag=True, help="Declare the topic if it is missing.")
@header_option
@url_option
@json_option
def pub(
    name: str,
    body: str | None,
    topic: bool,
    key: str,
    tag: str,
    create: bool,
    headers: Mapping[str, str],
    url: str | None,
    as_json: bool,
) -> None:
    """Publish BODY (`-` reads stdin) to everybody who has subscribed to NAME.

    With --topic it is stored in a durable topic instead: BODY as one record, or without BODY each line of stdin.
    """
    if topic:
        template = NewRecord(b"", key.encode(), tag, headers)
        # Read before the loop runs, which would take the first Ctrl-C for itself.
        payload = None if body is None else body_of(body)
        run(_store(Stored(name), payload, template, create, url, as_json))
        return
    if key or tag or create:
        raise click.UsageError("--key, --tag and --create need --topic")
    run(_publish(name, body_of(body), headers, url, as_json))


async def _publish(
    name: str, payload: bytes, headers: Mapping[str, str], url: str | None, as_json: bool
) -> None:
    async with polybus.connect(url) as bus:
        receivers = await bus.publish(name, payload, headers=headers)
    if as_json:
        print_json({"name": name, "receivers": receivers})
    else:
        click.echo(f"published; receivers: {receivers}")


async def _store(
    stored: Stored,
    payload: bytes | None,
    template: NewRecord,
    create: bool,
    url: str | None,
    as_json: bool,
) -> None:
    try:
        async with polybus.connect(url) as bus:
            if payload is None:
                await produce_lines(bus, stored, template, create)
            else:
                record = msgspec.structs.replace(template, payload=payload)
                stored.first = await bus.produce_many(stored.topic, [record], create=create)
                stored.records = 1
    except BaseException:
        # What was acknowledged before an error, or Ctrl-C, is stored.
        if stored.records:
            _print_stored(stored, as_json)
        raise
    _print_stored(stored, as_json)


def _print_stored(stored: Stored, as_json: bool) -> None:
    if as_json:
        print_json(stored)
    else:
        plural = "" if stored.records == 1 else "s"
        click.echo(f"stored {stored.records} record{plural} in {stored.topic}")


@click.command(short_help="Print what is published.")
@click.argument("pattern")
@click.option("--count", metavar="N", type=click.IntRange(1), help="End after so many messages.")
@url_option
@json_option
def sub(pattern: str, count: int | None, url: str | None, as_json: bool) -> None:
    """Print what is published to PATTERN (`*` is one segment, `**` any number), until Ctrl-C."""

    async def verb() -> None:
        received = 0
        async with polybus.connect(url) as bus, bus.subscribe(pattern) as messages:
            click.echo(f"subscribed to {pattern}", err=True)
            async for message in messages:
                print_message(message, as_json)
                received += 1
                if received == count:
                    return

    run_until_stopped(verb())
