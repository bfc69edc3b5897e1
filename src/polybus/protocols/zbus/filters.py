"""Tag filters of Zbus groups, both dialects in one (protocol page §7, §14).

    filter      = alternative *( ";" alternative )
    alternative = part *( "." part )
    part        = "+" (exactly one part) | "#" (the rest, none included) | "*" | text

A `*` is one part in the dialect of 0.9 and later. In that of 0.8 it stands for its part and all that follow, at least
one. Invariant: an untagged message passes no filter; wildcards count only where they stand alone in a part.
"""

from __future__ import annotations

from typing import Final

from polybus.core.filter import Predicate
from polybus.errors import InvalidName
from polybus.protocols.zbus.masks import Dialect
from polybus.protocols.zbus.wire import MAX_FILTER

NAMES: Final[dict[Dialect, str]] = {"0.8": "zbus", "0.9": "zbus9"}
MAX_REMEMBERED: Final = 1024


def parse_filter(text: str, dialect: Dialect = "0.8") -> Predicate:
    """Compile a filter.

    Raises:
        InvalidName: it is longer than the original servers store.
    """
    if len(text.encode("utf-8", "replace")) > MAX_FILTER:
        raise InvalidName(text[:64] + "…", f"as a filter it is longer than {MAX_FILTER} bytes")
    star_is_rest = dialect == "0.8"
    alternatives = [part.strip().split(".") for part in text.split(";") if part.strip()]
    verdicts: dict[str, bool] = {}

    def passes(tag: str) -> bool:
        known = verdicts.get(tag)
        if known is None:
            if len(verdicts) >= MAX_REMEMBERED:
                verdicts.clear()
            have = tag.split(".")
            known = bool(tag) and any(_matches(want, have, star_is_rest) for want in alternatives)
            verdicts[tag] = known
        return known

    return passes


def parse_0_8(text: str) -> Predicate:
    """The documented dialect."""
    return parse_filter(text, "0.8")


def parse_0_9(text: str) -> Predicate:
    """The dialect of later versions."""
    return parse_filter(text, "0.9")


def _matches(want: list[str], have: list[str], star_is_rest: bool) -> bool:
    for at, part in enumerate(want):
        if part == "#":
            return True
        if at >= len(have):
            return False
        if part == "*":
            if star_is_rest:
                return True
        elif part not in ("+", have[at]):
            return False
    return len(want) == len(have)
