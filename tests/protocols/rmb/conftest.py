"""Twins for the tests of this room."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from polybus.model.clock import ManualClock
from tests.protocols.rmb.twins import World


@pytest.fixture
async def world(tmp_path: Path, clock: ManualClock) -> AsyncIterator[World]:
    made = World(tmp_path, clock)
    try:
        yield made
    finally:
        await made.stop()
