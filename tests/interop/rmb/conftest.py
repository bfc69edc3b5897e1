"""Twins on both Redis servers, and the programs of npm."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from polybus.model.clock import SystemClock
from polybus.protocols.rmb import embedded
from tests.interop.rmb.npm import NoNode, install
from tests.protocols.rmb.twins import World

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="session")
def modules() -> Path:
    try:
        return install()
    except NoNode as missing:
        pytest.skip(str(missing))


@pytest.fixture(params=["wheel", "system"])
async def world(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[World]:
    """Twins whose Redis servers are the wheel's or the distribution's."""
    if request.param == "system":
        program = shutil.which("redis-server")
        if program is None:
            pytest.skip("the distribution's redis-server is not installed")
        monkeypatch.setattr(embedded, "find_server", lambda: program)
    made = World(tmp_path, SystemClock())
    try:
        yield made
    finally:
        await made.stop()


@pytest.fixture
def node(modules: Path) -> Callable[..., list[dict[str, Any]]]:
    """Run a program of this folder to its end; its replies."""

    def run(script: str, *arguments: object) -> list[dict[str, Any]]:
        done = subprocess.run(
            ["node", str(HERE / script), *map(str, arguments)],
            env={**os.environ, "NODE_PATH": str(modules)},
            capture_output=True,
            text=True,
            timeout=60,
        )
        lines = [line for line in done.stdout.splitlines() if line.startswith("REPLIES ")]
        assert lines, done.stdout + done.stderr
        found: list[dict[str, Any]] = json.loads(lines[0].removeprefix("REPLIES "))
        return found

    return run


@pytest.fixture
def serving(modules: Path) -> Callable[..., Any]:
    """Run a program of this folder until the block ends, from the line on that says it is ready."""

    @contextmanager
    def start(script: str, *arguments: object, ready: str) -> Iterator[None]:
        process = subprocess.Popen(
            ["node", str(HERE / script), *map(str, arguments)],
            env={**os.environ, "NODE_PATH": str(modules)},
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            while ready not in (line := process.stdout.readline()):
                assert line, "it ended"
            yield
        finally:
            process.kill()
            process.communicate()

    return start
