"""Runs the blocks of a documentation page in order, as a reader would.

```sh            commands; the text block right after them is what they print
```sh terminal   a command that goes on, in a terminal of its own; what it prints first, likewise
```sh install    what was done before the tests
```python        a program; likewise
```python terminal   a program that goes on
Other blocks are not run.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

BLOCK = re.compile(
    r"^```([a-z]+)(?: ([a-z ]+))?\n(.*?)^```$(?:\n```text\n(.*?)^```$)?", re.M | re.S
)
# What a verb that goes on says once it is at work.
AT_WORK = re.compile(r"^(ready|answering .*|subscribed to .*)$")
PORT = "15555"


@dataclass(frozen=True)
class Block:
    """One fenced block, and what it is said to print."""

    language: str
    word: str
    text: str
    printed: str | None


def blocks(page: Path) -> list[Block]:
    found = BLOCK.findall(page.read_text(encoding="utf-8"))
    return [Block(language, word, text, printed) for language, word, text, printed in found]


def environment(port: int, config: Path) -> dict[str, str]:
    """A shell in which `polybus` is at hand, and 15555 is another port."""
    return {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "POLYBUS_LISTEN": f"tcp://127.0.0.1:{port}",
        "POLYBUS_URL": f"polybus://127.0.0.1:{port}",
        "XDG_CONFIG_HOME": str(config),
        "PYTHONUNBUFFERED": "1",
    }


@contextmanager
def going_on(command: list[str], env: dict[str, str], folder: Path) -> Iterator[list[str]]:
    """A command that is at work, and the lines that it said until then."""
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield _until_at_work(process.stdout)
    finally:
        process.terminate()
        process.communicate(timeout=15)


def _until_at_work(stream: IO[str] | None) -> list[str]:
    assert stream is not None
    said: list[str] = []
    while not said or not AT_WORK.match(said[-1]):
        line = stream.readline()
        assert line, f"it ended after {said}"
        said.append(line.rstrip("\n"))
    return said


def swapped(text: str, words: Mapping[str, str]) -> str:
    """The text with every word replaced, none of them twice."""
    return re.sub("|".join(map(re.escape, words)), lambda match: words[match[0]], text)


def run_page(
    page: Path,
    folder: Path,
    port: int,
    swaps: Mapping[str, str] | None = None,
    *,
    own_addresses: bool = False,
) -> int:
    """Run all blocks in `folder` and compare what they print; how many were run.

    Args:
        swaps: words of the page that are others here.
        own_addresses: the page's nodes have their addresses from files or flags.
    """
    env = environment(port, folder / "config")
    if own_addresses:
        del env["POLYBUS_LISTEN"]
    words = {PORT: str(port), **(swaps or {})}
    done = 0
    with ExitStack() as stack:
        for block in blocks(page):
            text = swapped(block.text, words)
            # A shell that has one command to run becomes that command, so ending it ends the command.
            shell = ["bash", "-euo", "pipefail", "-c", text.strip()]
            command = shell if block.language == "sh" else [sys.executable, "-c", text]
            if block.language not in ("sh", "python") or block.word not in ("", "terminal"):
                continue
            if block.word == "terminal":
                said = stack.enter_context(going_on(command, env, folder))
                printed = "\n".join(said) + "\n"
            else:
                result = subprocess.run(
                    command, cwd=folder, env=env, capture_output=True, text=True, timeout=60
                )
                assert result.returncode == 0, f"{text}\n{result.stderr}"
                printed = result.stdout
            if block.printed:
                # On a terminal a body gets a line of its own, in a pipe it is only itself.
                wanted = swapped(block.printed, words)
                assert printed.rstrip("\n") == wanted.rstrip("\n"), f"{text}printed\n{printed}"
            done += 1
    return done
