"""From options to offsets: which topics, from where to where, in which pieces; and how much of it one trigger takes.

Invariant: the pieces of a range are disjoint, in order, and cover it; what a trigger takes never goes back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from polybus.errors import ConfigError, OutOfRange
from polybus.model.pattern import has_wildcard, matches
from polybus.spark.link import Link
from polybus.spark.options import ANY_TOPIC, Options, Position

ROW_BYTES: Final = 256  # what a row of a topic without records is taken for


@dataclass(frozen=True, slots=True)
class Extent:
    """What a topic holds: offsets `first` to `end` (exclusive) and their bytes."""

    first: int
    end: int
    bytes: int = 0

    @property
    def row_bytes(self) -> int:
        """An average, to turn a limit of bytes into one of rows."""
        rows = self.end - self.first
        return max(self.bytes // rows, 1) if rows and self.bytes else ROW_BYTES


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets `start` to `end` (exclusive) of one topic."""

    topic: str
    start: int
    end: int

    @property
    def rows(self) -> int:
        """How many records lie in it."""
        return self.end - self.start


def find_topics(link: Link, wanted: Sequence[str]) -> dict[str, Extent]:
    """The topics that names and patterns stand for.

    Raises:
        ConfigError: none was asked for; NoSuchTopic: a name is not there.
    """
    if not wanted:
        raise ConfigError("option topics: name a topic, several with commas, or a pattern")
    patterns = [text for text in wanted if has_wildcard(text)]
    found: dict[str, Extent] = {}
    for text in wanted:
        if text not in patterns:
            found[text] = _extent(link.topic(text))
    if patterns:
        for info in link.topics():
            if any(matches(pattern, info["name"]) for pattern in patterns):
                found[info["name"]] = _extent(info)
    return dict(sorted(found.items()))


def _extent(info: Mapping[str, int]) -> Extent:
    return Extent(info["first"], info["end"], info["bytes"])


def resolve(
    link: Link, topic: str, extent: Extent, positions: Mapping[str, Position], option: str
) -> int:
    """The offset that a position means in a topic.

    Raises:
        ConfigError: the offset is beyond the end. One below the first is the caller's to judge.
    """
    position = positions.get(topic, positions[ANY_TOPIC])
    if position == "earliest":
        return extent.first
    if position == "latest":
        return extent.end
    if isinstance(position, str):
        return link.offset_at(topic, int(position[1:]))
    if position > extent.end:
        raise ConfigError(
            f"option {option}: offset {position} of {topic} is beyond its end {extent.end}"
        )
    return position


def held(topic: str, start: int, extent: Extent, fail: bool) -> int:
    """`start`, or the first offset that the topic still holds when retention went past it and that may be.

    Raises:
        OutOfRange: records are gone and `fail` is set.
    """
    if extent.first <= start <= extent.end:
        return start
    if fail:
        error = OutOfRange(topic, start, extent.first, extent.end)
        error.text = (
            f"records are lost: {topic} holds offsets {extent.first} to {extent.end}, and {start} "
            "was next; option failOnDataLoss=false goes on with what is there"
        )
        error.args = (error.text,)
        raise error
    # Above the end: the topic was removed and declared again, and counts from 0.
    return extent.first


def batch_ranges(link: Link, options: Options) -> list[Range]:
    """What a batch query reads."""
    ranges = []
    for topic, extent in find_topics(link, options.topics).items():
        start = resolve(link, topic, extent, options.starting, "startingOffsets")
        end = resolve(link, topic, extent, options.ending, "endingOffsets")
        start = held(topic, start, extent, options.fail_on_data_loss)
        if start < end:
            ranges.append(Range(topic, start, end))
    return ranges


def split(ranges: Iterable[Range], rows: int, at_least: int) -> list[Range]:
    """Pieces of at most `rows` records, and `at_least` so many pieces where there are that many records."""
    ranges = list(ranges)
    total = sum(each.rows for each in ranges)
    size = max(min(rows, total // at_least), 1)
    pieces = []
    for each in ranges:
        count = -(-each.rows // size)
        cuts = [each.start + each.rows * number // count for number in range(count + 1)]
        pieces += [Range(each.topic, start, end) for start, end in pairwise(cuts)]
    return pieces


def admit(
    start: Mapping[str, int], latest: Mapping[str, Extent], max_rows: int, max_bytes: int
) -> dict[str, int]:
    """How far one trigger goes: every topic in proportion to what waits there, at least one record of one topic.

    Zero means no limit.
    """
    waiting = {
        topic: max(extent.end - start.get(topic, extent.first), 0)
        for topic, extent in latest.items()
    }
    rows = sum(waiting.values())
    size = sum(count * latest[topic].row_bytes for topic, count in waiting.items())
    share = 1.0
    if max_rows and rows > max_rows:
        share = min(share, max_rows / rows)
    if max_bytes and size > max_bytes:
        share = min(share, max_bytes / size)
    end = {}
    for topic, count in waiting.items():
        begin = start.get(topic, latest[topic].first)
        end[topic] = begin + (count if share == 1.0 else int(count * share))
    if rows and all(
        end[topic] == start.get(topic, latest[topic].first) for topic in waiting if waiting[topic]
    ):
        busiest = max(waiting, key=lambda topic: waiting[topic])
        end[busiest] += 1
    return end
