"""Fixtures of pytest: `pytest_plugins = ["polybus.testing.fixtures"]` in a `conftest.py`.

Invariant: every test gets a node of its own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from polybus.client.sync import SyncBus
from polybus.testing.bus import TestBus


@pytest_asyncio.fixture
async def bus() -> AsyncIterator[TestBus]:
    """A bus in memory with a node of its own."""
    async with TestBus() as opened:
        yield opened


@pytest.fixture
def sync_bus() -> Iterator[SyncBus]:
    """The same for tests without an event loop."""
    with SyncBus(TestBus()) as opened:
        yield opened
