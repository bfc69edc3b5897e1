"""Runs the blocks of a documentation page in order, as a reader would.

```sh            commands; the text block right after them is what they print
```sh terminal   a command that goes on, in a terminal of its own; what it prints first, likewise
```sh install    what was done before the tests
```python        a program; likewise
Other blocks are not run.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
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
def going_on(command: str, env: dict[str, str], folder: Path) -> Iterator[list[str]]:
    """A command that is at work, and the lines that it said until then."""
    process = subprocess.Popen(
        ["bash", "-c", f"exec {command.strip()}"],
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


def run_page(page: Path, folder: Path, port: int) -> int:
    """Run all blocks in `folder` and compare what they print; how many were run."""
    env = environment(port, folder / "config")
    done = 0
    with ExitStack() as stack:
        for block in blocks(page):
            text = block.text.replace(PORT, str(port))
            if (block.language, block.word) == ("sh", "terminal"):
                said = stack.enter_context(going_on(text, env, folder))
                printed = "\n".join(said) + "\n"
            elif (block.language, block.word) in (("sh", ""), ("python", "")):
                command = ["bash", "-euo", "pipefail", "-c", text]
                if block.language == "python":
                    command = [sys.executable, "-c", text]
                result = subprocess.run(
                    command, cwd=folder, env=env, capture_output=True, text=True, timeout=60
                )
                assert result.returncode == 0, f"{text}\n{result.stderr}"
                printed = result.stdout
            else:
                continue
            if block.printed:
                # On a terminal a body gets a line of its own, in a pipe it is only itself.
                wanted = block.printed.replace(PORT, str(port))
                assert printed.rstrip("\n") == wanted.rstrip("\n"), text
            done += 1
    return done
