"""The Golem Service Bus on the wire: frames and the protobuf messages in them.

Invariant: parsing either gives a value or raises `RemoteProtocolError`; nothing here reads a socket or a clock.

    current   u32 BE length | tag(kind) | varint inner length | inner message
    legacy    i32 BE kind-2 | u32 BE length                   | inner message      (before 2021, no Hello)
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from polybus.errors import RemoteProtocolError


class Kind(IntEnum):
    """Packet kinds: the field numbers of the current format; the legacy format counts from two less."""

    HELLO = 1
    REGISTER_REQUEST = 2
    REGISTER_REPLY = 3
    UNREGISTER_REQUEST = 4
    UNREGISTER_REPLY = 5
    CALL_REQUEST = 6
    CALL_REPLY = 7
    SUBSCRIBE_REQUEST = 8
    SUBSCRIBE_REPLY = 9
    UNSUBSCRIBE_REQUEST = 10
    UNSUBSCRIBE_REPLY = 11
    BROADCAST_REQUEST = 12
    BROADCAST_REPLY = 13
    PING = 14
    PONG = 15


OK: Final = 0
BAD_REQUEST: Final = 400
NOT_FOUND: Final = 404
CONFLICT: Final = 409
SERVICE_FAILURE: Final = 500

LEGACY_OFFSET: Final = 2
# Bytes around the inner message: four of length, the tag, a varint of five
MAX_ENVELOPE: Final = 10
MAX_KIND: Final = 15


@dataclass(frozen=True, slots=True)
class Hello:
    name: str = ""
    version: str = ""
    instance_id: bytes = b""


@dataclass(frozen=True, slots=True)
class CallRequest:
    caller: str = ""
    address: str = ""
    request_id: str = ""
    data: bytes = b""
    no_reply: bool = False


@dataclass(frozen=True, slots=True)
class CallReply:
    request_id: str = ""
    code: int = 0
    partial: bool = False
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class BroadcastRequest:
    caller: str = ""
    data: bytes = b""
    topic: str = ""


# -- protobuf --

VARINT: Final = 0
FIXED64: Final = 1
BYTES: Final = 2
FIXED32: Final = 5

Field = tuple[int, int, int | bytes]
"""(field number, wire type, value)"""


def encode_varint(value: int) -> bytes:
    """A non-negative number, seven bits a byte, lowest first."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def parse_varint(data: bytes, pos: int, end: int) -> tuple[int, int]:
    """The number at `pos` and the position after it."""
    value = shift = 0
    while pos < end:
        byte = data[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, pos
        shift += 7
        if shift > 63:
            raise RemoteProtocolError("a protobuf number is longer than ten bytes")
    raise RemoteProtocolError("a protobuf number is cut off")


def parse_fields(data: bytes) -> list[Field]:
    """All fields of a message in their order; groups, which no message of this wire has, are refused."""
    fields: list[Field] = []
    pos, end = 0, len(data)
    while pos < end:
        key, pos = parse_varint(data, pos, end)
        number, wire_type = key >> 3, key & 7
        if not number or number >= 1 << 29:
            raise RemoteProtocolError(f"protobuf field number {number} does not exist")
        if wire_type == VARINT:
            value, pos = parse_varint(data, pos, end)
            fields.append((number, wire_type, value & 0xFFFF_FFFF_FFFF_FFFF))
            continue
        if wire_type == BYTES:
            length, pos = parse_varint(data, pos, end)
        elif wire_type in (FIXED64, FIXED32):
            length = 8 if wire_type == FIXED64 else 4
        else:
            raise RemoteProtocolError(f"protobuf wire type {wire_type} is not used here")
        if length > end - pos:
            raise RemoteProtocolError("a protobuf field is cut off")
        fields.append((number, wire_type, data[pos : pos + length]))
        pos += length
    return fields


def _bytes_field(number: int, value: bytes) -> bytes:
    # Defaults are left out, as every proto3 encoder does (protocol page §3).
    return bytes((number << 3 | BYTES,)) + encode_varint(len(value)) + value if value else b""


def _number_field(number: int, value: int) -> bytes:
    return bytes((number << 3,)) + encode_varint(value) if value else b""


def _text(value: int | bytes, wire_type: int) -> str:
    if wire_type != BYTES or not isinstance(value, bytes):
        raise RemoteProtocolError("a protobuf text field has another type")
    try:
        return value.decode()
    except UnicodeDecodeError as exc:
        raise RemoteProtocolError("a text is not UTF-8") from exc


def _bytes(value: int | bytes, wire_type: int) -> bytes:
    if wire_type != BYTES or not isinstance(value, bytes):
        raise RemoteProtocolError("a protobuf bytes field has another type")
    return value


def _number(value: int | bytes, wire_type: int) -> int:
    if wire_type != VARINT or not isinstance(value, int):
        raise RemoteProtocolError("a protobuf number field has another type")
    return value


# -- messages --


def encode_hello(name: str, version: str, instance_id: bytes) -> bytes:
    return (
        _bytes_field(1, name.encode())
        + _bytes_field(2, version.encode())
        + _bytes_field(3, instance_id)
    )


def encode_name(name: str) -> bytes:
    """RegisterRequest, UnregisterRequest, SubscribeRequest, UnsubscribeRequest: one text field."""
    return _bytes_field(1, name.encode())


def encode_code(code: int, message: str = "") -> bytes:
    """RegisterReply, UnregisterReply, SubscribeReply, UnsubscribeReply, BroadcastReply."""
    return _number_field(1, code) + _bytes_field(2, message.encode())


def encode_call(request: CallRequest) -> bytes:
    return b"".join(
        (
            _bytes_field(1, request.caller.encode()),
            _bytes_field(2, request.address.encode()),
            _bytes_field(3, request.request_id.encode()),
            _bytes_field(4, request.data),
            _number_field(5, request.no_reply),
        )
    )


def encode_reply(request_id: str, code: int, data: bytes, partial: bool = False) -> bytes:
    return b"".join(
        (
            _bytes_field(1, request_id.encode()),
            _number_field(2, code),
            _number_field(3, partial),
            _bytes_field(4, data),
        )
    )


def encode_broadcast(caller: str, topic: str, data: bytes) -> bytes:
    return (
        _bytes_field(1, caller.encode()) + _bytes_field(2, data) + _bytes_field(3, topic.encode())
    )


def parse_hello(body: bytes) -> Hello:
    name, version, instance_id = "", "", b""
    for number, wire_type, value in parse_fields(body):
        match number:
            case 1:
                name = _text(value, wire_type)
            case 2:
                version = _text(value, wire_type)
            case 3:
                instance_id = _bytes(value, wire_type)
    return Hello(name, version, instance_id)


def parse_name(body: bytes) -> str:
    name = ""
    for number, wire_type, value in parse_fields(body):
        if number == 1:
            name = _text(value, wire_type)
    return name


def parse_code(body: bytes) -> tuple[int, str]:
    code, message = 0, ""
    for number, wire_type, value in parse_fields(body):
        match number:
            case 1:
                code = _number(value, wire_type)
            case 2:
                message = _text(value, wire_type)
    return code, message


def parse_call(body: bytes) -> CallRequest:
    caller = address = request_id = ""
    data, no_reply = b"", False
    for number, wire_type, value in parse_fields(body):
        match number:
            case 1:
                caller = _text(value, wire_type)
            case 2:
                address = _text(value, wire_type)
            case 3:
                request_id = _text(value, wire_type)
            case 4:
                data = _bytes(value, wire_type)
            case 5:
                no_reply = bool(_number(value, wire_type))
    return CallRequest(caller, address, request_id, data, no_reply)


def parse_reply(body: bytes) -> CallReply:
    request_id, code, partial, data = "", 0, False, b""
    for number, wire_type, value in parse_fields(body):
        match number:
            case 1:
                request_id = _text(value, wire_type)
            case 2:
                code = _number(value, wire_type)
            case 3:
                # An unknown reply type ends the call, as upstream has it (protocol page §7).
                partial = _number(value, wire_type) == 1
            case 4:
                data = _bytes(value, wire_type)
    return CallReply(request_id, code, partial, data)


def parse_broadcast(body: bytes) -> BroadcastRequest:
    caller = topic = ""
    data = b""
    for number, wire_type, value in parse_fields(body):
        match number:
            case 1:
                caller = _text(value, wire_type)
            case 2:
                data = _bytes(value, wire_type)
            case 3:
                topic = _text(value, wire_type)
    return BroadcastRequest(caller, data, topic)


def parse_empty(body: bytes) -> None:
    """Ping and Pong: nothing in them, but still protobuf."""
    parse_fields(body)


# -- frames --


@dataclass(frozen=True, slots=True)
class Framing:
    """One of the two ways to put a message into a frame."""

    legacy: bool

    @property
    def header(self) -> int:
        """How many bytes tell a frame's length."""
        return 8 if self.legacy else 4

    def encode(self, kind: int, body: bytes) -> bytes:
        """A whole frame."""
        if self.legacy:
            return (kind - LEGACY_OFFSET).to_bytes(4) + len(body).to_bytes(4) + body
        inner = bytes((kind << 3 | BYTES,)) + encode_varint(len(body))
        return (len(inner) + len(body)).to_bytes(4) + inner + body

    def length(self, data: bytes, pos: int) -> int:
        """The length of the whole frame at `pos`, whose header must be there."""
        header = self.header
        return header + int.from_bytes(data[pos + header - 4 : pos + header])

    def parse(self, frame: bytes) -> tuple[Kind, bytes]:
        """The kind and the inner message of a whole frame.

        Raises:
            RemoteProtocolError: length 0, an unknown kind, or an envelope that is none.
        """
        if self.legacy:
            kind = int.from_bytes(frame[:4], signed=True) + LEGACY_OFFSET
            if not Kind.REGISTER_REQUEST <= kind <= MAX_KIND:
                raise RemoteProtocolError(f"unknown packet kind {kind - LEGACY_OFFSET}")
            return Kind(kind), frame[8:]
        if len(frame) == 4:
            raise RemoteProtocolError("a frame of length 0")
        packet: tuple[int, bytes] | None = None
        for number, wire_type, value in parse_fields(frame[4:]):
            if number <= MAX_KIND and wire_type == BYTES and isinstance(value, bytes):
                packet = (
                    number,
                    value,
                )  # of several the last one counts, as protobuf has it for a oneof
            elif number <= MAX_KIND:
                raise RemoteProtocolError("a packet has another type than its kind")
        if packet is None:
            raise RemoteProtocolError("a packet of no known kind")
        return Kind(packet[0]), packet[1]


CURRENT: Final = Framing(legacy=False)
LEGACY: Final = Framing(legacy=True)


def tell_framing(head: bytes) -> Framing | None:
    """Which framing a client's first bytes are in; None while fewer than five are there.

    Byte 5 is a protobuf tag, never 0, in the current format, and the top byte of a length below 16 MiB in the legacy
    one (protocol page §12).
    """
    if len(head) < 5:
        return None
    return LEGACY if head[4] == 0 and head[:3] == b"\0\0\0" and head[3] <= 13 else CURRENT


def sniff(head: bytes) -> bool | None:
    """Whether a connection that begins like this speaks either framing; None while it cannot be told."""
    if len(head) < 5:
        # A GSB length below 16 MiB begins with a zero byte; so does T2's, and byte 5 decides.
        return None if head[:1] == b"\0" else False
    if tell_framing(head) is LEGACY:
        return True
    return head[0] == 0 and head[4] & 7 == BYTES and 1 <= head[4] >> 3 <= MAX_KIND
