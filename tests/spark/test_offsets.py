"""Ranges are cut without gap or overlap, and a trigger takes its share of every topic."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polybus.errors import OutOfRange
from polybus.spark.offsets import Extent, Range, admit, held, split

RANGES = st.lists(
    st.tuples(st.integers(0, 1000), st.integers(1, 5000)).map(
        lambda pair: Range("t", pair[0], pair[0] + pair[1])
    ),
    max_size=4,
)


@given(RANGES, st.integers(1, 3000), st.integers(1, 50))
def test_pieces_cover_their_ranges_in_order_and_are_small_enough(ranges, rows, at_least):
    pieces = split(ranges, rows, at_least)
    offsets = [(p.topic, o) for p in pieces for o in range(p.start, p.end)]
    assert offsets == [(r.topic, o) for r in ranges for o in range(r.start, r.end)]
    assert all(0 < piece.rows <= rows for piece in pieces)
    assert len(pieces) >= min(at_least, sum(r.rows for r in ranges))


@given(
    st.dictionaries(st.sampled_from("abc"), st.integers(0, 1000), min_size=1),
    st.integers(1, 500),
)
def test_a_trigger_keeps_its_limit_and_always_gets_on(backlog, most):
    start = dict.fromkeys(backlog, 10)
    latest = {topic: Extent(0, 10 + rows) for topic, rows in backlog.items()}
    end = admit(start, latest, most, 0)
    taken = sum(end.values()) - sum(start.values())
    assert all(start[topic] <= end[topic] <= latest[topic].end for topic in backlog)
    assert taken <= most
    assert taken > 0 or not any(backlog.values())


def test_bytes_are_turned_into_rows_by_the_average_of_the_topic():
    latest = {"a": Extent(0, 1000, 100_000)}
    assert admit({"a": 0}, latest, 0, 5_000) == {"a": 50}


def test_a_topic_that_appears_later_begins_with_its_first_record():
    latest = {"a": Extent(0, 5), "b": Extent(3, 7)}
    assert admit({"a": 5}, latest, 0, 0) == {"a": 5, "b": 7}


@pytest.mark.parametrize("start", [4, 21])
def test_lost_records_fail_or_are_passed_over_as_asked(start):
    extent = Extent(5, 20)
    with pytest.raises(OutOfRange, match=r"records are lost.*failOnDataLoss"):
        held("t", start, extent, fail=True)
    assert held("t", start, extent, fail=False) == 5
    assert held("t", 7, extent, fail=True) == 7
