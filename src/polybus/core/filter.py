"""Tag filters: which records of a topic a group wants.

Invariant: a compiled filter never raises, gives the same verdict for a tag every time, and costs at most one pass
over the parts of the tag per alternative. A record without a tag passes no filter.

    filter      = alternative *( ";" alternative )
    alternative = part *( "." part )
    part        = "*" (exactly one part) | "#" (the rest, none included; last only) | text
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from polybus.errors import InvalidName

Predicate = Callable[[str], bool]
Parser = Callable[[str], Predicate]
"""A dialect: compiles the text of a filter or raises InvalidName. Rooms bring their own (see `Groups.filters`)."""

MAX_FILTER_BYTES: Final = 1024
MAX_REMEMBERED: Final = 1024  # verdicts kept per filter; real producers use a handful of tags

ONE: Final = "*"
REST: Final = "#"


def parse_filter(text: str) -> Predicate:
    """Compile a filter of the SDK's grammar (above).

    Raises:
        InvalidName: the text is no filter; the reason names the alternative and the part.
    """
    if len(text.encode("utf-8", "replace")) > MAX_FILTER_BYTES:
        raise InvalidName(
            text[:64] + "…", f"as a filter it is longer than {MAX_FILTER_BYTES} bytes"
        )
    alternatives = [_parse_alternative(text, part.strip()) for part in text.split(";")]
    if all(ONE not in parts and REST not in parts for parts in alternatives):
        return frozenset(".".join(parts) for parts in alternatives).__contains__
    return _remember(lambda tag: _passes(alternatives, tag))


def _parse_alternative(text: str, alternative: str) -> list[str]:
    parts = alternative.split(".")
    for index, part in enumerate(parts):
        where = f"part {index + 1} of {alternative!r}"
        if not part:
            raise InvalidName(text, f"as a filter: {where} is empty")
        if part == REST and index != len(parts) - 1:
            raise InvalidName(text, f"as a filter: {where} is `#`, which stands last only")
        if part not in (ONE, REST) and (ONE in part or REST in part):
            raise InvalidName(text, f"as a filter: a wildcard does not stand alone in {where}")
    return parts


def _passes(alternatives: list[list[str]], tag: str) -> bool:
    if not tag:
        return False
    have = tag.split(".")
    return any(_matches(want, have) for want in alternatives)


def _matches(want: list[str], have: list[str]) -> bool:
    length = len(want)
    if want[-1] == REST:
        length -= 1
        if len(have) < length:
            return False
    elif len(have) != length:
        return False
    return all(want[i] == ONE or want[i] == have[i] for i in range(length))


def _remember(decide: Predicate) -> Predicate:
    verdicts: dict[str, bool] = {}

    def verdict(tag: str) -> bool:
        known = verdicts.get(tag)
        if known is None:
            if len(verdicts) >= MAX_REMEMBERED:
                verdicts.clear()
            known = verdicts[tag] = decide(tag)
        return known

    return verdict
