from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polybus.core.subscriptions import PATTERNS, Subscriptions
from polybus.model import pattern
from polybus.protocols.t2.topics import (
    MATCHING,
    UPSTREAM,
    is_topic,
    is_word_topic,
    matches,
    with_prefix,
)

VECTORS = Path(__file__).parents[2] / "vectors"
PAIRS = json.loads((VECTORS / "t2_topics.json").read_text())

topics = st.lists(st.sampled_from(["a", "b", "*", "**"]), min_size=1, max_size=5).map("/".join)


def test_every_pair_is_decided_as_the_real_matcher_decides_it():
    assert len(PAIRS) == 10_656
    wrong = [p for p in PAIRS if matches(p["sub"], p["pub"]) is not p["match"]]
    assert wrong == []


def test_one_index_of_all_subscriptions_gives_the_same_as_pair_by_pair():
    index: Subscriptions[str] = Subscriptions(UPSTREAM)
    expected: dict[str, set[str]] = {}
    for pair in PAIRS:
        index.add(pair["sub"], pair["sub"])
        expected.setdefault(pair["pub"], set())
        if pair["match"]:
            expected[pair["pub"]].add(pair["sub"])
    for published, subscribed in expected.items():
        assert set(index.matching(published)) >= subscribed


def by_the_page(subscribed: str, published: str) -> bool:
    """The four rules of the protocol page §5, state by state."""
    s, p = subscribed.split("/"), published.split("/")
    seen: set[tuple[int, int, bool]] = set()
    open_ = [(0, 0, False)]
    while open_:
        state = open_.pop()
        if state in seen:
            continue
        seen.add(state)
        j, i, eat = state
        if i == len(p):
            continue
        more = j < len(s)
        if p[i] == "**":
            open_.append((j, i + 1, eat))
            if more:
                open_.append((j + 1, i, eat))
        if eat:
            open_.append((j, i + 1, True))
            if more and s[j] == p[i]:
                open_.append((j + 1, i + 1, False))
        elif p[i] == "*":
            if more:
                open_.append((j + 1, i + 1, False))
        elif more:
            # A published `**` that meets a subscribed one is equal to it and is its first segment.
            if s[j] in (p[i], "*"):
                open_.append((j + 1, i + 1, False))
            if s[j] == "**":
                open_.append((j + 1, i + 1, True))
    return any((len(s), len(p), eat) in seen for eat in (False, True))


def test_the_page_and_the_real_matcher_say_the_same():
    assert all(by_the_page(pair["sub"], pair["pub"]) is pair["match"] for pair in PAIRS)


wild_topics = st.lists(st.sampled_from(["a", "b", "*", "**", "**"]), min_size=1, max_size=9)


@given(st.lists(wild_topics.map("/".join), max_size=12, unique=True), wild_topics.map("/".join))
@settings(max_examples=500, deadline=None)
def test_an_index_of_any_subscriptions_decides_as_the_page_says(subscribed, published):
    index: Subscriptions[str] = Subscriptions(UPSTREAM)
    for topic in subscribed:
        index.add(topic, topic)
    expected = {topic for topic in subscribed if by_the_page(topic, published)}
    assert set(index.matching(published)) == expected


@given(topics, topics)
def test_the_documented_rules_are_those_of_the_shared_patterns(subscribed, published):
    expected = pattern.matches(subscribed, published)
    assert matches(subscribed, published, PATTERNS) is expected


def test_the_two_rules_differ_where_the_protocol_page_says():
    assert MATCHING == {"upstream": UPSTREAM, "documented": PATTERNS}
    for subscribed, published in [("a/**", "a"), ("**", "*/a"), ("a/**/d", "a/d"), ("**/*", "a")]:
        assert not matches(subscribed, published)
        assert matches(subscribed, published, PATTERNS)
    # Inside a subscribed `**` the real matcher lets a published `**` skip any segment.
    assert matches("**/b", "a/**/a")
    assert not matches("**/b", "a/**/a", PATTERNS)


@pytest.mark.parametrize("text", ["a", "_", "0", "0_a/9", "*", "**", "**/**", "*/**/a", "a/b/c"])
def test_the_grammar_takes_what_the_real_server_takes(text):
    assert is_topic(text)
    assert is_word_topic(text) is ("*" not in text)


@pytest.mark.parametrize(
    "text",
    ["", "/", "/a", "a/", "a//b", "a\n", "a.b", "a-b", "A", "***", "a*", "*a", "é", " ", "a b"],
)
def test_the_grammar_refuses_what_the_real_server_refuses(text):
    assert not is_topic(text)
    assert not is_word_topic(text)


def test_depth_and_wildcards_are_capped():
    assert is_topic("/".join(["a"] * 256))
    assert not is_topic("/".join(["a"] * 257))
    assert not is_topic("/".join(["a"] * 200_000))
    assert not is_word_topic("/".join(["a"] * 257))
    assert is_topic("/".join(["**"] * 16))
    assert not is_topic("/".join(["**"] * 17))
    assert is_topic("/".join(["*"] * 16 + ["a"] * 240))
    assert is_topic("a" * 100_000)


def test_the_prefix_of_a_protocol_stands_before_its_topics():
    assert with_prefix("chat", "lobby/alice") == "chat/lobby/alice"
    assert with_prefix("chat", "") == "chat"


def test_many_published_wildcards_do_not_hang_the_bus():
    index: Subscriptions[int] = Subscriptions(UPSTREAM)
    for n in range(50):
        index.add("/".join([f"s{n}"] + ["a"] * 255), n)
    begin = time.process_time()
    assert len(index.matching("/".join(["**"] * 16))) == 50
    assert index.matching("/".join(["**"] * 15 + ["z"])) == ()
    # Ten of them against one 20-deep subscription hold the real server for four seconds.
    assert time.process_time() - begin < 4
