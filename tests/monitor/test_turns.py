"""Cutting long lists: the same as sorting it all, without holding the loop."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polybus.monitor import turns
from polybus.monitor.turns import Turns, rendered, window


@given(
    st.lists(st.integers(0, 9), max_size=60),
    st.integers(0, 70),
    st.integers(1, 20),
    st.booleans(),
    st.integers(1, 7),
)
def test_a_window_is_the_slice_of_the_sorted_list(keys, start, count, descending, run):
    items = [(key, number) for number, key in enumerate(keys)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(turns, "RUN", run)
        found, total = asyncio.run(window(iter(items), start, count, descending=descending))
    expected = sorted(items, key=lambda item: item[0], reverse=descending)
    assert found == [number for _, number in expected[start : start + count]]
    assert total == len(keys)


def test_items_are_never_compared_with_each_other():
    items = [(1, object()), (1, object()), (0, object())]
    found, _ = asyncio.run(window(iter(items), 0, 3))
    assert found == [items[2][1], items[0][1], items[1][1]]


async def test_others_have_their_turn_while_a_long_list_is_made(monkeypatch):
    monkeypatch.setattr(turns, "TURN_S", 0.0)
    order: list[str] = []

    async def other() -> None:
        order.append("other")

    def render(item: int) -> bytes:
        order.append("row")
        return b"x"

    task = asyncio.ensure_future(other())
    assert await rendered(range(3), render) == [b"x"] * 3
    await task
    assert order.index("other") == 1


@pytest.fixture
def now(monkeypatch) -> list[float]:
    moment = [10.0]
    monkeypatch.setattr(turns, "perf_counter", lambda: moment[0])
    return moment


async def test_a_turn_is_over_after_its_time(now):
    turn = Turns()
    assert not turn.over()
    now[0] += turns.TURN_S * 1.01
    assert turn.over()
    await turn.rest()
    assert not turn.over()


async def test_ten_at_long_work_hold_a_round_hardly_longer_than_one(now):
    held: list[float] = []

    async def work() -> None:
        turn = Turns()
        for _ in range(30):
            now[0] += turns.TURN_S / 10
            if turn.over():
                await turn.rest()

    async def watch() -> None:
        while True:
            began = now[0]
            await asyncio.sleep(0)
            held.append(now[0] - began)

    watching = asyncio.ensure_future(watch())
    await asyncio.gather(*(work() for _ in range(10)))
    watching.cancel()
    # The first has its turn, and each of the others gets on by one item.
    assert max(held) < turns.TURN_S * 2.5


def test_a_loop_that_ended_in_a_turn_leaves_nothing_to_the_next(now):
    async def begin() -> Turns:
        return Turns()

    asyncio.run(begin())
    now[0] += 1
    assert not asyncio.run(begin()).over()
