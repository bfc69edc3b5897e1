"""Bytes and values of the Golem Service Bus."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from polybus.errors import RemoteProtocolError
from polybus.protocols.gsb.wire import (
    CURRENT,
    LEGACY,
    MAX_KIND,
    BroadcastRequest,
    CallReply,
    CallRequest,
    Hello,
    Kind,
    encode_broadcast,
    encode_call,
    encode_code,
    encode_hello,
    encode_name,
    encode_reply,
    encode_varint,
    parse_broadcast,
    parse_call,
    parse_code,
    parse_empty,
    parse_fields,
    parse_hello,
    parse_name,
    parse_reply,
    parse_varint,
    sniff,
    tell_framing,
)


@given(st.text(), st.text(), st.binary())
def test_hello_survives_the_wire(name, version, instance_id):
    assert parse_hello(encode_hello(name, version, instance_id)) == Hello(
        name, version, instance_id
    )


@given(st.text(), st.text(), st.text(), st.binary(), st.booleans())
def test_calls_survive_the_wire(caller, address, request_id, data, no_reply):
    request = CallRequest(caller, address, request_id, data, no_reply)
    assert parse_call(encode_call(request)) == request


@given(st.text(), st.sampled_from([0, 400, 500]), st.binary(), st.booleans())
def test_replies_survive_the_wire(request_id, code, data, partial):
    body = encode_reply(request_id, code, data, partial)
    assert parse_reply(body) == CallReply(request_id, code, partial, data)


@given(st.text(), st.text(), st.binary())
def test_broadcasts_survive_the_wire(caller, topic, data):
    assert parse_broadcast(encode_broadcast(caller, topic, data)) == BroadcastRequest(
        caller, data, topic
    )


@given(st.text(), st.integers(0, 500))
def test_names_and_codes_survive_the_wire(text, code):
    assert parse_name(encode_name(text)) == text
    assert parse_code(encode_code(code, text)) == (code, text)


@given(st.integers(0, 2**64 - 1))
def test_numbers_survive_the_wire(value):
    data = encode_varint(value)
    assert parse_varint(data, 0, len(data)) == (value, len(data))


@pytest.mark.parametrize("framing", [CURRENT, LEGACY])
@given(st.sampled_from(sorted(Kind)), st.binary(max_size=300))
def test_frames_survive_both_framings(framing, kind, body):
    if framing is LEGACY and kind == Kind.HELLO:
        return  # that framing has none
    frame = framing.encode(kind, body)
    assert framing.length(frame, 0) == len(frame)
    assert framing.parse(frame) == (kind, body)


PARSERS = [
    parse_hello,
    parse_name,
    parse_code,
    parse_call,
    parse_reply,
    parse_broadcast,
    parse_empty,
    parse_fields,
]


@given(st.binary(max_size=200))
@example(b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01")
@example(b"\x00\x00")
def test_any_bytes_either_parse_or_are_the_peers_fault(data):
    for parse in [*PARSERS, CURRENT.parse, LEGACY.parse]:
        with contextlib.suppress(RemoteProtocolError):
            parse(data)


def test_an_unknown_reply_type_ends_the_call():
    assert parse_reply(bytes.fromhex("0a01311807")).partial is False


def test_of_two_packets_in_one_frame_the_last_counts():
    inner = bytes.fromhex("7200") + bytes.fromhex("7a00")
    assert CURRENT.parse(len(inner).to_bytes(4) + inner)[0] == Kind.PONG


def test_a_packet_kind_of_another_type_is_refused():
    with pytest.raises(RemoteProtocolError, match="another type"):
        CURRENT.parse(bytes.fromhex("000000027001"))


@pytest.mark.parametrize(
    ("head", "framing"),
    [
        (b"", None),
        (b"\0\0\0\x25", None),
        (b"\0\0\0\x25\x0a", CURRENT),
        (b"\0\0\0\x00\x00\x00\x00\x05", LEGACY),
        (b"\0\0\0\x0d\x00", LEGACY),
        (b"\0\0\0\x0e\x00", CURRENT),
    ],
)
def test_the_first_bytes_tell_the_framing(head, framing):
    assert tell_framing(head) is framing


@pytest.mark.parametrize(
    ("head", "verdict"),
    [
        (b"\0", None),
        (b"\0\0\0\x25", None),
        (b"\0\0\0\x25\x0a", True),
        (b"\0\0\0\x17\xa2", False),  # a T2 frame: a CBOR map follows the length
        (b"GET /", False),
        (b"G", False),
        (b"PBUS\x01", False),
        (b"\x16\x03\x01\x02\x00", False),
        (b"\0\0\0\x02\x00\x00\x00\x05", True),
    ],
)
def test_the_first_bytes_tell_this_wire_from_the_others(head, verdict):
    assert sniff(head) is verdict


@given(st.sampled_from(sorted(Kind)), st.binary(max_size=1000))
def test_every_first_frame_is_recognised_however_few_bytes_have_come(kind, body):
    for framing in (CURRENT, LEGACY):
        if framing is LEGACY and kind == Kind.HELLO:
            continue
        frame = framing.encode(kind, body)
        verdicts = [sniff(frame[:length]) for length in range(1, min(len(frame), 9) + 1)]
        assert verdicts[-1] is True or len(frame) < 5
        assert False not in verdicts
    assert max(Kind) == MAX_KIND
