"""Columns of a chunk are cut into what went into them, and not beyond."""

from __future__ import annotations

from array import array
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polybus.errors import CorruptRecord
from polybus.model.cutting import MAX_SHARED, cut, cut_headers, milliseconds
from polybus.model.ends import ends_of
from polybus.model.message import NO_HEADERS


def view(numbers: list[int]) -> memoryview:
    return memoryview(array("i", numbers))


def sizes(texts: list[bytes]) -> bytes:
    return array("i", map(len, texts)).tobytes()


def columns(records: list[dict[str, str]]) -> tuple[memoryview, bytes, bytes, bytes, bytes]:
    names = [name.encode() for record in records for name in record]
    values = [value.encode() for record in records for value in record.values()]
    cuts = view([*accumulate(map(len, records), initial=0)])
    return cuts, b"".join(names), sizes(names), b"".join(values), sizes(values)


@given(st.lists(st.binary(max_size=9)), st.binary(max_size=9), st.binary(max_size=9))
def test_values_come_back_from_anywhere_in_a_buffer(values, before, behind):
    raw = before + b"".join(values) + behind
    assert cut(raw, len(before), memoryview(ends_of(values))) == values


@given(st.lists(st.binary(max_size=9), min_size=1), st.data())
def test_a_part_of_a_column_is_cut_from_where_it_begins(values, data):
    low = data.draw(st.integers(0, len(values)))
    high = data.draw(st.integers(low, len(values)))
    ends = memoryview(ends_of(values))[low : high + 1]
    assert cut(b"".join(values), 0, ends) == values[low:high]
    own = b"".join(values[low:high])
    assert cut(own, -ends[0], ends) == values[low:high]


@pytest.mark.parametrize("ends", [[0, 4], [0, -1], [-2, 1], [3, 2], [0, 2, 1], [0, 2**31 - 1]])
def test_ends_that_lie_are_refused(ends):
    with pytest.raises(CorruptRecord, match="ends"):
        cut(b"abc", 0, view(ends))


NAMES = st.text(max_size=3)
RECORD = st.dictionaries(NAMES, NAMES, max_size=3)


@given(st.lists(st.tuples(RECORD, st.integers(1, 4))))
def test_headers_come_back_whether_neighbours_share_them_or_not(runs):
    records = [record for record, times in runs for _ in range(times)]
    found = cut_headers(*columns(records))
    assert found == records
    at = 0
    for _, times in runs:
        assert all(each is found[at] for each in found[at : at + times])
        at += times


def test_the_same_headers_are_the_same_object_from_one_chunk_to_the_next():
    record = {"sender": "somebody", "version": "1"}
    first, second = cut_headers(*columns([record])), cut_headers(*columns([record, record]))
    assert first[0] is second[1]
    (large,) = cut_headers(*columns([{"large": "x" * MAX_SHARED}]))
    assert large == {"large": "x" * MAX_SHARED}
    assert cut_headers(*columns([{}]))[0] is NO_HEADERS


def test_names_and_values_that_only_look_alike_when_joined_are_told_apart():
    records = [{"ab": "c"}, {"a": "bc"}, {"a": "b", "c": ""}, {"ab": "c"}]
    assert cut_headers(*columns(records)) == records


@pytest.mark.parametrize("cuts", [[0, 3], [0, -1], [0, 1, 0], [0, 2**29]])
def test_cuts_that_lie_are_refused(cuts):
    _, *rest = columns([{"a": "1"}, {"b": "2"}])
    with pytest.raises(CorruptRecord, match="headers"):
        cut_headers(view(cuts), *rest)


def test_times_are_given_in_milliseconds():
    assert milliseconds(memoryview(array("q", [0, 999, 1000, 1_700_000_000_123_999]))) == [
        *(0, 0, 1),
        1_700_000_000_123,
    ]
