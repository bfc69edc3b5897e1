"""The small MessagePack of executors agrees with the library that nodes use."""

from __future__ import annotations

from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polybus.errors import RemoteProtocolError
from polybus.spark.msgpack import pack, unpack

SENT = st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.text() | st.binary()


def nested(leaves):
    """Lists and maps of these."""
    return st.recursive(
        leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20
    )


@given(nested(SENT))
def test_the_node_reads_what_an_executor_packs(value):
    assert msgspec.msgpack.decode(pack(value)) == value
    assert unpack(pack(value)) == value


@given(nested(SENT | st.floats(allow_nan=False)))
def test_an_executor_reads_what_the_node_packs(value):
    assert unpack(msgspec.msgpack.encode(value)) == value


@given(st.binary(max_size=64))
def test_noise_is_a_value_or_a_protocol_error(raw):
    with suppress(RemoteProtocolError):
        unpack(raw)


def test_depth_is_bounded():
    with pytest.raises(RemoteProtocolError, match="deeper"):
        unpack(b"\x91" * 100 + b"\xc0")
