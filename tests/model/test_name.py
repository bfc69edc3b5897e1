"""What a shared name is."""

from __future__ import annotations

import pytest

from polybus.errors import InvalidName
from polybus.model.name import MAX_NAME_BYTES, MAX_SEGMENTS, check_name, is_name


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
