"""`polybus pub` and `polybus sub`: live publications from a shell."""

from __future__ import annotations

from collections.abc import Mapping

import click

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


@click.command()
@click.argument("name")
@click.argument("body", required=False)
@header_option
@url_option
@json_option
def pub(
    name: str, body: str | None, headers: Mapping[str, str], url: str | None, as_json: bool
) -> None:
    """Publish BODY (`-` reads stdin) to everybody who has subscribed to NAME."""
    payload = body_of(body)

    async def verb() -> None:
        async with polybus.connect(url) as bus:
            receivers = await bus.publish(name, payload, headers=headers)
        if as_json:
            print_json({"name": name, "receivers": receivers})
        else:
            click.echo(f"published; receivers: {receivers}")

    run(verb())


@click.command()
@click.argument("pattern")
@click.option("--count", type=int, help="End after so many messages.")
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
