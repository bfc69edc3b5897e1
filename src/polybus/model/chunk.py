"""Chunks: a run of records as columns, the unit in which a topic is stored, read over the network and handed to Spark.

Invariant: every byte of a chunk is under one of its two checksums, and the columns lie as Arrow
wants them, so that an Arrow array is a view. Only the standard library is needed, since Spark's
executors have no more; pyarrow is imported when `to_arrow` is called, msgspec for records.

    header, 80 bytes, little endian                     body, every column padded to 8 bytes
     0 magic "PBCK"      40 count             u32        times         int64[count], microseconds
     4 version        u8 44 body bytes        u32        payload ends  int32[count + 1]
     5 flags          u8 48 payload, stored   u32        key ends      int32[count + 1], key bytes     (flag 2)
     6 header bytes  u16 52 payload, plain    u32        tag ends      int32[count + 1], tag bytes     (flag 4)
     8 header crc    u32 56 key bytes         u32        pair ends     int32[count + 1]                (flag 8)
    12 body crc      u32 60 tag bytes         u32          name ends   int32[pairs + 1], name bytes
    16 base offset   u64 64 pairs             u32          value ends  int32[pairs + 1], value bytes
    24 first time    i64 68 header name bytes u32        id ends       int32[count + 1], id bytes      (flag 16)
    32 last time     i64 72 header value b.   u32        payload bytes, zlib if flag 1
                         76 id bytes          u32

The header checksum covers the header without itself. Ends are cumulative and begin with 0. Times
never decrease, so the first and the last are also the smallest and the largest.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any, Final

from polybus.errors import CorruptRecord
from polybus.model.checksum import crc32
from polybus.model.cutting import cut, cut_headers, milliseconds
from polybus.model.ends import ZERO, ends_of, repeated, shifted
from polybus.model.message import NO_HEADERS

if TYPE_CHECKING:
    import pyarrow as pa

    from polybus.model.record import NewRecord, Record

MAGIC: Final = b"PBCK"
VERSION: Final = 1
HEADER_BYTES: Final = 80
PLAIN_OVERHEAD: Final = 12  # what a record takes beside its payload: a time and an end
# A batch that Arrow and Spark like, and small enough to decode for one record
MAX_RECORDS: Final = 4096
MAX_BYTES: Final = (
    1 << 20
)  # a chunk ends once it is this large; one larger record makes a chunk alone

ZLIB, KEYS, TAGS, HEADERS, IDS = 1, 2, 4, 8, 16
_HEADER: Final = struct.Struct("<4sBBHIIQqqIIIIIIIIII")
_CHECKED: Final = struct.Struct("<IQqqIIIIIIIIII")
_PADDING: Final = (b"", b"\0" * 7, b"\0" * 6, b"\0" * 5, b"\0" * 4, b"\0" * 3, b"\0" * 2, b"\0")

# Records with the same headers from which on it pays not to count them one by one
LONG_RUN: Final = 8

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class ChunkHeader:
    """The fixed part of a chunk; times are in microseconds."""

    flags: int
    body_crc: int
    base: int
    first_us: int
    last_us: int
    count: int
    body_bytes: int
    payload_stored: int
    payload_plain: int
    key_bytes: int
    tag_bytes: int
    pairs: int
    name_bytes: int
    value_bytes: int
    id_bytes: int

    @property
    def end(self) -> int:
        """The offset after the last record."""
        return self.base + self.count

    @property
    def length(self) -> int:
        """All bytes of the chunk."""
        return HEADER_BYTES + self.body_bytes

    def fields(self, body_crc: int = 0) -> tuple[int, ...]:
        """What stands in the header behind its own checksum."""
        return (
            *(body_crc, self.base, self.first_us, self.last_us, self.count, self.body_bytes),
            *(self.payload_stored, self.payload_plain, self.key_bytes, self.tag_bytes),
            *(self.pairs, self.name_bytes, self.value_bytes, self.id_bytes),
        )


# -- encoding --------------------------------------------------------------------------------------


def encode_chunk(
    base: int,
    records: Sequence[NewRecord | Record],
    times_ms: Sequence[int] | None = None,
    *,
    compression: str = "none",
) -> bytes:
    """One chunk of `records`, at offsets from `base` on; `times_ms` stands in for the records' own times."""
    if times_ms is None:
        times_ms = [record.time_ms for record in records]
    keys = [record.key for record in records]
    tags = [record.tag for record in records]
    headers = [record.headers for record in records]
    ids = [record.id for record in records]
    return encode_columns(
        base,
        array("q", [time * 1000 for time in times_ms]),
        [record.payload for record in records],
        keys if any(keys) else None,
        [tag.encode() for tag in tags] if any(tags) else None,
        headers if any(headers) else None,
        [id_.encode() for id_ in ids] if any(ids) else None,
        compression=compression,
    )


def encode_columns(
    base: int,
    times_us: array[int],
    payloads: Sequence[bytes],
    keys: Sequence[bytes] | None = None,
    tags: Sequence[bytes] | None = None,
    headers: Sequence[Mapping[str, str]] | None = None,
    ids: Sequence[bytes] | None = None,
    *,
    compression: str = "none",
) -> bytes:
    """One chunk of ready columns; a column that nobody uses is None and costs nothing."""
    flags = 0
    parts: list[Any] = [times_us]
    payload_ends = ends_of(payloads)
    plain = payload_ends[-1]
    _put_ends(parts, payload_ends)
    key_bytes = tag_bytes = id_bytes = pairs = name_bytes = value_bytes = 0
    if keys is not None:
        flags |= KEYS
        key_bytes = _put_column(parts, keys)
    if tags is not None:
        flags |= TAGS
        tag_bytes = _put_column(parts, tags)
    if headers is not None:
        flags |= HEADERS
        pair_ends = ends_of(headers)
        pairs = pair_ends[-1]
        _put_ends(parts, pair_ends)
        name_bytes, value_bytes = _put_pairs(parts, headers)
    if ids is not None:
        flags |= IDS
        id_bytes = _put_column(parts, ids)
    stored = plain
    if compression == "zlib":
        packed = zlib.compress(b"".join(payloads), 1)
        if len(packed) < plain:
            flags |= ZLIB
            stored = len(packed)
            payloads = (packed,)
    parts += payloads
    parts.append(_PADDING[stored % 8])
    first, last = (times_us[0], times_us[-1]) if len(times_us) else (0, 0)
    sizes = (stored, plain, key_bytes, tag_bytes, pairs, name_bytes, value_bytes, id_bytes)
    return seal(flags, base, first, last, len(payload_ends) - 1, sizes, b"".join(parts))


def open_parts(
    base: int, times_us: array[int], ends: array[int], payloads: Sequence[bytes]
) -> list[bytes]:
    """The pieces of a chunk of plain payloads, its checksums left open.

    For who keeps it under a checksum of his own. Pieces, since most of them are there already.

    Args:
        ends: of the payloads (`model.ends`).
        payloads: their bytes, which may be cut elsewhere.
    """
    count = len(ends) - 1
    plain = ends[-1]
    body_bytes = count * 8 + (count + 2) // 2 * 8 + _up(plain)
    head = _HEADER.pack(
        *(MAGIC, VERSION, 0, HEADER_BYTES, 0, 0, base, times_us[0], times_us[-1]),
        *(count, body_bytes, plain, plain, 0, 0, 0, 0, 0, 0),
    )
    parts = [head, times_us.tobytes(), ends.tobytes()]
    _pad_ends(parts, count)
    parts += payloads
    parts.append(_PADDING[plain % 8])
    return parts


def encode_open(
    base: int, times_us: array[int], ends: array[int], payloads: Sequence[bytes]
) -> ChunkView:
    """The same as one, its checksums computed when somebody asks for its `head` or `raw`."""
    return parse_open(b"".join(open_parts(base, times_us, ends, payloads)))


def join_chunks(views: Sequence[ChunkView]) -> bytes:
    """Neighbouring chunks that have the same columns, and no compression, as one: column by column."""
    flags = views[0].header.flags
    parts: list[Any] = [view.times for view in views]
    plain = _put_joined_ends(parts, [view.payload_ends for view in views])
    key_bytes = _put_joined(parts, views, 1) if flags & KEYS else 0
    tag_bytes = _put_joined(parts, views, 2) if flags & TAGS else 0
    pairs = name_bytes = value_bytes = 0
    if flags & HEADERS:
        pairs = _put_joined_ends(parts, [view.column(3)[0] for view in views])
        name_bytes = _put_joined(parts, views, 4)
        value_bytes = _put_joined(parts, views, 5)
    id_bytes = _put_joined(parts, views, 6) if flags & IDS else 0
    parts += [view.payload_view() for view in views]
    parts.append(_PADDING[plain % 8])
    first, last = views[0].header.first_us, views[-1].header.last_us
    sizes = (plain, plain, key_bytes, tag_bytes, pairs, name_bytes, value_bytes, id_bytes)
    base, count = views[0].header.base, sum(view.header.count for view in views)
    return seal(flags, base, first, last, count, sizes, b"".join(parts))


def parse_open(buf: Buffer) -> ChunkView:
    """A chunk whose checksums were left open; the caller answers for its bytes.

    Raises:
        CorruptRecord: it does not look like one.
    """
    header = _parse_fields(buf, "chunk", 0)
    if len(buf) < header.length:
        raise CorruptRecord("chunk", 0, f"{len(buf)} of {header.length} bytes are there")
    return ChunkView(buf, header, sealed=False)


def seal(
    flags: int,
    base: int,
    first_us: int,
    last_us: int,
    count: int,
    sizes: tuple[int, ...],
    body: Buffer,
) -> bytes:
    """Put the header and its checksums before a body whose columns are laid out already."""
    fields = (crc32(body), base, first_us, last_us, count, len(body), *sizes)
    return b"".join((_head(flags, fields), body))


def _head(flags: int, fields: tuple[int, ...]) -> bytes:
    start = struct.pack("<4sBBH", MAGIC, VERSION, flags, HEADER_BYTES)
    checked = _CHECKED.pack(*fields)
    crc = crc32(checked, crc32(start))
    return b"".join((start, crc.to_bytes(4, "little"), checked))


def _open_head(header: ChunkHeader) -> bytes:
    start = struct.pack("<4sBBHI", MAGIC, VERSION, header.flags, HEADER_BYTES, 0)
    return start + _CHECKED.pack(*header.fields())


def _sizes(ends: memoryview) -> bytes:
    """What lies between ends, four bytes each: all in one subtraction, since most are only compared."""
    count = len(ends) - 1
    whole = int.from_bytes(bytes(ends), "little")
    mask = (1 << 32 * count) - 1
    return ((whole >> 32) - (whole & mask) & mask).to_bytes(4 * count, "little")


def _put_pairs(parts: list[Any], headers: Sequence[Mapping[str, str]]) -> tuple[int, int]:
    """Names and values of all headers; those that neighbours share are encoded once."""
    runs: list[tuple[Mapping[str, str], int]] = []
    for _, group in groupby(headers, id):
        same = list(group)
        runs.append((same[0], len(same)))
    names = [([name.encode() for name in each], times) for each, times in runs]
    values = [([value.encode() for value in each.values()], times) for each, times in runs]
    return _put_runs(parts, names), _put_runs(parts, values)


def _put_runs(parts: list[Any], runs: Sequence[tuple[list[bytes], int]]) -> int:
    """A column in which some values come several times in a row."""
    if all(times < LONG_RUN for _, times in runs):
        return _put_column(parts, [value for values, times in runs for value in values * times])
    blobs: list[bytes] = []
    total = count = 0
    parts.append(ZERO)
    for values, times in runs:
        blob = b"".join(values) * times
        parts.append(shifted(repeated(map(len, values), times), total))
        blobs.append(blob)
        total += len(blob)
        count += len(values) * times
    _pad_ends(parts, count)
    parts += blobs
    parts.append(_PADDING[total % 8])
    return total


def _put_ends(parts: list[Any], ends: array[int]) -> None:
    parts.append(ends)
    _pad_ends(parts, len(ends) - 1)


def _pad_ends(parts: list[Any], count: int) -> None:
    if count % 2 == 0:  # with the zero before them they are an odd number of four bytes each
        parts.append(ZERO)


def _put_joined_ends(parts: list[Any], columns: Sequence[memoryview]) -> int:
    total = count = 0
    parts.append(ZERO)
    for ends in columns:
        parts.append(shifted(ends[1:].cast("B"), total))
        total += ends[-1]
        count += len(ends) - 1
    _pad_ends(parts, count)
    return total


def _put_joined(parts: list[Any], views: Sequence[ChunkView], number: int) -> int:
    columns = [view.column(number) for view in views]
    total = _put_joined_ends(parts, [ends for ends, _ in columns])
    parts += [raw for _, raw in columns]
    parts.append(_PADDING[total % 8])
    return total


def _put_column(parts: list[Any], values: Sequence[bytes]) -> int:
    ends = ends_of(values)
    _put_ends(parts, ends)
    parts += values
    parts.append(_PADDING[ends[-1] % 8])
    return ends[-1]


# -- parsing ---------------------------------------------------------------------------------------


def parse_header(buf: Buffer, source: str = "chunk", position: int = 0) -> ChunkHeader:
    """The header of the chunk that begins at `buf[0]`, checked by its own checksum.

    Raises:
        CorruptRecord: naming `source` and `position`.
    """
    header = _parse_fields(buf, source, position)
    crc = int.from_bytes(buf[8:12], "little")
    if crc != crc32(buf[12:HEADER_BYTES], crc32(buf[:8])):
        raise CorruptRecord(source, position, "the header's checksum does not match")
    return header


def _parse_fields(buf: Buffer, source: str, position: int) -> ChunkHeader:
    if len(buf) < HEADER_BYTES:
        raise CorruptRecord(source, position, f"{len(buf)} bytes are no chunk header")
    magic, version, flags, size, _, *rest = _HEADER.unpack_from(buf)
    if magic != MAGIC:
        raise CorruptRecord(source, position, "no chunk begins here")
    if version != VERSION or size != HEADER_BYTES:
        raise CorruptRecord(source, position, f"chunk version {version} is not known")
    header = ChunkHeader(flags, *rest)
    if _layout(header)[-1] != header.body_bytes:
        raise CorruptRecord(source, position, "the columns do not add up to the body")
    return header


def parse_chunk(
    buf: Buffer, source: str = "chunk", position: int = 0, *, verify: bool = True
) -> ChunkView:
    """A view on the chunk that begins at `buf[0]`; what follows it is ignored.

    Raises:
        CorruptRecord: a checksum does not match, or the bytes end too early.
    """
    header = parse_header(buf, source, position)
    if len(buf) < header.length:
        raise CorruptRecord(source, position, f"{len(buf)} of {header.length} bytes are there")
    if verify and crc32(memoryview(buf)[HEADER_BYTES : header.length]) != header.body_crc:
        raise CorruptRecord(source, position, "the body's checksum does not match")
    return ChunkView(buf, header)


def _layout(h: ChunkHeader) -> tuple[int, ...]:
    """Where in the body each column begins; absent ones have no room. The last is the body's end."""
    ends = (h.count + 2) // 2 * 8
    pair_ends = (h.pairs + 2) // 2 * 8
    keys = h.count * 8 + ends
    tags = keys + (ends + _up(h.key_bytes) if h.flags & KEYS else 0)
    pairs = tags + (ends + _up(h.tag_bytes) if h.flags & TAGS else 0)
    if h.flags & HEADERS:
        names = pairs + ends
        values = names + pair_ends + _up(h.name_bytes)
        ids = values + pair_ends + _up(h.value_bytes)
    else:
        names = values = ids = pairs
    payload = ids + (ends + _up(h.id_bytes) if h.flags & IDS else 0)
    return (
        h.count * 8,
        keys,
        tags,
        pairs,
        names,
        values,
        ids,
        payload,
        payload + _up(h.payload_stored),
    )


def _up(size: int) -> int:
    return (size + 7) & ~7


class ChunkView:
    """A parsed chunk: columns as views, records made when asked for."""

    __slots__ = (
        "_at",
        "_blob",
        "_head",
        "_shift",
        "body",
        "buf",
        "header",
        "payload_ends",
        "sealed",
        "times",
    )

    def __init__(self, buf: Buffer, header: ChunkHeader, *, sealed: bool = True) -> None:
        self.sealed = sealed
        self._head: Buffer | None = None
        self.buf = buf
        self.header = header
        self.body = memoryview(buf)[HEADER_BYTES : header.length]
        self._at = _layout(header)
        self.times = self.body[: header.count * 8].cast("q")
        self.payload_ends = self._ends_at(self._at[0], header.count)
        self._blob: bytes | None = None
        self._shift = 0

    base = property(lambda self: self.header.base)
    count = property(lambda self: self.header.count)
    end = property(lambda self: self.header.end)

    @property
    def head(self) -> Buffer:
        """The header's bytes with both checksums; with `body` behind it, this is the chunk."""
        if self._head is None:
            if self.sealed:
                self._head = memoryview(self.buf)[:HEADER_BYTES]
            else:
                fields = self.header.fields(crc32(self.body))
                self._head = _head(self.header.flags, fields)
        return self._head

    @property
    def raw(self) -> bytes | memoryview:
        """The chunk's own bytes, without what follows."""
        if self.sealed:
            return memoryview(self.buf)[: self.header.length]
        return b"".join((self.head, self.body))

    def __len__(self) -> int:
        return self.header.count

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records())

    def _ends_at(self, position: int, count: int) -> memoryview:
        return self.body[position : position + 4 * (count + 1)].cast("i")

    def _column(self, position: int, count: int) -> tuple[memoryview, int]:
        """Ends of the column at `position` and where its bytes begin in the body."""
        return self._ends_at(position, count), position + (count + 2) // 2 * 8

    def column(self, number: int) -> tuple[memoryview, memoryview]:
        """A column by its number in `_layout`: its ends and its bytes, which that of pairs has none of."""
        count = self.header.pairs if number in (4, 5) else self.header.count
        ends, begin = self._column(self._at[number], count)
        return ends, self.body[begin : begin + (0 if number == 3 else ends[-1])]

    def _values(self, position: int, start: int, stop: int) -> list[bytes]:
        ends, begin = self._column(position, self.header.count)
        ends = ends[start : stop + 1]
        if isinstance(self.buf, bytes):
            return cut(self.buf, HEADER_BYTES + begin, ends)
        first = ends[0]
        return cut(bytes(self.body[begin + first : begin + ends[-1]]), -first, ends)

    def _plain(self) -> tuple[bytes, int]:
        """The uncompressed payload bytes as part of a bytes object, and where they begin in it."""
        if self._blob is None:
            begin, h = self._at[7], self.header
            stored = self.body[begin : begin + h.payload_stored]
            if h.flags & ZLIB:
                # A stored length that lies must not unpack without bound.
                unpacker = zlib.decompressobj()
                self._blob = unpacker.decompress(stored, h.payload_plain + 1)
            elif isinstance(self.buf, bytes):
                self._blob, self._shift = self.buf, HEADER_BYTES + begin
            else:
                self._blob = bytes(stored)
        return self._blob, self._shift

    def payload_view(self) -> memoryview:
        """All payload bytes, uncompressed, one after the other."""
        if not self.header.flags & ZLIB:
            begin = self._at[7]
            return self.body[begin : begin + self.header.payload_plain]
        blob, shift = self._plain()
        return memoryview(blob)[shift : shift + self.header.payload_plain]

    def payloads(self, start: int = 0, stop: int | None = None) -> list[bytes]:
        """The payloads of records `start` to `stop` of this chunk."""
        stop = self.header.count if stop is None else stop
        blob, shift = self._plain()
        return cut(blob, shift, self.payload_ends[start : stop + 1])

    def keys(self, start: int, stop: int) -> list[bytes] | None:
        """Keys, or None when no record has one."""
        return self._values(self._at[1], start, stop) if self.header.flags & KEYS else None

    def tags(self, start: int, stop: int) -> list[bytes] | None:
        """Tags in UTF-8, or None when no record has one."""
        return self._values(self._at[2], start, stop) if self.header.flags & TAGS else None

    def ids(self, start: int, stop: int) -> list[bytes] | None:
        """Ids in UTF-8, or None when no record has one."""
        return self._values(self._at[6], start, stop) if self.header.flags & IDS else None

    def headers(self, start: int, stop: int) -> list[Mapping[str, str]] | None:
        """Headers, or None when no record has any."""
        if not self.header.flags & HEADERS:
            return None
        cuts = self._ends_at(self._at[3], self.header.count)[start : stop + 1]
        names = self._raw(self._at[4], cuts)
        return cut_headers(cuts, *names, *self._raw(self._at[5], cuts))

    def _raw(self, position: int, cuts: memoryview) -> tuple[bytes, bytes]:
        """Texts of a column of pairs, undecoded and joined, and all their sizes."""
        ends, begin = self._column(position, self.header.pairs)
        ends = ends[cuts[0] : cuts[-1] + 1]
        return bytes(self.body[begin + ends[0] : begin + ends[-1]]), _sizes(ends)

    def records(self, start: int = 0, stop: int | None = None) -> list[Record]:
        """Records `start` to `stop`, counted from the chunk's first."""
        # Executors that only need Arrow have no use for the record class and what it imports.
        from polybus.model.record import Record

        stop = self.header.count if stop is None else min(stop, self.header.count)
        if start >= stop:
            return []
        first = self.header.base + start
        times = milliseconds(self.times[start:stop])
        offsets = range(first, first + len(times))
        payloads = self.payloads(start, stop)
        if not self.header.flags & (KEYS | TAGS | HEADERS | IDS):
            return list(map(Record, offsets, times, payloads))
        keys = self.keys(start, stop) or [b""] * len(times)
        tags = [tag.decode() for tag in self.tags(start, stop) or ()] or [""] * len(times)
        headers = self.headers(start, stop) or [NO_HEADERS] * len(times)
        ids = [each.decode() for each in self.ids(start, stop) or ()] or [""] * len(times)
        return list(map(Record, offsets, times, payloads, keys, tags, headers, ids))

    def record(self, index: int) -> Record:
        """One record, counted from the chunk's first."""
        return self.records(index, index + 1)[0]

    def slice(self, start: int, end: int) -> list[Record]:
        """The records at offsets `start` to `end` that this chunk holds."""
        base = self.header.base
        return self.records(max(start - base, 0), max(min(end - base, self.header.count), 0))

    def time_index(self, time_ms: int) -> int:
        """The index of the first record at or after `time_ms`; `count` when there is none."""
        return bisect_left(self.times, time_ms * 1000)

    def rebased(self, base: int, times_us: array[int] | None = None) -> bytes:
        """The same records at other offsets, and at other times where given."""
        h = self.header
        sizes = h.fields()[6:]
        if times_us is None:
            return seal(h.flags, base, h.first_us, h.last_us, h.count, sizes, self.body)
        body = b"".join((times_us, self.body[h.count * 8 :]))
        return seal(h.flags, base, times_us[0], times_us[-1], h.count, sizes, body)

    def check(self, source: str = "chunk", position: int = 0) -> None:
        """Look at every column, for chunks that come from elsewhere: ends that lie would lead Arrow astray.

        Raises:
            CorruptRecord: ends that fall or do not fit, times that fall, text that is no UTF-8.
        """
        reason = self._fault()
        if reason:
            raise CorruptRecord(source, position, reason)

    def _fault(self) -> str:
        h = self.header
        columns = [("payload", self.payload_ends, h.payload_plain)]
        for flag, name, at, count, size in (
            (KEYS, "key", self._at[1], h.count, h.key_bytes),
            (TAGS, "tag", self._at[2], h.count, h.tag_bytes),
            (HEADERS, "header count", self._at[3], h.count, h.pairs),
            (HEADERS, "header name", self._at[4], h.pairs, h.name_bytes),
            (HEADERS, "header value", self._at[5], h.pairs, h.value_bytes),
            (IDS, "id", self._at[6], h.count, h.id_bytes),
        ):
            if h.flags & flag:
                columns.append((name, self._ends_at(at, count), size))
        for name, view, size in columns:
            ends = view.tolist()
            if ends[0] != 0 or ends[-1] != size or any(a > b for a, b in pairwise(ends)):
                return f"the ends of the {name} column do not fit its bytes"
        times = self.times.tolist()
        if not times or [h.first_us, h.last_us] != [times[0], times[-1]]:
            return "the times do not fit the header"
        if any(a > b for a, b in pairwise(times)):
            return "the times fall"
        try:
            if h.flags & ZLIB and len(self._plain()[0]) != h.payload_plain:
                return "the payload's length does not fit the header"
            self.headers(0, h.count)
            for texts in (self.tags(0, h.count), self.ids(0, h.count)):
                for text in texts or ():
                    text.decode()
        except (UnicodeDecodeError, ValueError, zlib.error) as exc:
            return str(exc)
        return ""

    # -- Arrow ----------------------------------------------------------------------------------------------------

    def to_arrow(
        self, topic: str, start: int | None = None, end: int | None = None
    ) -> pa.RecordBatch:
        """The records at offsets `start` to `end` as an Arrow batch whose large columns are views on this chunk."""
        from polybus.model.arrow import to_batch

        batch = to_batch(self, topic)
        low = 0 if start is None else max(start - self.header.base, 0)
        high = self.header.count if end is None else min(end - self.header.base, self.header.count)
        return batch.slice(low, max(high - low, 0))

    def arrow_columns(self) -> dict[str, tuple[int, int, int]]:
        """For each present column, where its ends and its bytes begin in the body, and how many bytes there are."""
        h, at = self.header, self._at
        found = {"payload": (at[0], at[7], h.payload_stored)}
        for flag, name, position, count, size in (
            (KEYS, "key", at[1], h.count, h.key_bytes),
            (TAGS, "tag", at[2], h.count, h.tag_bytes),
            (HEADERS, "name", at[4], h.pairs, h.name_bytes),
            (HEADERS, "value", at[5], h.pairs, h.value_bytes),
            (IDS, "id", at[6], h.count, h.id_bytes),
        ):
            if h.flags & flag:
                found[name] = (position, position + (count + 2) // 2 * 8, size)
        if h.flags & HEADERS:
            found["pairs"] = (at[3], 0, 0)
        return found
