"""Percentiles from a few counters."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polybus.monitor.durations import BOUNDS, FACTOR, WINDOW_S, Durations, Histogram


def test_without_calls_there_is_no_percentile():
    assert Durations(0.0).percentile(0.5, 0.0) is None


@given(
    st.lists(st.floats(BOUNDS[0], BOUNDS[-1]), min_size=1, max_size=200),
    st.sampled_from([0.5, 0.9, 0.99]),
)
def test_a_percentile_is_right_within_one_bucket(times, share):
    durations = Durations(0.0)
    for seconds in times:
        durations.add(seconds, 0.0)
    exact = sorted(times)[min(len(times) - 1, max(0, -int(-share * len(times) // 1) - 1))]
    found = durations.percentile(share, 0.0)
    assert found is not None
    assert exact / FACTOR <= found <= exact * FACTOR


def test_old_calls_are_forgotten_after_two_windows():
    durations = Durations(0.0)
    durations.add(0.001, 0.0)
    assert durations.percentile(0.5, WINDOW_S * 1.5) == pytest.approx(0.001, rel=0.3)
    assert durations.percentile(0.5, WINDOW_S * 3) is None


def test_calls_of_an_age_ago_do_not_come_back_with_a_new_one():
    durations = Durations(0.0)
    durations.add(10.0, 0.0)
    durations.add(0.001, WINDOW_S * 10)
    assert durations.percentile(0.99, WINDOW_S * 10) == pytest.approx(0.001, rel=0.3)


def test_a_call_longer_than_all_buckets_counts_in_the_last():
    durations = Durations(0.0)
    durations.add(1000.0, 0.0)
    assert durations.percentile(0.5, 0.0) == BOUNDS[-1]


def test_buckets_for_prometheus_are_cumulative_and_end_at_infinity():
    histogram = Histogram()
    for seconds in (0.0001, 0.002, 100.0):
        histogram.add(seconds)
    buckets = dict(histogram.buckets())
    assert buckets["0.0005"] == 1
    assert buckets["0.005"] == 2
    assert buckets["30.0"] == 2
    assert buckets["+Inf"] == 3
    assert histogram.total_s == pytest.approx(100.0021)
