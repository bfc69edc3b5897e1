"""Entries: what stands in a frame's body, one after the other.

Invariant: an entry says all that replaying it needs, so that recovery runs the same steps as the
live engine did.

    kind u8, topic u32, then by kind
      ROW      offset u64, time i64, payload u32; payload
      FULL     offset u64, time i64, payload, key, tag, id, headers u32 each; key, tag, id, headers (msgpack), payload
      CHUNK    bytes u32; a chunk (model.chunk), not compressed, its checksums left open: the frame has one
      STATE    bytes u32; a msgpack map of one of the small changes below
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Final, Literal

import msgspec

from polybus.core.engine import TopicOptions
from polybus.errors import CorruptRecord
from polybus.model.chunk import ChunkView, parse_open
from polybus.model.message import NO_HEADERS
from polybus.model.record import NewRecord

ROW, FULL, CHUNK, STATE = 1, 2, 3, 4
ROW_HEAD: Final = struct.Struct("<BIQqI")
FULL_HEAD: Final = struct.Struct("<BIQqIIIII")
SIZED_HEAD: Final = struct.Struct("<BII")
ROW_OVERHEAD: Final = FULL_HEAD.size


class Declared(msgspec.Struct, frozen=True, tag="declare", array_like=True):
    """A topic was created, or its options were changed."""

    name: str
    options: TopicOptions
    time_ms: int


class Removed(msgspec.Struct, frozen=True, tag="remove", array_like=True):
    """A topic and all that belongs to it is gone."""


class Trimmed(msgspec.Struct, frozen=True, tag="trim", array_like=True):
    """Records below `first` are gone."""

    first: int


class Saved(msgspec.Struct, frozen=True, tag="group", array_like=True):
    """A group was created or replaced."""

    name: str
    options: Mapping[str, str | int | bool]
    floor: int
    done: list[int]
    attempts: dict[int, int]


class Moved(msgspec.Struct, frozen=True, tag="move", array_like=True):
    """A group has got on."""

    name: str
    floor: int
    done: list[int]
    attempts: dict[int, int]


class Forgotten(msgspec.Struct, frozen=True, tag="forget", array_like=True):
    """A group is gone."""

    name: str


class Staged(msgspec.Struct, frozen=True, array_like=True):
    """One staged chunk as published: where it lies and what it becomes."""

    ticket: str
    base: int
    count: int
    size: int


class Published(msgspec.Struct, frozen=True, tag="publish", array_like=True):
    """Staged chunks became part of the topic; times are cut to `last_ms`..`now_ms`."""

    sink: str
    batch: int
    last_ms: int
    now_ms: int
    parts: list[Staged]


Change = Declared | Removed | Trimmed | Saved | Moved | Forgotten | Published
Entry = tuple[int, int, int, NewRecord] | tuple[int, ChunkView] | tuple[int, Change]

encode_any = msgspec.msgpack.Encoder().encode
_decode_change = msgspec.msgpack.Decoder(Change).decode
_decode_headers = msgspec.msgpack.Decoder(dict[str, str]).decode


def encode_row(topic: int, offset: int, time_ms: int, record: NewRecord) -> list[bytes]:
    """One record, as the parts of its entry."""
    payload = record.payload
    if not (record.key or record.tag or record.id or record.headers):
        return [ROW_HEAD.pack(ROW, topic, offset, time_ms, len(payload)), payload]
    tag, id_ = record.tag.encode(), record.id.encode()
    headers = encode_any(record.headers) if record.headers else b""
    sizes = (len(payload), len(record.key), len(tag), len(id_), len(headers))
    head = FULL_HEAD.pack(FULL, topic, offset, time_ms, *sizes)
    return [head, record.key, tag, id_, headers, payload]


def encode_chunk_entry(topic: int, parts: list[bytes]) -> list[bytes]:
    """Many records, as the parts of their entry; the frame's checksum stands for the chunk's own."""
    return [SIZED_HEAD.pack(CHUNK, topic, sum(map(len, parts))), *parts]


def encode_change(topic: int, change: Change) -> bytes:
    """A small change."""
    body = encode_any(change)
    return SIZED_HEAD.pack(STATE, topic, len(body)) + body


def scan_entries(body: memoryview, source: str, position: int) -> Iterator[Entry]:
    """The entries of a frame's body: (topic, offset, time, record), (topic, chunk view) or (topic, change).

    Raises:
        CorruptRecord: the checksum was right and the content is not: another program wrote it.
    """
    at = 0
    try:
        while at < len(body):
            kind: Literal[1, 2, 3, 4] = body[at]  # type: ignore[assignment]
            if kind == ROW:
                _, topic, offset, time_ms, size = ROW_HEAD.unpack_from(body, at)
                at += ROW_HEAD.size
                yield topic, offset, time_ms, NewRecord(bytes(body[at : at + size]))
                at += size
            elif kind == FULL:
                _, topic, offset, time_ms, *sizes = FULL_HEAD.unpack_from(body, at)
                record, at = _full(body, at + FULL_HEAD.size, sizes)
                yield topic, offset, time_ms, record
            elif kind in (CHUNK, STATE):
                _, topic, size = SIZED_HEAD.unpack_from(body, at)
                at += SIZED_HEAD.size
                data = bytes(body[at : at + size])
                yield (topic, parse_open(data)) if kind == CHUNK else (topic, _decode_change(data))
                at += size
            else:
                raise ValueError(f"entry kind {kind} is not known")
    except (ValueError, struct.error, msgspec.MsgspecError) as exc:
        raise CorruptRecord(source, position, str(exc)) from exc


def _full(body: memoryview, at: int, sizes: list[int]) -> tuple[NewRecord, int]:
    payload_size, key_size, tag_size, id_size, headers_size = sizes
    key, at = bytes(body[at : at + key_size]), at + key_size
    tag, at = str(body[at : at + tag_size], "utf-8"), at + tag_size
    id_, at = str(body[at : at + id_size], "utf-8"), at + id_size
    packed, at = body[at : at + headers_size], at + headers_size
    headers = _decode_headers(packed) if headers_size else NO_HEADERS
    return NewRecord(bytes(body[at : at + payload_size]), key, tag, headers, id_), at + payload_size
