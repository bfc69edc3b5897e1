"""What the verbs for topics and groups share: sizes and times as people write them, and asking before removing.

Invariant: nothing is removed without a yes, on the command line or at the terminal.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, TypeVar

import click

from polybus.model.units import DURATION, SIZE, Unit

F = TypeVar("F", bound=Callable[..., Any])


class Quantity(click.ParamType[int]):
    """A flag such as `--retain 7d` (in milliseconds) or `--retain-bytes 1GiB`."""

    def __init__(self, unit: Unit, factor: int) -> None:
        self.name = unit.kind
        self._unit = unit
        self._factor = factor

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return round(self._unit.parse(value) * self._factor)
        except ValueError as exc:
            self.fail(str(exc), param, ctx)


MILLISECONDS = Quantity(DURATION, 1000)
BYTES = Quantity(SIZE, 1)


class Moment(click.ParamType[int]):
    """A point in time as ISO 8601, without a zone in UTC, or how long ago it was; in milliseconds since 1970."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if value[-1:].isalpha():  # a bare number is a date: 20260131
            with suppress(ValueError):
                return round((datetime.now(UTC).timestamp() - DURATION.parse(value)) * 1000)
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            self.fail(
                f"{value!r} is not a time (such as 2026-01-31T12:00:00, or 2h for two hours ago)",
                param,
                ctx,
            )
        return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def show_time(time_ms: int) -> str:
    """A record's time for people; a dash where there is none."""
    if not time_ms:
        return "-"
    moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def print_fields(fields: Mapping[str, object]) -> None:
    """One thing: its fields under each other."""
    width = max(len(name) for name in fields)
    for name, value in fields.items():
        click.echo(f"{name.replace('_', ' ').ljust(width)}  {value}".rstrip())


def yes_option(verb: F) -> F:
    """The flag `--yes`."""
    return click.option("--yes", is_flag=True, help="Do not ask.")(verb)


def need_yes(yes: bool, question: str) -> None:
    """Go on only with a yes."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question} Say --yes: there is no terminal to ask at.")
    click.confirm(question, abort=True)
