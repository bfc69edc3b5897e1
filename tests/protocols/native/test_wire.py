"""The bytes of the native wire: tables, any split, mutations."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polybus.errors import ALL, LimitExceeded, NoSuchTopic, PolybusError, RemoteProtocolError
from polybus.model.record import NewRecord, Record
from polybus.protocols.native import wire
from polybus.protocols.native.metas import Consume, Credit, encode_offset, parse_offset

PAGE = Path(__file__).parents[3] / "docs" / "protocols" / "native.md"

CALL = bytes.fromhex(
    "00000021 12 00 0008 0000000000000007 000005dc 0000000063616c632f616464 5b312c325d"
)
REPLY = bytes.fromhex("00000015 13 00 0000 0000000000000007 00000000 00000000 33")


def feed(data: bytes, limit: int = wire.MAX_FRAME) -> list[bytes]:
    return list(wire.Frames(limit).feed(data))


def test_a_call_has_the_bytes_of_the_specification():
    assert wire.encode(wire.CALL, 7, "calc/add", b"[1,2]", arg=1500) == CALL
    assert wire.encode(wire.REPLY, 7, "", b"3") == REPLY


def test_a_frame_may_be_begun_before_its_payload():
    begun = wire.encode(wire.CHUNKS, 9, meta=b"\x80", follows=3)
    assert begun + b"123" == wire.encode(wire.CHUNKS, 9, "", b"123", meta=b"\x80")


def test_the_page_shows_these_very_bytes():
    shown = re.findall(r"```hex\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert [bytes.fromhex(text) for text in shown] == [CALL, REPLY]


def test_the_page_lists_every_kind_with_its_number():
    listed = dict(re.findall(r"^\| ([0-9a-f]{2}) (\w+) \|", PAGE.read_text(), re.MULTILINE))
    names = {
        f"{getattr(wire, name.upper()):02x}": name
        for name in listed.values()
        if hasattr(wire, name.upper())
    }
    assert names == listed
    assert len(listed) == 26


def test_a_frame_is_taken_apart():
    meta = wire.encode_headers({"a": "b"})
    frame = wire.encode(wire.CALL, 9, "ä/b", b"body", flags=1, arg=3, meta=meta)
    parsed = wire.parse(frame)
    assert parsed == wire.Frame(wire.CALL, 1, 9, 3, "ä/b", meta, b"body")
    assert wire.payload_of(frame) == b"body"
    assert wire.parse_headers(parsed.meta) == {"a": "b"}


def test_forwarding_changes_the_id_and_nothing_else():
    frame = wire.with_id(CALL, 2**64 - 1)
    assert wire.parse(frame).id == 2**64 - 1
    assert wire.with_id(frame, 7) == CALL


def test_a_publish_becomes_a_publication_without_an_id():
    meta = wire.encode_headers({"k": "v"})
    frame = wire.encode(wire.PUBLISH, 5, "a/b", b"x", flags=3, meta=meta)
    assert wire.as_publication(frame) == wire.encode(wire.PUBLICATION, 0, "a/b", b"x", meta=meta)


@pytest.mark.parametrize(
    ("head", "verdict"),
    [
        (b"", None),
        (b"PBUS", None),
        (b"PBUS\x01", True),
        (b"PBUS\x01x", True),
        (b"PBUS\x02", False),
        (b"GET /", False),
        (b"PX", False),
    ],
)
def test_a_preface_is_told_from_others(head: bytes, verdict: bool | None):
    assert wire.take_preface(head) is verdict


@pytest.mark.parametrize(
    ("head", "verdict"),
    [(b"P", None), (b"PBUS", True), (b"PBUS\x09", True), (b"POST", False), (b"\x00", False)],
)
def test_a_listener_knows_the_wire_by_four_bytes_whatever_the_version(head, verdict):
    assert wire.matches(head) is verdict


@pytest.mark.parametrize("length", [0, 19, 1025 - 4, 0xFFFFFFFF])
def test_a_length_out_of_bounds_is_refused_before_anything_is_buffered(length: int):
    frames = wire.Frames(1024)
    with pytest.raises(RemoteProtocolError, match="allowed are 24 to 1024"):
        list(frames.feed(length.to_bytes(4, "big")))


def test_what_came_before_a_bad_length_is_yielded():
    frames = wire.Frames(1024).feed(REPLY + bytes(4))
    assert next(frames) == REPLY
    with pytest.raises(RemoteProtocolError):
        next(frames)


def test_contradicting_lengths_are_refused():
    with pytest.raises(RemoteProtocolError, match="longer than their frame"):
        wire.parse(bytes.fromhex("00000014 12 00 0001 0000000000000007 00000000 00000000"))


def test_a_name_that_is_no_utf8_is_refused():
    with pytest.raises(RemoteProtocolError, match="UTF-8"):
        wire.parse(bytes.fromhex("00000015 12 00 0001 0000000000000007 00000000 00000000 ff"))


FRAMES = st.lists(
    st.builds(
        wire.encode,
        st.integers(0, 255),
        st.integers(0, 2**64 - 1),
        st.text(max_size=12),
        st.binary(max_size=60),
        flags=st.integers(0, 255),
        arg=st.integers(0, 2**32 - 1),
        meta=st.binary(max_size=20),
    ),
    max_size=6,
)


@given(FRAMES, st.lists(st.integers(0, 800), max_size=12))
def test_any_split_gives_the_same_frames(frames: list[bytes], cuts: list[int]):
    data = b"".join(frames)
    parser = wire.Frames()
    got: list[bytes] = []
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for start, end in pairwise(edges):
        got += parser.feed(data[start:end])
    assert got == frames


@given(FRAMES)
def test_byte_by_byte_gives_the_same_frames(frames: list[bytes]):
    parser = wire.Frames()
    got = [frame for byte in b"".join(frames) for frame in parser.feed(bytes((byte,)))]
    assert got == frames


@given(FRAMES, st.integers(1, 6))
def test_a_reader_that_stops_gets_the_rest_later(frames: list[bytes], taken: int):
    parser = wire.Frames()
    data = b"".join(frames)
    reading = parser.feed(data)
    got = [frame for _, frame in zip(range(taken), reading, strict=False)]
    reading.close()
    assert len(parser) == len(data) - len(b"".join(got))
    parser.keep(REPLY[:8])
    got += parser.feed(REPLY[8:])
    assert got == [*frames, REPLY]


@given(st.binary(max_size=200))
def test_garbage_parses_or_is_refused_and_nothing_else(data: bytes):
    try:
        for frame in feed(data, 1 << 16):
            parsed = wire.parse(frame)
            wire.parse_headers(parsed.meta)
            wire.parse_new_records(parsed.payload)
    except RemoteProtocolError:
        pass


@given(st.data())
def test_a_mutated_frame_parses_or_is_refused(data):
    frame = bytearray(
        wire.encode(wire.CALL, 1, "a/b", b"x" * 20, meta=wire.encode_headers({"a": "b"}))
    )
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    try:
        for whole in feed(bytes(frame), 1 << 16):
            wire.parse_headers(wire.parse(whole).meta)
    except RemoteProtocolError:
        pass


def test_unknown_fields_of_a_meta_map_are_ignored():
    meta = wire.encode_meta({"versions": [1, 9], "colour": "blue"})
    assert wire.parse_meta(meta, wire.Hello).versions == [1, 9]
    assert wire.parse_headers(wire.encode_meta({"headers": {"a": "b"}, "new": 1})) == {"a": "b"}


def test_an_absent_meta_map_is_an_empty_one():
    assert wire.parse_meta(b"", Credit) == Credit()
    assert wire.parse_headers(b"") == {}


@pytest.mark.parametrize("meta", [b"\xc1", b"\x93", b"\xa1a", wire.encode_meta({"headers": [1]})])
def test_a_meta_map_of_another_shape_is_refused(meta: bytes):
    with pytest.raises(RemoteProtocolError, match="does not fit"):
        wire.parse_headers(meta)
    with pytest.raises(RemoteProtocolError, match="does not fit"):
        wire.parse_meta(meta, Consume)


def test_records_cross_in_one_step_and_elements_at_the_end_may_be_missing_or_new():
    records = [NewRecord(b"a", b"k", "t", {"h": "v"}, "id", 5), NewRecord(b"b")]
    assert wire.parse_new_records(wire.encode_list(records)) == records
    assert wire.parse_new_records(msgspec.msgpack.encode([[b"x"]])) == [NewRecord(b"x")]
    newer = msgspec.msgpack.encode([[b"x", b"", "", {}, "", 0, "unheard of"]])
    assert wire.parse_new_records(newer) == [NewRecord(b"x")]


def test_deliveries_and_offsets_cross():
    delivered = [wire.Delivered(Record(3, 4, b"x"), 2)]
    assert wire.parse_delivered(wire.encode_list(delivered)) == delivered
    assert wire.parse_offsets(wire.encode_list([1, 2**63])) == [1, 2**63]
    assert parse_offset(encode_offset(2**63)) == 2**63


@pytest.mark.parametrize(
    "parse", [wire.parse_new_records, wire.parse_delivered, wire.parse_offsets]
)
@pytest.mark.parametrize("payload", [b"", b"\x01", b"\x91\xc1", b"\x91\xa1x"])
def test_a_list_of_another_shape_is_refused(parse, payload: bytes):
    with pytest.raises(RemoteProtocolError, match="does not fit"):
        parse(payload)


def test_an_offset_that_is_cut_short_is_refused():
    with pytest.raises(RemoteProtocolError):
        parse_offset(b"\x00" * 7)


def test_an_error_crosses_with_its_code_text_and_data():
    error = wire.parse_error(wire.parse(wire.encode_error(3, NoSuchTopic("a/b"))))
    assert type(error) is NoSuchTopic
    assert (error.text, error.topic) == ("no such topic: a/b", "a/b")
    limit = wire.parse_error(
        wire.parse(wire.encode_error(3, LimitExceeded("bytes", limit=1, actual=2)))
    )
    assert isinstance(limit, LimitExceeded)
    assert (limit.limit, limit.actual) == (1, 2)


def test_every_error_keeps_its_class_over_the_wire():
    for cls in ALL:
        error = cls.__new__(cls)
        PolybusError.__init__(error, "text")
        back = wire.parse_error(wire.parse(wire.encode_error(1, error)))
        assert type(back) is cls
        assert back.text == "text"


def test_an_error_code_from_a_newer_peer_becomes_the_root_class():
    back = wire.parse_error(wire.parse(wire.encode(wire.ERROR, 1, "", b"new", arg=65000)))
    assert type(back) is PolybusError
    assert back.text == "new"
