"""`polybus backup` and `polybus restore`: copies of a data folder.

Invariant: both work on folders of this machine and need no connection; a node may run on the one that is copied.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

from polybus.cli.output import json_option, print_json, print_table
from polybus.storage.backup import Backup, back_up
from polybus.storage.backup import restore as restore_folder

Copy = Callable[[Path, Path, Callable[[int, int], None]], Backup]
FOLDER = click.Path(file_okay=False, path_type=Path)


@click.command(short_help="Copy a data folder while its node goes on.")
@click.argument("data", type=FOLDER)
@click.argument("target", type=FOLDER)
@json_option
def backup(data: Path, target: Path, as_json: bool) -> None:
    """Copy the data folder DATA to the new folder TARGET, as of one moment, while its node goes on."""
    _copy(back_up, data, target, as_json)


@click.command(short_help="Make a data folder of a backup.")
@click.argument("source", type=FOLDER)
@click.argument("data", type=FOLDER)
@json_option
def restore(source: Path, data: Path, as_json: bool) -> None:
    """Check the backup SOURCE and make the new data folder DATA of it."""
    _copy(restore_folder, source, data, as_json)


def _copy(copy: Copy, source: Path, target: Path, as_json: bool) -> None:
    console = Console(stderr=True)
    columns = (BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(str(target))
        made = copy(
            source,
            target,
            lambda done, total: progress.update(task, completed=done, total=total),
        )
    rows = [
        {"topic": info.name, "first": info.first, "end": info.end, "bytes": info.bytes}
        for info in made.topics
    ]
    if as_json:
        print_json({"bytes": made.bytes, "topics": rows})
    else:
        print_table(rows, as_json=False)
        click.echo(f"{len(rows)} topics, {made.bytes} bytes copied to {target}")
