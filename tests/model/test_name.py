"""What a shared name is."""

from __future__ import annotations

import pytest

from polybus.errors import InvalidName
from polybus.model.name import MAX_NAME_BYTES, MAX_SEGMENTS, check_name, is_name, prefixes


@pytest.mark.parametrize(
    "text",
    ["a", "a/b", "wallet/stellar/balance", "a b", "ünï/x", "a*", "***", "x" * MAX_NAME_BYTES],
)
def test_paths_of_printable_segments_are_names(text):
    assert check_name(text) == text
    assert is_name(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        ("/a", "segment is empty"),
        ("a/", "segment is empty"),
        ("a//b", "segment is empty"),
        ("a/*", "wildcard"),
        ("**", "wildcard"),
        ("a\nb", "control"),
        ("x" * (MAX_NAME_BYTES + 1), "longer"),
        ("/".join("a" * (MAX_SEGMENTS + 1)), "segments"),
    ],
)
def test_everything_else_is_refused_with_the_reason(text, reason):
    with pytest.raises(InvalidName) as refused:
        check_name(text)
    assert reason in refused.value.text
    assert not is_name(text)


@pytest.mark.parametrize(
    ("path", "cut"),
    [
        ("a/b/c", ["a/b", "a"]),
        ("/a/b", ["/a"]),
        ("a//b/", ["a//b", "a/", "a"]),
        ("a", []),
        ("/", []),
        ("", []),
        ("x" * 4096 + "/y/z", ["x" * 4096]),
        ("x" * 4097 + "/y", []),
    ],
)
def test_a_path_is_cut_at_its_slashes_as_far_as_it_can_be_a_name(path, cut):
    assert list(prefixes(path)) == cut


def test_a_path_of_a_million_slashes_is_cut_without_looking_at_all_of_them():
    assert sum(1 for _ in prefixes("a" + "/" * 1_000_000)) == 4096
