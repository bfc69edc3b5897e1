from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from polybus.core import subscriptions as module
from polybus.core.subscriptions import EXACT, PATTERNS, Subscriptions
from polybus.model.pattern import matches
from tests.core.party import all_steps

SEGMENTS = ("a", "b", "*", "**")
topics = st.lists(st.sampled_from(SEGMENTS), min_size=1, max_size=4).map("/".join)


def test_everybody_whose_pattern_matches_is_found_once():
    index: Subscriptions[str] = Subscriptions()
    for pattern in ("x/y", "x/*", "x/**", "**"):
        assert index.add(pattern, "four")
    assert index.add("x/*", "one")
    assert index.add("z", "none")
    assert sorted(index.matching("x/y")) == ["four", "one"]
    assert index.matching("q/r") == ("four",)
    assert len(index) == 6


def test_the_same_pattern_twice_is_one_subscription():
    index: Subscriptions[str] = Subscriptions()
    assert index.add("a/*", "s")
    epoch = index.epoch
    assert not index.add("a/*", "s")
    assert (len(index), index.epoch) == (1, epoch)
    assert index.remove("a/*", "s")
    assert not index.remove("a/*", "s")
    assert index.matching("a/b") == ()
    assert len(index) == 0


def test_removing_needs_the_same_text():
    index: Subscriptions[str] = Subscriptions()
    index.add("a/b", "s")
    assert not index.remove("a/*", "s")
    assert not index.remove("a/b", "stranger")
    assert index.matching("a/b") == ("s",)


def test_a_subscriber_that_goes_takes_all_it_had():
    index: Subscriptions[int] = Subscriptions()
    for pattern in ("a", "a/b", "a/**", "*"):
        index.add(pattern, 1)
        index.add(pattern, 2)
    assert index.patterns_of(1) == ("a", "a/b", "a/**", "*")
    assert all_steps(index.leave(1)) == 4
    assert all_steps(index.leave(1)) == 0
    assert index.patterns_of(1) == ()
    assert index.matching("**") == (2,)


def test_every_change_raises_the_epoch_and_is_seen_at_once():
    index: Subscriptions[str] = Subscriptions()
    seen = [index.epoch]
    assert index.matching("a/b") == index.matching("a/*") == ()
    index.add("a/b", "exact")
    seen.append(index.epoch)
    assert index.matching("a/b") == index.matching("a/*") == ("exact",)
    index.add("a/**", "wild")
    seen.append(index.epoch)
    assert set(index.matching("a/b")) == set(index.matching("a/*")) == {"exact", "wild"}
    index.remove("a/b", "exact")
    seen.append(index.epoch)
    assert index.matching("a/b") == index.matching("a/*") == ("wild",)
    all_steps(index.leave("wild"))
    seen.append(index.epoch)
    assert index.matching("a/b") == index.matching("a/*") == ()
    assert seen == sorted(set(seen))


def test_a_change_elsewhere_leaves_cached_topics_alone():
    index: Subscriptions[str] = Subscriptions()
    index.add("a/*", "s")
    before = index.matching("a/b")
    index.add("a/c", "t")
    assert index.matching("a/b") is before


def test_exact_rules_know_no_wildcards():
    index: Subscriptions[str] = Subscriptions(EXACT)
    index.add("a/*", "star")
    index.add("a/b", "word")
    assert index.matching("a/b") == ("word",)
    assert index.matching("a/*") == ("star",)
    assert index.matching("**") == ()


def test_the_cache_is_bounded_in_topics_and_in_recipients(monkeypatch):
    monkeypatch.setattr(module, "MAX_CACHED_TOPICS", 4)
    monkeypatch.setattr(module, "MAX_CACHED_RECIPIENTS", 10)
    index: Subscriptions[int] = Subscriptions()
    for subscriber in range(6):
        index.add("**", subscriber)
    for topic in ("a", "b", "c", "a/b", "*", "**"):
        assert len(index.matching(topic)) == 6
        assert len(index._cache) <= 1
    all_steps(index.leave(0))
    small: Subscriptions[int] = Subscriptions()
    for n in range(20):
        assert small.matching(f"t/{n}") == ()
        assert len(small._cache) <= 4


def test_a_topic_of_unusual_length_is_matched_and_not_kept():
    index: Subscriptions[str] = Subscriptions()
    index.add("a/*", "one")
    long = "a/" + "x" * module.MAX_CACHED_LENGTH
    assert index.matching(long) == ("one",)
    assert long not in index._cache
    index.add(long, "two")
    assert set(index.matching(long)) == {"one", "two"}


def test_the_trie_keeps_nothing_of_what_was_removed():
    index: Subscriptions[int] = Subscriptions()
    for n, pattern in enumerate(itertools.product(SEGMENTS, repeat=3)):
        index.add("/".join(pattern), n % 3)
    for subscriber in range(3):
        all_steps(index.leave(subscriber))
    assert not index._root.children
    assert len(index) == 0


@given(st.lists(topics, max_size=12), topics)
@settings(max_examples=200)
def test_the_index_agrees_with_the_rules_pair_by_pair(patterns, topic):
    index: Subscriptions[int] = Subscriptions(PATTERNS)
    for n, pattern in enumerate(patterns):
        index.add(pattern, n)
    expected = {n for n, pattern in enumerate(patterns) if matches(pattern, topic)}
    assert set(index.matching(topic)) == expected


class AnyOrderOfChanges(RuleBasedStateMachine):
    """Adds, removals and questions in any order give what a plain set of pairs gives."""

    def __init__(self) -> None:
        super().__init__()
        self.index: Subscriptions[int] = Subscriptions()
        self.pairs: set[tuple[str, int]] = set()
        self.leaving: dict[int, Iterator[object]] = {}

    @rule(pattern=topics, subscriber=st.integers(0, 3))
    def add(self, pattern, subscriber):
        if subscriber not in self.leaving:
            assert self.index.add(pattern, subscriber) is ((pattern, subscriber) not in self.pairs)
            self.pairs.add((pattern, subscriber))

    @rule(pattern=topics, subscriber=st.integers(0, 3))
    def remove(self, pattern, subscriber):
        assert self.index.remove(pattern, subscriber) is ((pattern, subscriber) in self.pairs)
        self.pairs.discard((pattern, subscriber))

    @rule(subscriber=st.integers(0, 3))
    def leave(self, subscriber):
        if subscriber not in self.leaving:
            self.leaving[subscriber] = self.index.leave(subscriber)
            self.pairs = {pair for pair in self.pairs if pair[1] != subscriber}

    @precondition(lambda self: self.leaving)
    @rule()
    def take_a_step(self):
        subscriber, work = self.leaving.popitem()
        if next(work, self) is not self:
            self.leaving[subscriber] = work

    @rule(topic=topics)
    def publish(self, topic):
        found = self.index.matching(topic)
        assert len(found) == len(set(found))
        assert set(found) == {s for pattern, s in self.pairs if matches(pattern, topic)}

    @invariant()
    def the_length_is_the_number_of_pairs(self):
        assert len(self.index) == len(self.pairs) or self.leaving

    def teardown(self):
        for work in self.leaving.values():
            all_steps(work)
        assert len(self.index) == len(self.pairs)


TestAnyOrderOfChanges = AnyOrderOfChanges.TestCase
TestAnyOrderOfChanges.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@pytest.mark.parametrize("topic", ["**", "**/**", "*/**", "**/*"])
def test_publishing_to_all_reaches_all(topic):
    index: Subscriptions[int] = Subscriptions()
    for n in range(500):
        index.add(f"r{n % 20}/u{n}", n)
    assert sorted(index.matching(topic)) == list(range(500))


@pytest.mark.parametrize("singly", [0, 64])
def test_one_who_goes_with_many_patterns_is_gone_from_every_cached_topic(monkeypatch, singly):
    monkeypatch.setattr(module, "FORGOTTEN_SINGLY", singly)
    index: Subscriptions[str] = Subscriptions()
    for pattern in ("a/b", "a/*", "a/c"):
        index.add(pattern, "goes")
        index.add(pattern, "stays")
    topics = ("a/b", "a/c", "a/*", "**")
    for topic in topics:
        assert set(index.matching(topic)) == {"goes", "stays"}
    epoch = index.epoch
    assert all_steps(index.leave("goes")) == 3
    assert index.epoch > epoch
    for topic in topics:
        assert index.matching(topic) == ("stays",)
    assert len(index) == 3
