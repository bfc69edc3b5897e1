"""Filters that a batch read takes over from Spark: topic, offset and timestamp narrow the ranges.

Invariant: a filter is only claimed when the ranges hold exactly the rows it lets through; times are left to Spark as
well, since a range is cut at whole milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from polybus.spark.offsets import Range

END: Final = 1 << 62
NEVER_NULL: Final = (("partition",), ("timestamp",), ("key",), ("tag",), ("payload",))


@dataclass
class Bounds:
    """What pushed filters leave: topics (None is all), offsets and milliseconds, upper ends exclusive."""

    topics: set[str] | None = None
    low: int = 0
    high: int = END
    from_ms: int = 0
    to_ms: int = END
    left: list[Filter] = field(default_factory=list)

    def narrow(self, ranges: Iterable[Range], offset_at: Callable[[str, int], int]) -> list[Range]:
        """The parts of ranges that are within."""
        found = []
        for each in ranges:
            if self.topics is not None and each.topic not in self.topics:
                continue
            start, end = max(each.start, self.low), min(each.end, self.high)
            if self.from_ms and start < end:
                start = max(start, offset_at(each.topic, self.from_ms))
            if self.to_ms < END and start < end:
                end = min(end, offset_at(each.topic, self.to_ms))
            if start < end:
                found.append(Range(each.topic, start, end))
        return found


def push(filters: Sequence[Filter]) -> Bounds:
    """Take over what can be; the rest is in `left`, as the same objects."""
    bounds = Bounds()
    for each in filters:
        if not _take(bounds, each):
            bounds.left.append(each)
    return bounds


def _take(bounds: Bounds, given: Filter) -> bool:
    """Whether the filter is fully done by the bounds."""
    column: tuple[str, ...] = getattr(given, "attribute", ())
    if column == ("topic",):
        return _take_topic(bounds, given)
    if column == ("offset",):
        return _take_offset(bounds, given)
    if column == ("timestamp",):
        _take_time(bounds, given)
    return isinstance(given, IsNotNull) and column[:1] in NEVER_NULL


def _take_topic(bounds: Bounds, given: Filter) -> bool:
    match given:
        case EqualTo(value=str(value)):
            names = {value}
        case In(value=values):
            names = {value for value in values if isinstance(value, str)}
        case IsNotNull():
            return True
        case _:
            return False
    bounds.topics = names if bounds.topics is None else bounds.topics & names
    return True


def _take_offset(bounds: Bounds, given: Filter) -> bool:
    match given:
        case EqualTo(value=int(value)):
            bounds.low, bounds.high = max(bounds.low, value), min(bounds.high, value + 1)
        case GreaterThan(value=int(value)):
            bounds.low = max(bounds.low, value + 1)
        case GreaterThanOrEqual(value=int(value)):
            bounds.low = max(bounds.low, value)
        case LessThan(value=int(value)):
            bounds.high = min(bounds.high, value)
        case LessThanOrEqual(value=int(value)):
            bounds.high = min(bounds.high, value + 1)
        case IsNotNull():
            pass
        case _:
            return False
    return True


def _take_time(bounds: Bounds, given: Filter) -> None:
    value: Any = getattr(given, "value", None)
    if not isinstance(value, datetime):
        return
    value = value if value.tzinfo else value.replace(tzinfo=UTC)
    time_ms = int(value.timestamp() * 1000)
    if isinstance(given, (EqualTo, GreaterThan, GreaterThanOrEqual)):
        bounds.from_ms = max(bounds.from_ms, time_ms)
    if isinstance(given, (EqualTo, LessThan, LessThanOrEqual)):
        bounds.to_ms = min(bounds.to_ms, time_ms + 1)
