"""Chunks as Arrow record batches, in the schema that Spark sees (DESIGN 7).

Invariant: times and payloads, keys, tags and headers are views on the chunk's bytes; a record
without key, tag or headers has an empty one, never null, whatever else is in its chunk. Imported
only when Arrow is asked for.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from polybus.model.chunk import MAX_RECORDS

if TYPE_CHECKING:
    from polybus.model.chunk import ChunkView

SCHEMA: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("key", pa.binary()),
        ("tag", pa.string()),
        ("headers", pa.map_(pa.string(), pa.string())),
        ("payload", pa.binary()),
    ]
)
_COUNTING: Final = pa.array(array("q", range(MAX_RECORDS)))
_ZEROS: Final = pa.py_buffer(bytes(8 * (MAX_RECORDS + 1)))


def to_batch(view: ChunkView, topic: str) -> pa.RecordBatch:
    """All records of a chunk."""
    count = view.header.count
    body = pa.py_buffer(view.body)
    zeros = _ZEROS if count <= MAX_RECORDS else pa.py_buffer(bytes(8 * (count + 1)))
    counting = _COUNTING[:count] if count <= MAX_RECORDS else pa.array(array("q", range(count)))
    columns = view.arrow_columns()

    def texts(name: str, kind: pa.DataType, length: int) -> pa.Array:
        if name not in columns:
            return pa.Array.from_buffers(kind, length, [None, zeros, zeros])
        ends, begin, size = columns[name]
        return pa.Array.from_buffers(
            kind, length, [None, body.slice(ends), body.slice(begin, size)]
        )

    ends = body.slice(columns["payload"][0])
    payload = pa.py_buffer(view.payload_view())
    if "pairs" in columns:
        pairs = view.header.pairs
        pair_ends = pa.Array.from_buffers(
            pa.int32(), count + 1, [None, body.slice(columns["pairs"][0])]
        )
        names, values = texts("name", pa.string(), pairs), texts("value", pa.string(), pairs)
        headers = pa.MapArray.from_arrays(pair_ends, names, values)
    else:
        nothing = pa.array([], pa.string())
        no_ends = pa.Array.from_buffers(pa.int32(), count + 1, [None, zeros])
        headers = pa.MapArray.from_arrays(no_ends, nothing, nothing)
    return pa.RecordBatch.from_arrays(
        [
            pa.repeat(pa.scalar(topic, pa.string()), count),
            pa.Array.from_buffers(pa.int32(), count, [None, zeros]),
            pc.add(counting, view.header.base),
            pa.Array.from_buffers(SCHEMA.field("timestamp").type, count, [None, body]),
            texts("key", pa.binary(), count),
            texts("tag", pa.string(), count),
            headers,
            pa.Array.from_buffers(pa.binary(), count, [None, ends, payload]),
        ],
        schema=SCHEMA,
    )
