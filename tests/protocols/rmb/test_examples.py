"""The examples run and print what they show."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from polybus.model.clock import SystemClock
from tests.protocols.rmb.twins import World

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture
def clock() -> SystemClock:
    return SystemClock()


async def run(name: str, *arguments: int) -> str:
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(EXAMPLES / name), *map(str, arguments), stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    return out.decode()


async def test_the_wallet_is_asked_by_another_twin(world: World):
    one, two = await world.start(1, 2)
    ports = [twin.redis_server.url.port for twin in (one, two)]
    assert await run("rmb_wallet.py", *ports, 2) == (
        'twin 2: {"asset":"TFT","balance":105.25}\ntwin 2: there is no account GNOBODY\n'
    )


async def test_a_twin_answers_later(world: World):
    (one,) = await world.start(1)
    assert await run("rmb_twin.py", one.redis_server.url.port, 1) == (
        'twinserver.deploy {"deployed":"a small machine"}\n'
        "twinserver.sell this twin is not for sale\n"
    )
