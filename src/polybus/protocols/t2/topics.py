"""The topics of the T2 Bus: which texts are one, and which subscription gets which publication.

Invariant: `UPSTREAM` decides every pair as the real matcher does (protocol page §5), by keeping the set of states the
real recursion could be in, so that the work is polynomial where the real one is exponential.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from polybus.core.subscriptions import PATTERNS, Node, Reached, Rules, S, add_descendants
from polybus.model.name import MAX_SEGMENTS
from polybus.model.pattern import ANY, MAX_WILDCARDS, ONE

_TOPIC: Final = re.compile(r"(?:[a-z0-9_]+|\*\*?)(?:/(?:[a-z0-9_]+|\*\*?))*")
_WORDS: Final = re.compile(r"[a-z0-9_]+(?:/[a-z0-9_]+)*")


def is_topic(text: str) -> bool:
    """Whether the bus takes it: the real grammar, with depth and number of wildcards capped.

    The real server has no caps and dies of deep topics and of many wildcards (protocol page §5).
    """
    if text.count("/") >= MAX_SEGMENTS or not _TOPIC.fullmatch(text):
        return False
    return "*" not in text or sum(s in (ONE, ANY) for s in text.split("/")) <= MAX_WILDCARDS


def is_word_topic(text: str) -> bool:
    """Whether it is a topic without wildcards."""
    return text.count("/") < MAX_SEGMENTS and _WORDS.fullmatch(text) is not None


def with_prefix(prefix: str, topic: str) -> str:
    """The topic on the wire of a typed protocol's topic; empty means the prefix itself."""
    return f"{prefix}/{topic}" if topic else prefix


class UpstreamRules:
    """The real server's walk, level by level.

    `plain` holds the nodes where the next subscribed segment is open; `eating` those whose last segment is a `**` that
    may swallow more. The real rules differ from what its document says: a subscribed `**` takes at least one segment,
    and right after it nothing but an equal text goes on.
    """

    def split(self, text: str) -> Sequence[str]:
        return text.split("/")

    def is_concrete(self, text: str) -> bool:
        return "*" not in text

    def reach(self, root: Node[S], topic: Sequence[str]) -> Reached[S]:
        plain: dict[Node[S], None] = {root: None}
        eating: dict[Node[S], None] = {}
        visited = 0
        settled = False  # whether one more `**` right here would add nothing
        for word in topic:
            if word == ANY:
                if not settled:
                    before = len(plain) + len(eating)
                    _skip_any(plain, eating)
                    visited += len(plain) + len(eating)
                    settled = len(plain) + len(eating) == before  # they only grow
                continue
            settled = False
            after: dict[Node[S], None] = {}
            for node in eating:
                child = node.children.get(word)
                if child is not None:
                    after[child] = None
            deeper = dict(eating)
            for node in plain:
                children = node.children
                if word == ONE:
                    after.update(dict.fromkeys(children.values()))
                    continue
                for key in (word, ONE):
                    if key in children:
                        after[children[key]] = None
                if ANY in children:
                    deeper[children[ANY]] = None
            visited += len(plain) + len(deeper)
            plain, eating = after, deeper
        plain.update(eating)
        return plain, visited


def _skip_any(plain: dict[Node[S], None], eating: dict[Node[S], None]) -> None:
    """What a published `**` reaches: it may be dropped, consume any segments, or meet a subscribed one as a word."""
    add_descendants(plain)
    add_descendants(eating)
    met = [node.children[ANY] for node in eating if ANY in node.children]
    eating.update((node.children[ANY], None) for node in plain if ANY in node.children)
    plain.update(dict.fromkeys(met))


UPSTREAM: Final[Rules] = UpstreamRules()

# The values of the setting `[t2] matching`.
MATCHING: Final[dict[str, Rules]] = {"upstream": UPSTREAM, "documented": PATTERNS}


def matches(subscribed: str, published: str, rules: Rules = UPSTREAM) -> bool:
    """Whether one subscription gets one publication; the client sorts its deliveries with it."""
    root: Node[int] = Node()
    node = root.grow(rules.split(subscribed))
    reached, _visited = rules.reach(root, rules.split(published))
    return node in reached
