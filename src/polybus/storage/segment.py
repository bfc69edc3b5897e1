"""Segments: files of chunks, each the part of one topic from a base offset on.

Invariant: below `length` a segment never changes and is on disk; what lies behind it does not
count.

    file header, 64 bytes: magic "PBSEG\\0\\0\\1", topic u32, generation u32, base u64, crc of the 24 bytes before u32
    then chunks (model.chunk), one after the other; all are multiples of 8 bytes
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from polybus.errors import CorruptRecord
from polybus.model.checksum import crc32
from polybus.model.chunk import (
    HEADER_BYTES,
    MAGIC,
    ChunkHeader,
    ChunkView,
    parse_chunk,
    parse_header,
)
from polybus.storage.files import Files, OpenFile

SEGMENT_HEADER_BYTES: Final = 64
SEGMENT_MAGIC: Final = b"PBSEG\0\0\x01"
_HEADER: Final = struct.Struct("<8sIIQ")


def segment_name(base: int, generation: int) -> str:
    """The file name; a merged segment gets a new generation and thereby a new file."""
    return f"{base:020d}-{generation}.seg"


def encode_segment_header(topic: int, generation: int, base: int) -> bytes:
    """The first bytes of a segment file."""
    start = _HEADER.pack(SEGMENT_MAGIC, topic, generation, base)
    return (start + crc32(start).to_bytes(4, "little")).ljust(SEGMENT_HEADER_BYTES, b"\0")


def check_segment_header(data: bytes, segment: Segment, topic: int) -> None:
    """Compare a file's first bytes with what they must be.

    Raises:
        CorruptRecord: they differ.
    """
    if data != encode_segment_header(topic, segment.generation, segment.base):
        raise CorruptRecord(segment.path.name, 0, "the segment's header is damaged")


@dataclass(slots=True)
class ChunkIndex:
    """Where the chunks of a segment lie. A damaged stretch is an entry of length 0."""

    bases: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    last_us: list[int] = field(default_factory=list)

    def add(self, base: int, position: int, length: int, last_us: int) -> None:
        """Add the next chunk."""
        self.bases.append(base)
        self.positions.append(position)
        self.lengths.append(length)
        self.last_us.append(last_us)


@dataclass(slots=True)
class Segment:
    """One segment as the engine knows it; the index is read when somebody reads."""

    path: Path
    base: int
    generation: int
    end: int
    length: int = SEGMENT_HEADER_BYTES
    first_ms: int = 0
    last_ms: int = 0
    chunks: int = 0
    last_position: int = 0
    closed: bool = False  # nothing more is added
    index: ChunkIndex | None = None

    def find(self, offset: int) -> int:
        """The number of the chunk that holds `offset`; the index must be there."""
        assert self.index is not None
        return bisect_right(self.index.bases, offset) - 1


def load_index(files: Files, segment: Segment, length: int) -> ChunkIndex:
    """Walk the chunk headers of a segment up to `length`."""
    index = ChunkIndex()
    file = files.open(segment.path)
    try:
        position, expected, last_us = SEGMENT_HEADER_BYTES, segment.base, 0
        while position < length:
            header = _header_at(file, segment, position, expected)
            if header is None:
                index.add(expected, position, 0, last_us)
                position = _next_chunk(file, segment, position, length, expected)
                if position >= length:
                    break
                header = _header_at(file, segment, position, None)
                assert header is not None
            index.add(header.base, position, header.length, header.last_us)
            position += header.length
            expected, last_us = header.end, header.last_us
        return index
    finally:
        file.close()


def _header_at(
    file: OpenFile, segment: Segment, position: int, expected: int | None
) -> ChunkHeader | None:
    try:
        header = parse_header(file.read(position, HEADER_BYTES), segment.path.name, position)
    except CorruptRecord:
        return None
    return header if expected is None or header.base == expected else None


def _next_chunk(file: OpenFile, segment: Segment, position: int, length: int, low: int) -> int:
    """The next place behind `position` where a chunk header of this segment stands; `length` when there is none."""
    data = file.read(position, length - position)
    at = data.find(MAGIC, 8)
    while at >= 0:
        if at % 8 == 0:
            header = _header_at(file, segment, position + at, None)
            if header and low < header.base < segment.end and header.end <= segment.end:
                return position + at
        at = data.find(MAGIC, at + 1)
    return length


def read_chunk(files: Files, segment: Segment, number: int) -> ChunkView:
    """One chunk, its checksums verified; the index must be there.

    Raises:
        CorruptRecord: naming the segment and the position.
    """
    assert segment.index is not None
    position, data = _read(files, segment, number, number + 1)
    return parse_chunk(data, segment.path.name, position)


def read_run(
    files: Files, segment: Segment, number: int, end: int, max_bytes: int
) -> list[ChunkView]:
    """Chunks from `number` on up to offset `end`, until `max_bytes` are there, in one read; the index must be there.

    The checksums of their bodies are for those to verify who asked for them.

    Raises:
        CorruptRecord: naming the segment and the position.
    """
    index = segment.index
    assert index is not None
    stop, total = number, 0
    while stop < len(index.bases) and index.bases[stop] < end and total < max_bytes:
        total += index.lengths[stop]
        stop += 1
    stop = max(stop, number + 1)
    begin, data = _read(files, segment, number, stop)
    views = []
    for position, length in zip(
        index.positions[number:stop], index.lengths[number:stop], strict=True
    ):
        part = memoryview(data)[position - begin : position - begin + length]
        views.append(parse_chunk(part, segment.path.name, position, verify=False))
    return views


def _read(files: Files, segment: Segment, number: int, stop: int) -> tuple[int, bytes]:
    """Where chunk `number` begins in the segment, and the bytes from there to the end of the chunk before `stop`."""
    index = segment.index
    assert index is not None
    position = index.positions[number]
    if index.lengths[number] == 0:
        raise CorruptRecord(segment.path.name, position, "the header is damaged")
    behind = index.positions[stop - 1] + index.lengths[stop - 1]
    file = files.open(segment.path)
    try:
        return position, file.read(position, behind - position)
    finally:
        file.close()
