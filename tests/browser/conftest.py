"""A busy node in a process of its own, and Debian's Chromium driven by Playwright.

The libraries are imported where they are used: the quick suite collects these files without having them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-lcd-text",  # its coloured edges double the size of a picture
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
AXE = "4.14.0"
CACHE = Path(os.environ.get("POLYBUS_CACHE") or Path.home() / ".cache" / "polybus")


@pytest.fixture(scope="session")
def node() -> Iterator[str]:
    """The address of the busy node's page."""
    with busy_node() as address:
        yield address


@contextmanager
def busy_node(*arguments: str) -> Iterator[str]:
    """A busy node in a process of its own."""
    program = [sys.executable, "-m", "tests.browser.traffic", *arguments]
    with subprocess.Popen(
        program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        port = running.stdout.readline().strip()
        assert port, "the node did not start"
        yield f"http://127.0.0.1:{port}"
        assert running.stdin is not None
        running.stdin.close()
        running.wait(30)


# Per module: while Playwright's blocking interface is open, its event loop counts as running in this thread,
# and no asynchronous test could run behind it.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The system's Chromium."""
    from playwright.sync_api import sync_playwright

    found = shutil.which("chromium")
    assert found, "Chromium is missing: apt-get install chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def axe() -> str:
    """The source of axe-core, fetched once into the cache outside of the checkout."""
    folder = CACHE / "axe"
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / f"axe-core-{AXE}.tgz"
    if not archive.exists():
        subprocess.run(["npm", "pack", f"axe-core@{AXE}"], cwd=folder, check=True)
    with tarfile.open(archive) as packed:
        source = packed.extractfile("package/axe.min.js")
        assert source is not None
        return source.read().decode()
