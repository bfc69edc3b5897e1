"""The loop stays awake for the next input while that pays, and no longer."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterable

import pytest

import polybus
from polybus.model.clock import ManualClock
from polybus.server.config import Config, Limits
from polybus.server.node import Node
from polybus.transports.linger import FIRST_REST, LONGEST_REST, STEADY, Linger, processors

PATIENCE = 50e-6


class Threads:
    busy = False

    def __call__(self) -> bool:
        return self.busy


@pytest.fixture
def threads() -> Threads:
    return Threads()


@pytest.fixture
def linger(clock: ManualClock, threads: Threads) -> Linger:
    return Linger(clock, PATIENCE, threads)


async def looks(clock: ManualClock, count: int, each_s: float) -> None:
    """Let the loop turn so often, and so much time pass in each turn."""
    for _ in range(count):
        clock.advance(each_s)
        await asyncio.sleep(0)


def inputs(linger: Linger, count: int) -> Iterable[bool]:
    """Inputs one after the other; whether each keeps the loop awake."""
    for _ in range(count):
        linger.begin()
        yield linger.awake


async def test_the_loop_stays_awake_for_its_patience_and_then_sleeps(clock, linger):
    linger.begin()
    await looks(clock, 4, PATIENCE / 5)
    assert linger.awake
    await looks(clock, 2, PATIENCE / 5)
    assert not linger.awake


async def test_each_input_makes_it_wait_for_the_next(clock, linger):
    linger.begin()
    for _ in range(20):
        await looks(clock, 2, PATIENCE / 5)
        linger.begin()
    await looks(clock, 3, PATIENCE / 5)
    assert linger.awake


async def test_it_rests_longer_the_less_comes_of_it(clock, linger):
    rests = []
    for _ in range(12):
        assert linger.awake or any(inputs(linger, 1))
        await looks(clock, 8, PATIENCE / 5)
        assert not linger.awake
        rests.append(list(inputs(linger, 5000)).index(True))
    assert rests[:3] == [FIRST_REST, 2 * FIRST_REST, 4 * FIRST_REST]
    assert rests[-1] == LONGEST_REST
    assert rests == sorted(rests)


async def test_a_steady_peer_that_is_late_once_is_waited_for_again_at_once(clock, linger):
    linger.begin()
    for _ in range(STEADY + 1):
        linger.begin()
        await looks(clock, 1, PATIENCE / 5)
    await looks(clock, 8, PATIENCE / 5)
    assert not linger.awake
    assert list(inputs(linger, 1)) == [True]


async def test_threads_at_work_get_the_interpreter(clock, linger, threads):
    threads.busy = True
    assert not any(inputs(linger, 100))
    threads.busy = False
    linger.begin()
    await looks(clock, 1, PATIENCE / 5)
    threads.busy = True
    await looks(clock, 1, PATIENCE / 5)
    assert not linger.awake
    threads.busy = False
    assert list(inputs(linger, 1)) == [True]  # work of ours says nothing about the peer


async def test_who_gets_no_processor_in_time_is_not_forgiven(clock, linger):
    linger.begin()
    for _ in range(STEADY + 1):
        linger.begin()
        await looks(clock, 1, PATIENCE / 5)
    await looks(clock, 1, 20 * PATIENCE)
    assert not linger.awake
    assert list(inputs(linger, LONGEST_REST)).index(True) == FIRST_REST


async def test_handling_an_input_for_long_is_not_taken_for_others_at_work(clock, linger):
    linger.begin()
    linger.begin()
    await looks(clock, 1, 20 * PATIENCE)
    assert linger.awake


@pytest.mark.parametrize(
    ("processors", "patience", "lingers"), [(2, 50e-6, True), (1, 50e-6, False), (2, 0.0, False)]
)
def test_a_node_lingers_where_it_is_not_alone_on_one_processor_and_may(
    monkeypatch, processors, patience, lingers
):
    monkeypatch.setattr("polybus.server.node.processors", lambda: processors)
    node = Node(Config(listen=(), limits=Limits(linger=patience)))
    assert (node.connections.linger is not None) == lingers


def test_a_program_that_is_bound_to_one_processor_has_one(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3}, raising=False)
    assert processors() == 1


async def test_a_node_that_gets_no_input_takes_no_time(monkeypatch):
    monkeypatch.setattr("polybus.server.node.processors", lambda: 2)
    async with (
        Node(Config(listen=("tcp://127.0.0.1:0",))) as node,
        polybus.connect(str(node.addresses[0])) as bus,
    ):
        bus.serve("echo")(echo)
        for _ in range(50):
            assert await bus.call("echo", b"x") == b"x"
        await asyncio.sleep(0.05)
        assert node.connections.linger is not None
        assert not node.connections.linger.awake
        began = time.process_time()
        await asyncio.sleep(0.5)
        assert time.process_time() - began < 0.2


async def echo(body: bytes) -> bytes:
    return body
