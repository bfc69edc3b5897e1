"""Retention drops whole segments, merging makes few chunks of many, and both leave the rest as it was."""

from __future__ import annotations

from pathlib import Path

from polybus.core.engine import GroupState, Move, TopicOptions
from polybus.model.clock import ManualClock
from polybus.model.record import NewRecord
from polybus.storage.engine import EmbeddedEngine
from polybus.storage.files import FolderHold
from polybus.storage.staging import LAST_MS
from tests.storage.client import payloads, put, read_all
from tests.storage.conftest import Opener


def segments(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "data" / "topics").rglob("*.seg"))


async def fill(engine: EmbeddedEngine, batches: int, size: int = 1000) -> None:
    for _ in range(batches):
        await put(engine, "t", *[bytes(size)] * 10)
        await engine.move_all()


async def test_old_segments_go_by_age(opened: Opener, tmp_path: Path, clock: ManualClock):
    engine = await opened()
    await engine.declare("t", TopicOptions(retain_ms=10_000))
    for _ in range(6):
        await fill(engine, 1)
        clock.advance(3)
    before = len(segments(tmp_path))
    await engine.retain()
    await engine.move_all()
    first = engine.topic("t").first
    assert 0 < first < 60
    assert len(segments(tmp_path)) < before
    assert len(await read_all(engine, "t")) == 60 - first
    clock.advance(60)
    await put(engine, "t", b"new")
    await engine.retain()
    assert payloads(await read_all(engine, "t")) == [b"new"]
    clock.advance(60)
    await engine.retain()
    assert engine.topic("t").first == engine.topic("t").end == 61


async def test_old_segments_go_by_bytes(opened: Opener, tmp_path: Path):
    engine = await opened()
    await engine.declare("t", TopicOptions(retain_bytes=100_000))
    await fill(engine, 30)
    await engine.retain()
    await engine.move_all()
    info = engine.topic("t")
    assert 100_000 <= info.bytes < 200_000
    assert len(await read_all(engine, "t")) == info.end - info.first
    await engine.retain()
    assert engine.topic("t").first == info.first


async def test_records_go_once_every_group_has_passed_them(opened: Opener, tmp_path: Path):
    engine = await opened()
    await engine.declare("t", TopicOptions(retain_consumed=True))
    await fill(engine, 9)
    await engine.retain()
    assert engine.topic("t").first == 0
    await engine.save_group("t", GroupState("slow", {}, 50))
    await engine.save_group("t", GroupState("fast", {}, 90))
    await engine.retain()
    first = engine.topic("t").first
    assert 0 < first <= 50
    engine.move(Move("t", "slow", 90))
    await put(engine, "t", b"a", b"b")
    engine.move(Move("t", "slow", 91))
    engine.move(Move("t", "fast", 91))
    await engine.retain()
    await engine.retain()
    assert payloads(await read_all(engine, "t")) == [b"b"]
    await engine.move_all()
    assert payloads(await read_all(engine, "t")) == [b"b"]


async def test_a_topic_without_bounds_keeps_everything(opened: Opener, clock: ManualClock):
    engine = await opened()
    await engine.declare("t", TopicOptions())
    await fill(engine, 3)
    clock.advance(10**9)
    await engine.retain()
    assert engine.topic("t").first == 0


async def test_many_small_chunks_become_few(opened: Opener, tmp_path: Path):
    engine = await opened()
    await engine.declare("t", TopicOptions())
    for n in range(64):
        await put(engine, "t", NewRecord(b"%d" % n, tag="x"))
        await engine.move_all()
    (segment,) = engine._state.log("t").segments
    assert (segment.generation, segment.chunks) == (1, 1)
    assert segments(tmp_path) == ["00000000000000000000-1.seg"]
    expected = [b"%d" % n for n in range(64)]
    assert payloads(await read_all(engine, "t")) == expected
    await put(engine, "t", b"more")
    await engine.stop()
    engine = await opened()
    assert payloads(await read_all(engine, "t")) == [*expected, b"more"]


async def test_a_damaged_segment_is_not_merged(opened: Opener, tmp_path: Path):
    engine = await opened()
    await engine.declare("t", TopicOptions())
    for n in range(63):
        await put(engine, "t", b"%d" % n)
        await engine.move_all()
    (path,) = (tmp_path / "data" / "topics").rglob("*.seg")
    data = bytearray(path.read_bytes())
    data[300] ^= 1
    path.write_bytes(data)
    for _ in range(3):
        await put(engine, "t", b"x")
        await engine.move_all()
    assert segments(tmp_path) == ["00000000000000000000-0.seg"]
    assert len(await engine.read("t", 63, 5, 99)) == 1


async def test_staged_chunks_that_nobody_published_last_a_day(
    opened: Opener, tmp_path: Path, clock: ManualClock
):
    from polybus.model.chunk import encode_chunk

    engine = await opened()
    await engine.declare("t", TopicOptions())
    chunk = encode_chunk(0, [NewRecord(b"x")])
    await engine.stage("t", chunk)
    published = await engine.stage("t", chunk)
    await engine.publish_staged("t", "s", 1, [published])
    clock.advance(LAST_MS / 1000 + 1)
    young = await engine.stage("t", chunk)
    with FolderHold(tmp_path / "data").shared():
        await engine.retain()
        assert len(list((tmp_path / "data" / "staged").iterdir())) == 3
    await engine.retain()
    left = {path.name for path in (tmp_path / "data" / "staged").iterdir()}
    assert left == {published, young}
    assert payloads(await read_all(engine, "t")) == [b"x"]


async def test_nothing_is_removed_while_a_backup_holds_the_folder(opened: Opener, tmp_path: Path):
    engine = await opened()
    await engine.declare("t", TopicOptions())
    await engine.declare("gone", TopicOptions())
    await put(engine, "gone", b"x")
    await fill(engine, 5)
    before = segments(tmp_path)
    with FolderHold(tmp_path / "data").shared():
        await engine.trim("t", 50)
        await engine.remove("gone")
        await engine.move_all()
        assert segments(tmp_path) == before
        await engine.stop()
        engine = await opened()
        assert segments(tmp_path) == before
    await engine.stop()
    engine = await opened()
    assert segments(tmp_path) == []
    assert engine.topic("t").end == 50
