"""Tag filters of the SDK's grammar."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polybus.core.filter import MAX_FILTER_BYTES, MAX_REMEMBERED, parse_filter
from polybus.errors import InvalidName


@pytest.mark.parametrize(
    ("text", "tag", "passes"),
    [
        ("a", "a", True),
        ("a", "a.b", False),
        ("a", "b", False),
        ("a", "", False),
        ("a.b", "a.b", True),
        ("*", "a", True),
        ("*", "a.b", False),
        ("a.*", "a.b", True),
        ("a.*", "a", False),
        ("a.*.c", "a.b.c", True),
        ("a.*.c", "a.b.d", False),
        ("#", "a", True),
        ("#", "a.b.c", True),
        ("#", "", False),
        ("a.#", "a", True),
        ("a.#", "a.b.c", True),
        ("a.#", "b", False),
        ("a.b.#", "a", False),
        ("a;b", "b", True),
        ("a; b.*", "b.c", True),
        ("a;b.*", "c", False),
        ("a;b", "a;b", False),
    ],
)
def test_a_filter_passes_what_its_parts_say(text, tag, passes):
    assert parse_filter(text)(tag) is passes
    assert parse_filter(text)(tag) is passes


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "part 1 of '' is empty"),
        ("a..b", "part 2 of 'a..b' is empty"),
        ("a;", "part 1 of '' is empty"),
        ("a.#.b", "part 2 of 'a.#.b' is `#`, which stands last only"),
        ("a.b*", "does not stand alone in part 2 of 'a.b*'"),
        ("a;#b", "does not stand alone in part 1 of '#b'"),
        ("x" * (MAX_FILTER_BYTES + 1), f"longer than {MAX_FILTER_BYTES} bytes"),
    ],
)
def test_a_filter_that_does_not_parse_says_where_and_why(text, reason):
    with pytest.raises(InvalidName) as caught:
        parse_filter(text)
    assert reason in str(caught.value)


def test_a_filter_remembers_only_so_many_verdicts():
    passes = parse_filter("a.*")
    tags = [f"a.{n}" for n in range(MAX_REMEMBERED + 10)] + ["b.1"]
    assert [passes(tag) for tag in tags] == [True] * (MAX_REMEMBERED + 10) + [False]


parts = st.sampled_from(["a", "b", "c"])
tags = st.lists(parts, min_size=1, max_size=4).map(".".join)


@given(tags, st.data())
def test_replacing_any_part_by_a_star_still_passes_the_tag(tag, data):
    have = tag.split(".")
    have[data.draw(st.integers(0, len(have) - 1))] = "*"
    assert parse_filter(".".join(have))(tag)


@given(tags, tags)
def test_a_plain_filter_passes_its_own_tag_only(text, tag):
    assert parse_filter(text)(tag) is (text == tag)
