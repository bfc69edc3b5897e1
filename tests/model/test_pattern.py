from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polybus.errors import InvalidName
from polybus.model.pattern import (
    MAX_WILDCARDS,
    check_pattern,
    contains,
    has_wildcard,
    is_pattern,
    matches,
)

SEGMENTS = ("a", "b", "*", "**")
ALL_TO_THREE = ["/".join(p) for n in (1, 2, 3) for p in itertools.product(SEGMENTS, repeat=n)]
# "c" stands for every word that no pattern names; one wildcard more than a pattern has
# segments cannot tell more, so names up to six are enough for patterns up to three.
NAMES = [n for k in range(1, 7) for n in itertools.product("abc", repeat=k)]

patterns = st.lists(st.sampled_from(SEGMENTS), min_size=1, max_size=6).map("/".join)
names = st.lists(st.sampled_from("abc"), min_size=1, max_size=8).map("/".join)


def names_of(pattern: str) -> frozenset[tuple[str, ...]]:
    """The names a pattern stands for, by the definition and nothing else."""

    def fits(segments: tuple[str, ...], name: tuple[str, ...]) -> bool:
        if not segments:
            return not name
        if segments[0] == "**":
            return fits(segments[1:], name) or (bool(name) and fits(segments, name[1:]))
        return bool(name) and segments[0] in ("*", name[0]) and fits(segments[1:], name[1:])

    segments = tuple(pattern.split("/"))
    return frozenset(n for n in NAMES if fits(segments, n))


MEANING = {pattern: names_of(pattern) for pattern in ALL_TO_THREE}


def test_two_patterns_match_exactly_when_a_name_matches_both():
    for left, right in itertools.product(ALL_TO_THREE, repeat=2):
        common = not MEANING[left].isdisjoint(MEANING[right])
        assert matches(left, right) is common, (left, right)


def test_a_pattern_contains_another_exactly_when_it_has_all_its_names():
    for outer, inner in itertools.product(ALL_TO_THREE, repeat=2):
        assert contains(outer, inner) is (MEANING[inner] <= MEANING[outer]), (outer, inner)


def test_a_spelling_with_empty_segments_is_contained_as_any_other():
    """Names that only one wire can spell are asked about as well, and must not pass for shorter ones."""
    spellings = [
        "/".join(p) for n in (1, 2, 3) for p in itertools.product(("a", "", "*"), repeat=n)
    ]
    for outer, inner in itertools.product(ALL_TO_THREE, spellings):
        stand_in = "/".join(segment or "c" for segment in inner.split("/"))
        assert contains(outer, inner) is contains(outer, stand_in), (outer, inner)


@given(patterns, patterns)
def test_matching_does_not_depend_on_the_side(left, right):
    assert matches(left, right) == matches(right, left)


@given(patterns, patterns, names)
def test_what_the_inner_pattern_matches_the_outer_one_matches_too(outer, inner, name):
    if contains(outer, inner) and matches(inner, name):
        assert matches(outer, name)


@given(patterns, patterns, patterns)
def test_containing_is_reflexive_and_transitive(a, b, c):
    assert contains(a, a)
    if contains(a, b) and contains(b, c):
        assert contains(a, c)


@given(patterns, names)
def test_containing_a_name_is_matching_it(pattern, name):
    assert contains(pattern, name) == matches(pattern, name)


@pytest.mark.parametrize(
    ("subscribed", "published", "expected"),
    [
        # The chat of the T2 document: topics are room/user.
        ("lobby/alice", "lobby/alice", True),
        ("lobby/*", "lobby/alice", True),
        ("*/alice", "lobby/alice", True),
        ("**", "lobby/alice", True),
        ("lobby/alice", "*/alice", True),
        ("lobby/*", "*/alice", True),
        ("*/alice", "*/alice", True),
        ("**", "*/alice", True),
        ("lobby/bob", "*/alice", False),
        ("kitchen/*", "lobby/alice", False),
        ("price/**", "price", True),
        ("price/**", "prices", False),
        ("**/eur", "eur", True),
        ("a/**/d", "a/d", True),
    ],
)
def test_patterns_mean_what_the_documents_say(subscribed, published, expected):
    assert matches(subscribed, published) is expected


@pytest.mark.parametrize("text", ["a", "a/b", "*", "**", "a/*/b", "**/a", "wallet.x/é", "A-1/b c"])
def test_a_pattern_is_a_path_whose_segments_may_be_wildcards(text):
    assert check_pattern(text) == text
    assert is_pattern(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        ("/a", "segment is empty"),
        ("a/", "segment is empty"),
        ("a//b", "segment is empty"),
        ("a*", "alone"),
        ("***", "alone"),
        ("a/b*c", "alone"),
        ("a/\n", "control"),
        ("x" * 5000, "longer"),
        ("/".join("a" * 257), "segments"),
        ("/".join(["*"] * 17), "wildcards"),
    ],
)
def test_a_text_that_is_no_pattern_is_refused_with_the_reason(text, reason):
    with pytest.raises(InvalidName, match=reason):
        check_pattern(text)
    assert not is_pattern(text)


def test_a_wildcard_is_a_whole_segment():
    assert has_wildcard("a/*/b")
    assert has_wildcard("**")
    assert not has_wildcard("a/b")
    assert not has_wildcard("a*b")


def test_the_hardest_pair_within_the_caps_is_decided_quickly():
    left = "/".join(["**", "a"] * MAX_WILDCARDS + ["b"])
    right = "/".join(["a", "**"] * MAX_WILDCARDS + ["c"])
    begin = time.process_time()
    assert not matches(left, right)
    assert not contains(left, right)
    assert matches(left, "/".join("a" * 200 + "b"))
    # The real recursion takes seconds from ten `**` on; polynomial work is far below a second.
    assert time.process_time() - begin < 1
