"""Payloads for people."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polybus.monitor.records import show


@pytest.mark.parametrize(
    ("payload", "format", "text"),
    [
        (b"", "text", ""),
        (b'{"a":1}', "json", '{\n  "a": 1\n}'),
        (b"[12345678901234567890.10]", "json", "[\n  12345678901234567890.10\n]"),
        (b"{not json", "text", "{not json"),
        ("grüße\n".encode(), "text", "grüße\n"),
        (b"<script>alert(1)</script>", "text", "<script>alert(1)</script>"),
        (b"\x00\xff", "base64", "AP8="),
        (b"a\x1b[31m", "base64", "YRtbMzFt"),
    ],
)
def test_a_payload_is_shown_by_what_it_holds(payload, format, text):
    assert show(payload, 100) == (format, text, False)


def test_bytes_are_bytes_when_asked_for():
    assert show(b'{"a":1}', 100, raw=True) == ("base64", "eyJhIjoxfQ==", False)


def test_a_cut_through_a_character_still_shows_text():
    assert show("aé".encode(), 2) == ("text", "a", True)


@given(st.binary(max_size=200), st.integers(1, 100))
def test_nothing_beyond_the_limit_is_shown(payload, limit):
    format, text, truncated = show(payload, limit)
    assert truncated == (len(payload) > limit)
    if format == "base64":
        assert base64.b64decode(text) == payload[:limit]
    elif format == "text":
        assert payload[:limit].startswith(text.encode())
