"""The real parts: the published Java client and server, and a polybus node; all on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.interop.zbus.build import NoJava, build_peer
from tests.interop.zbus.parts import Server, start_polybus, start_real

SECONDS: Final = 400  # the first test pays for the build


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.timeout(SECONDS))


@pytest.fixture(scope="session")
def peer() -> list[str]:
    """The command line of the Java program."""
    try:
        return build_peer()
    except NoJava as missing:
        pytest.skip(str(missing))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Server]:
    server = start_polybus(tmp_path / "data")
    yield server
    server.stop()


@pytest.fixture
def real_server(peer: list[str], tmp_path: Path) -> Iterator[Server]:
    server = start_real(peer, tmp_path / "real")
    yield server
    server.stop()
