"""Storing lines in a durable topic, for `polybus pub --topic`.

Invariant: a line counts as stored, in the progress and in the result, only after the node has
acknowledged it.
"""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

import msgspec
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from polybus.client import Bus
from polybus.model.record import NewRecord

READ_BYTES: Final = 1024 * 1024  # at most so much is under way, and lost from view if it fails


@dataclass(slots=True)
class Stored:
    """What the node has acknowledged so far."""

    topic: str
    records: int = 0
    first: int | None = None
    """Offset of the first record; those of other producers may lie between ours."""


async def produce_lines(bus: Bus, stored: Stored, template: NewRecord, create: bool) -> None:
    """Store every line of stdin as a record with the key, tag and headers of `template`."""
    columns = (
        TextColumn("{task.fields[records]} records"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(stored.topic, total=_size_of(sys.stdin.fileno()), records=0)
        async for lines in _batches(sys.stdin.fileno()):
            batch = [msgspec.structs.replace(template, payload=line) for line in lines]
            first = await bus.produce_many(stored.topic, batch, create=create)
            stored.first = first if stored.first is None else stored.first
            stored.records += len(batch)
            size = sum(map(len, lines)) + len(lines)
            progress.update(task, advance=size, records=stored.records)


async def _batches(file: int) -> AsyncIterator[list[bytes]]:
    """The lines that are there, as soon as they are: a pipe that trickles must not be held back."""
    rest = b""
    while chunk := await _read(file):
        *lines, rest = (rest + chunk).split(b"\n")
        if lines:
            yield lines
    if rest:
        yield [rest]


async def _read(file: int) -> bytes:
    """What comes next, nothing at the end; not read in a thread, since Ctrl-C could not end one that waits."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    try:
        loop.add_reader(file, readable.set)
    except PermissionError:
        # epoll takes no plain file; reading one never has to wait for anybody.
        await asyncio.sleep(0)
    else:
        try:
            await readable.wait()
        finally:
            loop.remove_reader(file)
    return os.read(file, READ_BYTES)


def _size_of(file: int) -> int | None:
    status = os.fstat(file)
    return status.st_size if stat.S_ISREG(status.st_mode) else None
