"""Frames in pieces."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from polybus.transports.pieces import Pieces


@given(st.binary(min_size=1, max_size=60), st.lists(st.integers(0, 60), max_size=8))
def test_frames_of_ten_bytes_come_out_whole_however_they_came_in(data, splits):
    cuts = [0, *sorted(min(cut, len(data)) for cut in splits), len(data)]
    pieces, frames = Pieces(), []
    for start, end in pairwise(cuts):
        if start == end:
            continue
        whole = pieces.add(data[start:end])
        if whole is None:
            continue
        pos = 0
        while len(whole) - pos >= 10:
            frames.append(whole[pos : pos + 10])
            pos += 10
        if pos < len(whole):
            pieces.keep(whole[pos:], 10)
    usable = len(data) // 10 * 10
    assert frames == [data[at : at + 10] for at in range(0, usable, 10)]
    assert len(pieces) == len(data) - usable
