"""What a crash or a bad disk leaves is recovered to the last whole commit, or reported where it is damaged."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from polybus.core.engine import GroupState, TopicOptions
from polybus.errors import CorruptRecord, FormatTooNew, StorageError
from polybus.model.chunk import parse_chunk
from polybus.model.clock import ManualClock
from polybus.model.record import NewRecord
from polybus.storage.checkpoint import Changes, Checkpoint, Meta
from polybus.storage.commit_log import LogTail
from polybus.storage.engine import EmbeddedEngine
from polybus.storage.files import DiskFiles
from polybus.storage.frame import FILE_HEADER_BYTES, scan_frames
from polybus.storage.recovery import LogReader
from tests.storage.client import payloads, put, read_all
from tests.storage.conftest import SMALL, Opener


async def crashed_copy(engine: EmbeddedEngine, folder: Path, target: Path) -> Path:
    """The folder as a kill would leave it now."""
    shutil.copytree(folder, target)
    return target


async def open_copy(folder: Path) -> EmbeddedEngine:
    engine = EmbeddedEngine(folder, ManualClock(), options=SMALL)
    await engine.start()
    return engine


def log_file(folder: Path) -> Path:
    return max((folder / "log").glob("[0-9]*.log"))


async def test_a_killed_node_has_everything_that_was_acknowledged(opened: Opener, tmp_path: Path):
    engine = await opened()
    await engine.declare("t", TopicOptions())
    await put(engine, "t", *[NewRecord(b"%d" % n, id=str(n)) for n in range(50)])
    await engine.save_group("t", GroupState("g", {}, 7))
    await engine.move_all()
    await put(engine, "t", NewRecord(b"50", id="50"))
    left = await crashed_copy(engine, tmp_path / "data", tmp_path / "left")
    again = await open_copy(left)
    assert payloads(await read_all(again, "t")) == [b"%d" % n for n in range(51)]
    assert again.groups("t") == [GroupState("g", {}, 7)]
    assert await put(again, "t", NewRecord(b"x", id="50"), NewRecord(b"y", id="3")) == 50
    assert again.topic("t").end == 51
    await again.stop()


@pytest.mark.timeout(120)
async def test_a_tail_torn_at_any_byte_is_cut_at_the_last_whole_commit(
    opened: Opener, tmp_path: Path
):
    engine = await opened()
    await engine.declare("t", TopicOptions())
    for n in range(6):
        await put(engine, "t", b"%d" % n + bytes(7 * n))
    data = log_file(tmp_path / "data").read_bytes()
    salt = data[16:24]
    frames = list(scan_frames(memoryview(data), salt))
    ends = [frame.position + 48 + (len(frame.body) + 7) // 8 * 8 for frame in frames]
    left = await crashed_copy(engine, tmp_path / "data", tmp_path / "left")
    checkpoint = (left / "checkpoint" / "data.mdb").read_bytes()
    for cut in range(ends[-4], ends[-1] + 1):
        # As torn writes are: the file keeps its length, the bytes did not arrive.
        log_file(left).write_bytes(data[:cut].ljust(len(data), b"\0"))
        (left / "checkpoint" / "data.mdb").write_bytes(checkpoint)
        meta, state = load(left)
        chain = LogReader(DiskFiles(), left / "log", meta).read()
        whole = sum(len(data[:cut].rstrip(b"\0")) >= len(data[:end].rstrip(b"\0")) for end in ends)
        assert len(chain) == whole
        assert not state.topics


def load(folder: Path):
    checkpoint = Checkpoint(folder / "checkpoint", readonly=True)
    checkpoint.open()
    try:
        return checkpoint.load(folder)
    finally:
        checkpoint.close()


async def test_after_a_torn_tail_the_node_goes_on_and_recovers_again(
    opened: Opener, tmp_path: Path
):
    engine = await opened()
    await engine.declare("t", TopicOptions())
    for n in range(5):
        await put(engine, "t", b"%d" % n)
    left = await crashed_copy(engine, tmp_path / "data", tmp_path / "left")
    path = log_file(left)
    data = bytearray(path.read_bytes())
    last = list(scan_frames(memoryview(bytes(data)), bytes(data[16:24])))[-1]
    data[last.position + 50] ^= 1
    path.write_bytes(data)
    again = await open_copy(left)
    assert payloads(await read_all(again, "t")) == [b"0", b"1", b"2", b"3"]
    assert await put(again, "t", b"other") == 4
    further = await crashed_copy(again, left, tmp_path / "further")
    third = await open_copy(further)
    assert payloads(await read_all(third, "t")) == [b"0", b"1", b"2", b"3", b"other"]
    await third.stop()
    await again.stop()


async def test_damage_before_the_tail_is_refused_and_changes_nothing(
    opened: Opener, tmp_path: Path
):
    engine = await opened()
    await engine.declare("t", TopicOptions())
    for n in range(6):
        await put(engine, "t", b"%d" % n)
    left = await crashed_copy(engine, tmp_path / "data", tmp_path / "left")
    path = log_file(left)
    data = bytearray(path.read_bytes())
    frames = list(scan_frames(memoryview(bytes(data)), bytes(data[16:24])))
    data[frames[2].position + 50] ^= 4
    path.write_bytes(data)
    before = {p: p.read_bytes() for p in left.rglob("*") if p.is_file() and p.name != "lock.mdb"}
    with pytest.raises(CorruptRecord) as caught:
        await open_copy(left)
    assert caught.value.segment == path.name
    after = {p: p.read_bytes() for p in left.rglob("*") if p.is_file() and p.name != "lock.mdb"}
    assert before == after


async def test_a_flipped_bit_of_a_segment_is_found_when_it_is_read(opened: Opener, tmp_path: Path):
    rng = random.Random(3)
    engine = await opened()
    await engine.declare("t", TopicOptions())
    await put(engine, "t", *[NewRecord(rng.randbytes(90), tag=f"t{n}") for n in range(100)])
    await engine.stop()
    (path,) = (tmp_path / "data" / "topics").rglob("*.seg")
    whole = path.read_bytes()
    for bit in rng.sample(range(64 * 8, len(whole) * 8), 8):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        engine = await opened()
        with pytest.raises(CorruptRecord) as caught:
            await engine.read("t", 50, 1, 1)
        assert (caught.value.segment, caught.value.position) == (path.name, 64)
        await engine.stop()


async def test_a_damaged_chunk_is_reported_and_hides_no_other(opened: Opener, tmp_path: Path):
    engine = await opened()
    await engine.declare("t", TopicOptions())
    for n in range(4):
        await put(engine, "t", *[b"%d" % n + bytes(50)] * 10)
        await engine.move_all()
    (path,) = (tmp_path / "data" / "topics").rglob("*.seg")
    segment = engine._state.log("t").segments[0]
    assert segment.index is not None
    positions = segment.index.positions
    await engine.stop()
    for what, at in (("header", positions[1] + 20), ("body", positions[1] + 200)):
        whole = path.read_bytes()
        data = bytearray(whole)
        data[at] ^= 0x10
        path.write_bytes(data)
        engine = await opened()
        assert len(await engine.read("t", 0, 10, 9999)) == 10
        assert len(await engine.read("t", 25, 10, 9999)) == 5
        assert len(await engine.read("t", 39, 1, 9999)) == 1
        for start in (10, 19):
            with pytest.raises(CorruptRecord) as caught:
                await engine.read("t", start, 10, 9999)
            assert (caught.value.segment, caught.value.position) == (path.name, positions[1]), what
            with pytest.raises(CorruptRecord):
                await engine.fetch("t", start, 40, 9999)
        # Who verifies bodies by himself gets them as they are, and never what has no header.
        if what == "header":
            for start in (0, 19):
                with pytest.raises(CorruptRecord) as caught:
                    await fetched(engine, start)
                assert (caught.value.segment, caught.value.position) == (path.name, positions[1])
            sound = [*await fetched(engine, 0, 10), *await fetched(engine, 20)]
        else:
            sound = await fetched(engine, 0)
            with pytest.raises(CorruptRecord):
                parse_chunk(sound.pop(1))
        assert [parse_chunk(chunk).base for chunk in sound] == [0, 20, 30]
        await engine.stop()
        path.write_bytes(whole)


async def fetched(engine: EmbeddedEngine, start: int, end: int = 40) -> list[bytes | memoryview]:
    """Chunks of one unverified fetch."""
    return list((await engine.fetch("t", start, end, 9999, verify=False)).chunks)


async def test_a_fetch_stops_where_it_has_enough(opened: Opener):
    engine = await opened()
    await engine.declare("t", TopicOptions())
    for _ in range(4):
        await put(engine, "t", *[bytes(90)] * 10)
        await engine.move_all()
    size = len((await fetched(engine, 0))[0])
    for end, most, last in ((40, 1, 10), (40, size + 1, 20), (11, 9999, 11), (10, 9999, 10)):
        part = await engine.fetch("t", 5, end, most, verify=False)
        assert (part.first, part.next) == (5, last)


async def test_a_missing_segment_is_reported(opened: Opener, tmp_path: Path):
    engine = await opened()
    await engine.declare("t", TopicOptions())
    for _ in range(3):
        await put(engine, "t", *[bytes(1500)] * 10)
        await put(engine, "t", *[bytes(1500)] * 10)
        await engine.move_all()
    paths = sorted((tmp_path / "data" / "topics").rglob("*.seg"))
    assert len(paths) > 1
    await engine.stop()
    paths[0].unlink()
    paths[-1].unlink()
    engine = await opened()
    end = engine.topic("t").end
    for start in (0, end - 1):
        with pytest.raises(CorruptRecord, match="missing"):
            await engine.read("t", start, 1, 1)
    assert await put(engine, "t", b"goes on") == end
    await engine.move_all()
    assert payloads(await engine.read("t", end, 1, 1)) == [b"goes on"]


async def test_a_newer_format_is_refused(opened: Opener, tmp_path: Path):
    await (await opened()).stop()
    version = tmp_path / "data" / "version"
    assert version.read_text() == "1\n"
    for text in ("2", "nonsense"):
        version.write_text(text)
        with pytest.raises(FormatTooNew):
            await opened()
    version.write_text("1")
    checkpoint = Checkpoint(tmp_path / "data" / "checkpoint")
    checkpoint.open()
    checkpoint.save(Changes(Meta(format=2)))
    checkpoint.close()
    with pytest.raises(FormatTooNew):
        await opened()


async def test_a_lost_checkpoint_is_refused_and_no_segment_is_touched(
    opened: Opener, tmp_path: Path
):
    engine = await opened()
    await engine.declare("t", TopicOptions())
    await put(engine, "t", b"x")
    await engine.stop()
    data = tmp_path / "data" / "checkpoint" / "data.mdb"
    whole = data.read_bytes()
    data.unlink()
    with pytest.raises(CorruptRecord, match="empty"):
        await opened()
    data.write_bytes(b"nonsense" * 1000)
    with pytest.raises(CorruptRecord, match="checkpoint"):
        await opened()
    data.write_bytes(whole)
    assert payloads(await read_all(await opened(), "t")) == [b"x"]


async def test_a_folder_with_a_log_and_no_version_is_not_taken_over(opened: Opener, tmp_path: Path):
    (tmp_path / "data" / "log").mkdir(parents=True)
    (tmp_path / "data" / "log" / "000000000001.log").write_bytes(b"somebody's")
    with pytest.raises(StorageError, match="version"):
        await opened()


async def test_progress_is_told(opened: Opener, tmp_path: Path, clock: ManualClock):
    engine = await opened()
    await engine.declare("t", TopicOptions())
    await put(engine, "t", b"x")
    left = await crashed_copy(engine, tmp_path / "data", tmp_path / "left")
    told: list[tuple[int, int]] = []
    again = EmbeddedEngine(left, clock, options=SMALL, progress=lambda *a: told.append(a))
    await again.start()
    assert told[-1][0] == told[-1][1] == SMALL.log_file
    await again.stop()


def test_a_frame_that_names_an_older_predecessor_voids_those_between(tmp_path: Path):
    from polybus.storage.frame import encode_file_header, encode_frame_header

    salt = b"saltsalt"

    def frame(sequence: int, before: int, synced: int) -> bytes:
        import zlib

        body = b"%08d" % sequence
        return encode_frame_header(salt, sequence, before, synced, 8, zlib.crc32(body)) + body

    data = encode_file_header(1, salt)
    data += frame(1, 0, 0) + frame(2, 1, 1) + frame(3, 2, 1) + frame(5, 1, 1) + frame(4, 3, 1)
    (tmp_path / "000000000001.log").write_bytes(data)
    (tmp_path / "000000000002.log").write_bytes(b"never finished")
    reader = LogReader(DiskFiles(), tmp_path, Meta())
    assert [found.sequence for found in reader.read()] == [1, 5]
    tail = reader.tail()
    assert (tail.last, tail.next_sequence, tail.next_number) == (5, 6, 3)
    assert [path.name for path in tail.spares] == ["000000000002.log"]
    assert FILE_HEADER_BYTES == 64
    assert isinstance(tail, LogTail)
