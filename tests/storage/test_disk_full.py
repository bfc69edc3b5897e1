"""A full disk: producers are told, nothing is half there, acknowledgements and readers go on, and it heals."""

from __future__ import annotations

import asyncio
import errno
import random
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from polybus.core.engine import Append, GroupState, Move, TopicOptions
from polybus.errors import StorageError, StorageFull
from polybus.model.record import NewRecord
from polybus.storage.engine import EmbeddedEngine, StorageOptions
from tests.storage.client import begin, payloads, put, read_all
from tests.storage.conftest import Opener
from tests.storage.simdisk import SimDisk


def no_space(operation: str, path: Path) -> OSError | None:
    if operation in ("write", "allocate", "create"):
        return OSError(errno.ENOSPC, "no space left")
    return None


def no_room_for_files(operation: str, path: Path) -> OSError | None:
    """As a real full disk is: what was allocated can still be written."""
    if operation == "allocate" or (operation in ("write", "create") and path.suffix == ".seg"):
        return OSError(errno.ENOSPC, "no space left")
    return None


async def put_again(engine: EmbeddedEngine, topic: str, record: NewRecord) -> int:
    """Append once there is room again: what comes while a failing write is under way fails with it."""
    while True:
        try:
            return await put(engine, topic, record)
        except StorageFull:
            await asyncio.sleep(0)


async def test_a_full_disk_refuses_producers_and_heals(opened: Opener):
    disk = SimDisk()
    engine = await opened(files=disk)
    await engine.declare("t", TopicOptions())
    await put(engine, "t", b"before")
    disk.fault = no_space
    waiting = [begin(engine, "t", NewRecord(b"%d" % n, id=str(n))) for n in range(3)]
    for future in waiting:
        with pytest.raises(StorageFull):
            await future
    with pytest.raises(StorageFull):
        await engine.commit([Append("t", [NewRecord(b"x")])])
    assert payloads(await read_all(engine, "t")) == [b"before"]
    disk.fault = None
    assert await put_again(engine, "t", NewRecord(b"1", id="1")) == 1
    assert payloads(await read_all(engine, "t")) == [b"before", b"1"]
    await engine.stop()
    engine = await opened(files=disk)
    assert payloads(await read_all(engine, "t")) == [b"before", b"1"]


async def test_what_came_behind_a_failed_write_fails_too_and_offsets_stay_dense(opened: Opener):
    disk = SimDisk()
    engine = await opened(files=disk)
    await engine.declare("t", TopicOptions())
    await engine.declare("u", TopicOptions())
    disk.fault = no_space
    futures = []
    for n in range(20):
        futures += [begin(engine, name, NewRecord(b"%d" % n)) for name in ("t", "u")]
        await asyncio.sleep(0)
    results = await asyncio.gather(*futures, return_exceptions=True)
    assert all(isinstance(result, StorageFull) for result in results)
    disk.fault = None
    assert [await put_again(engine, name, NewRecord(b"x")) for name in "tut"] == [0, 0, 1]


async def test_acknowledgements_go_on_while_the_disk_is_full(opened: Opener, unit: float):
    disk = SimDisk()
    engine = await opened(files=disk)
    await engine.declare("t", TopicOptions())
    await put(engine, "t", *[b"x"] * 10)
    await engine.save_group("t", GroupState("g", {}, 0))
    disk.fault = no_room_for_files
    refused = 0
    while not refused:
        engine.move(Move("t", "g", 3, [5]))
        try:
            await put(engine, "t", bytes(8000))
        except StorageFull:
            refused = 1
    engine.move(Move("t", "g", 4, [7], {6: 2}))
    for _ in range(200):
        if engine.groups("t")[0].floor == 4:
            break
        await asyncio.sleep(0.01 * unit)
    assert engine.groups("t") == [GroupState("g", {}, 4, {5, 7}, {6: 2})]
    disk.fault = None
    assert await put_again(engine, "t", NewRecord(b"again")) == engine.topic("t").end - 1


async def test_a_mover_that_cannot_write_loses_nothing(opened: Opener):
    disk = SimDisk()
    engine = await opened(files=disk)
    await engine.declare("t", TopicOptions())
    await put(engine, "t", *[b"%d" % n for n in range(30)])
    disk.fault = no_room_for_files
    with pytest.raises(OSError, match="no space"):
        await engine.move_all()
    assert len(await read_all(engine, "t")) == 30
    disk.fault = None
    await engine.move_all()
    assert len(await read_all(engine, "t")) == 30
    await engine.stop()
    engine = await opened(files=disk)
    assert payloads(await read_all(engine, "t")) == [b"%d" % n for n in range(30)]


async def test_a_checkpoint_that_cannot_be_saved_is_saved_with_the_next_round(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
):
    from polybus.storage.checkpoint import Checkpoint

    engine = await opened()
    await engine.declare("t", TopicOptions())
    await engine.declare("gone", TopicOptions())
    await put(engine, "gone", b"x")
    await engine.move_all()
    await put(engine, "t", NewRecord(b"a", id="a"))
    await engine.save_group("t", GroupState("g", {}, 1))
    await engine.remove("gone")

    def fail(self: Checkpoint, changes: object) -> None:
        raise StorageFull("writing the checkpoint: full")

    with monkeypatch.context() as patched:
        patched.setattr(Checkpoint, "save", fail)
        with pytest.raises(StorageFull):
            await engine.move_all()
    await put(engine, "t", b"b")
    await engine.move_all()
    await engine.stop()
    engine = await opened()
    assert [info.name for info in engine.topics()] == ["t"]
    assert payloads(await read_all(engine, "t")) == [b"a", b"b"]
    assert engine.groups("t") == [GroupState("g", {}, 1)]
    assert await put(engine, "t", NewRecord(b"a", id="a")) == 0


async def put_many(engine: EmbeddedEngine, count: int, size: int = 1000) -> None:
    for _ in range(count):
        await put(engine, "t", bytes(size))


async def test_producers_far_ahead_of_a_failing_mover_are_refused(opened: Opener):
    disk = SimDisk()
    sizes = StorageOptions(
        log_file=16 << 10,
        log_total=32 << 10,
        move_after=8 << 10,
        segment=32 << 10,
        queue=1 << 20,
        upkeep_s=3600,
    )
    engine = await opened(files=disk, options=sizes)
    await engine.declare("t", TopicOptions())
    await engine.save_group("t", GroupState("g", {}, 0))
    disk.fault = lambda operation, path: (
        OSError(errno.ENOSPC, "no space") if path.suffix == ".seg" else None
    )
    with pytest.raises(StorageFull, match="moving"):
        await put_many(engine, 200)
    stored = engine.topic("t").end
    assert 20 < stored < 199
    engine.move(Move("t", "g", 1))
    await engine.save_group("t", GroupState("h", {}, 0))
    assert engine.groups("t")[0].floor == 1
    disk.fault = None
    await engine.move_all()
    engine._intake.resume()
    assert await put(engine, "t", b"x") == stored
    assert len(await read_all(engine, "t")) == stored + 1


async def test_a_failed_sync_is_an_error_and_the_next_write_is_safe(opened: Opener):
    disk = SimDisk()
    engine = await opened(files=disk)
    await engine.declare("t", TopicOptions())
    await put(engine, "t", b"a")
    disk.fault = lambda operation, path: (
        OSError(errno.EIO, "bad disk") if operation == "sync" else None
    )
    with pytest.raises(StorageError, match="bad disk"):
        await put(engine, "t", b"b")
    disk.fault = None
    assert await put(engine, "t", b"c") == 1
    left = disk.after_crash("all")
    engine._files = left
    found = sorted(path.name for path in left.names_now if path.suffix == ".log")
    assert len(found) == 2
    await engine.stop()


async def test_a_disk_that_dies_under_load_hangs_nobody(opened: Opener):
    disk = SimDisk()
    engine = await opened(files=disk)
    await engine.declare("t", TopicOptions())
    disk.crash_at = disk.count + 40
    failed = 0
    for n in range(60):
        try:
            await put(engine, "t", b"%d" % n)
        except StorageError:
            failed += 1
    assert failed > 20
    await engine.stop()


async def test_a_failing_mover_takes_back_nothing_that_is_on_its_way(opened: Opener, unit: float):
    disk = SimDisk()
    engine = await opened(files=disk)
    await engine.declare("t", TopicOptions())
    await put(engine, "t", b"0")
    synced = threading.Semaphore(0)

    def slow(operation: str, path: Path) -> OSError | None:
        if operation == "sync":
            synced.acquire(timeout=5)
        return None

    disk.fault = slow
    refusing = asyncio.create_task(engine._refuse_held(StorageFull("moving: full")))
    await asyncio.sleep(0.05 * unit)  # what it waits for is being synced
    first = begin(engine, "t", NewRecord(b"1", key=b"k"))
    await asyncio.sleep(0.05 * unit)  # and this is on its way behind that
    synced.release()
    time.sleep(0.05 * unit)  # noqa: ASYNC251 - the report must come in the same turn as the next record
    second = begin(engine, "t", NewRecord(b"2", key=b"k"))
    await asyncio.sleep(0)
    disk.fault = None
    synced.release(99)
    await refusing
    assert list(await asyncio.gather(first, second)) == [1, 2]
    assert await put(engine, "t", NewRecord(b"3", key=b"k")) == 3
    await engine.stop()
    engine = await opened(files=disk)
    assert payloads(await read_all(engine, "t")) == [b"0", b"1", b"2", b"3"]


async def test_who_is_held_back_is_refused_once_all_that_is_on_its_way_has_arrived(
    opened: Opener, unit: float
):
    disk = SimDisk()
    engine = await opened(files=disk)
    await engine.declare("t", TopicOptions())
    synced = threading.Semaphore(0)

    def slow(operation: str, path: Path) -> OSError | None:
        if operation == "sync":
            synced.acquire(timeout=5)
        return None

    disk.fault = slow
    refusing = asyncio.create_task(engine._refuse_held(StorageFull("moving: full")))
    await asyncio.sleep(0.05 * unit)
    under_way = begin(engine, "t", NewRecord(b"0"))
    await asyncio.sleep(0.05 * unit)
    engine._intake.pause()
    held = begin(engine, "t", NewRecord(b"1"))
    disk.fault = None
    synced.release(99)
    await refusing
    assert await under_way == 0
    with pytest.raises(StorageFull, match="moving"):
        await held
    engine._intake.resume()
    assert await put(engine, "t", b"2") == 1


async def test_the_mover_gets_on_when_producers_are_held_back_at_the_moment_it_waits(
    opened: Opener,
):
    engine = await opened()
    await engine.declare("t", TopicOptions())
    under_way = begin(engine, "t", NewRecord(b"0"))
    waiting = asyncio.create_task(engine._intake.barrier(lambda sequence: None))
    await asyncio.sleep(0)
    engine._intake.pause()
    held = begin(engine, "t", NewRecord(b"1"))
    await asyncio.wait_for(waiting, 5)
    assert await under_way == 0
    assert not held.done()
    engine._intake.resume()
    assert await held == 1


TINY = StorageOptions(
    log_file=16 << 10,
    log_total=1 << 20,
    move_after=1 << 20,
    segment=32 << 10,
    queue=1 << 20,
    upkeep_s=3600,
)


async def test_the_log_leaves_the_room_that_it_takes_to_move_what_it_holds(opened: Opener):
    disk = SimDisk()
    engine = await opened(files=disk, options=TINY)
    await engine.declare("t", TopicOptions())
    disk.room = 8 * TINY.log_file
    disk.fault = lambda operation, path: (
        OSError(errno.ENOSPC, "no space") if path.suffix == ".seg" else None
    )
    with pytest.raises(StorageFull, match="commit log"):
        await put_many(engine, 200)
    held = engine._commit_log.size
    assert 3 * TINY.log_file <= held <= disk.free(Path())
    # What is moved gives the log's files back, and producers get on.
    disk.fault = None
    await engine.move_all()
    await put_many(engine, 10)


async def test_a_log_without_room_is_moved_at_once(opened: Opener, unit: float):
    disk = SimDisk()
    engine = await opened(files=disk, options=TINY)
    await engine.declare("t", TopicOptions())
    disk.room = 512 << 10
    stored = refused = 0
    while stored < 300:
        try:
            await put(engine, "t", bytes(1000))
            stored += 1
        except StorageFull:
            refused += 1
            assert refused < 500
            engine._heal_at = 0.0  # the clock stands still here
            await asyncio.sleep(0.005 * unit)
    assert refused
    assert len(await read_all(engine, "t")) == stored


async def test_changes_go_through_where_records_find_no_room(opened: Opener):
    disk = SimDisk()
    engine = await opened(files=disk)
    await engine.declare("t", TopicOptions())
    await engine.declare("kept", TopicOptions())
    await put(engine, "kept", b"x")
    disk.fault = no_room_for_files
    for size in (900, 0):  # to the last byte that records may have
        with pytest.raises(StorageFull):
            await put_many(engine, 1000, size)
    await engine.declare("kept", TopicOptions(retain_bytes=1))
    await engine.remove("t")
    assert [info.name for info in engine.topics()] == ["kept"]
    disk.fault = None
    await engine.stop()
    engine = await opened(files=disk)
    assert [info.name for info in engine.topics()] == ["kept"]


async def test_what_retention_lets_go_leaves_a_full_disk_before_anything_is_written(opened: Opener):
    disk = SimDisk()
    engine = await opened(files=disk)
    await engine.declare("t", TopicOptions())
    for _ in range(6):
        await put(engine, "t", *[bytes(1000)] * 10)
        await engine.move_all()
    await put(engine, "t", b"not moved yet")
    segments = {path for path in disk.names_now if path.suffix == ".seg"}
    await engine.trim("t", 55)
    disk.fault = lambda operation, path: (
        OSError(errno.ENOSPC, "no space")
        if path.suffix == ".seg" and operation == "write"
        else None
    )
    with pytest.raises(OSError, match="no space"):
        await engine.move_all()
    left = {path for path in disk.names_now if path.suffix == ".seg"}
    assert left < segments
    disk.fault = None
    await engine.move_all()
    assert payloads(await read_all(engine, "t"))[-1] == b"not moved yet"


async def test_a_round_that_fails_leaves_no_file_behind(opened: Opener):
    disk = SimDisk()
    engine = await opened(files=disk)
    for name in ("t", "u"):
        await engine.declare(name, TopicOptions())
        await put(engine, name, b"x")
    left = iter([None, None, None])
    disk.fault = lambda operation, path: (
        next(left, OSError(errno.ENOSPC, "no space"))
        if operation == "write" and path.suffix == ".seg"
        else None
    )
    with pytest.raises(OSError, match="no space"):
        await engine.move_all()
    assert not [path for path in disk.names_now if path.suffix == ".seg"]
    disk.fault = None
    await engine.move_all()
    assert payloads(await read_all(engine, "u")) == [b"x"]


async def test_a_failing_mover_does_not_run_without_pause(opened: Opener, unit: float):
    disk = SimDisk()
    engine = await opened(files=disk, options=TINY)
    await engine.declare("t", TopicOptions())
    await put_many(engine, 100)
    rounds = 0

    async def fail() -> None:
        nonlocal rounds
        rounds += 1
        raise StorageError("nothing goes")

    engine._moved_at = -TINY.move_after  # much has come since
    engine.retain = fail  # type: ignore[method-assign]
    engine._wanted.set()
    await asyncio.sleep(0.1 * unit)
    assert 1 <= rounds <= 2


async def test_half_of_a_data_folder_is_no_new_one(opened: Opener, tmp_path: Path):
    engine = await opened()
    await engine.declare("t", TopicOptions())
    await put(engine, "t", b"x")
    await engine.move_all()
    await engine.stop()
    (tmp_path / "data" / "version").unlink()
    for path in (tmp_path / "data" / "log").iterdir():
        path.unlink()
    with pytest.raises(StorageError, match="half of a data folder"):
        await opened()


@pytest.mark.parametrize("seed", range(8))
async def test_whatever_is_refused_in_between_what_was_acknowledged_is_there_and_nothing_else(
    opened: Opener, seed: int, unit: float
):
    rng = random.Random(seed)
    disk = SimDisk(seed)
    sizes = replace(TINY, log_total=64 << 10, move_after=16 << 10, segment=8 << 10)
    engine = await opened(files=disk, options=sizes)
    acked: dict[str, dict[int, bytes]] = {"t": {}, "u": {}}
    full = False

    def fault(operation: str, path: Path) -> OSError | None:
        grows = operation in ("allocate", "create", "write") and path.suffix == ".seg"
        if full and (grows or operation == "allocate" or rng.random() < 0.1):
            return OSError(errno.ENOSPC, "no space left")
        return None

    async def produce(name: str, number: int) -> None:
        for n in range(150):
            payload = b"%d-%d:" % (number, n) + bytes(rng.randrange(1500))
            key = b"k" * (number % 2)  # those without are gathered in another way
            try:
                offset = await begin(engine, name, NewRecord(payload, key=key))
            except StorageError:
                continue
            assert offset not in acked[name]
            acked[name][offset] = payload

    async def check() -> None:
        for name, expected in acked.items():
            found = {record.offset: record.payload for record in await read_all(engine, name)}
            assert found == expected

    for name in acked:
        await engine.declare(name, TopicOptions())
    disk.fault = fault
    producers = [asyncio.create_task(produce(name, n)) for name in acked for n in range(4)]
    while any(not task.done() for task in producers):
        full = not full
        engine._heal_at = 0.0  # the clock stands still here
        engine._wanted.set()
        await asyncio.sleep(0.002 * unit)
    await asyncio.gather(*producers)
    full = False
    await check()
    assert sum(map(len, acked.values())) > 100
    await engine.move_all()
    await check()
    await engine.stop()
    engine = await opened(files=disk, options=sizes)
    await check()
