"""`polybus service`: who answers what."""

from __future__ import annotations

from typing import Any

import click

import polybus
from polybus.cli.bus import run, url_option
from polybus.cli.output import json_option, print_json, print_table


@click.group()
def service() -> None:
    """Look at the services of a node."""


@service.command("ls", short_help="List claimed names and who answers them.")
@url_option
@json_option
def ls(url: str | None, as_json: bool) -> None:
    """List every name that somebody has claimed, on any wire, and who answers it.

    A name that several wires claim is answered by the oldest claim when it is called from elsewhere; on its own wire
    each is answered by its owner. ANSWERS is no for a claim that waits behind another. `/**` marks an owner of all
    names below, a dash a name that only its own wire can spell.
    """

    async def verb() -> None:
        async with polybus.connect(url) as bus:
            found = await bus.services()
        if as_json:
            print_json(found)
        else:
            print_table([_row(each) for each in sorted(found, key=_order)], as_json)

    run(verb())


def _order(found: dict[str, Any]) -> tuple[str, bool]:
    return str(found["shared"] or found["name"]), not found.get("answers", True)


def _row(found: dict[str, Any]) -> dict[str, object]:
    below = "/**" if found["prefix"] else ""
    return {
        "name": f"{found['shared']}{below}" if found["shared"] else "-",
        "wire": found["wire"],
        "there": f"{found['name']}{below}",
        "answers": "yes" if found.get("answers", True) else "no",
        "calls": found["calls"],
        "peer": found["peer"],
        "owner": found["owner"],
    }
