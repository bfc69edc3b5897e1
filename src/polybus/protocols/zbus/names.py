"""Zbus names and the shared ones (DESIGN 3): topic `a`, module `b`, method `c` is `a/c` or `a/b/c`.

Invariant: `to_shared` of what `from_shared` gives is the name it was given.
"""

from __future__ import annotations

from polybus.model.name import is_name


def to_shared(topic: str, module: str = "", method: str = "") -> str | None:
    """The shared name of a call; None when it cannot be spelled."""
    name = "/".join(part for part in (topic, module, method) if part)
    return name if is_name(name) else None


def topic_of(name: str) -> str:
    """The topic under which a call reaches a shared name: its first segment, or all that is no module or method."""
    return name.partition("/")[0] if name.count("/") < 3 else name.rsplit("/", 2)[0]


def from_shared(name: str, topic: str) -> tuple[str, str] | None:
    """Module and method of a call to `name` at the service `topic`; None when there are too many segments."""
    rest = name[len(topic) + 1 :].split("/") if len(name) > len(topic) else [""]
    if len(rest) > 2:
        return None
    return (rest[0], rest[1]) if len(rest) == 2 else ("", rest[0])
