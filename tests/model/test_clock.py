"""Time as a value."""

from __future__ import annotations

from polybus.model.clock import ManualClock, SystemClock
from polybus.model.ids import counter, random_id


def test_a_manual_clock_moves_both_times_and_only_by_hand():
    clock = ManualClock(10.0, 5_000)
    assert clock.advance(1.5) == clock.monotonic() == 11.5
    assert clock.wall_ms() == 6_500
    assert clock.monotonic() == 11.5


def test_the_system_clock_never_goes_back():
    clock = SystemClock()
    assert clock.monotonic() <= clock.monotonic()
    assert clock.wall_ms() > 1_700_000_000_000


def test_ids_are_new_every_time():
    take = counter(5)
    assert [take(), take()] == [5, 6]
    assert random_id() != random_id()
