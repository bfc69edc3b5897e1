"""Running the program `polybus` as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

POLYBUS = str(Path(sys.executable).with_name("polybus"))
ANY_PORT = "tcp://127.0.0.1:0"


def run(*args: str, stdin: bytes = b"", **env: str) -> subprocess.CompletedProcess[bytes]:
    """A verb that ends by itself."""
    return subprocess.run(
        [POLYBUS, *args], env={**os.environ, **env}, input=stdin, capture_output=True, timeout=15
    )


@contextmanager
def running(*args: str, cwd: Path | None = None, **env: str) -> Iterator[subprocess.Popen[str]]:
    """A verb that goes on; it is killed at the end unless the test has ended it."""
    process = subprocess.Popen(
        [POLYBUS, *args],
        cwd=cwd,
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def lines_until(stream: IO[str] | None, last: str) -> list[str]:
    """What a process says up to and without the line `last`."""
    assert stream is not None
    lines: list[str] = []
    while (line := stream.readline().rstrip("\n")) != last:
        assert line, f"it ended after {lines}"
        lines.append(line)
    return lines


@contextmanager
def node(
    *args: str, cwd: Path | None = None, **env: str
) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """A node that has said `ready`, and the addresses that it printed before."""
    with running("serve", *args, cwd=cwd, **env) as process:
        lines = lines_until(process.stdout, "ready")
        yield process, [line.removeprefix("listening ") for line in lines]
