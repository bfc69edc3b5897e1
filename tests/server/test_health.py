from __future__ import annotations

from typing import get_args

from polybus.server.health import Health, LoopLag, State


def test_only_a_node_in_the_state_ready_is_ready():
    ready = [state for state in get_args(State) if Health(state, 0, 0, 0.0).ready]
    assert ready == ["ready"]


def test_lag_is_the_longest_delay_of_the_window():
    lag = LoopLag(window=2)
    assert lag.worst_s == 0.0
    lag.observe(5.0)
    assert lag.worst_s == 0.0
    for due, fired in ((1.0, 1.5), (2.0, 2.25), (3.0, 2.9)):
        lag.expect(due)
        lag.observe(fired)
    assert lag.worst_s == 0.25
