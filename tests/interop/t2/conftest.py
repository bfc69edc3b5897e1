"""The real T2 parts: the crate's own program, a program on its client library, and both servers.

The invariant: everything is built once, from pinned versions, outside the checkout.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import cast

import pytest

from tests.interop.t2.servers import Server, polybus_server, real_server

CRATE = "t2_bus@0.2.0"
CACHE = Path(os.environ.get("POLYBUS_CACHE") or Path.home() / ".cache" / "polybus")
TARGET = CACHE / "t2-target"

PYTHON_IDLE = "python_idle"
"""The one slow scenario of our own client."""

SlowKey = tuple[str, str, str]
SlowRuns = dict[SlowKey, "subprocess.Popen[str]"]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # The slow scenarios run beside all other tests and are only joined by theirs, which so go last.
    items.sort(key=lambda item: "slow_run" in getattr(item, "fixturenames", ()))


def cargo(*arguments: str | Path) -> None:
    program = shutil.which("cargo")
    if program is None:
        pytest.skip("the real T2 parts are built with cargo, which is not installed")
    subprocess.run(
        [program, *arguments, "--target-dir", TARGET],
        check=True,
        stdout=subprocess.DEVNULL,
    )


@pytest.fixture(scope="session")
def t2_program() -> Path:
    return build_t2_program()


def build_t2_program() -> Path:
    """The real command line program and server."""
    program = CACHE / "t2" / "bin" / "t2"
    if not program.exists():
        cargo("install", CRATE, "--root", CACHE / "t2")
    return program


@pytest.fixture(scope="session")
def t2_peer() -> Path:
    return build_t2_peer()


@pytest.fixture(scope="session")
def first_t2_peer() -> Path:
    """The same scenarios on release 0.1.0 of the library."""
    return _built("first/Cargo.toml", "t2-peer-first")


def build_t2_peer() -> Path:
    """The scenarios on the real client library."""
    return _built("Cargo.toml", "t2-peer")


def _built(manifest: str, program: str) -> Path:
    cargo("build", "--release", "--manifest-path", Path(__file__).parent / "peer" / manifest)
    return TARGET / "release" / program


@pytest.fixture
def real_t2(t2_program: Path) -> Iterator[Server]:
    """A real server of the test's own; `.addresses` has its "tcp" and "unix" address."""
    with real_server(t2_program) as server:
        yield server


@pytest.fixture(scope="session")
def polybus_t2() -> Iterator[Server]:
    """One polybus for all scenarios: that they do not disturb each other is part of the test."""
    with polybus_server() as server:
        yield server


@pytest.fixture(scope="session", autouse=True)
def slow_runs(request: pytest.FixtureRequest) -> Iterator[SlowRuns]:
    """The slow scenarios that were selected, started before the first test."""
    with ExitStack() as stack:
        runs: SlowRuns = {}
        for item in request.session.items:
            if not isinstance(item, pytest.Function) or "slow_run" not in item.fixturenames:
                continue
            key = cast(SlowKey, item.callspec.params["slow_run"])
            target, scenario, transport = key
            if target == "polybus":
                server = request.getfixturevalue("polybus_t2")
            else:
                server = stack.enter_context(real_server(request.getfixturevalue("t2_program")))
            program = [request.getfixturevalue("t2_peer")]
            if scenario == PYTHON_IDLE:
                program = [sys.executable, "-m", "tests.interop.t2.idle"]
            run = subprocess.Popen(
                [*program, server.addresses[transport], scenario],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            stack.callback(run.wait)
            stack.callback(run.kill)
            runs[key] = run
        yield runs


@pytest.fixture
def slow_run(request: pytest.FixtureRequest, slow_runs: SlowRuns) -> subprocess.Popen[str]:
    return slow_runs[request.param]
