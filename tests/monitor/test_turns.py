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


def test_a_turn_is_over_after_its_time(monkeypatch):
    now = [10.0]
    monkeypatch.setattr(turns, "perf_counter", lambda: now[0])
    turn = Turns()
    assert not turn.over()
    now[0] += turns.TURN_S * 1.01
    assert turn.over()
