"""Gathering: the tail's single records and short runs as chunks of good size.

Invariant: the records come out in order, at the offsets and times they had. With a thousand topics the mover sees
every record here, so what is done for each is compiled (`gathering.pxd`).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from polybus.model.chunk import (
    MAX_BYTES,
    MAX_RECORDS,
    ChunkView,
    encode_chunk,
    encode_open,
    parse_chunk,
)
from polybus.model.ends import ends_of
from polybus.model.record import NewRecord
from polybus.storage.topic_log import Item, Run, StagedPart, Tail


def gather(tail: Tail, max_bytes: int = MAX_BYTES) -> Iterator[ChunkView | StagedPart]:
    """The items in order, single records and runs as chunks of good size; of `max_bytes`, if that is less."""
    limit = min(max_bytes, MAX_BYTES)
    base, times_ms, items = tail
    at = 0
    while at < len(items):
        item = items[at]
        if isinstance(item, (ChunkView, StagedPart)):
            yield item
            base, at = item.end, at + 1
            continue
        stop = group_end(items, at, limit)
        view = encode_group(base, times_ms[at:stop], items[at:stop])
        yield view
        base, at = view.header.end, stop


def group_end(items: list[Item], start: int, limit: int) -> int:
    """Where the singles and runs end that, from `start` on, make one chunk of up to `limit` bytes."""
    count = size = 0
    for at in range(start, len(items)):
        item = items[at]
        if isinstance(item, bytes):
            more = 1
            more_bytes = len(item)
        elif isinstance(item, Run):
            more = len(item.payloads)
            more_bytes = item.size
        elif isinstance(item, NewRecord):
            more = 1
            more_bytes = len(item.payload)
        else:
            return at
        count += more
        size += more_bytes
        if at > start and (count > MAX_RECORDS or size > limit):
            return at
    return len(items)


def encode_group(base: int, times_ms: list[int], items: list[Item]) -> ChunkView:
    """A chunk of singles and runs."""
    payloads: list[bytes] = []
    for item in items:
        if isinstance(item, bytes):
            payloads.append(item)
        elif isinstance(item, Run):
            payloads += item.payloads
        else:
            return _encode_records(base, times_ms, items)
    times_us = array("q", bytes(8 * len(payloads)))
    view = memoryview(times_us)
    at = 0
    for number in range(len(items)):
        item = items[number]
        time_us = times_ms[number] * 1000
        for _ in range(len(item.payloads) if isinstance(item, Run) else 1):
            view[at] = time_us
            at += 1
    return encode_open(base, times_us, ends_of(payloads), payloads)


def _encode_records(base: int, times_ms: list[int], items: list[Item]) -> ChunkView:
    records: list[NewRecord] = []
    times: list[int] = []
    for time_ms, item in zip(times_ms, items, strict=True):
        first = len(records)
        if isinstance(item, NewRecord):
            records.append(item)
        elif isinstance(item, Run):
            records += map(NewRecord, item.payloads)
        elif isinstance(item, bytes):
            records.append(NewRecord(item))
        times += [time_ms] * (len(records) - first)
    return parse_chunk(encode_chunk(base, records, times), verify=False)
