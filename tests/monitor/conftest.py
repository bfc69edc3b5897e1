"""The node that most tests of the monitor look at."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.monitor.serving import Watched, watched


@pytest.fixture
async def bus(tmp_path) -> AsyncIterator[Watched]:
    """A node that keeps topics and lets everybody do everything."""
    async with watched(tmp_path / "data") as found:
        yield found
