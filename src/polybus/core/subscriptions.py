"""An index of (pattern, subscriber) that answers who gets a publication.

Invariant: `matching` equals asking the rules about every pattern one by one. Cost: a topic seen since the last change
that concerns it is one dictionary look-up; any other walks the trie of patterns, where it visits only nodes that still
agree with the topic, so it pays for what it reaches and not for what is there.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Final, Generic, Protocol, TypeVar

from polybus.model.pattern import ANY, ONE, has_wildcard

# Topics are few where traffic is heavy; a scan over many must not grow memory
MAX_CACHED_TOPICS: Final = 4096
MAX_CACHED_LENGTH: Final = 1024  # characters of a topic; nobody's usual topic is longer
MAX_CACHED_RECIPIENTS: Final = 1 << 18  # 2 MiB of references over all cached topics
# Patterns of one who goes; for more it is cheaper to forget every topic
FORGOTTEN_SINGLY: Final = 64

S = TypeVar("S", bound=Hashable)


class Node(Generic[S]):
    """One segment of the patterns that share a beginning; `deep` marks the segment `**`."""

    __slots__ = ("children", "deep", "parent", "segment", "subscribers")

    def __init__(self, segment: str = "", parent: Node[S] | None = None) -> None:
        self.children: dict[str, Node[S]] = {}
        self.subscribers: dict[S, None] = {}  # a set that keeps the order of subscription
        self.segment = segment
        self.deep = segment == ANY
        self.parent = parent

    def grow(self, segments: Iterable[str]) -> Node[S]:
        """The node at the end of these segments, made if it is not there."""
        node = self
        for segment in segments:
            child = node.children.get(segment)
            if child is None:
                child = node.children[segment] = Node(segment, node)
            node = child
        return node

    def prune(self) -> None:
        """Take this node off the trie if nothing depends on it, and so up from there."""
        node, parent = self, self.parent
        while parent is not None and not node.children and not node.subscribers:
            del parent.children[node.segment]
            node, parent = parent, parent.parent


Reached = tuple[Iterable[Node[S]], int]
"""The nodes, each once, whose patterns match a topic (some may have no subscribers), and how many were looked at."""


class Rules(Protocol):
    """What it means that a subscription matches a topic, as a walk over the trie."""

    def split(self, text: str) -> Sequence[str]:
        """The segments of a pattern or topic."""

    def is_concrete(self, text: str) -> bool:
        """Whether `text` matches nothing but itself and wildcards of the other side."""

    def reach(self, root: Node[S], topic: Sequence[str]) -> Reached[S]:
        """Walk from the root to all that the topic reaches."""


class ExactRules:
    """Equal text only."""

    def split(self, text: str) -> Sequence[str]:
        return (text,)

    def is_concrete(self, text: str) -> bool:
        return True

    def reach(self, root: Node[S], topic: Sequence[str]) -> Reached[S]:
        node = root.children.get(topic[0])
        return (() if node is None else (node,)), 1


class PatternRules:
    """`polybus.model.pattern.matches`, with wildcards on either side or both."""

    def split(self, text: str) -> Sequence[str]:
        return text.split("/")

    def is_concrete(self, text: str) -> bool:
        return not has_wildcard(text)

    def reach(self, root: Node[S], topic: Sequence[str]) -> Reached[S]:
        here: dict[Node[S], None] = {}
        _enter(here, root)
        visited = 0
        before = ""
        for segment in topic:
            repeated, before = segment == before, segment
            if segment == ANY:
                if repeated:
                    continue
                add_descendants(here)
                visited += len(here)
                continue
            after: dict[Node[S], None] = {}
            for node in here:
                if node.deep:
                    after[node] = None
                if segment == ONE:
                    for child in node.children.values():
                        if not child.deep:
                            _enter(after, child)
                else:
                    for key in (segment, ONE):
                        if key in node.children:
                            _enter(after, node.children[key])
            visited += len(here) + len(after)
            here = after
        return here, visited


def add_descendants(nodes: dict[Node[S], None]) -> None:
    """Add every node below those that are there, once."""
    queue = list(nodes)
    # The list grows at its end while we walk it.
    for node in queue:
        for child in node.children.values():
            if child not in nodes:
                nodes[child] = None
                queue.append(child)


def _enter(nodes: dict[Node[S], None], node: Node[S]) -> None:
    """Add a node, and the `**` below it since those may stand for nothing."""
    step: Node[S] | None = node
    while step is not None:
        nodes[step] = None
        step = step.children.get(ANY)


EXACT: Final[Rules] = ExactRules()
PATTERNS: Final[Rules] = PatternRules()


class Subscriptions(Generic[S]):
    """Who subscribed to what, under one set of rules.

    Subscribers are opaque and are returned in no promised order, each once however many of its patterns match. The
    texts are taken as they are: whoever calls has checked them.
    """

    def __init__(
        self, rules: Rules = PATTERNS, on_walk: Callable[[int], None] | None = None
    ) -> None:
        """An empty index.

        Args:
            on_walk: Told how many nodes each walk has looked at; a topic seen before needs none.
        """
        self.epoch = 0
        self._on_walk = on_walk
        self._rules = rules
        self._root: Node[S] = Node()
        self._patterns: dict[S, dict[str, Node[S]]] = {}
        """What each subscriber asked for, oldest first, with where that ends in the trie."""
        self._leaving: set[S] = set()
        """Those whose patterns are being taken off the trie."""
        self._count = 0
        self._cache: dict[str, tuple[S, ...]] = {}
        self._cached_recipients = 0
        self._wild_topics: list[str] = []

    def __len__(self) -> int:
        return self._count

    def add(self, pattern: str, subscriber: S) -> bool:
        """Subscribe; False when that subscriber has that very pattern already."""
        patterns = self._patterns.setdefault(subscriber, {})
        if pattern in patterns:
            return False
        node = patterns[pattern] = self._root.grow(self._rules.split(pattern))
        node.subscribers[subscriber] = None
        self._count += 1
        self._changed(pattern)
        return True

    def remove(self, pattern: str, subscriber: S) -> bool:
        """Unsubscribe from exactly this text; False when there was no such subscription."""
        patterns = self._patterns.get(subscriber)
        if patterns is None or pattern not in patterns:
            return False
        node = patterns.pop(pattern)
        if not patterns:
            del self._patterns[subscriber]
        del node.subscribers[subscriber]
        node.prune()
        self._count -= 1
        self._changed(pattern)
        return True

    def leave(self, subscriber: S) -> Iterator[None]:
        """Steps that forget a subscriber, a pattern each; nothing reaches it any more."""
        patterns = self._patterns.pop(subscriber, {})
        if len(patterns) > FORGOTTEN_SINGLY:
            self.epoch += 1
            self._clear_cache()
        else:
            for pattern in patterns:
                self._changed(pattern)
        self._leaving.add(subscriber)
        return self._give_up(subscriber, patterns)

    def _give_up(self, subscriber: S, patterns: dict[str, Node[S]]) -> Iterator[None]:
        while patterns:
            _pattern, node = patterns.popitem()
            del node.subscribers[subscriber]
            node.prune()
            self._count -= 1
            yield
        self._leaving.discard(subscriber)

    def patterns_of(self, subscriber: S) -> tuple[str, ...]:
        """What a subscriber asked for, oldest first."""
        return tuple(self._patterns.get(subscriber, ()))

    def count_of(self, subscriber: S) -> int:
        """How many subscriptions a subscriber has."""
        return len(self._patterns.get(subscriber, ()))

    def matching(self, topic: str) -> tuple[S, ...]:
        """Everybody whose pattern matches; the topic may hold wildcards where the rules know them."""
        found = self._cache.get(topic)
        return self._look_up(topic) if found is None else found

    def _look_up(self, topic: str) -> tuple[S, ...]:
        found: dict[S, None] = {}
        nodes, visited = self._rules.reach(self._root, self._rules.split(topic))
        if self._on_walk is not None:
            self._on_walk(visited)
        for node in nodes:
            found.update(node.subscribers)
        for gone in self._leaving:
            found.pop(gone, None)
        result = tuple(found)
        if len(topic) > MAX_CACHED_LENGTH:
            return result
        self._cached_recipients += len(result)
        if len(self._cache) >= MAX_CACHED_TOPICS or self._cached_recipients > MAX_CACHED_RECIPIENTS:
            self._clear_cache()
            self._cached_recipients = len(result)
        self._cache[topic] = result
        if not self._rules.is_concrete(topic):
            self._wild_topics.append(topic)
        return result

    def _changed(self, pattern: str) -> None:
        self.epoch += 1
        if not self._cache:
            return
        if not self._rules.is_concrete(pattern):
            self._clear_cache()
            return
        # A concrete pattern concerns its own topic and topics with wildcards, nothing else.
        self._forget(pattern)
        for topic in self._wild_topics:
            self._forget(topic)
        self._wild_topics.clear()

    def _forget(self, topic: str) -> None:
        found = self._cache.pop(topic, None)
        if found is not None:
            self._cached_recipients -= len(found)

    def _clear_cache(self) -> None:
        self._cache.clear()
        self._wild_topics.clear()
        self._cached_recipients = 0
