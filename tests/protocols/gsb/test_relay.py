"""The hot loop and the full parser are two ways to one result."""

from __future__ import annotations

from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from polybus.model.clock import ManualClock
from polybus.protocols.gsb import session as session_module
from polybus.protocols.gsb.relay import varint_at
from polybus.protocols.gsb.session import GsbSession
from polybus.protocols.gsb.wire import (
    CURRENT,
    CallRequest,
    Kind,
    encode_broadcast,
    encode_call,
    encode_name,
    encode_reply,
    encode_varint,
)
from tests.protocols.gsb.conftest import Bus

IDS = st.sampled_from(["1", "22", "333", "4444", "é", ""])
ADDRESSES = st.sampled_from(["/a", "/a/b", "/a/x/y", "/b", "/nobody", "", "ä"])
DATA = st.sampled_from([b"", b"x", b"x", bytes(130), bytes(20_000)])
CALLERS = st.sampled_from(["", "me", "mé", "c" * 130])


@st.composite
def bodies(draw) -> tuple[Kind, bytes]:
    """A packet that a client might send, canonical or not."""
    kind = draw(
        st.sampled_from(
            [Kind.CALL_REQUEST] * 4
            + [Kind.CALL_REPLY] * 4
            + [Kind.BROADCAST_REQUEST] * 3
            + [Kind.PING, Kind.SUBSCRIBE_REQUEST, Kind.REGISTER_REQUEST, Kind.UNREGISTER_REQUEST]
        )
    )
    match kind:
        case Kind.CALL_REQUEST:
            request = CallRequest(
                draw(CALLERS),
                draw(ADDRESSES),
                draw(IDS),
                draw(DATA),
                draw(st.sampled_from([False] * 4 + [True])),
            )
            body = encode_call(request)
        case Kind.CALL_REPLY:
            code = draw(st.sampled_from([0, 0, 0, 400, 500]))
            body = encode_reply(
                draw(IDS), code, draw(DATA), draw(st.sampled_from([False] * 3 + [True]))
            )
        case Kind.BROADCAST_REQUEST:
            body = encode_broadcast(
                draw(CALLERS), draw(st.sampled_from(["t", "u", "", "ü"])), draw(DATA)
            )
        case Kind.PING:
            body = b""
        case _:
            body = encode_name(draw(st.sampled_from(["/a", "/a/b", "t", "u"])))
    if draw(st.integers(0, 9)) == 0:
        body += draw(
            st.sampled_from([b"\x78\x01", b"\x7a\x01z", b"\x1a\x011", b"\x22\x01d"])
        )  # odd encoders
    return kind, body


@st.composite
def frames(draw) -> bytes:
    kind, body = draw(bodies())
    frame = CURRENT.encode(kind, body)
    if draw(st.integers(0, 30)) == 0:
        # A padded inner length: legal protobuf that nobody writes.
        length = encode_varint(len(body) | 1 << 20)[:-1] + b"\x00"
        if len(length) == 3 and len(body) < 1 << 14:
            inner = bytes((kind << 3 | 2,)) + length + body
            frame = len(inner).to_bytes(4) + inner
    if draw(st.integers(0, 40)) == 0:
        at = draw(st.integers(4, len(frame) - 1))
        frame = frame[:at] + bytes((draw(st.integers(0, 255)),)) + frame[at + 1 :]
    return frame


def run(script: list[tuple[int, bytes]]) -> list[tuple[bytes, bool]]:
    bus = Bus(ManualClock())
    bus.room.nonce = "nonce"
    clients = [bus.client() for _ in range(3)]
    for number, name in enumerate(["/a", "/a/b", "/b"]):
        clients[number].say(Kind.REGISTER_REQUEST, encode_name(name))
        clients[number].say(Kind.SUBSCRIBE_REQUEST, encode_name("t"))
    for number, data in script:
        clients[number].send(data)
        clients[number].settle()
    return [(client.received().removeprefix(bus.room.hello), client.closed) for client in clients]


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.lists(frames(), min_size=1, max_size=6)), max_size=8)
)
def test_fast_and_full_parsing_agree_on_everything(batches):
    script = [(number, b"".join(batch)) for number, batch in batches]
    fast = run(script)
    with patch.object(session_module, "relay", GsbSession._take_all):
        full = run(script)
    assert [closed for _, closed in fast] == [closed for _, closed in full]
    for (quick, _), (slow, _) in zip(fast, full, strict=True):
        # Only the place of a BroadcastReply among other output is free (protocol page §10): compare as sets of frames.
        assert sorted(split(quick)) == sorted(split(slow))
        assert order(quick) == order(slow)


def split(data: bytes) -> list[bytes]:
    found = []
    while data:
        length = CURRENT.length(data, 0)
        found.append(data[:length])
        data = data[length:]
    return found


def order(data: bytes) -> list[bytes]:
    return [f for f in split(data) if CURRENT.parse(f)[0] != Kind.BROADCAST_REPLY]


@given(st.integers(0, 2**32))
def test_numbers_are_read_as_they_are_written(value):
    data = b"??" + encode_varint(value)
    assert varint_at(data, 2, len(data)) == (value, len(data))


def test_padded_cut_off_and_overlong_numbers_are_left_to_the_full_parser():
    assert varint_at(b"\x80\x00", 0, 2) == (-1, 0)
    assert varint_at(b"\x80", 0, 1) == (-1, 0)
    assert varint_at(b"\xff\xff\xff\xff\xff\x01", 0, 6) == (-1, 0)
