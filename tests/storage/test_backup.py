"""Backups restore exactly, also when made under load, and verification finds what is wrong."""

from __future__ import annotations

import asyncio
import errno
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from polybus.core.engine import GroupState, Move, TopicOptions
from polybus.errors import Conflict, FolderInUse, PolybusError, StorageFull
from polybus.model.chunk import encode_chunk
from polybus.model.clock import ManualClock
from polybus.model.record import NewRecord
from polybus.storage import backup
from polybus.storage.backup import back_up, restore
from polybus.storage.engine import EmbeddedEngine
from polybus.storage.frame import scan_frames
from polybus.storage.verify import verify_folder
from tests.storage.client import payloads, put, read_all
from tests.storage.conftest import SMALL, Opener


async def filled(opened: Opener) -> EmbeddedEngine:
    engine = await opened()
    await engine.declare("t", TopicOptions())
    await engine.declare("u", TopicOptions(compression="zlib"))
    await engine.save_group("t", GroupState("g", {"x": 1}, 3))
    for n in range(5):
        await put(engine, "t", *[b"%d" % n + bytes(900)] * 10)
        await put(engine, "u", NewRecord(bytes(300), id=f"i{n}"))
        await engine.move_all()
    ticket = await engine.stage("t", encode_chunk(0, [NewRecord(b"staged")]))
    await engine.publish_staged("t", "s", 1, [ticket])
    engine.move(Move("t", "g", 9))
    await put(engine, "t", b"last")
    return engine


async def test_a_backup_of_a_running_node_restores_exactly(opened: Opener, tmp_path: Path):
    engine = await filled(opened)
    told: list[tuple[int, int]] = []
    made = await engine.back_up(tmp_path / "backup", lambda *a: told.append(a))
    assert {info.name: info.end for info in made.topics} == {"t": 52, "u": 5}
    assert told[-1][0] <= told[-1][1]
    expected = {name: await read_all(engine, name) for name in ("t", "u")}
    await put(engine, "t", b"after the backup")
    restored = await asyncio.to_thread(restore, tmp_path / "backup", tmp_path / "new", print)
    assert {info.name: info.end for info in restored.topics} == {"t": 52, "u": 5}
    again = await opened(folder=tmp_path / "new")
    assert {name: await read_all(again, name) for name in ("t", "u")} == expected
    assert again.groups("t") == [GroupState("g", {"x": 1}, 9)]
    assert await put(again, "u", NewRecord(b"", id="i3")) == 3
    assert await again.publish_staged("t", "s", 1, []) == 50


async def test_a_backup_under_load_holds_all_that_was_acknowledged_before(
    opened: Opener, tmp_path: Path
):
    engine = await opened()
    await engine.declare("t", TopicOptions())
    acked: list[int] = []
    progress = [asyncio.Event() for _ in range(4)]
    stop = False

    async def produce() -> None:
        while not stop:
            batch = [b"%d" % (engine.topic("t").end + n) + bytes(200) for n in range(20)]
            acked.append(await put(engine, "t", *batch) + 20)
            if len(acked) % 30 == 0 and len(acked) <= 120:
                progress[len(acked) // 30 - 1].set()
            if len(acked) % 7 == 0:
                await engine.move_all()
            if len(acked) % 50 == 0:
                await engine.trim("t", engine.topic("t").end // 2)

    task = asyncio.ensure_future(produce())
    for number in range(4):
        await asyncio.wait_for(progress[number].wait(), 20)
        before = acked[-1]
        target = tmp_path / f"backup{number}"
        made = await engine.back_up(target)
        (info,) = made.topics
        assert before <= info.end
        copy = EmbeddedEngine(target, ManualClock(), options=SMALL)
        await copy.start()
        found = payloads(await read_all(copy, "t"))
        await copy.stop()
        assert found == [b"%d" % n + bytes(200) for n in range(info.first, info.end)]
    stop = True
    await task


async def test_backup_and_restore_refuse_what_makes_no_sense(opened: Opener, tmp_path: Path):
    engine = await filled(opened)
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").write_text("x")
    with pytest.raises(Conflict):
        back_up(tmp_path / "data", tmp_path / "used")
    with pytest.raises(PolybusError, match="no data folder"):
        back_up(tmp_path / "nothing", tmp_path / "b")
    await engine.back_up(tmp_path / "b")
    with pytest.raises(Conflict):
        restore(tmp_path / "b", tmp_path / "used")
    path = min((tmp_path / "b").rglob("*.seg"))
    data = bytearray(path.read_bytes())
    data[500] ^= 1
    path.write_bytes(data)
    with pytest.raises(Conflict, match=r"1 problem.*byte 64"):
        restore(tmp_path / "b", tmp_path / "c")
    await engine.stop()


async def test_a_sound_folder_has_no_problems(opened: Opener, tmp_path: Path):
    engine = await filled(opened)
    with pytest.raises(FolderInUse):
        verify_folder(tmp_path / "data")
    made = tmp_path / "backup"
    await engine.back_up(made)
    found = verify_folder(made)
    assert found.problems == []
    assert (found.topics, found.records) == (2, 57)  # two of them only in its log
    assert found.frames > 0
    await engine.stop()
    told: list[tuple[int, int]] = []
    found = verify_folder(tmp_path / "data", lambda *a: told.append(a))
    assert (found.problems, found.records) == ([], 57)
    assert told[-1][0] == told[-1][1]
    with pytest.raises(PolybusError, match="no data folder"):
        verify_folder(tmp_path)


async def test_verification_names_every_damaged_place(opened: Opener, tmp_path: Path):
    engine = await filled(opened)
    log = engine._state.log("t")
    first, second = log.segments[:2]
    for segment in (first, second):
        await engine.read("t", segment.base, 1, 1)
    assert first.index is not None
    positions = first.index.positions
    await engine.back_up(tmp_path / "backup")
    await engine.stop()
    base = tmp_path / "backup"
    path = base / first.path.relative_to(tmp_path / "data")
    data = bytearray(path.read_bytes())
    data[positions[0] + 30] ^= 1
    data[positions[2] + 300] ^= 1
    data[3] ^= 1
    path.write_bytes(data)
    (base / second.path.relative_to(tmp_path / "data")).unlink()
    (staged,) = (base / "staged").iterdir()
    staged.write_bytes(staged.read_bytes()[:-1] + b"!")
    found = verify_folder(base)
    assert {(p.where, p.position) for p in found.problems} == {
        (path.name, 0),
        (path.name, positions[0]),
        (path.name, positions[2]),
        (second.path.name, 0),
        (staged.name, 0),
    }
    cut = path.read_bytes()[: positions[2] + 10]
    path.write_bytes(cut)
    assert any("were written" in p.reason for p in verify_folder(base).problems)
    logs = max((base / "log").glob("[0-9]*.log"))
    data = bytearray(logs.read_bytes())
    frames = list(scan_frames(memoryview(bytes(data)), bytes(data[16:24])))
    data[frames[-2].position + 20] ^= 1
    logs.write_bytes(data)
    assert any(p.where == logs.name for p in verify_folder(base).problems)
    (base / "checkpoint" / "data.mdb").write_bytes(bytes(100))
    (problem,) = verify_folder(base).problems
    assert problem.where == "checkpoint"


async def test_what_does_not_fit_together_is_named(opened: Opener, tmp_path: Path):
    engine = await filled(opened)
    topic = engine._state.log("t")
    first = topic.segments[0]
    engine._mover.put_segment(topic, replace(first, end=first.end + 1))
    topic.moved += 1000
    topic.changed = True
    await engine.move_all()
    await engine.back_up(tmp_path / "changed")
    found = {
        problem.reason.split(",")[0] for problem in verify_folder(tmp_path / "changed").problems
    }
    assert any(reason.startswith("ends at offset") for reason in found)
    assert any(reason.startswith("begins at offset") for reason in found)
    topic.moved -= 1000


async def test_a_published_chunk_that_is_gone_is_named(opened: Opener, tmp_path: Path):
    engine = await filled(opened)
    await engine.back_up(tmp_path / "backup")
    (staged,) = (tmp_path / "backup" / "staged").iterdir()
    staged.unlink()
    (problem,) = verify_folder(tmp_path / "backup").problems
    assert problem.reason == "the staged chunk is gone"


async def test_a_backup_takes_no_spare_and_no_file_that_was_never_finished(
    opened: Opener, tmp_path: Path
):
    engine = await filled(opened)
    logs = tmp_path / "data" / "log"
    (logs / "999999999999.log").write_bytes(b"never finished")
    (logs / "spare-9.log").write_bytes(bytes(100))
    (logs / "999999999998.log").symlink_to(tmp_path / "gone meanwhile")
    made = await engine.back_up(tmp_path / "backup")
    assert [info.end for info in made.topics] == [52, 5]
    assert not (tmp_path / "backup" / "log" / "spare-9.log").exists()
    for path in (logs / "999999999999.log", logs / "999999999998.log", logs / "spare-9.log"):
        path.unlink()


async def test_another_process_backs_up_a_running_node(opened: Opener, tmp_path: Path):
    engine = await filled(opened)
    code = (
        "import sys; from pathlib import Path; from polybus.storage.backup import back_up;"
        "print(*[i.end for i in back_up(Path(sys.argv[1]), Path(sys.argv[2])).topics])"
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", code, str(tmp_path / "data"), str(tmp_path / "backup")),
        stdout=subprocess.PIPE,
    )
    output, _ = await process.communicate()
    assert output.split() == [b"52", b"5"]
    expected = await read_all(engine, "t")
    await engine.stop()
    again = await opened(folder=tmp_path / "backup")
    assert await read_all(again, "t") == expected


async def test_a_stopped_node_s_folder_is_backed_up_as_well(opened: Opener, tmp_path: Path):
    await (await filled(opened)).stop()
    made = back_up(tmp_path / "data", tmp_path / "backup")
    assert [info.end for info in made.topics] == [52, 5]


@pytest.mark.parametrize("made_before", [False, True])
async def test_a_copy_for_which_there_is_no_room_leaves_nothing(
    opened: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made_before: bool
):
    await (await filled(opened)).stop()
    back_up(tmp_path / "data", tmp_path / "backup")
    copy, copied = backup._copy_file, 0

    def full(source: Path, goal: Path, size: int) -> int:
        nonlocal copied
        copied += 1
        if copied == 3:
            raise OSError(errno.ENOSPC, "no space left")
        return copy(source, goal, size)

    target = tmp_path / "target"
    if made_before:
        target.mkdir()
    monkeypatch.setattr(backup, "_copy_file", full)
    for act, source in ((back_up, tmp_path / "data"), (restore, tmp_path / "backup")):
        copied = 0
        with pytest.raises(StorageFull, match="copying to"):
            act(source, target)
        assert not list(target.iterdir())
        assert copied == 3
    monkeypatch.undo()
    assert [info.end for info in restore(tmp_path / "backup", target).topics] == [52, 5]


async def test_a_target_that_is_not_empty_is_left_as_it_is(opened: Opener, tmp_path: Path):
    await (await filled(opened)).stop()
    shutil.copytree(tmp_path / "data", tmp_path / "other")
    before = sorted(path.name for path in (tmp_path / "other").rglob("*"))
    with pytest.raises(Conflict):
        back_up(tmp_path / "data", tmp_path / "other")
    assert sorted(path.name for path in (tmp_path / "other").rglob("*")) == before
