"""T2 topics and the shared names they stand for.

Invariant: the spelling is the same on both sides; a shared name with anything but `a-z 0-9 _` in its segments, or
deeper than the bus allows, cannot be reached from T2.
"""

from __future__ import annotations

from polybus.model.pattern import is_pattern
from polybus.protocols.t2.topics import is_topic


def to_shared(topic: str) -> str | None:
    """The shared name or pattern of a valid topic, or None when it is too long for one."""
    return topic if is_pattern(topic) else None


def from_shared(name: str | None) -> str | None:
    """The topic of a shared name, or None when T2 cannot spell it: a real client stops at a bad topic."""
    return name if name is not None and is_topic(name) else None
