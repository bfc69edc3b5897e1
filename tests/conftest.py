"""What all tests share: the manual clock, the time unit, and strictness about skips in CI.

The invariant: under CI a test that did not run is a failure, whatever the reason.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from polybus.model.clock import ManualClock

IN_CI = os.environ.get("CI", "") not in ("", "0", "false")
DEFAULT_TIMEOUT = 20.0  # seconds, as in pyproject.toml
PROPERTY_TIMEOUT = 120.0  # a property is hundreds of tests in one
SLOWNESS = float(os.environ.get("POLYBUS_TEST_SLOWNESS", "1"))

# How long one example takes says nothing on a machine that is shared.
settings.register_profile("polybus", settings(), deadline=None)
settings.load_profile("polybus")


def stale_modules() -> list[str]:
    """Compiled modules that are older than the source they were made from."""
    package = Path(__file__).parent.parent / "src" / "polybus"
    return [
        str(compiled.relative_to(package))
        for compiled in package.rglob("*.so")
        for source in (
            compiled.with_name(compiled.name.split(".")[0] + suffix) for suffix in (".py", ".pxd")
        )
        if source.exists() and source.stat().st_mtime > compiled.stat().st_mtime
    ]


STALE = stale_modules()
if STALE:
    # Testing yesterday's machine code would be worse than testing today's source slowly.
    os.environ["POLYBUS_PURE"] = "1"

# A node under test must not pick up what the developer's shell has set for a real one.
OWN_VARIABLES = (
    "POLYBUS_PURE",
    "POLYBUS_TEST_SLOWNESS",
    "POLYBUS_CACHE",
    "POLYBUS_FUZZ_FRAMES",
)
for name in tuple(os.environ):
    if name.startswith(("POLYBUS_", "GSB_")) and name not in OWN_VARIABLES:
        del os.environ[name]


def pytest_report_header() -> list[str]:
    kind = "pure" if os.environ.get("POLYBUS_PURE") == "1" else "compiled where built"
    lines = [f"polybus: {kind}, slowness {SLOWNESS:g}, CI {'yes' if IN_CI else 'no'}"]
    lines += [f"polybus: {name} is older than its source; run `make setup`" for name in STALE]
    return lines


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        own = item.get_closest_marker("timeout")
        seconds = float(own.args[0]) if own and own.args else DEFAULT_TIMEOUT
        if not own and getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            seconds = PROPERTY_TIMEOUT
        if seconds * SLOWNESS != DEFAULT_TIMEOUT:
            item.add_marker(pytest.mark.timeout(seconds * SLOWNESS), append=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if IN_CI and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped under CI: {report.longrepr}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if IN_CI and report.skipped:
        report.outcome = "failed"
        report.longrepr = f"skipped under CI: {report.longrepr}"
    return report


@pytest.fixture
def clock() -> ManualClock:
    """A clock that stands still until the test moves it."""
    from polybus.model.clock import ManualClock

    return ManualClock()


@pytest.fixture(scope="session")
def unit() -> float:
    """One second of patience, scaled by POLYBUS_TEST_SLOWNESS, for tests that touch the system."""
    return SLOWNESS
