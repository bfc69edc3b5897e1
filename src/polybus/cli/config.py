"""`polybus config`: the settings that a node started here would have, and why."""

from __future__ import annotations

import os
from operator import attrgetter
from pathlib import Path

import click

from polybus.cli.output import json_option, print_json, print_table
from polybus.server.load import SETTINGS, load


@click.group()
def config() -> None:
    """Look at the configuration."""


@config.command("show", short_help="Print every setting and its origin.")
@click.option("--config", "file", type=click.Path(path_type=Path), help="TOML file to read.")
@json_option
def show(file: Path | None, as_json: bool) -> None:
    """Print every setting with its effective value and where that came from."""
    effective = load(file, os.environ)
    rows: list[dict[str, object]] = []
    for key, setting in SETTINGS.items():
        value = attrgetter(key)(effective.config)
        shown = list(value) if as_json and isinstance(value, tuple) else setting.show(value)
        rows.append({"key": key, "value": shown, "origin": effective.origins[key]})
    if as_json:
        print_json({row.pop("key"): row for row in rows})
    else:
        print_table(rows, as_json=False)
