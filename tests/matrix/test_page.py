"""The page about the one bus does what it says, word for word."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from polybus.protocols.rmb.embedded import EmbeddedRedis
from tests.matrix.cells import OWN
from tests.pages import run_page
from tests.protocols.rmb.twins import free_port

PAGE = Path(__file__).parent.parent.parent / "docs" / "concepts" / "one-bus.md"
REDIS = "6379"


@pytest.mark.timeout(120)
async def test_the_page_about_the_one_bus_does_what_it_says(tmp_path):
    redis = EmbeddedRedis(None, free_port())
    await redis.start()
    try:
        swaps = {REDIS: str(redis.url.port)}
        done = await asyncio.to_thread(run_page, PAGE, tmp_path, free_port(), swaps=swaps)
        assert done == 10
    finally:
        await redis.stop()


def test_the_page_has_an_example_of_every_pair():
    systems = {name.removesuffix(" RPC") for name in OWN.values()}
    rows = [line.split(" | ") for line in PAGE.read_text(encoding="utf-8").splitlines()]
    shown = [(row[0].removeprefix("| "), row[1]) for row in rows if len(row) == 4]
    wanted = [(one, other) for one in systems for other in systems if one != other]
    assert sorted(pair for pair in shown if pair in wanted) == sorted(wanted)
