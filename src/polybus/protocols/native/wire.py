"""Bytes of the native wire and the values they stand for; no sockets, no clock.

Invariant: any split of the input gives the same frames, nothing longer than the limit is ever buffered, and what cannot
be a frame raises `RemoteProtocolError` and nothing else. `docs/protocols/native.md` is the specification.

    offset  size  field
    0       4     length of what follows, 20 at least
    4       1     kind
    5       1     flags
    6       2     length of the name
    8       8     id of the request
    16      4     argument: timeout in ms, status or error code, by kind
    20      4     length of the meta map
    24            name (UTF-8), meta (a MessagePack map), payload (the rest)
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from struct import Struct
from typing import Final, TypeVar

import msgspec

from polybus.errors import (
    LocalProtocolError,
    PolybusError,
    RemoteProtocolError,
    fields_of,
    from_code,
)
from polybus.model.message import NO_HEADERS
from polybus.model.record import NewRecord, Record

PREFACE: Final = b"PBUS\x01"  # the last byte is the version of the framing, not of the kinds
VERSION: Final = 1
MAX_FRAME: Final = 64 * 1024 * 1024  # the node's default for every wire
MAX_NAME: Final = 0xFFFF
MAX_TIMEOUT_MS: Final = 0xFFFFFFFF

HELLO: Final = 0x01
PING: Final = 0x02
PONG: Final = 0x03
GOODBYE: Final = 0x04
OK: Final = 0x05
ERROR: Final = 0x06
REGISTER: Final = 0x10
UNREGISTER: Final = 0x11
CALL: Final = 0x12
REPLY: Final = 0x13
CANCEL: Final = 0x14
SUBSCRIBE: Final = 0x20
UNSUBSCRIBE: Final = 0x21
PUBLISH: Final = 0x22
PUBLICATION: Final = 0x23
PRODUCE: Final = 0x30
PRODUCED: Final = 0x31
CONSUME: Final = 0x32
CREDIT: Final = 0x33
DELIVERY: Final = 0x34
ACK: Final = 0x35
NACK: Final = 0x36
LEAVE: Final = 0x37
FETCH: Final = 0x38
CHUNKS: Final = 0x39
ASK: Final = 0x3F

MORE: Final = 0x01  # of a Reply: other parts follow
NO_REPLY: Final = 0x01  # of a Call: nobody waits for an answer

HEAD: Final = 24
_HEADER: Final = Struct(">IBBHQII")
_LENGTH: Final = Struct(">I")
_ID: Final = Struct(">Q")
_AS_PUBLICATION: Final = bytes((PUBLICATION, 0))
_NO_ID: Final = bytes(8)
unpack_head = _HEADER.unpack_from
_pack_head = _HEADER.pack
_pack_id = _ID.pack

T = TypeVar("T")

# The decoder lets text that is no UTF-8 and maps that are too deep through as errors of their own.
UNFIT: Final = (msgspec.MsgspecError, ValueError, RecursionError)


class Frame(msgspec.Struct, frozen=True, gc=False):
    """One frame taken apart."""

    kind: int
    flags: int
    id: int
    arg: int
    name: str
    meta: bytes
    payload: bytes


class Hello(msgspec.Struct, omit_defaults=True):
    """The first frame of each side; the node's answer has the one version it chose and who it takes the client for."""

    versions: list[int]
    agent: str = ""
    features: list[str] = []
    max_frame: int = MAX_FRAME
    token: str = ""
    identity: str = ""


class Headers(msgspec.Struct, omit_defaults=True):
    """The meta map of calls, replies and publications."""

    headers: dict[str, str] = {}


_encode = msgspec.msgpack.Encoder().encode
_decode_headers = msgspec.msgpack.Decoder(Headers).decode


class Frames:
    """Cuts a stream into frames."""

    __slots__ = ("_buffer", "_need", "limit")

    def __init__(self, limit: int = MAX_FRAME) -> None:
        self.limit = limit
        self._buffer = bytearray()
        self._need = 4

    def __len__(self) -> int:
        return len(self._buffer)

    def feed(self, data: bytes) -> Generator[bytes, None, None]:
        """Whole frames, each as its own bytes; what is left when it is closed is kept for the next input.

        Raises:
            RemoteProtocolError: a length below the header's or above the limit; what came before was yielded.
        """
        buffer = self._buffer
        if buffer:
            buffer += data
            if len(buffer) < self._need:
                return
            data = bytes(buffer)
            buffer.clear()
        self._need = 4
        start, size = 0, len(data)
        try:
            while size - start >= 4:
                length = 4 + _LENGTH.unpack_from(data, start)[0]
                if length < HEAD or length > self.limit:
                    raise RemoteProtocolError(
                        f"a frame of {length} bytes; allowed are {HEAD} to {self.limit}"
                    )
                if length > size - start:
                    self._need = length
                    break
                begun, start = start, start + length
                yield data[begun:start]
        finally:
            if start < size:
                buffer += data[start:]

    def keep(self, data: bytes) -> None:
        """Take input without looking at it."""
        self._buffer += data


def take_preface(data: bytes) -> bool | None:
    """Whether a stream that begins with `data` is of this wire; None while that is open."""
    if len(data) < len(PREFACE):
        return None if PREFACE.startswith(data) else False
    return data.startswith(PREFACE)


def matches(data: bytes) -> bool | None:
    """The same without the version, so that a peer of another version gets an answer it can read."""
    magic = PREFACE[:4]
    return None if len(data) < 4 and magic.startswith(data) else data.startswith(magic)


# -- frames ------------------------------------------------------------------------------------------------------------


def encode(
    kind: int,
    ident: int = 0,
    name: str = "",
    payload: bytes = b"",
    *,
    flags: int = 0,
    arg: int = 0,
    meta: bytes = b"",
    follows: int = 0,
) -> bytes:
    """One frame, or its beginning when so many bytes of payload follow that a copy of them would cost time."""
    raw = name.encode()
    size = 20 + len(raw) + len(meta) + len(payload) + follows
    return _pack_head(size, kind, flags, len(raw), ident, arg, len(meta)) + raw + meta + payload


def parse(frame: bytes) -> Frame:
    """A frame taken apart.

    Raises:
        RemoteProtocolError: the lengths contradict each other, or the name is no UTF-8.
    """
    _length, kind, flags, name_size, ident, arg, meta_size = unpack_head(frame)
    meta_at = HEAD + name_size
    payload_at = meta_at + meta_size
    if payload_at > len(frame):
        raise RemoteProtocolError("name and meta are longer than their frame")
    return Frame(
        kind,
        flags,
        ident,
        arg,
        to_text(frame[HEAD:meta_at]),
        frame[meta_at:payload_at],
        frame[payload_at:],
    )


def to_text(raw: bytes) -> str:
    """A name from its bytes.

    Raises:
        RemoteProtocolError: it is no UTF-8.
    """
    try:
        return raw.decode()
    except UnicodeDecodeError as exc:
        raise RemoteProtocolError("a name is not UTF-8") from exc


def payload_of(frame: bytes) -> bytes:
    """The payload of a whole, checked frame."""
    _length, _kind, _flags, name_size, _id, _arg, meta_size = unpack_head(frame)
    return frame[HEAD + name_size + meta_size :]


def with_id(frame: bytes, ident: int) -> bytes:
    """The same frame under another id: all that forwarding on this wire changes."""
    return frame[:8] + _pack_id(ident) + frame[16:]


def as_publication(frame: bytes) -> bytes:
    """A Publish frame as the Publication that subscribers get: kind and id are the node's."""
    return frame[:4] + _AS_PUBLICATION + frame[6:8] + _NO_ID + frame[16:]


# -- meta maps ---------------------------------------------------------------------------------------------------------


def encode_meta(value: object) -> bytes:
    """A meta map of a struct or a dictionary."""
    return _encode(value)


def array_head(count: int) -> bytes:
    """What stands before the encoded items of an array."""
    return b"\xdd" + count.to_bytes(4, "big")


def parse_meta(meta: bytes, kind: type[T]) -> T:
    """The meta map of a frame as `kind`; an absent one counts as empty, unknown fields are ignored.

    Raises:
        RemoteProtocolError: no MessagePack, or of another shape.
    """
    try:
        return msgspec.msgpack.decode(meta or b"\x80", type=kind)
    except UNFIT as exc:
        raise RemoteProtocolError(f"a meta map does not fit: {exc}") from exc


def encode_headers(headers: Mapping[str, str]) -> bytes:
    """The meta map that carries headers; nothing when there are none.

    Raises:
        LocalProtocolError: they are no Unicode text.
    """
    if not headers:
        return b""
    try:
        return _encode({"headers": dict(headers)})
    except (TypeError, ValueError) as exc:
        raise LocalProtocolError(f"the headers cannot be sent: {exc}") from exc


def parse_headers(meta: bytes) -> Mapping[str, str]:
    """The headers in a meta map.

    Raises:
        RemoteProtocolError: as `parse_meta`.
    """
    if not meta:
        return NO_HEADERS
    try:
        return _decode_headers(meta).headers
    except UNFIT as exc:
        raise RemoteProtocolError(f"a meta map does not fit: {exc}") from exc


def encode_error(ident: int, error: PolybusError) -> bytes:
    """An Error frame: code, text and the data the error carries."""
    fields = fields_of(error)
    meta = _encode(fields) if fields else b""
    return encode(ERROR, ident, "", error.text.encode(), arg=error.code, meta=meta)


def parse_error(frame: Frame) -> PolybusError:
    """The error that a peer named.

    Raises:
        RemoteProtocolError: its fields are no map of texts and numbers.
    """
    fields = parse_meta(frame.meta, dict[str, str | int]) if frame.meta else None
    return from_code(frame.arg, frame.payload.decode("utf-8", "replace"), fields)


# -- records -----------------------------------------------------------------------------------------------------------


class Delivered(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One element of a Delivery frame."""

    record: Record
    attempt: int = 1


_decode_new = msgspec.msgpack.Decoder(list[NewRecord]).decode
_decode_delivered = msgspec.msgpack.Decoder(list[Delivered]).decode
_decode_offsets = msgspec.msgpack.Decoder(list[int]).decode


def encode_list(items: Sequence[object]) -> bytes:
    """The payload of Produce, Delivery, Ack and Nack: a MessagePack array."""
    return _encode(items)


def _items(decode: Callable[[bytes], list[T]], payload: bytes) -> list[T]:
    try:
        return decode(payload)
    except UNFIT as exc:
        raise RemoteProtocolError(f"a list does not fit: {exc}") from exc


def parse_new_records(payload: bytes) -> list[NewRecord]:
    """The records of a Produce.

    Raises:
        RemoteProtocolError: no array of records.
    """
    return _items(_decode_new, payload)


def parse_delivered(payload: bytes) -> list[Delivered]:
    """The records of a Delivery; raises as above."""
    return _items(_decode_delivered, payload)


def parse_offsets(payload: bytes) -> list[int]:
    """The offsets of an Ack or Nack; raises as above."""
    return _items(_decode_offsets, payload)
