"""How verbs print: tables for people, JSON for programs.

Invariant: with `--json` stdout holds one JSON value, or one per line for what comes one by one, and
nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click
import msgspec

F = TypeVar("F", bound=Callable[..., Any])


def json_option(command: F) -> F:
    """The flag `--json`, passed to the verb as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def print_json(value: object) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2))


def print_json_line(value: object) -> None:
    """One of many values, each on its line, as soon as it is there."""
    click.echo(msgspec.json.encode(value))


def print_done(text: str, as_json: bool, **fields: object) -> None:
    """That something was done: a sentence, or what it was done to."""
    if as_json:
        print_json(fields)
    else:
        click.echo(text)


def print_table(rows: Sequence[dict[str, object]], as_json: bool) -> None:
    """Rows under their keys as headings, aligned; when there are none, stdout stays empty and people are told."""
    if as_json:
        print_json(rows)
        return
    if not rows:
        click.echo("nothing to list", err=True)
        return
    lines = [[key.upper() for key in rows[0]], *([str(v) for v in row.values()] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(rows[0]))]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        click.echo("  ".join(cells).rstrip())
