"""Columns of a chunk cut into values: the part of reading records that is done for each of them.

Invariant: ends that lie are an error, never a look outside of what was given.

Plain typed Python which Cython also compiles (`cutting.pxd` has the C types).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Final

from polybus.errors import CorruptRecord
from polybus.model.message import NO_HEADERS

MAX_SHARED: Final = 4096  # bytes of headers up to which records of different chunks share them


def cut(raw: bytes, shift: int, ends: memoryview) -> list[bytes]:
    """The values that end at `ends` behind `shift`; the first of the ends is where the first value begins."""
    view = raw
    size = len(raw)
    found: list[bytes] = []
    start = shift + ends[0]
    for number in range(1, len(ends)):
        stop = shift + ends[number]
        if start < 0 or stop < start or stop > size:
            raise CorruptRecord("chunk", 0, "the ends of a column do not fit its bytes")
        found.append(view[start:stop])
        start = stop
    return found


def milliseconds(times: memoryview) -> list[int]:
    """Times in microseconds as the records have them."""
    return [times[number] // 1000 for number in range(len(times))]


def cut_headers(
    cuts: memoryview, names: bytes, name_sizes: bytes, values: bytes, value_sizes: bytes
) -> list[Mapping[str, str]]:
    """The headers of records whose pairs begin at `cuts`, and end at the last of them.

    Neighbours mostly come from one producer: what is the same is one object, which is found by comparing bytes.

    Args:
        names: All names, one after the other, and in `name_sizes` how long each is, in four bytes.
        values: Likewise the values.
    """
    found: list[Mapping[str, str]] = []
    last: Mapping[str, str] = NO_HEADERS
    name = value = name_size = value_size = b""
    name_at = value_at = 0
    at = 0
    begin = cuts[0]
    for number in range(1, len(cuts)):
        end = cuts[number]
        size = 4 * (end - begin)
        begin = end
        if size == 0:
            found.append(NO_HEADERS)
            continue
        if (
            size != len(name_size)
            or not name_sizes.startswith(name_size, at)
            or not value_sizes.startswith(value_size, at)
            or not values.startswith(value, value_at)
            or not names.startswith(name, name_at)
        ):
            if size < 0 or at + size > len(name_sizes):
                raise CorruptRecord("chunk", 0, "the headers do not fit their column")
            name_size, value_size = name_sizes[at : at + size], value_sizes[at : at + size]
            name = names[name_at : name_at + sum(memoryview(name_size).cast("i"))]
            value = values[value_at : value_at + sum(memoryview(value_size).cast("i"))]
            last = _headers(name, name_size, value, value_size)
        found.append(last)
        at += size
        name_at += len(name)
        value_at += len(value)
    return found


def _headers(name: bytes, name_size: bytes, value: bytes, value_size: bytes) -> Mapping[str, str]:
    if len(name) + len(value) > MAX_SHARED:
        return dict(zip(_texts(name, name_size), _texts(value, value_size), strict=True))
    return _shared(name, name_size, value, value_size)


@lru_cache(maxsize=256)
def _shared(name: bytes, name_size: bytes, value: bytes, value_size: bytes) -> Mapping[str, str]:
    # The same object for chunk after chunk, so that what a wire makes of it can be kept as long.
    return dict(zip(_texts(name, name_size), _texts(value, value_size), strict=True))


def _texts(raw: bytes, sizes: bytes) -> list[str]:
    ends = accumulate(memoryview(sizes).cast("i"), initial=0)
    return [raw[start:stop].decode() for start, stop in pairwise(ends)]
