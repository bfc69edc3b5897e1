"""The T2 Bus on the wire: frames and the messages in them.

    frame      u32 big-endian length | one CBOR item, at most 1 MiB; what follows the item is ignored
    item       {"id": u32, "content": kind}
    kind       "KeepAlive" | "Stop" | {"Sub" | "Unsub" | "Srv" | "Unsrv": {topic}} | {"Pub" | "Req": {topic, payload}}
               | {"Rsp": {req_id, status, payload}} | {"Ack": {msg_id, err, num_recipients}}
    payload    {"data": integers below 256 or a byte string, "is_compressed": bool}

Invariant: no payload is decoded on its way: `data` is the CBOR item as it stood in the frame. Parsing gives a value or
raises `RemoteProtocolError`.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from polybus.errors import LimitExceeded, RemoteProtocolError
from polybus.protocols.t2.cbor import (
    ARRAY,
    BYTES,
    INDEFINITE,
    MAX_DEPTH,
    TEXT,
    UINT,
    Cursor,
    count_elements,
)

MAX_BODY: Final = 1 << 20  # bytes, inclusive; judged by the header alone (protocol page §1)
MAX_ID: Final = (1 << 32) - 1
MAX_ERROR_TEXT: Final = MAX_BODY - 128  # an error that quotes a topic stands in an Ack of one frame
COMPRESS_ABOVE: Final = 5000  # bytes of payload (protocol page §10)
MAX_INFLATED: Final = (
    64 << 20
)  # a gzip of one frame can hold a gigabyte; more than this is passed on unopened

OK: Final = "Ok"
TIMEOUT: Final = "Timeout"

EMPTY: Final = b"\x80"
"""Payload data without bytes, as the real bus writes it."""


@dataclass(frozen=True, slots=True)
class BusError:
    """An error as the bus names it; `details` are the values its variant carries."""

    name: str
    details: tuple[int | str, ...] = ()

    def __str__(self) -> str:
        return _TEXTS[self.name].format(*self.details)


# What each variant carries: s a text, u a number below 2**32 (protocol page §11).
_SHAPES: Final[Mapping[str, str]] = {
    "InvalidTopicString": "s",
    "RequestFailedChannelClosed": "",
    "RequestFailedTimeout": "",
    "RequestFailed": "s",
    "InvalidRequestId": "",
    "TopicAlreadyClaimed": "",
    "ClaimWildcardNotSupported": "",
    "ChannelClosed": "",
    "ServiceNotFound": "s",
    "DeliveryFailed": "us",
    "UnknownClient": "u",
    "MalformedMessage": "ss",
    "UnserializableMessage": "s",
    "IOError": "s",
    "InternalError": "s",
    "TlsConfigError": "s",
    "DnsLookupFailed": "",
    "ClientTimeout": "u",
}

_TEXTS: Final[Mapping[str, str]] = {
    "InvalidTopicString": "Invalid topic string: {}",
    "RequestFailedChannelClosed": "Request failed: Channel closed while awaiting ACK",
    "RequestFailedTimeout": "Request failed: Timeout while awaiting ACK",
    "RequestFailed": "Request failed: {}",
    "InvalidRequestId": "Respond failed: Invalid request ID or requester disconnected",
    "TopicAlreadyClaimed": "Claim topic failed: Already claimed",
    "ClaimWildcardNotSupported": "Claim topic failed: Wildcards not supported",
    "ChannelClosed": "Channel closed by peer",
    "ServiceNotFound": "Service not found: {}",
    "DeliveryFailed": "Message delivery failed: Client #{}: {}",
    "UnknownClient": "Message delivery failed: Unknown client {}",
    "MalformedMessage": "Deserialize message failed. Protocol: {}. Error: {}",
    "UnserializableMessage": "Serialize message failed: {}",
    "IOError": "IO error: {}",
    "InternalError": "Internal error: {}",
    "TlsConfigError": "TLS configuration error: {}",
    "DnsLookupFailed": "DNS lookup failed",
    "ClientTimeout": "Client #{} timed out, no messages or keep alives for KEEP_ALIVE_TIMEOUT_S",
}


def invalid_topic(topic: str) -> BusError:
    """The bus says "Invalid topic string" twice, once in the variant's name and once in its text."""
    return BusError("InvalidTopicString", (f"Invalid topic string: {topic}",))


@dataclass(frozen=True, slots=True)
class Message:
    """One message of either direction; which fields mean something depends on `kind`."""

    id: int
    kind: str
    topic: str = ""
    data: bytes = EMPTY
    compressed: bool = False
    req_id: int = 0  # of a Rsp; of an Ack it is `msg_id`
    status: str = OK
    error: BusError | None = None
    recipients: int | None = None

    def payload(self) -> bytes:
        """The bytes that the sender's program handed over.

        Raises:
            RemoteProtocolError: marked as compressed and not gzip.
            LimitExceeded: larger than `MAX_INFLATED` when unpacked.
        """
        raw = decode_data(self.data)
        return inflate(raw) if self.compressed else raw


# -- parsing ----------------------------------------------------------------------------------------------------------

_PAYLOAD: Final[Mapping[bytes, Callable[[Cursor], Any]]] = {
    b"data": Cursor.byte_sequence,
    b"is_compressed": Cursor.boolean,
}


def _u32(cursor: Cursor) -> int:
    return cursor.unsigned(MAX_ID)


def _payload(cursor: Cursor) -> dict[bytes, Any]:
    return _whole(cursor.record(_PAYLOAD, MAX_DEPTH - 4), _PAYLOAD)


def _status(cursor: Cursor) -> str:
    name = cursor.variant()
    if name not in (b"Ok", b"Timeout"):
        raise RemoteProtocolError("unknown status of a response")
    return name.decode()


def _error(cursor: Cursor) -> BusError | None:
    if cursor.is_null():
        return None
    name = cursor.variant().decode("utf-8", "replace")
    shape = _SHAPES.get(name)
    if shape is None:
        raise RemoteProtocolError(f"unknown error {name}")
    if len(shape) > 1 and cursor.head() != (ARRAY, len(shape)):
        raise RemoteProtocolError(f"the details of {name} are something else")
    return BusError(name, tuple(_u32(cursor) if s == "u" else cursor.text() for s in shape))


def _count(cursor: Cursor) -> int | None:
    return None if cursor.is_null() else cursor.unsigned((1 << 64) - 1)


_TOPIC: Final[Mapping[bytes, Callable[[Cursor], Any]]] = {b"topic": Cursor.text}
_TOPIC_PAYLOAD: Final[Mapping[bytes, Callable[[Cursor], Any]]] = {
    b"topic": Cursor.text,
    b"payload": _payload,
}
_RESPONSE: Final[Mapping[bytes, Callable[[Cursor], Any]]] = {
    b"req_id": _u32,
    b"status": _status,
    b"payload": _payload,
}
_ACK: Final[Mapping[bytes, Callable[[Cursor], Any]]] = {
    b"msg_id": _u32,
    b"err": _error,
    b"num_recipients": _count,
}
_NOTHING: Final[Mapping[bytes, Callable[[Cursor], Any]]] = {}

CLIENT_KINDS: Final = {
    b"Sub": _TOPIC,
    b"Unsub": _TOPIC,
    b"Srv": _TOPIC,
    b"Unsrv": _TOPIC,
    b"Pub": _TOPIC_PAYLOAD,
    b"Req": _TOPIC_PAYLOAD,
    b"Rsp": _RESPONSE,
    b"Stop": _NOTHING,
    b"KeepAlive": _NOTHING,
}
"""What a client may send."""

SERVER_KINDS: Final = {
    b"Ack": _ACK,
    b"Pub": _TOPIC_PAYLOAD,
    b"Req": _TOPIC_PAYLOAD,
    b"Rsp": _RESPONSE,
}
"""What a server may send."""

_OPTIONAL: Final = frozenset((b"err", b"num_recipients"))


def _whole(
    found: dict[bytes, Any], fields: Mapping[bytes, Callable[[Cursor], Any]]
) -> dict[bytes, Any]:
    for name in fields:
        if name not in found and name not in _OPTIONAL:
            raise RemoteProtocolError(f"a field is missing: {name.decode()}")
    return found


def parse_message(
    body: bytes, kinds: Mapping[bytes, Mapping[bytes, Callable[[Cursor], Any]]]
) -> Message:
    """Read the body of one frame as the real decoder would; what follows the item is ignored.

    Args:
        kinds: `CLIENT_KINDS` or `SERVER_KINDS`, by who sent it.

    Raises:
        RemoteProtocolError: the real decoder would have closed the connection as well.
    """

    def content(cursor: Cursor) -> tuple[bytes, dict[bytes, Any]]:
        kind = cursor.variant()
        fields = kinds.get(kind)
        if fields is None:
            raise RemoteProtocolError("unknown kind of message")
        if not fields:
            return kind, {}
        return kind, _whole(cursor.record(fields, MAX_DEPTH - 3), fields)

    envelope = {b"id": _u32, b"content": content}
    found = _whole(Cursor(body).record(envelope, MAX_DEPTH - 1), envelope)
    kind, fields = found[b"content"]
    payload = fields.get(b"payload", {})
    return Message(
        id=found[b"id"],
        kind=kind.decode(),
        topic=fields.get(b"topic", ""),
        data=payload.get(b"data", EMPTY),
        compressed=payload.get(b"is_compressed", False),
        req_id=fields.get(b"req_id", fields.get(b"msg_id", 0)),
        status=fields.get(b"status", OK),
        error=fields.get(b"err"),
        recipients=fields.get(b"num_recipients"),
    )


def frame_length(data: bytes, pos: int) -> int:
    """How many bytes the frame at `pos` takes, as far as its header is there to tell."""
    return 4 + int.from_bytes(data[pos : pos + 4], "big") if len(data) - pos >= 4 else 4


# -- encoding ---------------------------------------------------------------------------------------------------------


def encode_head(major: int, value: int) -> bytes:
    """The shortest head of an item."""
    first = major << 5
    if value < 24:
        return bytes((first | value,))
    if value < 1 << 8:
        return bytes((first | 24, value))
    if value < 1 << 16:
        return struct.pack(">BH", first | 25, value)
    if value < 1 << 32:
        return struct.pack(">BI", first | 26, value)
    return struct.pack(">BQ", first | 27, value)


def encode_uint(value: int) -> bytes:
    return encode_head(UINT, value)


def encode_text(text: str) -> bytes:
    raw = text.encode()
    return encode_head(TEXT, len(raw)) + raw


def encode_frame(message_id: int, content: bytes) -> bytes:
    """A whole frame; `content` begins with the field's name (see the functions below)."""
    body = b"\xa2bid" + encode_uint(message_id) + content
    return struct.pack(">I", len(body)) + body


CONTENT: Final = b"gcontent"
_PAYLOAD_DATA: Final = b"gpayload\xa2ddata"


def unit_content(kind: str) -> bytes:
    """KeepAlive, Stop."""
    return CONTENT + encode_text(kind)


def topic_content(kind: str, topic: str) -> bytes:
    """Sub, Unsub, Srv, Unsrv."""
    return b"%b\xa1%b\xa1etopic%b" % (CONTENT, encode_text(kind), encode_text(topic))


def payload_content(kind: str, topic: str, data: bytes, compressed: bool) -> bytes:
    """Pub, Req; `data` is a CBOR item."""
    parts = (CONTENT, encode_text(kind), encode_text(topic), _payload_tail(data, compressed))
    return b"%b\xa1%b\xa2etopic%b%b" % parts


def response_content(request_id: bytes, status: str, data: bytes, compressed: bool) -> bytes:
    """Rsp; the request id is an encoded integer, `data` a CBOR item."""
    parts = (CONTENT, request_id, encode_text(status), _payload_tail(data, compressed))
    return b"%b\xa1cRsp\xa3freq_id%bfstatus%b%b" % parts


def _payload_tail(data: bytes, compressed: bool) -> bytes:
    return _PAYLOAD_DATA + data + b"mis_compressed" + (b"\xf5" if compressed else b"\xf4")


def ack_content(message_id: bytes, error: BusError | None, recipients: int | None) -> bytes:
    """Ack; the acknowledged message's id is an encoded integer."""
    parts = (
        CONTENT,
        message_id,
        b"\xf6" if error is None else encode_error(error),
        b"\xf6" if recipients is None else encode_uint(recipients),
    )
    return b"%b\xa1cAck\xa3fmsg_id%bcerr%bnnum_recipients%b" % parts


def encode_error(error: BusError) -> bytes:
    name = encode_text(error.name)
    details = [
        encode_uint(d) if isinstance(d, int) else encode_text(_cut(d)) for d in error.details
    ]
    if not details:
        return name
    array = encode_head(ARRAY, len(details)) if len(details) > 1 else b""
    return b"\xa1" + name + array + b"".join(details)


def _cut(text: str) -> str:
    """What of a text an Ack has room for: the real client stops at a frame over the limit."""
    if len(text) <= MAX_ERROR_TEXT // 4:
        return text
    return text.encode()[:MAX_ERROR_TEXT].decode("utf-8", "ignore")


# -- payloads ---------------------------------------------------------------------------------------------------------


def encode_data(payload: bytes) -> bytes:
    """Payload bytes as a byte string: real servers and clients take it, at half the size of an array."""
    return encode_head(BYTES, len(payload)) + payload


def decode_data(data: bytes) -> bytes:
    """The bytes of a checked `data` item, whichever of the two shapes it has."""
    cursor = Cursor(data)
    major, length = cursor.untagged()
    if major == BYTES:
        return cursor.string(BYTES, length)
    span = data[cursor.pos :]
    if length != INDEFINITE and count_elements(span) == length:
        # Prefixes pair up from the start of a run: "18 18" is the value 24, any other prefix is no value.
        return b"\x18".join([part.translate(None, b"\x18") for part in span.split(b"\x18\x18")])
    values = bytearray()
    while len(values) != length and data[cursor.pos : cursor.pos + 1] != b"\xff":
        values.append(cursor.unsigned(255))
    return bytes(values)


def pack(payload: bytes) -> tuple[bytes, bool]:
    """The `data` item and the compression flag of a payload, as a client sends it."""
    if len(payload) <= COMPRESS_ABOVE:
        return encode_data(payload), False
    return encode_data(gzip.compress(payload, 6, mtime=0)), True


def inflate(raw: bytes, limit: int = MAX_INFLATED) -> bytes:
    """Unpack a gzip of at most `limit` bytes.

    Raises:
        RemoteProtocolError: it is no gzip or is cut off.
        LimitExceeded: it is larger.
    """
    unpacker = zlib.decompressobj(wbits=31)
    try:
        plain = unpacker.decompress(raw, limit + 1)
    except zlib.error as exc:
        raise RemoteProtocolError("a compressed payload is no gzip") from exc
    if len(plain) > limit:
        raise LimitExceeded("unpacked payload in bytes", limit=limit, actual=len(plain))
    if not unpacker.eof:
        raise RemoteProtocolError("a compressed payload is cut off")
    return plain
