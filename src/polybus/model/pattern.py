"""Patterns: names in which a segment may be `*` (exactly one segment) or `**` (any number, none included).

Invariant: every verdict here is polynomial in the number of segments, whatever the pattern; two patterns match when
some name matches both, so the rules do not depend on which side holds the wildcards.
"""

from __future__ import annotations

from typing import Final

from polybus.errors import InvalidName
from polybus.model.name import MAX_NAME_BYTES, MAX_SEGMENTS

ONE: Final = "*"
ANY: Final = "**"
END: Final = "/"  # no segment of any text, not even of a wire's own spelling that is no name
# Bounds the states a matcher can be in at one segment (protocol page T2 §5)
MAX_WILDCARDS: Final = 16


def has_wildcard(text: str) -> bool:
    """Whether a segment of `text` is a wildcard."""
    return "*" in text and not {ONE, ANY}.isdisjoint(text.split("/"))


def check_pattern(text: str) -> str:
    """Return `text` if it is a pattern (a name is one too), else raise.

    Raises:
        InvalidName: empty, too long, an empty segment, too many wildcards, a `*` that does not stand alone in its
            segment, or a control character.
    """
    if not text:
        raise InvalidName(text, "it is empty")
    if len(text.encode("utf-8", "replace")) > MAX_NAME_BYTES:
        raise InvalidName(text[:64] + "…", f"longer than {MAX_NAME_BYTES} bytes")
    segments = text.split("/")
    if len(segments) > MAX_SEGMENTS:
        raise InvalidName(text[:64] + "…", f"more than {MAX_SEGMENTS} segments")
    wildcards = 0
    for segment in segments:
        if not segment:
            raise InvalidName(text, "a segment is empty")
        if segment in (ONE, ANY):
            wildcards += 1
        elif "*" in segment:
            raise InvalidName(text, "a wildcard does not stand alone in its segment")
        elif not segment.isprintable():
            raise InvalidName(text, "it holds a control character")
    if wildcards > MAX_WILDCARDS:
        raise InvalidName(text, f"more than {MAX_WILDCARDS} wildcards")
    return text


def is_pattern(text: str) -> bool:
    """Whether `check_pattern` would accept it."""
    try:
        check_pattern(text)
    except InvalidName:
        return False
    return True


def matches(left: str, right: str) -> bool:
    """Whether some name matches both; either, both or none may hold wildcards."""
    if left == right:
        return True
    if "*" not in left and "*" not in right:
        return False
    a = left.split("/")
    b = right.split("/")
    # below[j]: whether the rest of `a` after segment i and b[j:] have a name in common.
    below = [False] * len(b) + [True]
    for j in range(len(b) - 1, -1, -1):
        below[j] = b[j] == ANY and below[j + 1]
    for segment in reversed(a):
        row = [False] * (len(b) + 1)
        row[len(b)] = segment == ANY and below[len(b)]
        for j in range(len(b) - 1, -1, -1):
            other = b[j]
            if segment == ANY or other == ANY:
                # Of two `**` the longer stretch covers the shorter, so stepping over either one is all there is.
                row[j] = below[j] or row[j + 1]
            elif segment in (other, ONE) or other == ONE:
                row[j] = below[j + 1]
        below = row
    return below[0]


class _Shape:
    """A pattern as its words, each with its least position and how many `**` stand before it."""

    __slots__ = ("least", "stretches", "words")

    def __init__(self, pattern: str) -> None:
        # The two ends are words of their own, which nothing else equals.
        self.words = [END]
        self.least = [-1]
        self.stretches = [0]
        position = stretches = 0
        for segment in pattern.split("/"):
            if segment == ANY:
                stretches += 1
                continue
            if segment != ONE:
                self._add(segment, position, stretches)
            position += 1
        # No name is empty, so `**` alone is one segment at least.
        self._add(END, max(position, 1), stretches)

    def _add(self, word: str, position: int, stretches: int) -> None:
        self.words.append(word)
        self.least.append(position)
        self.stretches.append(stretches)


def contains(outer: str, inner: str) -> bool:
    """Whether every name that matches `inner` matches `outer`.

    A word of `outer` can only be met by the same word of `inner`, so what is looked for is an increasing choice of
    inner words in which each distance that `outer` asks for (exactly so far, or at least so far) holds for every name.
    """
    want, have = _Shape(outer), _Shape(inner)
    at = {(have.stretches[q], have.least[q]): q for q in range(len(have.words))}
    last = len(have.words) - 1
    reached = {0}
    for t in range(1, len(want.words)):
        distance = want.least[t] - want.least[t - 1]
        loose = want.stretches[t] > want.stretches[t - 1]
        first = min(reached)  # the earliest one leaves most room, and room is all a `**` asks for
        found = set()
        for q in range(first + 1, last + 1):
            if have.words[q] != want.words[t]:
                continue
            if loose:
                if have.least[q] - have.least[first] >= distance:
                    found.add(q)
            else:
                p = at.get((have.stretches[q], have.least[q] - distance))
                if p is not None and p in reached:
                    found.add(q)
        if not found:
            return False
        reached = found
    return True
