"""Every single bit of a 64 KiB segment, and every page of it zeroed: nothing of it goes unnoticed."""

from __future__ import annotations

import random

import pytest

from polybus.errors import CorruptRecord
from polybus.model.chunk import HEADER_BYTES, encode_chunk, parse_chunk
from polybus.model.record import NewRecord

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]
SAMPLE = 64 << 10
PAGE = 4096


def sample() -> list[bytes]:
    """Chunks of different shapes, 64 KiB of them."""
    rng = random.Random(64)
    chunks: list[bytes] = []
    base = 0
    while sum(map(len, chunks)) < SAMPLE:
        records = [
            NewRecord(
                rng.randbytes(rng.randrange(120)),
                rng.randbytes(rng.randrange(3)),
                rng.choice(("", "tag")),
                rng.choice(({}, {"name": "value"})),
                f"id{base}",
            )
            for _ in range(rng.randrange(1, 60))
        ]
        compression = rng.choice(("none", "zlib"))
        chunks.append(encode_chunk(base, records, compression=compression))
        base += len(records)
    return chunks


def test_every_flipped_bit_is_detected():
    flips = 0
    for chunk in sample():
        damaged = bytearray(chunk)
        for at in range(len(chunk)):
            for bit in range(8):
                damaged[at] ^= 1 << bit
                with pytest.raises(CorruptRecord):
                    parse_chunk(damaged)
                damaged[at] ^= 1 << bit
                flips += 1
        assert parse_chunk(damaged).header.length == len(chunk)
    assert flips >= SAMPLE * 8


def test_every_zeroed_page_is_detected():
    whole = b"".join(sample())
    lengths = [len(chunk) for chunk in sample()]
    for page in range(0, len(whole), PAGE):
        damaged = whole[:page] + bytes(len(whole[page : page + PAGE])) + whole[page + PAGE :]
        position = 0
        for length in lengths:
            touched = position < page + PAGE and position + length > page
            chunk = damaged[position : position + length]
            if touched and chunk != whole[position : position + length]:
                with pytest.raises(CorruptRecord):
                    parse_chunk(chunk, verify=True)
            else:
                assert parse_chunk(chunk).header.length == length
            position += length
    assert HEADER_BYTES < PAGE
