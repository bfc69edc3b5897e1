"""Chunks: what goes in comes out, as records and as Arrow, and no damaged byte goes unnoticed."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
import zlib
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polybus.errors import CorruptRecord
from polybus.model.chunk import (
    HEADER_BYTES,
    ChunkView,
    encode_chunk,
    encode_columns,
    join_chunks,
    parse_chunk,
    parse_header,
)
from polybus.model.record import NewRecord, Record

texts = st.text(max_size=8).filter(lambda text: not any("\ud800" <= c <= "\udfff" for c in text))
new_records = st.builds(
    NewRecord,
    payload=st.binary(max_size=40),
    key=st.binary(max_size=5),
    tag=texts,
    headers=st.dictionaries(texts, texts, max_size=3),
    id=texts,
)


def as_records(base: int, records: list[NewRecord], times: list[int]) -> list[Record]:
    return [
        Record(base + n, time, r.payload, r.key, r.tag, r.headers, r.id)
        for n, (r, time) in enumerate(zip(records, times, strict=True))
    ]


@given(
    st.integers(0, 1 << 60),
    st.lists(st.tuples(new_records, st.integers(0, 1 << 42)), min_size=1, max_size=12),
    st.sampled_from(["none", "zlib"]),
)
def test_records_come_out_as_they_went_in(
    base: int, rows: list[tuple[NewRecord, int]], compression: str
):
    records, times = [row[0] for row in rows], sorted(row[1] for row in rows)
    chunk = encode_chunk(base, records, times, compression=compression)
    assert len(chunk) % 8 == 0
    expected = as_records(base, records, times)
    for buf in (chunk, memoryview(chunk), bytearray(chunk) + b"what follows"):
        view = parse_chunk(buf)
        view.check()
        assert list(view) == expected
        assert len(view) == view.count == len(records)
        assert (view.base, view.end, bytes(view.raw)) == (base, base + len(records), chunk)
        assert [view.record(n) for n in range(len(view))] == expected
        assert view.slice(base + 1, base + 3) == expected[1:3]


@given(
    st.lists(st.dictionaries(texts, texts, max_size=3), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 20)), min_size=1, max_size=4),
)
def test_headers_that_neighbours_share_come_out_as_others_do(
    kinds: list[dict[str, str]], runs: list[tuple[int, int]]
):
    headers = [kinds[kind % len(kinds)] for kind, times in runs for _ in range(times)]
    records = [NewRecord(b"x", headers=each) for each in headers]
    copies = [NewRecord(b"x", headers=dict(each)) for each in headers]
    chunk = encode_chunk(0, records)
    assert chunk == encode_chunk(0, copies)
    assert [dict(record.headers) for record in parse_chunk(chunk)] == headers


columns = st.sets(st.sampled_from(["key", "tag", "headers", "id"]))
RUN = NewRecord(b"", b"key", "tag", {"a": "1", "bc": "22"}, "id")


@given(columns, st.lists(st.lists(new_records, min_size=1, max_size=12), min_size=1, max_size=4))
def test_chunks_with_the_same_columns_are_joined_into_what_one_would_have_been(
    used: set[str], parts: list[list[NewRecord]]
):
    for part in parts:
        # The first of each part makes all its columns be there, with room for the others in them.
        part[:] = [
            NewRecord(r.payload, **{name: getattr(r, name) for name in used})
            for r in [RUN, *part, *[RUN] * 9]
        ]
    views, base = [], 7
    for part in parts:
        views.append(parse_chunk(encode_chunk(base, part)))
        base += len(part)
    whole = encode_chunk(7, [record for part in parts for record in part])
    assert join_chunks(views) == whole
    parse_chunk(whole).check()


@given(st.lists(new_records, min_size=1, max_size=12), st.sampled_from(["none", "zlib"]))
def test_arrow_sees_the_same_records(records: list[NewRecord], compression: str):
    times = list(range(1000, 1000 + len(records)))
    view = parse_chunk(encode_chunk(5, records, times, compression=compression))
    batch = view.to_arrow("a/b")
    batch.validate(full=True)
    rows = batch.to_pylist()
    assert [row["payload"] for row in rows] == [r.payload for r in records]
    assert [row["key"] for row in rows] == [r.key for r in records]
    assert [row["tag"] for row in rows] == [r.tag for r in records]
    assert [dict(row["headers"]) for row in rows] == [dict(r.headers) for r in records]
    assert [row["offset"] for row in rows] == list(range(5, 5 + len(records)))
    assert {(row["topic"], row["partition"]) for row in rows} == {("a/b", 0)}
    assert [row["timestamp"].timestamp() for row in rows] == [time / 1000 for time in times]


def test_arrow_columns_are_views_on_the_chunk():
    chunk = encode_chunk(0, [NewRecord(b"payload%d" % n, tag="t") for n in range(100)])
    batch = parse_chunk(chunk).to_arrow("t")
    import pyarrow as pa

    whole = pa.py_buffer(chunk)
    for name in ("timestamp", "tag", "payload"):
        for buffer in batch.column(name).buffers()[1:]:
            assert whole.address <= buffer.address < whole.address + whole.size


def test_arrow_cuts_to_offsets():
    view = parse_chunk(encode_chunk(10, [NewRecord(b"%d" % n) for n in range(10)]))
    assert view.to_arrow("t", 12, 15)["offset"].to_pylist() == [12, 13, 14]
    assert view.to_arrow("t", 0, 99).num_rows == 10
    assert view.to_arrow("t", 18).num_rows == 2
    assert view.to_arrow("t", 25).num_rows == 0


def test_arrow_takes_a_chunk_larger_than_usual():
    view = parse_chunk(encode_chunk(1 << 40, [NewRecord(b"")] * 5000))
    batch = view.to_arrow("t")
    batch.validate(full=True)
    assert batch["offset"][4999].as_py() == (1 << 40) + 4999


def test_columns_that_nobody_uses_cost_nothing():
    plain = len(encode_chunk(0, [NewRecord(b"x" * 8)] * 100))
    assert plain == HEADER_BYTES + 100 * 8 + 101 * 4 + 4 + 800
    assert len(encode_chunk(0, [NewRecord(b"x" * 8, tag="t")] * 100)) > plain


def test_compression_is_skipped_where_it_does_not_help():
    noise = random.Random(1).randbytes(500)
    assert parse_header(encode_chunk(0, [NewRecord(noise)], compression="zlib")).flags == 0
    assert parse_header(encode_chunk(0, [NewRecord(bytes(500))], compression="zlib")).flags == 1


def test_a_record_s_own_time_is_used_unless_another_is_given():
    records = [NewRecord(b"", time_ms=5), NewRecord(b"", time_ms=7)]
    assert [r.time_ms for r in parse_chunk(encode_chunk(0, records))] == [5, 7]
    assert [r.time_ms for r in parse_chunk(encode_chunk(0, records, [8, 9]))] == [8, 9]


def test_time_index_finds_the_first_at_or_after():
    view = parse_chunk(encode_chunk(0, [NewRecord(b"")] * 4, [5, 7, 7, 9]))
    assert [view.time_index(t) for t in (4, 5, 6, 7, 8, 9, 10)] == [0, 0, 1, 1, 3, 3, 4]


def test_rebasing_moves_offsets_and_times():
    view = parse_chunk(encode_chunk(0, [NewRecord(b"a", tag="t"), NewRecord(b"b")], [1, 2]))
    moved = parse_chunk(view.rebased(100))
    assert [(r.offset, r.time_ms, r.tag) for r in moved] == [(100, 1, "t"), (101, 2, "")]
    later = parse_chunk(view.rebased(7, array("q", [5000, 6000])))
    later.check()
    assert [(r.offset, r.time_ms, r.payload) for r in later] == [(7, 5, b"a"), (8, 6, b"b")]


def test_every_flipped_bit_of_a_chunk_is_detected():
    rng = random.Random(2)
    records = [
        NewRecord(rng.randbytes(40), rng.randbytes(3), "tag", {"a": "b"}, f"id{n}")
        for n in range(20)
    ]
    chunk = encode_chunk(3, records)
    for bit in range(len(chunk) * 8):
        damaged = bytearray(chunk)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptRecord):
            parse_chunk(damaged)


def test_every_cut_of_a_chunk_is_detected():
    chunk = encode_chunk(3, [NewRecord(b"abc")] * 5)
    for size in range(len(chunk)):
        with pytest.raises(CorruptRecord) as caught:
            parse_chunk(chunk[:size], "file", 77)
        assert (caught.value.segment, caught.value.position) == ("file", 77)


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_in_the_documented_way(data: bytes):
    with pytest.raises(CorruptRecord):
        parse_chunk(data)


def sealed(chunk: bytes | bytearray) -> bytes:
    """The chunk with its checksums made right again."""
    data = bytearray(chunk)
    struct.pack_into("<I", data, 12, zlib.crc32(data[HEADER_BYTES:]))
    struct.pack_into("<I", data, 8, zlib.crc32(data[12:HEADER_BYTES], zlib.crc32(data[:8])))
    return bytes(data)


def changed(position: int, value: bytes) -> ChunkView:
    records = [NewRecord(b"ab", b"k", "tag", {"n": "v"}, "id")] * 3
    chunk = bytearray(encode_chunk(0, records, [1, 2, 3]))
    chunk[position : position + len(value)] = value
    return parse_chunk(sealed(chunk))


BODY = HEADER_BYTES


@pytest.mark.parametrize(
    ("position", "value", "reason"),
    [
        (BODY + 24, struct.pack("<i", 1), "payload"),
        (BODY + 28, struct.pack("<i", 99), "payload"),
        (BODY + 36, struct.pack("<i", 5), "payload"),
        (BODY + 44, struct.pack("<i", -1), "key"),
        (BODY, struct.pack("<q", 0), "times do not fit"),
        (BODY + 8, struct.pack("<q", 9000), "times fall"),
        (BODY + 64 + 16, b"\xff", "utf-8"),
        (HEADER_BYTES - 64, struct.pack("<Q", 5), None),
    ],
)
def test_columns_that_lie_under_a_right_checksum_are_found_by_a_check(
    position: int, value: bytes, reason: str | None
):
    view = changed(position, value)
    if reason is None:
        view.check()
        return
    with pytest.raises(CorruptRecord, match=reason):
        view.check()


def test_lengths_that_do_not_add_up_are_refused():
    for position in (40, 44, 48, 56, 60, 64, 68, 72, 76):
        with pytest.raises(CorruptRecord):
            changed(position, struct.pack("<I", 1 << 31))


def test_an_unknown_version_is_refused():
    with pytest.raises(CorruptRecord, match="version 2"):
        changed(4, b"\x02")


def test_a_compressed_payload_that_unpacks_to_more_than_it_says_is_found():
    chunk = bytearray(encode_chunk(0, [NewRecord(bytes(5000))], compression="zlib"))
    struct.pack_into("<I", chunk, 52, 4000)
    struct.pack_into("<i", chunk, BODY + 12, 4000)
    with pytest.raises(CorruptRecord, match="length"):
        parse_chunk(sealed(chunk)).check()
    (stored,) = struct.unpack_from("<I", chunk, 48)
    chunk = bytearray(encode_chunk(0, [NewRecord(bytes(5000))], compression="zlib"))
    chunk[BODY + 16 : BODY + 16 + stored] = b"\xff" * stored
    with pytest.raises(CorruptRecord):
        parse_chunk(sealed(chunk)).check()


def test_an_empty_chunk_is_no_chunk_to_take_from_elsewhere():
    with pytest.raises(CorruptRecord, match="times"):
        parse_chunk(encode_columns(0, array("q"), [])).check()


def test_the_codec_needs_the_standard_library_only():
    code = (
        # Where the faster checksum is installed it is taken; it is not where Spark's executors are.
        "import sys; sys.modules['isal'] = None; before = set(sys.modules);"
        "import polybus.model.chunk as c;"
        "from array import array;"
        "c.parse_chunk(c.encode_columns(0, array('q', [1]), [b'x'])).check();"
        "extra = {m.split('.')[0] for m in set(sys.modules) - before};"
        # Compiled modules make these two out of nothing.
        "extra = {m for m in extra if not m.startswith(('_cython_', 'cython_runtime'))};"
        "print(*sorted(m for m in extra if m not in sys.stdlib_module_names))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "polybus"
