"""Packing: chunks of good size out of what a topic holds in memory or in small chunks.

Invariant: the records come out in order, at the offsets and times they had.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from polybus.model.chunk import MAX_BYTES, MAX_RECORDS, ChunkView, encode_chunk, parse_chunk
from polybus.model.record import NewRecord, Record
from polybus.storage.files import Files
from polybus.storage.reader import read_part
from polybus.storage.topic_log import Item, StagedPart

LARGE_RECORDS: Final = 1024  # a chunk of this many records or bytes is copied as it is
LARGE_BYTES: Final = 256 << 10


def pack_items(
    files: Files, base: int, items: Sequence[Item], compression: str
) -> Iterator[ChunkView]:
    """Chunks of good size out of the tail's items."""
    records: list[NewRecord | Record] = []
    times: list[int] = []
    size = 0
    for item in items:
        if isinstance(item, tuple):
            times.append(item[0])
            records.append(item[1])
            size += len(item[1].payload)
        else:
            view = read_part(files, item) if isinstance(item, StagedPart) else item
            if is_large(view):
                if records:
                    yield _pack(base, records, times, compression)
                    base += len(records)
                    records, times, size = [], [], 0
                yield _compressed(view, compression)
                base += view.header.count
                continue
            more = view.records()
            records += more
            times += [record.time_ms for record in more]
            size += view.header.length
        if len(records) >= MAX_RECORDS or size >= MAX_BYTES:
            yield _pack(base, records[:MAX_RECORDS], times[:MAX_RECORDS], compression)
            base += min(len(records), MAX_RECORDS)
            records, times = records[MAX_RECORDS:], times[MAX_RECORDS:]
            size = sum(len(record.payload) for record in records)
    if records:
        yield _pack(base, records, times, compression)


def is_large(view: ChunkView) -> bool:
    """Whether merging a chunk with its neighbours would gain nothing."""
    return view.header.count >= LARGE_RECORDS or view.header.length >= LARGE_BYTES


def _pack(
    base: int, records: Sequence[NewRecord | Record], times: Sequence[int], compression: str
) -> ChunkView:
    return parse_chunk(encode_chunk(base, records, times, compression=compression), verify=False)


def _compressed(view: ChunkView, compression: str) -> ChunkView:
    if compression == "none":
        return view
    records = view.records()
    return _pack(view.header.base, records, [r.time_ms for r in records], compression)
