"""Names: paths of segments, the one namespace that all systems share (DESIGN 3).

Invariant: a checked name has no empty segment and no wildcard; what a wire cannot spell stays out of reach there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from polybus.errors import InvalidName

MAX_NAME_BYTES: Final = 4096  # as NATS's control line; longer paths are mistakes, not names
MAX_SEGMENTS: Final = 256  # bounds the work of any matcher (protocol page T2 §5)


def check_name(text: str) -> str:
    """Return `text` if it is a name, else raise.

    Raises:
        InvalidName: empty, too long, an empty segment, a wildcard or a control character.
    """
    if not text:
        raise InvalidName(text, "it is empty")
    if len(text.encode()) > MAX_NAME_BYTES:
        raise InvalidName(text[:64] + "…", f"longer than {MAX_NAME_BYTES} bytes")
    segments = text.split("/")
    if len(segments) > MAX_SEGMENTS:
        raise InvalidName(text[:64] + "…", f"more than {MAX_SEGMENTS} segments")
    for segment in segments:
        if not segment:
            raise InvalidName(text, "a segment is empty")
        if segment in ("*", "**"):
            raise InvalidName(text, "a wildcard stands in it")
        if not segment.isprintable():
            raise InvalidName(text, "it holds a control character")
    return text


def is_name(text: str) -> bool:
    """Whether `check_name` would accept it."""
    try:
        check_name(text)
    except InvalidName:
        return False
    return True


def prefixes(path: str) -> Iterator[str]:
    """What is left of a path each time it is cut at its last `/`: the longest first, the empty one not.

    What is longer than a name may be is passed over: a megabyte of slashes would hold the loop for minutes.
    """
    end = path.rfind("/", 0, MAX_NAME_BYTES + 1)
    while end > 0:
        yield path[:end]
        end = path.rfind("/", 0, end)
