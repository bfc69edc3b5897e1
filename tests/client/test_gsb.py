"""The SDK over the wire of the Golem Service Bus."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import polybus
from polybus.client import Bus
from polybus.errors import LocalProtocolError, NoSuchService, ServiceFailed
from tests.client.conftest import Bench, start_node


@pytest.fixture(params=["tcp", "unix"])
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    started = await start_node(request.param, tmp_path)
    yield started
    await started.node.stop()


def connect_gsb(bench: Bench) -> Bus:
    return polybus.connect(bench.url.replace("polybus", "gsb", 1))


async def test_calls_streams_and_errors_cross_between_the_wires(bench: Bench):
    async with bench.connect() as native, connect_gsb(bench) as golem:

        @golem.serve("calc/add")
        async def add(numbers: list[int]) -> int:
            return sum(numbers)

        @golem.serve("count")
        async def count(most: int):
            for number in range(most):
                yield number

        @native.serve("fail")
        def fail() -> None:
            raise ValueError("no")

        await golem.publish("settled")
        await native.publish("settled")
        assert await native.call("calc/add", [1, 2], type=int) == 3
        assert await golem.call("calc/add", [1, 2], type=int) == 3
        assert [p async for p in native.call_streaming("count", 3, type=int)] == [0, 1, 2]
        assert await golem.call("count", 3) == b"012"
        with pytest.raises(ServiceFailed, match="ValueError: no"):
            await golem.call("fail")
        with pytest.raises(NoSuchService):
            await golem.call("nobody")
        await golem.push("fail")
        await golem.unserve("count")
        with pytest.raises(NoSuchService):
            await native.call("count", 1)


async def test_publications_cross_between_the_wires(bench: Bench):
    async with bench.connect() as native, connect_gsb(bench) as golem:
        async with (
            golem.subscribe("price/eth") as prices,
            native.subscribe("price/**") as all_prices,
        ):
            assert await native.publish("price/eth", b"1") == 2
            assert (await anext(prices)).name == "price/eth"
            await golem.publish_nowait("price/btc", b"2")
            assert [(await anext(all_prices)).payload for _ in range(2)] == [b"1", b"2"]
        assert await native.publish("price/eth", b"3") == 0


async def test_a_verb_that_the_wire_has_no_word_for_names_both(bench: Bench):
    async with connect_gsb(bench) as golem:
        for verb in (
            golem.produce("t", b"x"),
            golem.produce_many("t", [b"x"]),
            golem.consume("t", "g").start(),
            golem.fetch("t"),
            golem.topics(),
            golem.services(),
            golem.subscribe("a/*").start(),
            golem.publish("a/*"),
            golem.call("x", headers={"a": "b"}),
        ):
            with pytest.raises(LocalProtocolError, match="wire gsb has no"):
                await verb
        assert golem.connected
    await golem.close()


async def test_draining_gives_the_names_up(bench: Bench):
    async with connect_gsb(bench) as golem:
        await golem.serve("a", lambda: None)
        await golem.drain()
    assert not list(bench.node.router.services)
