"""An engine on a folder of its own, and the small sizes that make files turn over within a test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from polybus.model.clock import ManualClock
from polybus.storage.engine import EmbeddedEngine, StorageOptions
from polybus.storage.files import Files

SMALL = StorageOptions(
    log_file=64 << 10,
    log_total=256 << 10,
    move_after=1 << 20,
    segment=32 << 10,
    queue=64 << 10,
    append=16 << 10,
    cache=64 << 10,
    upkeep_s=3600,
)

Opener = Callable[..., Awaitable[EmbeddedEngine]]


@pytest.fixture
async def opened(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Opener]:
    """Open engines on one folder; those still running are stopped at the end."""
    engines: list[EmbeddedEngine] = []

    async def start(
        files: Files | None = None,
        options: StorageOptions = SMALL,
        folder: Path = tmp_path / "data",
    ) -> EmbeddedEngine:
        engine = EmbeddedEngine(folder, clock, files=files, options=options)
        await engine.start()
        engines.append(engine)
        return engine

    yield start
    for engine in engines:
        await engine.stop()
