"""Ends of a column's values, many at once: cumulative 32-bit numbers, as `chunk` lays them out.

Invariant: no end reaches 2**31. So the ends of a column are the digits of one large number, and moving them all by as
many bytes is one addition, in which nothing is carried from one to the next. A column of headers has ten or twenty
ends per record, which is too many to count one by one.

Plain typed Python which Cython also compiles (`ends.pxd` has the C types).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence, Sized
from itertools import accumulate
from typing import Final

SIZE: Final = 4  # bytes of one
ZERO: Final = bytes(SIZE)
LAST: Final = 2**31 - 1
_ONE: Final = (1).to_bytes(SIZE, "little")


def ends_of(values: Sequence[Sized]) -> array[int]:
    """Zero, and where each value ends."""
    ends = array("i", bytes(SIZE * (len(values) + 1)))
    view = memoryview(ends)
    total = 0
    for number in range(len(values)):
        total += len(values[number])
        if total > LAST:
            raise OverflowError("a column's ends have 31 bits")
        view[number + 1] = total
    return ends


def shifted(ends: bytes | memoryview, by: int) -> bytes | memoryview:
    """Ends that lie `by` bytes further on."""
    if not by or not len(ends):
        return ends
    size = len(ends)
    every = int.from_bytes(_ONE * (size // SIZE), "little")
    return (int.from_bytes(ends, "little") + by * every).to_bytes(size, "little")


def repeated(sizes: Iterable[int], times: int) -> bytes:
    """The ends of values of these sizes, `times` times in a row; without the zero."""
    once = array("i", accumulate(sizes))
    if not once:
        return b""
    ends = once.tobytes()
    step, wanted = once[-1], len(ends) * times
    while len(ends) < wanted:
        ends += shifted(ends, step)
        step *= 2
    return ends[:wanted]
