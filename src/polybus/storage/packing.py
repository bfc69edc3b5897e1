"""Packing: chunks of good size out of what a topic holds in memory or in small chunks.

Invariant: the records come out in order, at the offsets and times they had.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from polybus.errors import CorruptRecord
from polybus.model.chunk import (
    MAX_BYTES,
    MAX_RECORDS,
    ZLIB,
    ChunkView,
    encode_chunk,
    join_chunks,
    parse_chunk,
)
from polybus.model.record import Record
from polybus.storage.files import Files
from polybus.storage.gathering import gather
from polybus.storage.reader import read_part
from polybus.storage.topic_log import Tail

log = logging.getLogger("polybus.storage")
LARGE_RECORDS: Final = 1024  # a chunk of this many records or bytes is copied as it is
LARGE_BYTES: Final = 256 << 10


def pack_items(
    files: Files,
    tail: Tail,
    compression: str,
    on_staged: Callable[[Path], None] | None = None,
) -> Iterator[ChunkView]:
    """Chunks of good size out of the tail's items.

    A staged chunk that was taken in is told to `on_staged`. One that is damaged or gone leaves a gap and is logged:
    readers will be told of the gap, and everybody else goes on.
    """
    small: list[ChunkView] = []
    count = size = 0
    for view in _views(files, tail, on_staged):
        large = is_large(view)
        if small and (
            large
            or view.header.base != small[-1].header.end
            or count + view.header.count > MAX_RECORDS
            or size + view.header.length > MAX_BYTES
        ):
            yield _compressed(_joined(small), compression)
            small, count, size = [], 0, 0
        if large:
            yield _compressed(view, compression)
            continue
        small.append(view)
        count += view.header.count
        size += view.header.length
    if small:
        yield _compressed(_joined(small), compression)


def is_large(view: ChunkView) -> bool:
    """Whether merging a chunk with its neighbours would gain nothing."""
    return view.header.count >= LARGE_RECORDS or view.header.length >= LARGE_BYTES


def _views(
    files: Files, tail: Tail, on_staged: Callable[[Path], None] | None
) -> Iterator[ChunkView]:
    """Every item as a chunk, neighbouring records as few."""
    for item in gather(tail):
        if isinstance(item, ChunkView):
            yield item
            continue
        try:
            yield read_part(files, item)
        except (CorruptRecord, FileNotFoundError) as exc:
            log.error("offsets %d to %d are lost: %s", item.base, item.end - 1, exc)
            continue
        if on_staged is not None:
            on_staged(item.path)


def _joined(views: Sequence[ChunkView]) -> ChunkView:
    if len(views) == 1:
        return views[0]
    flags = {view.header.flags for view in views}
    if len(flags) == 1 and not flags.pop() & ZLIB:
        return parse_chunk(join_chunks(views), verify=False)
    return _pack(views[0].header.base, [record for view in views for record in view], "none")


def _compressed(view: ChunkView, compression: str) -> ChunkView:
    if compression == "none":
        return view
    return _pack(view.header.base, view.records(), compression)


def _pack(base: int, records: Sequence[Record], compression: str) -> ChunkView:
    return parse_chunk(encode_chunk(base, records, compression=compression), verify=False)
