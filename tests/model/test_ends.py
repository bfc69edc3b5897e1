"""Ends of columns, one by one and many at once."""

from __future__ import annotations

from array import array
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polybus.model.ends import ends_of, repeated, shifted

SIZES = st.lists(st.integers(0, 1000))


class Sized:
    """A value of any length, without its bytes."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size


@given(SIZES)
def test_ends_are_sums(numbers):
    values = [bytes(number) for number in numbers]
    wanted = [*accumulate(numbers, initial=0)]
    assert ends_of(values).tolist() == ends_of(tuple(values)).tolist() == wanted


def test_a_column_ends_below_two_gigabytes():
    assert ends_of([Sized(2**30), Sized(2**30 - 1)])[-1] == 2**31 - 1
    with pytest.raises(OverflowError):
        ends_of([Sized(2**30), Sized(2**30)])


@given(SIZES, st.integers(0, 1000))
def test_all_are_moved_at_once(numbers, by):
    ends = array("i", accumulate(numbers))
    assert array("i", bytes(shifted(ends.tobytes(), by))).tolist() == [end + by for end in ends]


@given(SIZES, st.integers(0, 20))
def test_runs_are_repeated(numbers, times):
    assert array("i", repeated(numbers, times)).tolist() == [*accumulate(numbers * times)]
