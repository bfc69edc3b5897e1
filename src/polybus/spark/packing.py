"""Arrow batches from Spark as encoded chunks, cut to the size of a chunk.

Invariant: rows keep their order within a topic; no value is turned into a Python object on the way.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from polybus.errors import ConfigError
from polybus.model.arrow import from_columns
from polybus.model.chunk import MAX_BYTES, MAX_RECORDS

HEADERS: Final = pa.map_(pa.string(), pa.string())


def by_topic(batch: pa.RecordBatch, topic: str) -> Iterator[tuple[str, pa.RecordBatch]]:
    """All rows under the topic that was named, or those of each topic in the column `topic`.

    Raises:
        ConfigError: a row has no topic.
    """
    if topic:
        yield topic, batch
        return
    topics = batch.column("topic")
    if topics.null_count:
        raise ConfigError("column topic: it is null in a row, and option topic names none for all")
    for name in pc.unique(topics):
        yield name.as_py(), batch.filter(pc.equal(topics, name))


def chunks_of(batch: pa.RecordBatch) -> Iterator[bytes]:
    """Chunks of at most `MAX_RECORDS` records, and of about `MAX_BYTES` of payload where there are several."""
    columns = {name: batch.column(name) for name in batch.schema.names}
    payload = _clean(columns["payload"], pa.binary())
    key = _clean(columns["key"], pa.binary()) if "key" in columns else None
    tag = _clean(columns["tag"], pa.string()) if "tag" in columns else None
    headers = columns["headers"].cast(HEADERS) if "headers" in columns else None
    times = _times(columns["timestamp"]) if "timestamp" in columns else None
    start = 0
    while start < batch.num_rows:
        rows = _rows_in(payload, start)
        yield from_columns(
            payload.slice(start, rows),
            times.slice(start, rows) if times is not None else None,
            key.slice(start, rows) if key is not None else None,
            tag.slice(start, rows) if tag is not None else None,
            headers.slice(start, rows) if headers is not None else None,
        )
        start += rows


def _clean(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if column.type != kind:
        column = column.cast(kind)
    return pc.fill_null(column, b"" if kind == pa.binary() else "") if column.null_count else column


def _times(column: pa.Array) -> pa.Array:
    times = pc.fill_null(column.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()), 0)
    return pc.cumulative_max(times)  # the times of a topic never fall


def _rows_in(payload: pa.Array, start: int) -> int:
    """How many rows from `start` on fill a chunk."""
    most = min(len(payload) - start, MAX_RECORDS)
    ends: memoryview[int] = memoryview(payload.buffers()[1]).cast("B").cast("i")
    begin = int(payload.offset) + start
    full = bisect_right(ends, ends[begin] + MAX_BYTES, begin, begin + most + 1)
    return max(full - begin - 1, 1)
