"""Frames: the units of the commit log, each whole or not there.

Invariant: a frame counts only if its own file's salt, both checksums and the chain to the frame
before it fit. The salt is random per file, so neither what an older use of the file left behind nor
a payload made to look like a frame is taken for one.

    file header, 64 bytes               frame header, 48 bytes
     0 magic "PBLOG\\0\\0\\1"              0 salt
     8 file number  u64                  8 sequence               u64
    16 salt         8 bytes             16 sequence before it     u64
    24 crc of 0..24 u32                 24 last one known synced  u64
                                        32 body bytes             u32
                                        36 flags                  u32
                                        40 body crc               u32
                                        44 crc of 0..44           u32
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from polybus.model.checksum import crc32

FILE_HEADER_BYTES: Final = 64
FRAME_HEADER_BYTES: Final = 48
LOG_MAGIC: Final = b"PBLOG\0\0\x01"
SALT_BYTES: Final = 8

_FILE: Final = struct.Struct("<8sQ8s")
_FRAME: Final = struct.Struct("<8sQQQIII")


class Frame(NamedTuple):
    """A whole frame as found in a file."""

    sequence: int
    before: int
    synced: int
    position: int
    body: memoryview


def encode_file_header(number: int, salt: bytes) -> bytes:
    """The first bytes of a commit log file."""
    start = _FILE.pack(LOG_MAGIC, number, salt)
    return (start + struct.pack("<I", crc32(start))).ljust(FILE_HEADER_BYTES, b"\0")


def parse_file_header(data: bytes) -> tuple[int, bytes] | None:
    """File number and salt, or None when this is no (whole) header."""
    if len(data) < FILE_HEADER_BYTES or crc32(data[:24]) != int.from_bytes(data[24:28], "little"):
        return None
    magic, number, salt = _FILE.unpack_from(data)
    return (number, salt) if magic == LOG_MAGIC else None


def encode_frame_header(
    salt: bytes, sequence: int, before: int, synced: int, size: int, body_crc: int
) -> bytes:
    """The header for a body of `size` bytes."""
    start = _FRAME.pack(salt, sequence, before, synced, size, 0, body_crc)
    return start + crc32(start).to_bytes(4, "little")


def padded(size: int) -> int:
    """The room a body takes in the file."""
    return (size + 7) & ~7


def scan_frames(data: memoryview, salt: bytes) -> Iterator[Frame]:
    """All whole frames of a file's content, in order, those behind a damaged place included.

    The bodies are checked; whether a frame belongs to the chain is for the caller to judge.
    """
    position = FILE_HEADER_BYTES
    plain = data.obj if isinstance(data.obj, bytes) else bytes(data)
    while position + FRAME_HEADER_BYTES <= len(data):
        header = data[position : position + FRAME_HEADER_BYTES]
        found, sequence, before, synced, size, _, body_crc = _FRAME.unpack_from(header)
        begin = position + FRAME_HEADER_BYTES
        if (
            found == salt
            and crc32(header[:44]) == int.from_bytes(header[44:48], "little")
            and begin + size <= len(data)
            and crc32(data[begin : begin + size]) == body_crc
        ):
            yield Frame(sequence, before, synced, position, data[begin : begin + size])
            position = begin + padded(size)
            continue
        # Frames are aligned; whatever stands here is not one, so go to the next place that could be.
        position = plain.find(salt, position + 1)
        if position < 0:
            return
