from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polybus.model.units import DURATION, SIZE


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10s", 10), ("500ms", 0.5), ("2m", 120), ("1h", 3600), ("1d", 86400), ("1.5s", 1.5), (7, 7)],
)
def test_durations_are_read_with_their_units(text, seconds):
    assert DURATION.parse(text) == seconds


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("64MiB", 64 << 20),
        ("1 GiB", 1 << 30),
        ("10KB", 10_000),
        ("12", 12),
        (5, 5),
        ("3mib", 3 << 20),
    ],
)
def test_sizes_are_read_with_their_units(text, size):
    assert SIZE.parse(text) == size
    assert isinstance(SIZE.parse(text), int)


@pytest.mark.parametrize(
    "text", ["", "s", "-1s", "10 parsecs", "1e9s", "nan", "inf", "1.2.3s", "10s5"]
)
def test_what_is_no_duration_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match="is not a duration \\(such as 10s"):
        DURATION.parse(text)


@given(st.integers(0, 1 << 50))
def test_a_size_survives_being_shown(size):
    assert SIZE.parse(SIZE.show(size)) == size


@given(st.integers(0, 10_000_000))
def test_a_duration_survives_being_shown(milliseconds):
    seconds = milliseconds / 1000
    assert DURATION.parse(DURATION.show(seconds)) == pytest.approx(seconds, abs=1e-9)


def test_values_are_shown_in_the_largest_unit_that_fits():
    assert [DURATION.show(s) for s in (30, 300, 7200, 0.25, 0)] == [
        "30s",
        "5m",
        "2h",
        "250ms",
        "0s",
    ]
    assert [SIZE.show(s) for s in (64 << 20, 1500, 1001, 0)] == ["64MiB", "1500B", "1001B", "0B"]
