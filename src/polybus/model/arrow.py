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

from polybus.model.chunk import HEADERS, KEYS, MAX_RECORDS, TAGS, seal

if TYPE_CHECKING:
    from polybus.model.chunk import ChunkView

SCHEMA: Final = pa.schema(
    [
        pa.field(name, kind, nullable=False)
        for name, kind in (
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("us", tz="UTC")),
            ("key", pa.binary()),
            ("tag", pa.string()),
            ("headers", pa.map_(pa.string(), pa.string())),
            ("payload", pa.binary()),
        )
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


def from_columns(
    payload: pa.Array,
    times: pa.Array | None = None,
    key: pa.Array | None = None,
    tag: pa.Array | None = None,
    headers: pa.Array | None = None,
) -> bytes:
    """A chunk at offset 0 of Arrow columns without nulls, as bulk writers stage it; a column that is None is absent.

    Without `times` (int64, microseconds, never falling) the node gives the time of publication.
    """
    count = len(payload)
    if times is None:
        parts: list[bytes | memoryview] = [bytes(8 * count)]
        first = last = 0
    else:
        parts = [_bytes_of(times)]
        first, last = times[0].as_py(), times[count - 1].as_py()
    ends, plain = _split(payload)
    parts.append(ends)
    flags = key_bytes = tag_bytes = pairs = name_bytes = value_bytes = 0
    if key is not None:
        flags |= KEYS
        key_bytes = _put(parts, key)
    if tag is not None:
        flags |= TAGS
        tag_bytes = _put(parts, tag)
    if headers is not None:
        flags |= HEADERS
        bounds = headers.offsets
        begin, pairs = bounds[0].as_py(), bounds[count].as_py() - bounds[0].as_py()
        parts.append(_padded(_bytes_of(pc.subtract(bounds, bounds[0]))))
        name_bytes = _put(parts, headers.keys.slice(begin, pairs))
        value_bytes = _put(parts, pc.fill_null(headers.items.slice(begin, pairs), ""))
    parts.append(_padded(plain))
    sizes = (
        *(len(plain), len(plain), key_bytes, tag_bytes),
        *(pairs, name_bytes, value_bytes, 0),
    )
    return seal(flags, 0, first, last, count, sizes, b"".join(parts))


def _put(parts: list[bytes | memoryview], column: pa.Array) -> int:
    ends, values = _split(column)
    parts += (ends, _padded(values))
    return len(values)


def _split(column: pa.Array) -> tuple[bytes, memoryview]:
    """The ends of a text or binary column, from 0 on and padded, and its bytes."""
    _, ends, values = column.buffers()
    bounds = pa.Array.from_buffers(pa.int32(), len(column) + 1, [None, ends], offset=column.offset)
    first, last = bounds[0].as_py(), bounds[len(column)].as_py()
    whole = memoryview(values)[first:last] if values is not None else memoryview(b"")
    return _padded(_bytes_of(pc.subtract(bounds, bounds[0]))), whole


def _bytes_of(numbers: pa.Array) -> memoryview:
    width = numbers.type.bit_width // 8
    start = numbers.offset * width
    return memoryview(numbers.buffers()[1])[start : start + len(numbers) * width]


def _padded(values: memoryview) -> bytes:
    return bytes(values) + bytes(-len(values) % 8)
