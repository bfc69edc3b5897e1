from __future__ import annotations

import contextlib
import gzip
import struct

import cbor2
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from polybus.errors import LimitExceeded, RemoteProtocolError
from polybus.protocols.t2.cbor import Cursor, count_elements
from polybus.protocols.t2.relay import count_bytes
from polybus.protocols.t2.wire import (
    CLIENT_KINDS,
    EMPTY,
    SERVER_KINDS,
    BusError,
    Message,
    ack_content,
    decode_data,
    encode_data,
    encode_error,
    encode_frame,
    encode_uint,
    inflate,
    pack,
    parse_message,
    payload_content,
    response_content,
    topic_content,
    unit_content,
)

ids = st.integers(0, 2**32 - 1)
topics = st.text(st.characters(codec="utf-8"), max_size=40)
payloads = st.binary(max_size=300) | st.binary(max_size=40).map(lambda b: b.replace(b"a", b"\x18"))


def array_of(payload: bytes) -> bytes:
    """Payload data as the real client writes it."""
    return cbor2.dumps(list(payload))


def hexed(text: str) -> bytes:
    return bytes.fromhex(text.replace(" ", ""))


def parsed(content: bytes) -> Message:
    return parse_message(encode_frame(1, content)[4:], CLIENT_KINDS)


# -- what is written is what any CBOR library reads --


@given(ids, topics, payloads, st.booleans())
def test_messages_are_plain_cbor_in_the_real_shape(number, topic, payload, compressed):
    frame = encode_frame(number, payload_content("Pub", topic, array_of(payload), compressed))
    assert struct.unpack(">I", frame[:4])[0] == len(frame) - 4
    value = {
        "id": number,
        "content": {
            "Pub": {
                "topic": topic,
                "payload": {"data": list(payload), "is_compressed": compressed},
            }
        },
    }
    assert cbor2.loads(frame[4:]) == value
    assert cbor2.dumps(value) == frame[4:], "shortest forms, fields in their order"
    message = parse_message(frame[4:], CLIENT_KINDS)
    assert (message.id, message.kind, message.topic) == (number, "Pub", topic)
    assert (message.data, message.compressed) == (array_of(payload), compressed)


@given(ids, ids, payloads)
def test_responses_and_acks_survive_the_wire(number, other, payload):
    content = response_content(encode_uint(other), "Timeout", encode_data(payload), False)
    for kinds in (CLIENT_KINDS, SERVER_KINDS):
        message = parse_message(encode_frame(number, content)[4:], kinds)
        assert (message.req_id, message.status) == (other, "Timeout")
        assert message.payload() == payload
    content = ack_content(encode_uint(other), None, 3)
    message = parse_message(encode_frame(number, content)[4:], SERVER_KINDS)
    assert (message.kind, message.req_id, message.error, message.recipients) == (
        "Ack",
        other,
        None,
        3,
    )


ERRORS = [
    (BusError("InvalidTopicString", ("x",)), {"InvalidTopicString": "x"}, "Invalid topic string: x"),
    (BusError("InvalidRequestId"), "InvalidRequestId", "Respond failed: Invalid request ID or requester disconnected"),
    (BusError("TopicAlreadyClaimed"), "TopicAlreadyClaimed", "Claim topic failed: Already claimed"),
    (BusError("DeliveryFailed", (7, "why")), {"DeliveryFailed": [7, "why"]}, "Message delivery failed: Client #7: why"),
    (BusError("UnknownClient", (9,)), {"UnknownClient": 9}, "Message delivery failed: Unknown client 9"),
    (BusError("MalformedMessage", ("p", "e")), {"MalformedMessage": ["p", "e"]},
     "Deserialize message failed. Protocol: p. Error: e"),
    (BusError("ServiceNotFound", ("a/b",)), {"ServiceNotFound": "a/b"}, "Service not found: a/b"),
]  # fmt: skip


@pytest.mark.parametrize(("error", "value", "text"), ERRORS)
def test_errors_are_written_and_shown_as_the_real_bus_does(error, value, text):
    assert cbor2.loads(encode_error(error)) == value
    assert str(error) == text
    body = encode_frame(1, ack_content(b"\x05", error, None))[4:]
    assert parse_message(body, SERVER_KINDS).error == error


def test_an_error_that_the_bus_does_not_know_is_refused():
    body = cbor2.dumps({"id": 1, "content": {"Ack": {"msg_id": 1, "err": "Nope"}}})
    with pytest.raises(RemoteProtocolError):
        parse_message(body, SERVER_KINDS)
    body = cbor2.dumps({"id": 1, "content": {"Ack": {"msg_id": 1, "err": {"DeliveryFailed": 1}}}})
    with pytest.raises(RemoteProtocolError):
        parse_message(body, SERVER_KINDS)


def test_optional_fields_of_an_ack_may_be_missing():
    body = cbor2.dumps({"id": 1, "content": {"Ack": {"msg_id": 4}}})
    message = parse_message(body, SERVER_KINDS)
    assert (message.req_id, message.error, message.recipients) == (4, None, None)


# -- what the real decoder takes and refuses (protocol page §2) --

KEEP_ALIVE = "67 636f6e74656e74 69 4b656570416c697665"

ACCEPTED = {
    "content before id": f"a2 {KEEP_ALIVE} 626964 05",
    "an unknown field": f"a3 626964 05 {KEEP_ALIVE} 6178 8201a1617102",
    "an indefinite struct": f"bf 626964 05 {KEEP_ALIVE} ff",
    "a name as byte string": f"a2 426964 05 {KEEP_ALIVE}",
    "a tagged name": f"a2 c1626964 05 {KEEP_ALIVE}",
    "a tagged message": f"d9d9f7 a2 626964 05 {KEEP_ALIVE}",
    "a tagged id": f"a2 626964 c105 {KEEP_ALIVE}",
    "an id in eight bytes": f"a2 626964 1b0000000000000005 {KEEP_ALIVE}",
    "an id as big number": f"a2 626964 c2420005 {KEEP_ALIVE}",
    "an id as big number in pieces": f"a2 626964 c25f41004105ff {KEEP_ALIVE}",
    "a unit variant as map at the end": "a2 626964 05 67636f6e74656e74 a1 694b656570416c697665 f6",
    "a tagged variant": "a2 626964 05 67636f6e74656e74 c1 694b656570416c697665",
    "bytes after the item": f"a2 626964 05 {KEEP_ALIVE} 0102",
    "deep nesting in an unknown field": f"a3 626964 05 {KEEP_ALIVE} 6178 {'81' * 254}80",
    "floats and simple values in an unknown field": f"a3 626964 05 {KEEP_ALIVE} 6178 85f4f6f7f93c00fb3ff0000000000000",
    "negative and big numbers": f"a3 626964 05 {KEEP_ALIVE} 6178 833bffffffffffffffffc24101c3420101",
    "indefinite containers in an unknown field": f"a3 626964 05 {KEEP_ALIVE} 6178 9fbf616101ff807f6161ff5f4101ffff",
    "empty containers in an unknown field": f"a3 626964 05 {KEEP_ALIVE} 6178 8280a0",
    "tags in an unknown field": f"a3 626964 05 {KEEP_ALIVE} 6178 c1c2c34101",
}  # fmt: skip

REFUSED = {
    "an empty frame": "",
    "one zero byte": "00",
    "no id": f"a1 {KEEP_ALIVE}",
    "no content": "a1 626964 05",
    "the id twice": f"a3 626964 05 626964 05 {KEEP_ALIVE}",
    "an id over 32 bits": f"a2 626964 1b0000000100000000 {KEEP_ALIVE}",
    "a negative id": f"a2 626964 20 {KEEP_ALIVE}",
    "a negative big id": f"a2 626964 c34101 {KEEP_ALIVE}",
    "a huge big id": f"a2 626964 c251{'ff' * 17} {KEEP_ALIVE}",
    "a big id that is no byte string": f"a2 626964 c205 {KEEP_ALIVE}",
    "an id as float": f"a2 626964 f93c00 {KEEP_ALIVE}",
    "an id as text": f"a2 626964 6135 {KEEP_ALIVE}",
    "a struct as array": "82 05 694b656570416c697665",
    "an enum as indefinite map": "a2 626964 05 67636f6e74656e74 bf 63537562 a165746f7069636161 ff",
    "an enum with two entries": "a2 626964 05 67636f6e74656e74 a2 63537562 a165746f7069636161 6178 01",
    "a unit variant as map before the id": "a2 67636f6e74656e74 a1694b656570416c697665f6 626964 05",
    "an unknown kind": "a2 626964 05 67636f6e74656e74 a1 644e6f7065 a165746f7069636161",
    "what only a server sends": "a2 626964 05 67636f6e74656e74 a1 6341636b a1666d73675f696401",
    "a name in pieces": f"a2 7f626964ff 05 {KEEP_ALIVE}",
    "a name that is a number": f"a3 01 01 626964 05 {KEEP_ALIVE}",
    "a name that is no UTF-8": f"a3 61ff 01 626964 05 {KEEP_ALIVE}",
    "a name without end": f"a3 791001{'61' * 4097} 01 626964 05 {KEEP_ALIVE}",
    "nesting too deep": f"a3 626964 05 {KEEP_ALIVE} 6178 {'81' * 255}80",
    "an unknown simple value": f"a3 626964 05 {KEEP_ALIVE} 6178 e0",
    "a break in the wrong place": f"a3 626964 05 {KEEP_ALIVE} 6178 ff",
    "a break between key and value": f"a3 626964 05 {KEEP_ALIVE} 6178 bf6161ff",
    "reserved heads": f"a3 626964 05 {KEEP_ALIVE} 6178 1c",
    "an integer of indefinite length": f"a3 626964 05 {KEEP_ALIVE} 6178 1f",
    "a text of something else": f"a3 626964 05 {KEEP_ALIVE} 6178 7f4161ff",
    "text that is no UTF-8": f"a3 626964 05 {KEEP_ALIVE} 6178 61ff",
    "a negative number that is too large": f"a3 626964 05 {KEEP_ALIVE} 6178 c350{'ff' * 16}",
    "cut off in a head": f"a3 626964 05 {KEEP_ALIVE} 6178 19",
    "cut off in a text": f"a3 626964 05 {KEEP_ALIVE} 6178 7a00000005",
    "an array longer than the frame": f"a3 626964 05 {KEEP_ALIVE} 6178 9bffffffffffffffff",
}  # fmt: skip


@pytest.mark.parametrize("name", ACCEPTED)
def test_the_parser_takes(name):
    message = parse_message(hexed(ACCEPTED[name]), CLIENT_KINDS)
    assert (message.id, message.kind) == (5, "KeepAlive")


@pytest.mark.parametrize("name", REFUSED)
def test_the_parser_refuses(name):
    with pytest.raises(RemoteProtocolError):
        parse_message(hexed(REFUSED[name]), CLIENT_KINDS)


SUB = b"\xa2bid\x05gcontent\xa1cSub\xa1etopic"
PUB = b"\xa2bid\x05gcontent\xa1cPub\xa2etopicaagpayload\xa2ddata%bmis_compressed%b"
PUB_FLAG_FIRST = b"\xa2bid\x05gcontent\xa1cPub\xa2gpayload\xa2mis_compressed\xf4ddata%betopicaa"


@pytest.mark.parametrize(
    ("raw", "topic"),
    [(b"aa", "a"), (b"\xc1aa", "a"), (b"\x7faaa/ab\xff", "a/b"), (b"\x7f\x7faa\xffab\xff", "ab")],
)
def test_a_topic_may_be_tagged_or_in_pieces(raw, topic):
    raw = raw.replace(b"aa", b"\x61a").replace(b"ab", b"\x61b").replace(b"a/", b"\x61/")
    assert parse_message(SUB + raw, CLIENT_KINDS).topic == topic


@pytest.mark.parametrize(
    "raw", [b"\x41a", b"\x05", b"\xf6", b"\x61\xff", b"\x7f\x61\xc3\x61\xa9\xff"]
)
def test_a_topic_is_text(raw):
    with pytest.raises(RemoteProtocolError):
        parse_message(SUB + raw, CLIENT_KINDS)


@pytest.mark.parametrize(
    "raw",
    [
        "80", "40", "83 01 18ff 18 18", "43 01ff18", "9f 01 18ff ff", "5f 4101 42ff18 ff", "d818 4101",
        "83 1801 1900ff c118 20", "82 c24101 c2420012", "98 02 01 02", "9a 00000001 05",
    ],
)  # fmt: skip
def test_payload_data_is_kept_as_it_stands(raw):
    data = hexed(raw)
    for body in (PUB % (data, b"\xf5"), PUB_FLAG_FIRST % data):
        message = parse_message(body.replace(b"aa", b"\x61a"), CLIENT_KINDS)
        assert message.data == data
        assert isinstance(decode_data(data), bytes)


@pytest.mark.parametrize(
    "raw",
    [
        "6161", "82 01 190100", "82 01 20", "81 f4", "81 80", "a0", "f6", "05", "9f 01", "82 01", "43 01", "81 6161",
        "9f 01 c1 ff",
    ],
)  # fmt: skip
def test_payload_data_is_bytes_or_integers_below_256(raw):
    with pytest.raises(RemoteProtocolError):
        parse_message(PUB.replace(b"aa", b"\x61a") % (hexed(raw), b"\xf4"), CLIENT_KINDS)


@pytest.mark.parametrize("flag", [b"\xf6", b"\x01", b"\x80"])
def test_the_compression_flag_is_a_truth_value(flag):
    with pytest.raises(RemoteProtocolError):
        parse_message(PUB.replace(b"aa", b"\x61a") % (b"\x80", flag), CLIENT_KINDS)


@pytest.mark.parametrize("status", ['{"Ok": null}', "Okay", 1])
def test_a_status_is_ok_or_timeout(status):
    value = {"Ok": None} if status == '{"Ok": null}' else status
    payload = {"data": [], "is_compressed": False}
    content = {"Rsp": {"req_id": 1, "status": value, "payload": payload}}
    with pytest.raises(RemoteProtocolError):
        parse_message(cbor2.dumps({"id": 1, "content": content}), CLIENT_KINDS)


@settings(max_examples=300)
@given(st.binary(max_size=80))
@example(b"\x9f" * 80)
@example(b"\xbf" + b"\x61a\x80" * 20)
def test_any_bytes_give_a_message_or_the_one_error(body):
    for kinds in (CLIENT_KINDS, SERVER_KINDS):
        with contextlib.suppress(RemoteProtocolError):
            parse_message(body, kinds)


@settings(max_examples=300)
@given(st.data())
def test_a_mutated_message_gives_a_message_or_the_one_error(data):
    content = data.draw(
        st.sampled_from(
            [
                unit_content("KeepAlive"),
                topic_content("Sub", "a/*"),
                payload_content("Pub", "a", array_of(b"hello\x18"), False),
                response_content(b"\x03", "Ok", encode_data(b"x"), True),
            ]
        )
    )
    body = bytearray(encode_frame(7, content)[4:])
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        message = parse_message(bytes(body), CLIENT_KINDS)
    except RemoteProtocolError:
        return
    decode_data(message.data)


def test_skipping_an_item_agrees_with_a_cbor_library():
    value = [1, {"a": [None, True, 1.5], "b": b"x" * 300}, "é" * 40, -5, 1 << 70, [[[]]]]
    raw = cbor2.dumps(value)
    cursor = Cursor(raw + b"rest")
    cursor.skip(10)
    assert cursor.pos == len(raw)


# -- payloads --


@given(payloads)
@example(bytes(range(256)) * 20)
@example(b"\x18" * 5000)
@example(b"\x18\x19" * 3000)
def test_payloads_survive_in_both_shapes(payload):
    assert decode_data(array_of(payload)) == payload
    assert decode_data(encode_data(payload)) == payload
    indefinite = b"\x9f" + array_of(payload)[len(cbor2.dumps(len(payload))) :] + b"\xff"
    assert decode_data(indefinite) == payload
    message = parsed(payload_content("Pub", "a", array_of(payload), False))
    assert message.data == array_of(payload)


@settings(max_examples=500)
@given(st.lists(st.sampled_from([0, 5, 0x17, 0x18, 0x19, 0x20, 0xFF]), max_size=12).map(bytes))
def test_the_quick_look_at_an_array_agrees_with_reading_it(span):
    count, pos, good = 0, 0, True
    while pos < len(span):
        if span[pos] == 0x18:
            good = good and pos + 1 < len(span) and span[pos + 1] >= 0x18
            pos += 1
        elif span[pos] > 0x18:
            good = False
        pos += 1
        count += 1
    assert count_elements(span) == (count if good else -1)
    assert count_bytes(span, 0, len(span)) == (count if good else -1)


def test_the_quick_look_works_on_large_arrays():
    for payload in (b"\x18" * 9000, bytes(range(256)) * 50, b"plain text " * 900, b"\x05" * 5000):
        span = array_of(payload)[3:]
        assert count_elements(span) == count_bytes(span, 0, len(span)) == len(payload)
        for bad in (b"\x18", b"\x20", b"\x18\x05", b"\x18\x20\x20"):
            assert count_elements(span + bad) == count_bytes(span + bad, 0, len(span + bad)) == -1


def test_payloads_above_the_threshold_are_compressed():
    assert pack(b"x" * 5000) == (encode_data(b"x" * 5000), False)
    data, compressed = pack(b"x" * 5001)
    assert compressed
    assert gzip.decompress(decode_data(data)) == b"x" * 5001
    assert Message(1, "Pub", data=data, compressed=True).payload() == b"x" * 5001
    assert Message(1, "Pub").payload() == b""


def test_what_is_no_gzip_or_too_large_is_an_error():
    with pytest.raises(RemoteProtocolError):
        inflate(b"not gzip")
    with pytest.raises(RemoteProtocolError):
        inflate(gzip.compress(b"x" * 100)[:-9])
    with pytest.raises(LimitExceeded):
        inflate(gzip.compress(b"x" * 1001), 1000)
    assert inflate(gzip.compress(b"x" * 1000), 1000) == b"x" * 1000


def test_the_empty_payload_is_the_real_one():
    assert decode_data(EMPTY) == b""
    assert encode_uint(2**40) == cbor2.dumps(2**40)


@pytest.mark.parametrize("lead", range(5))
def test_long_arrays_are_read_in_blocks_wherever_an_element_is_cut(lead):
    payload = b"\x01" * lead + bytes(range(256)) * 40 + b"\x18" * 4097
    message = parsed(payload_content("Pub", "a", array_of(payload), False))
    assert decode_data(message.data) == payload


def test_an_array_that_claims_more_than_the_frame_holds_is_refused():
    with pytest.raises(RemoteProtocolError):
        parse_message(
            PUB.replace(b"aa", b"\x61a") % (b"\x9a\xff\xff\xff\xff\x01", b"\xf4"), CLIENT_KINDS
        )
