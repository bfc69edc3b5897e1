"""The parts of the engine one by one, where the whole does not easily go."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import struct
from pathlib import Path
from typing import Any

import lmdb
import pytest

from polybus.core.engine import Append, GroupState, Move, TopicOptions
from polybus.errors import CorruptRecord, NoSuchTopic, StorageError, StorageFull
from polybus.model.chunk import encode_chunk, parse_chunk
from polybus.model.clock import ManualClock
from polybus.model.ends import ends_of
from polybus.model.record import NewRecord
from polybus.storage import files as files_module
from polybus.storage import merger, mover, recovery
from polybus.storage.checkpoint import Changes, Checkpoint, Meta
from polybus.storage.dedup import DedupWindow
from polybus.storage.engine import EmbeddedEngine, StorageOptions
from polybus.storage.entry import Moved, Removed, scan_entries
from polybus.storage.files import DiskFiles
from polybus.storage.packing import pack_items
from polybus.storage.recovery import replay
from polybus.storage.state import State, move_group
from polybus.storage.topic_log import Tail, TopicLog
from tests.storage.client import begin, fetch_all, payloads, put, read_all
from tests.storage.conftest import SMALL, Opener
from tests.storage.simdisk import SimDisk

# -- files ------------------------------------------------------------------------------------------------------------


def test_a_write_that_was_cut_short_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = DiskFiles().open(tmp_path / "f", create=True)
    whole, gather = os.pwrite, os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda fd, parts, at: gather(fd, [parts[0][:2]], at))
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: whole(fd, data[:3], at))
    file.write(4, [b"abcd", b"efghi"])
    assert file.read(0, 99) == b"\0\0\0\0abcdefghi"
    file.truncate(6)
    assert (file.size(), file.read(5, 9)) == (6, b"b")
    file.close()


def test_more_parts_than_the_system_gathers_are_joined(tmp_path: Path):
    file = DiskFiles().open(tmp_path / "f", create=True)
    file.write(0, [b"x"] * 3000)
    assert file.size() == 3000
    file.close()


def test_a_read_that_comes_in_pieces_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = DiskFiles().open(tmp_path / "f", create=True)
    file.write(0, [b"abcdefgh"])
    whole = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, at: whole(fd, min(size, 3), at))
    assert file.read(1, 99) == b"bcdefgh"
    file.close()


def test_many_files_are_synced_at_once_and_an_error_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    disk = DiskFiles()
    opened = [disk.open(tmp_path / str(n), create=True) for n in range(20)]
    disk.sync_all(tmp_path, opened, [tmp_path])
    monkeypatch.setattr(files_module, "_syncfs", lambda fd: -1)
    with pytest.raises(OSError):  # noqa: PT011 (whatever the last error was)
        disk.sync_all(tmp_path, opened, [tmp_path])
    monkeypatch.setattr(files_module, "_syncfs", None)
    disk.sync_all(tmp_path, opened, [tmp_path])
    for file in opened:
        file.close()


def test_a_folder_that_is_gone_is_removed_in_peace(tmp_path: Path):
    disk = DiskFiles()
    disk.remove_folder(tmp_path / "none")
    assert disk.names(tmp_path / "none") == []


# -- entries, ids, groups ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [b"\x09\0\0\0\0", b"\x01\0", struct.pack("<BII", 4, 1, 3) + b"\xc1\xc1\xc1"],
)
def test_an_entry_that_no_version_wrote_is_reported(body: bytes):
    with pytest.raises(CorruptRecord) as caught:
        list(scan_entries(memoryview(body), "file", 7))
    assert (caught.value.segment, caught.value.position) == ("file", 7)


def test_ids_leave_the_window_by_age_and_by_number():
    window = DedupWindow()
    options = TopicOptions(dedup_ms=100, dedup_ids=3)
    for n in range(5):
        window.add(str(n), n, 1000 + n, options)
    assert len(window) == 3
    assert [window.find(str(n), 1004, options) for n in range(5)] == [None, None, 2, 3, 4]
    assert window.find("4", 1105, options) is None
    assert [mark[0] for mark in window.take_fresh(3)] == ["0", "1", "2"]
    assert [mark[0] for mark in window.take_fresh(9)] == ["3", "4"]
    assert window.take_fresh(9) == []
    assert window.take_expired(1010, options) == []
    assert window.take_expired(1103, options) == [0]
    assert window.take_expired(1105, options) == [3]


def test_a_window_without_bounds_forgets_nothing():
    window = DedupWindow()
    options = TopicOptions(dedup_ms=0, dedup_ids=0)
    for n in range(50):
        window.add(str(n), n, n, options)
    window.take_fresh(50)
    assert window.find("0", 10**9, options) == 0
    assert window.take_expired(10**9, options) == []


def test_a_group_forgets_what_its_floor_has_passed():
    group = GroupState("g", {}, 0, set(range(1, 50)), {60: 1, 2: 9})
    move_group(group, Moved("g", 3, [], {}))
    assert (group.floor, min(group.done), group.attempts) == (3, 3, {60: 1})
    move_group(group, Moved("g", 1000, [1005], {1006: 2, 5: 1}))
    assert (group.floor, group.done, group.attempts) == (1000, {1005}, {1006: 2})
    move_group(group, Moved("g", 5, [1006], {}))
    assert (group.floor, group.done, group.attempts) == (1000, {1005, 1006}, {})


def test_a_gap_in_the_log_s_offsets_is_damage(tmp_path: Path):
    state = State(tmp_path)
    state.add(TopicLog(1, "t", TopicOptions(), 5, tmp_path))
    replay(state, (1, 0, 5, NewRecord(b"a")), 1, Meta())
    replay(state, (7, 0, 5, NewRecord(b"of a removed topic")), 2, Meta())
    replay(state, (7, parse_chunk(encode_chunk(0, [NewRecord(b"")]))), 2, Meta())
    with pytest.raises(CorruptRecord, match="offset 2 of t, 1 was next"):
        replay(state, (1, 2, 5, NewRecord(b"c")), 3, Meta())


# -- checkpoint -------------------------------------------------------------------------------------------------------


def changes(**put: object) -> Changes:
    made = Changes(Meta())
    made.put = {key.encode(): value for key, value in put.items()}
    return made


def test_a_checkpoint_grows_beyond_its_first_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("polybus.storage.checkpoint.START_MAP_BYTES", 1 << 20)
    checkpoint = Checkpoint(tmp_path)
    checkpoint.open()
    checkpoint.save(changes(**{f"x{n}": bytes(100_000) for n in range(30)}))
    checkpoint.close()
    again = Checkpoint(tmp_path)
    again.open()
    again.save(changes(y=bytes(1 << 20)))
    assert again.load(tmp_path)[0] == Meta()
    again.close()
    again.close()


@pytest.mark.parametrize(
    ("raised", "expected"),
    [(lmdb.DiskError("no space"), StorageFull), (lmdb.PanicError("bad"), StorageError)],
)
def test_an_error_of_lmdb_becomes_one_of_ours(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    raised: Exception,
    expected: type[StorageError],
):
    def fail(self: Checkpoint, changes: Changes) -> None:
        raise raised

    monkeypatch.setattr(Checkpoint, "_save", fail)
    with pytest.raises(expected):
        Checkpoint(tmp_path).save(changes())


def test_a_value_that_makes_no_sense_is_reported(tmp_path: Path):
    checkpoint = Checkpoint(tmp_path)
    checkpoint.open()
    checkpoint.save(changes(t0000="no row"))
    with pytest.raises(CorruptRecord, match="checkpoint"):
        checkpoint.load(tmp_path)
    checkpoint.close()


# -- larger amounts ---------------------------------------------------------------------------------------------------

LARGE = StorageOptions(upkeep_s=3600)


async def test_large_and_small_chunks_come_out_in_order(opened: Opener):
    engine = await opened(options=LARGE)
    await engine.declare("t", TopicOptions())
    expected: list[bytes] = []

    async def add(*batch: bytes) -> None:
        expected.extend(batch)
        await put(engine, "t", *batch)

    await add(*[b"%d" % n for n in range(20)])
    await add(*[b"%d" % n for n in range(5000)])
    await add(*[b"a"] * 10)
    await add(*[bytes(300_000)] * 9)
    await add(*[b"b"] * 10)
    await add(b"row")
    waiting = [begin(engine, "t", NewRecord(b"%d" % n)) for n in range(9000)]
    expected += [b"%d" % n for n in range(9000)]
    await asyncio.gather(*waiting)
    for n in range(3):
        await add(b"%d" % n)
    assert payloads(await fetch_all(engine, "t", 1 << 20)) == expected
    await engine.move_all()
    assert payloads(await read_all(engine, "t")) == expected
    await engine.stop()
    engine = await opened(options=LARGE)
    assert payloads(await fetch_all(engine, "t", 1 << 20)) == expected


async def test_any_offset_of_a_batch_can_be_read_and_fetched(opened: Opener):
    """Plain batches stay as the producer gave them; a reader may begin and end anywhere in one."""
    engine = await opened(options=LARGE)
    await engine.declare("t", TopicOptions(compression="zlib"))
    sent = [b"%03d" % n for n in range(40)]
    own = sent[1:21]
    await put(engine, "t", *sent[:1])
    engine.append_joined("t", ends_of([]), [], lambda offset, error: None)
    await put(engine, "t", *own)
    await put(engine, "t", NewRecord(sent[21], key=b"k"))
    await put(engine, "t", *sent[22:])

    async def check() -> None:
        assert [record.key for record in await read_all(engine, "t")] == [
            b"k" if n == 21 else b"" for n in range(40)
        ]
        for start in range(40):
            for most, most_bytes in ((1, 999), (7, 999), (99, 10), (99, 1)):
                found = await engine.read("t", start, most, most_bytes)
                assert payloads(found) == sent[start : start + len(found)]
                assert 1 <= len(found) <= most
                assert len(found) == 1 or 3 * len(found) <= most_bytes
            part = await engine.fetch("t", start, 40, 1)
            view = parse_chunk(part.chunks[0])
            assert payloads(view.slice(start, 40)) == sent[start : view.header.end]

    await check()
    await engine.move_all()
    await check()


def test_rows_are_packed_by_number_and_by_size():
    rows: list[Any] = [b"x"] * 5000 + [NewRecord(bytes(600_000))] * 3
    views = list(pack_items(SimDisk(), Tail(10, [1] * len(rows), rows), "none"))
    assert [view.header.count for view in views] == [4096, 905, 1, 1]
    assert [view.header.base for view in views] == [10, 4106, 5011, 5012]


async def test_a_frame_larger_than_a_log_file_gets_one_of_its_own(opened: Opener, tmp_path: Path):
    sizes = StorageOptions(log_file=64 << 10, append=1 << 20, upkeep_s=3600)
    engine = await opened(options=sizes)
    await engine.declare("t", TopicOptions())
    await put(engine, "t", bytes(500_000))
    await put(engine, "t", b"small")
    assert max(p.stat().st_size for p in (tmp_path / "data" / "log").iterdir()) > 500_000
    await engine.move_all()
    await put(engine, "t", bytes(70_000))
    await engine.move_all()
    assert [len(p) for p in payloads(await read_all(engine, "t"))] == [500_000, 5, 70_000]


async def test_a_hundred_topics_move_in_one_round(opened: Opener):
    engine = await opened()
    for n in range(100):
        await engine.declare(f"t{n}", TopicOptions())
    await asyncio.gather(*(begin(engine, f"t{n}", NewRecord(b"%d" % n)) for n in range(100)))
    await engine.move_all()
    for n in range(100):
        assert payloads(await read_all(engine, f"t{n}")) == [b"%d" % n]


async def test_the_mover_starts_by_itself_and_a_file_is_prepared(opened: Opener, tmp_path: Path):
    sizes = StorageOptions(
        log_file=64 << 10, log_total=128 << 10, move_after=32 << 10, segment=64 << 10, upkeep_s=3600
    )
    engine = await opened(options=sizes)
    await engine.declare("t", TopicOptions())
    for _ in range(200):
        await put(engine, "t", bytes(2000))
    assert engine._state.log("t").segments
    assert len(list((tmp_path / "data" / "log").iterdir())) < 8
    assert len(await read_all(engine, "t")) == 200


async def test_upkeep_comes_around(opened: Opener, clock: ManualClock, unit: float):
    engine = await opened(options=StorageOptions(upkeep_s=0.01))
    await engine.declare("t", TopicOptions(retain_ms=1000))
    await put(engine, "t", b"x")
    clock.advance(5)
    for _ in range(500):
        if engine.topic("t").first == 1:
            break
        await asyncio.sleep(0.01 * unit)
    assert engine.topic("t").first == 1


async def test_producers_far_ahead_wait_for_the_mover_in_order(opened: Opener):
    engine = await opened()
    await engine.declare("t", TopicOptions())
    await engine.declare("lax", TopicOptions(durability="os"))
    engine._intake.pause()
    waiting = []
    for n in range(5):
        for name in ("t", "lax"):
            waiting.append(begin(engine, name, NewRecord(b"%d" % n)))
            waiting.append(begin(engine, name, *[NewRecord(b"%d" % n, tag="x")] * 2))
        await asyncio.sleep(0)
    await engine.save_group("t", GroupState("g", {}, 0))
    engine.move(Move("t", "g", 0, [3]))
    await engine.move_all()
    assert not any(future.done() for future in waiting)
    assert engine.groups("t")[0].done == {3}
    engine._intake.resume()
    waiting.append(begin(engine, "lax", NewRecord(b"last")))
    await asyncio.gather(*waiting)
    for name in ("t", "lax"):
        found = payloads(await read_all(engine, name))
        assert found[:15] == [b"%d" % n for n in range(5) for _ in range(3)]


# -- what goes away while it is used ----------------------------------------------------------------------------------


async def test_a_topic_removed_while_it_is_moved_leaves_nothing(
    opened: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    engine = await opened()
    await engine.declare("t", TopicOptions())
    await engine.declare("u", TopicOptions())
    await put(engine, "t", b"x")
    await put(engine, "u", b"y")
    moving = asyncio.ensure_future(engine.move_all())
    await engine.remove("t")
    await moving
    await put(engine, "u", b"z")
    gone = engine._state.log("u")
    drop = engine._mover._drop_trimmed

    def remove_now() -> None:
        drop()
        engine._state.apply(gone.id, Removed())

    with monkeypatch.context() as patched:
        patched.setattr(engine._mover, "_drop_trimmed", remove_now)
        await engine.move_all()
    await engine.stop()
    engine = await opened()
    assert engine.topics() == []
    assert list((tmp_path / "data" / "topics").iterdir()) == []


async def test_a_topic_removed_while_it_is_merged_leaves_nothing(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
):
    engine = await opened()
    await engine.declare("t", TopicOptions())
    for n in range(63):
        await put(engine, "t", b"%d" % n)
        await engine.move_all()
    await engine.stop()
    engine = await opened()
    await put(engine, "t", b"63")
    merge = merger.merge_segment

    def removing(files: Any, topic: TopicLog, segment: Any) -> Any:
        twin = merge(files, topic, segment)
        topic.removed = True
        return twin

    with monkeypatch.context() as patched:
        patched.setattr(mover, "merge_segment", removing)
        await engine.move_all()
    topic = engine._state.topics["t"]
    assert topic.segments[0].generation == 0
    topic.removed = False
    assert len(await read_all(engine, "t")) == 64


async def test_ids_in_the_log_are_known_after_a_kill(opened: Opener, tmp_path: Path):
    engine = await opened()
    await engine.declare("t", TopicOptions())
    await put(engine, "t", *[NewRecord(b"%d" % n, id=str(n) if n % 2 else "") for n in range(20)])
    shutil.copytree(tmp_path / "data", tmp_path / "left")
    again = await opened(folder=tmp_path / "left")
    assert await put(again, "t", NewRecord(b"", id="7")) == 7
    assert await put(again, "t", NewRecord(b"", id="8")) == 20


async def test_a_lax_topic_alone_turns_over_the_log(opened: Opener, tmp_path: Path):
    engine = await opened()
    await engine.declare("t", TopicOptions(durability="os"))
    for n in range(40):
        await put(engine, "t", b"%d" % n + bytes(3000))
    shutil.copytree(tmp_path / "data", tmp_path / "left")
    again = await opened(folder=tmp_path / "left")
    assert [p.rstrip(b"\0") for p in payloads(await read_all(again, "t"))] == [
        b"%d" % n for n in range(40)
    ]


async def test_a_published_chunk_trimmed_before_it_was_moved_is_removed(
    opened: Opener, tmp_path: Path
):
    engine = await opened()
    await engine.declare("t", TopicOptions())
    ticket = await engine.stage("t", encode_chunk(0, [NewRecord(b"x")] * 3))
    await engine.publish_staged("t", "s", 1, [ticket])
    waiting = begin(engine, "t", NewRecord(b"y"))
    await engine.trim("t", 3)
    await waiting
    engine._mover._drop_trimmed()
    await engine.move_all()
    assert list((tmp_path / "data" / "staged").iterdir()) == []
    assert payloads(await read_all(engine, "t")) == [b"y"]


async def test_a_waiter_that_gave_up_harms_nobody(opened: Opener):
    engine = await opened()
    await engine.declare("t", TopicOptions())
    task = asyncio.ensure_future(engine.commit([Append("t", [NewRecord(b"x")])]))
    await asyncio.sleep(0)
    task.cancel()
    assert await put(engine, "t", b"y") == 1


async def test_a_stop_waits_for_the_file_that_is_being_prepared(opened: Opener, tmp_path: Path):
    engine = await opened(options=StorageOptions(log_file=8 << 20, upkeep_s=3600))
    await engine.declare("t", TopicOptions())
    await put(engine, "t", bytes(5 << 20))
    assert engine._preparing is not None
    await engine.stop()
    assert [path.stat().st_size for path in (tmp_path / "data" / "log").glob("spare*")] == [8 << 20]


async def test_a_file_prepared_while_the_log_takes_the_one_before_it_harms_no_frame(
    opened: Opener, tmp_path: Path
):
    """The commit thread renames the spare while a thread of the pool makes another one."""
    prepared: list[Path] = []

    class Busy(DiskFiles):
        def rename(self, old: Path, new: Path) -> None:
            if old.name.startswith("spare"):
                prepared.append(old)
                engine._commit_log.prepare()
            super().rename(old, new)

    engine = await opened(files=Busy(), options=StorageOptions(log_file=64 << 10, upkeep_s=3600))
    await engine.declare("t", TopicOptions())
    engine._commit_log.prepare()
    sent = [b"%d" % n + bytes(9000) for n in range(60)]
    for payload in sent:
        await put(engine, "t", payload)
    assert len(prepared) > 2
    copy = tmp_path / "as a kill leaves it"
    shutil.copytree(tmp_path / "data", copy)
    assert payloads(await read_all(await opened(folder=copy), "t")) == sent


async def test_a_failed_removal_leaves_the_topic(opened: Opener):
    disk = SimDisk()
    engine = await opened(files=disk)
    await engine.declare("t", TopicOptions())
    disk.fault = lambda operation, path: (
        OSError(errno.ENOSPC, "full") if operation == "write" else None
    )
    with pytest.raises(StorageFull):
        await engine.remove("t")
    disk.fault = None
    assert await put(engine, "t", b"x") == 0
    with pytest.raises(NoSuchTopic):
        await engine.remove("none")


async def test_a_staging_disk_that_is_full_leaves_no_file(opened: Opener):
    disk = SimDisk()
    engine = await opened(files=disk)
    await engine.declare("t", TopicOptions())
    disk.fault = lambda operation, path: (
        OSError(errno.ENOSPC, "full")
        if operation == "write" and path.parent.name == "staged"
        else None
    )
    with pytest.raises(StorageFull):
        await engine.stage("t", encode_chunk(0, [NewRecord(b"x")]))
    assert not [path for path in disk.names_now if path.parent.name == "staged"]


async def test_a_lost_staged_chunk_costs_its_own_offsets_and_no_others(
    opened: Opener, tmp_path: Path
):
    engine = await opened()
    await engine.declare("t", TopicOptions())
    await put(engine, "t", b"a")
    ticket = await engine.stage("t", encode_chunk(0, [NewRecord(b"lost")] * 3))
    await engine.publish_staged("t", "s", 1, [ticket])
    await put(engine, "t", b"b")
    (tmp_path / "data" / "staged" / ticket).unlink()
    await engine.move_all()
    assert payloads(await engine.read("t", 0, 9, 99)) == [b"a"]
    assert payloads(await engine.read("t", 4, 9, 99)) == [b"b"]
    with pytest.raises(CorruptRecord, match="offset 2"):
        await engine.read("t", 2, 1, 1)
    assert await put(engine, "t", b"c") == 5
    await engine.move_all()
    assert payloads(await engine.read("t", 4, 9, 99)) == [b"b"]
    assert payloads(await engine.read("t", 5, 9, 99)) == [b"c"]


async def test_a_reader_follows_a_chunk_that_was_moved_or_merged_meanwhile(opened: Opener):
    engine = await opened()
    await engine.declare("t", TopicOptions())
    ticket = await engine.stage("t", encode_chunk(0, [NewRecord(b"staged")]))
    await engine.publish_staged("t", "s", 1, [ticket])
    topic = engine._state.log("t")
    visible = topic.visible(0, 1)
    await engine.move_all()
    views = await engine._reader._encode_tail(topic, visible, 0, 0)
    assert payloads(views[0].records()) == [b"staged"]
    old = topic.segments[0]
    for n in range(70):
        await put(engine, "t", b"%d" % n)
        await engine.move_all()
    assert topic.segments[0] is not old
    old.index = None
    with pytest.raises(FileNotFoundError):
        await engine._reader._view_in(topic, old, 0)
    assert payloads(await engine.read("t", 0, 1, 1)) == [b"staged"]


async def test_searching_by_time_reports_a_missing_or_damaged_segment(
    opened: Opener, clock: ManualClock, tmp_path: Path
):
    engine = await opened()
    await engine.declare("t", TopicOptions())
    begun = clock.wall_ms()
    for _ in range(3):
        clock.advance(1)
        await put(engine, "t", b"x")
        await engine.move_all()
    (path,) = (tmp_path / "data" / "topics").rglob("*.seg")
    last = engine._state.log("t").segments[0].last_position
    await engine.stop()
    whole = path.read_bytes()
    path.write_bytes(whole[:last] + b"damaged!" + whole[last + 8 :])
    engine = await opened()
    assert await engine.offset_at("t", begun + 1500) == 1
    with pytest.raises(CorruptRecord):
        await engine.offset_at("t", begun + 2500)
    await engine.stop()
    path.unlink()
    engine = await opened()
    with pytest.raises(CorruptRecord, match="missing"):
        await engine.offset_at("t", begun)


async def test_a_disk_that_cannot_be_read_is_an_error_of_ours(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
):
    engine = await opened()
    await engine.declare("t", TopicOptions())
    await put(engine, "t", b"x")
    await engine.move_all()
    await engine.stop()
    engine = await opened()

    def fail(path: Path, *, create: bool = False) -> None:
        raise OSError(errno.EIO, "bad sector")

    with monkeypatch.context() as patched:
        patched.setattr(engine._files, "open", fail)
        with pytest.raises(StorageError, match="bad sector"):
            await engine.read("t", 0, 1, 1)


async def test_a_folder_that_cannot_be_opened_is_an_error_of_ours(tmp_path: Path):
    (tmp_path / "file").write_text("")
    engine = EmbeddedEngine(tmp_path / "file" / "data", ManualClock(), options=SMALL)
    with pytest.raises(StorageError, match="opening"):
        await engine.start()


async def test_moves_kept_from_a_full_disk_are_joined_and_tried_by_themselves(
    opened: Opener, unit: float
):
    disk = SimDisk()
    engine = await opened(files=disk)
    await engine.declare("t", TopicOptions())
    await engine.declare("gone", TopicOptions())
    await put(engine, "t", *[b"x"] * 9)
    for name in ("t", "gone"):
        await engine.save_group(name, GroupState("g", {}, 0))
    disk.fault = lambda operation, path: (
        OSError(errno.ENOSPC, "full") if operation == "write" else None
    )
    engine.move(Move("gone", "g", 0))
    engine.move(Move("t", "g", 1, [3], {2: 1}))
    engine.move(Move("t", "g", 2, [4], {2: 2}))
    with pytest.raises(StorageFull):
        await engine.commit([Append("t", [NewRecord(b"x")])])
    disk.fault = None
    del engine._state.by_id[engine._state.topics.pop("gone").id]
    for _ in range(300):
        if engine.groups("t")[0].floor == 2:
            break
        await asyncio.sleep(0.01 * unit)
    assert engine.groups("t") == [GroupState("g", {}, 2, {3, 4}, {2: 2})]


async def test_a_stop_lets_retention_finish_or_end(opened: Opener, clock: ManualClock):
    engine = await opened()
    await engine.declare("t", TopicOptions(retain_ms=10))
    await put(engine, "t", b"x")
    clock.advance(9)
    engine._wanted.set()
    stopping = asyncio.ensure_future(engine.stop())
    await stopping
    engine = await opened()
    assert engine.topic("t").end == 1


async def test_a_long_recovery_says_so(
    opened: Opener, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    engine = await opened()
    await engine.declare("t", TopicOptions())
    await engine.stop()
    monkeypatch.setattr(recovery, "SAY_AFTER_S", -1)
    caplog.set_level("INFO", "polybus.storage")
    await opened()
    assert "of the commit log" in caplog.text
