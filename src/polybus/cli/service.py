"""`polybus service`: who answers what."""

from __future__ import annotations

import click

import polybus
from polybus.cli.bus import run, url_option
from polybus.cli.output import json_option, print_table


@click.group()
def service() -> None:
    """Look at the services of a node."""


@service.command("ls")
@url_option
@json_option
def ls(url: str | None, as_json: bool) -> None:
    """List every name that is answered, on any wire, with its owner."""

    async def verb() -> None:
        async with polybus.connect(url) as bus:
            print_table(await bus.services(), as_json)

    run(verb())
