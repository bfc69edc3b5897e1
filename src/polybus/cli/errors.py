"""`polybus errors`: the table of errors, for people who met a number in a log."""

from __future__ import annotations

import click

from polybus.cli.output import json_option, print_json, print_table
from polybus.errors import ALL, BY_CODE, PolybusError


def _row(error: type[PolybusError]) -> dict[str, object]:
    meaning = (error.__doc__ or "").split("\n")[0]
    return {"code": error.code, "name": error.__name__, "meaning": meaning}


@click.group()
def errors() -> None:
    """List errors and look them up by number."""


@errors.command("ls")
@json_option
def ls(as_json: bool) -> None:
    """List every error with its number."""
    print_table([_row(error) for error in sorted(ALL, key=lambda e: e.code)], as_json)


@errors.command("lookup")
@click.argument("code", type=int)
@json_option
def lookup(code: int, as_json: bool) -> None:
    """Say what error CODE means and what to do about it."""
    if code not in BY_CODE:
        raise click.BadParameter(f"no error has the number {code}; see `polybus errors ls`")
    error = BY_CODE[code]
    row = {**_row(error), "hint": error.hint}
    if as_json:
        print_json(row)
        return
    click.echo(f"{row['code']} {row['name']}: {row['meaning']}\n{row['hint']}")
