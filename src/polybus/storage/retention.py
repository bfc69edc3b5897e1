"""Retention: from which offset on a topic is kept.

Invariant: only whole segments go, and what is in memory only as a whole or below every group; the
newest records of a topic are never dropped for its size.
"""

from __future__ import annotations

from typing import Final

from polybus.storage.topic_log import TopicLog

# A topic with a bound keeps at least so many segments within it, so that it is met closely
SHARE: Final = 4
MIN_SEGMENT_BYTES: Final = 64 << 10


def retained_first(log: TopicLog, now_ms: int) -> int:
    """The first offset the topic's options let it keep."""
    first = log.first
    options = log.options
    if options.retain_ms:
        first = max(first, _by_age(log, now_ms - options.retain_ms))
    if options.retain_bytes:
        first = max(first, _by_bytes(log, options.retain_bytes))
    if options.retain_consumed and log.groups:
        first = max(first, _by_groups(log))
    return first


def _by_age(log: TopicLog, oldest_ms: int) -> int:
    first = log.first
    for segment in log.segments:
        if segment.last_ms >= oldest_ms:
            return first
        first = segment.end
    # An idle topic: all of its memory is as old as its last record.
    tail = log.visible(first, log.end)
    if tail.items and tail.times_ms[-1] < oldest_ms:
        return log.end
    return first


def _by_bytes(log: TopicLog, keep: int) -> int:
    first, total = log.first, log.info().bytes
    for segment in log.segments[:-1]:
        total -= segment.length
        if total < keep:
            break
        first = segment.end
    return first


def _by_groups(log: TopicLog) -> int:
    floor = min(log.end, *(group.floor for group in log.groups.values()))
    if floor >= log.moved:
        return floor
    return max([log.first, *(s.end for s in log.segments if s.end <= floor)])


def segment_limit(log: TopicLog, segment_bytes: int) -> int:
    """How large a segment of the topic may get."""
    keep = log.options.retain_bytes
    return min(segment_bytes, max(keep // SHARE, MIN_SEGMENT_BYTES)) if keep else segment_bytes


def is_aged(log: TopicLog, now_ms: int) -> bool:
    """Whether the last segment must end, so that its oldest records do not wait for its newest."""
    keep = log.options.retain_ms
    return bool(keep and log.segments and log.segments[-1].first_ms < now_ms - keep // SHARE)
