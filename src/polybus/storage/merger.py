"""The merger: rewrites a segment of many small chunks as one of few large ones.

Invariant: the old file stays until a checkpoint knows the new one; offsets, times and contents are the same in both.
"""

from __future__ import annotations

from typing import Final

from polybus.storage.files import Files
from polybus.storage.packing import LARGE_BYTES, LARGE_RECORDS, pack_items
from polybus.storage.segment import (
    SEGMENT_HEADER_BYTES,
    ChunkIndex,
    Segment,
    encode_segment_header,
    load_index,
    read_chunk,
    segment_name,
)
from polybus.storage.topic_log import Item, Tail, TopicLog

MANY_CHUNKS: Final = 64  # below this, reading the small ones costs nothing worth a rewrite


def is_ragged(segment: Segment) -> bool:
    """Whether merging pays: many chunks, small on average in bytes and in records.

    A merged segment has a high average, so that it takes many more small chunks before it is rewritten again.
    """
    return (
        segment.chunks >= MANY_CHUNKS
        and segment.length < segment.chunks * LARGE_BYTES // 4
        and segment.end - segment.base < segment.chunks * LARGE_RECORDS // 4
    )


def merge_segment(files: Files, topic: TopicLog, segment: Segment) -> Segment:
    """Write the merged twin of a segment, synced, and return it; runs in the mover's thread.

    Raises:
        CorruptRecord: the segment is damaged; it stays as it is.
    """
    if segment.index is None:
        segment.index = load_index(files, segment, segment.length)
    views: list[Item] = [
        read_chunk(files, segment, number) for number in range(len(segment.index.bases))
    ]
    times_ms = [last_us // 1000 for last_us in segment.index.last_us]
    generation = segment.generation + 1
    path = segment.path.with_name(segment_name(segment.base, generation))
    twin = Segment(path, segment.base, generation, segment.end)
    twin.first_ms, twin.last_ms, twin.index = segment.first_ms, segment.last_ms, ChunkIndex()
    file = files.open(path, create=True)
    try:
        file.write(0, [encode_segment_header(topic.id, generation, segment.base)])
        position = SEGMENT_HEADER_BYTES
        chunks = Tail(segment.base, times_ms, views)
        for view in pack_items(files, chunks, topic.options.compression):
            file.write(position, [view.head, view.body])
            twin.index.add(view.header.base, position, view.header.length, view.header.last_us)
            twin.last_position, twin.chunks = position, twin.chunks + 1
            position += view.header.length
        twin.length = position
        file.sync()
        files.sync_folder(path.parent)
    finally:
        file.close()
    return twin
