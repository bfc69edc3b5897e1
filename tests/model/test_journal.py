"""A row of the journal is what it was, also between versions."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polybus.errors import CorruptRecord
from polybus.model.journal import FIELDS, KINDS, Row, encode_row, parse_row

TEXT = st.text(max_size=20)
NUMBER = st.integers(0, 1 << 60)
ROWS = st.builds(
    Row, NUMBER, st.sampled_from(KINDS), TEXT, TEXT, TEXT, TEXT, TEXT, NUMBER, NUMBER,
    st.integers(0, 8), st.integers(-1, 1 << 60), TEXT,
)  # fmt: skip


@given(ROWS)
def test_a_row_survives_its_encoding(row):
    assert parse_row(encode_row(row)) == row


def test_the_bytes_of_a_row_are_fixed():
    row = Row(5, "call", "i", "gsb", "t2", "a/b", "me", 1, 2, 3, 4, "é")
    assert encode_row(row) == '[1,5,"call","i","gsb","t2","a/b","me",1,2,3,4,"é"]'.encode()
    assert len(json.loads(encode_row(row))) == len(FIELDS)


def test_rows_of_other_versions_are_read():
    newer = parse_row(b'[2,5,"call","i","gsb","t2","a","me",1,2,0,4,"","new"]')
    assert (newer.name, newer.error) == ("a", "")
    shorter = parse_row(b'[1,5,"call","i","gsb","t2","a"]')
    assert shorter.duration_us == -1


@pytest.mark.parametrize(
    "payload", [b"", b"{}", b"[]", b"[0]", b'[1,2,"walk"]', b"[[]]", b"1", b"\xff"]
)
def test_what_is_no_row_is_refused(payload):
    with pytest.raises(CorruptRecord, match="no journal row"):
        parse_row(payload)
