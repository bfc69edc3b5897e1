"""A script of operations run once on a disk that writes down all it does, to be cut at every step of it.

The invariant that is checked: after a cut, the engine's state is what the first n operations make,
where n is at least the number that had been acknowledged and at most the number that had been begun.
"""

from __future__ import annotations

import asyncio
import copy
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from polybus.core.engine import Append, GroupState, Move, TopicOptions
from polybus.model.chunk import encode_chunk
from polybus.model.clock import ManualClock
from polybus.model.record import NewRecord
from polybus.storage.checkpoint import Changes, Checkpoint
from polybus.storage.engine import EmbeddedEngine, StorageOptions
from tests.storage.client import begin, fetch_all, payloads, read_all
from tests.storage.simdisk import Inode, Luck, SimDisk, SimFile

SIZES = StorageOptions(
    log_file=8 << 10,
    log_total=1 << 30,
    move_after=1 << 30,
    segment=4 << 10,
    queue=1 << 20,
    append=2 << 10,
    cache=16 << 10,
    upkeep_s=3600,
)


@dataclass
class Topic:
    first: int = 0
    records: list[bytes] = field(default_factory=list)  # of all offsets from 0 on
    groups: dict[str, tuple[int, frozenset[int]]] = field(default_factory=dict)
    sinks: dict[str, tuple[int, int]] = field(default_factory=dict)


Model = dict[str, Topic]


@dataclass
class Step:
    """One operation: what it does to the model, when it was begun and when acknowledged (in disk operations)."""

    change: Callable[[Model], object]
    begun: int
    acked: int = 1 << 60


class JournalDisk(SimDisk):
    """A disk that keeps every operation, so that its state at each can be made again."""

    def __init__(self) -> None:
        super().__init__()
        self.journal: list[Callable[[SimDisk], object]] = []

    def open(self, path: Path, *, create: bool = False) -> SimFile:
        super().open(path, create=create)
        if create:
            self._note(lambda disk: disk.open(path, create=True))
        return JournalFile(self, path, self.names_now[path])

    def rename(self, old: Path, new: Path) -> None:
        super().rename(old, new)
        self._note(lambda disk: disk.rename(old, new))

    def unlink(self, path: Path) -> None:
        super().unlink(path)
        self._note(lambda disk: disk.unlink(path))

    def make_folder(self, path: Path) -> None:
        super().make_folder(path)
        self._note(lambda disk: disk.make_folder(path))

    def sync_folder(self, path: Path) -> None:
        super().sync_folder(path)
        self._note(lambda disk: disk.sync_folder(path))

    def _note(self, again: Callable[[SimDisk], object]) -> None:
        with self.mutex:
            self.journal.append(again)


class JournalFile(SimFile):
    """Writes down its operations by inode: names may change under an open file."""

    def write(self, position: int, parts: Any) -> None:
        data = b"".join(parts)
        super().write(position, [data])
        self._again(lambda file: file.write(position, [data]))

    def sync(self) -> None:
        super().sync()
        self._again(lambda file: file.sync())

    def allocate(self, size: int) -> None:
        super().allocate(size)
        self._again(lambda file: file.allocate(size))

    def _again(self, act: Callable[[SimFile], None]) -> None:
        path = self.path
        assert isinstance(self._disk, JournalDisk)
        self._disk._note(lambda disk: act(disk.open(path)))


@dataclass
class Run:
    """A script that ran to its end."""

    folder: Path
    journal: list[Callable[[SimDisk], object]]
    steps: list[Step]
    lax: list[bytes]
    checkpoints: list[tuple[int, bytes]]


async def run_script(folder: Path, operations: int, seed: int, monkeypatch: Any) -> Run:
    """Run a script of so many operations and stop."""
    disk = JournalDisk()
    checkpoints: list[tuple[int, bytes]] = []

    class WatchedCheckpoint(Checkpoint):
        def save(self, changes: Changes) -> None:
            super().save(changes)
            checkpoints.append((len(disk.journal), (self._folder / "data.mdb").read_bytes()))

    monkeypatch.setattr("polybus.storage.engine.Checkpoint", WatchedCheckpoint)
    engine = EmbeddedEngine(folder, ManualClock(), files=disk, options=SIZES)
    await engine.start()
    script = Script(engine, disk, random.Random(seed))
    await script.run(operations)
    await engine.stop()
    monkeypatch.undo()
    return Run(folder, disk.journal, script.steps, script.lax, checkpoints)


class Script:
    """Random operations on two strict topics and a lax one, with a model beside them."""

    def __init__(self, engine: EmbeddedEngine, disk: JournalDisk, rng: random.Random) -> None:
        self.engine = engine
        self.disk = disk
        self.rng = rng
        self.steps: list[Step] = []
        self.model: Model = {}
        self.lax: list[bytes] = []
        self.number = 0
        self.batch = 0
        self.moving: asyncio.Task[None] | None = None

    async def run(self, operations: int) -> None:
        await self.engine.declare("lax", TopicOptions(durability="os"))
        for name in ("a", "b"):
            await self.declare(name)
        kinds = (
            [self.burst] * 6
            + [self.batch_append] * 4
            + [self.commit] * 5
            + [self.save_group, self.trim, self.publish, self.move, self.move_beside] * 2
            + [self.remove]
        )
        for _ in range(operations):
            await self.rng.choice(kinds)()
        if self.moving is not None:
            await self.moving

    def step(self, change: Callable[[Model], object]) -> Step:
        change(self.model)
        self.steps.append(Step(change, len(self.disk.journal)))
        return self.steps[-1]

    def acked(self, step: Step) -> None:
        step.acked = len(self.disk.journal)

    def payload(self) -> bytes:
        self.number += 1
        return b"%d:" % self.number + bytes(self.rng.randrange(60))

    def topic(self) -> str:
        return self.rng.choice(("a", "b"))

    async def declare(self, name: str) -> None:
        step = self.step(lambda model: model.setdefault(name, Topic()))
        await self.engine.declare(name, TopicOptions())
        self.acked(step)

    async def burst(self) -> None:
        waiting: list[tuple[Step | None, asyncio.Future[int]]] = []
        for _ in range(self.rng.randrange(1, 6)):
            name, payload = self.topic(), self.payload()
            if self.rng.random() < 0.3:
                self.lax.append(payload)
                waiting.append((None, begin(self.engine, "lax", NewRecord(payload))))
                continue
            tag = self.rng.choice(("", "t"))
            step = self.step(adding(name, [payload]))
            waiting.append((step, begin(self.engine, name, NewRecord(payload, tag=tag))))
        for step_or_none, future in waiting:
            await future
            if step_or_none is not None:
                self.acked(step_or_none)

    async def batch_append(self) -> None:
        name = self.topic()
        batch = [self.payload() for _ in range(self.rng.randrange(2, 14))]
        step = self.step(adding(name, batch))
        await begin(self.engine, name, *map(NewRecord, batch))
        self.acked(step)

    async def commit(self) -> None:
        one, other, payload = self.topic(), self.topic(), self.payload()
        group = self.rng.choice(sorted(self.model[one].groups) or [""])
        if not group:
            return
        end = len(self.model[one].records)
        floor = max(self.model[one].groups[group][0], self.rng.randrange(end + 1))
        done = [floor + 1 + self.rng.randrange(3)]

        def change(model: Model) -> None:
            kept = {offset for offset in model[one].groups[group][1] if offset >= floor}
            model[one].groups[group] = (floor, frozenset(kept | set(done)))
            model[other].records.append(payload)

        step = self.step(change)
        move = Move(one, group, floor, done)
        await self.engine.commit([move, Append(other, [NewRecord(payload)])])
        self.acked(step)

    async def save_group(self) -> None:
        name, group = self.topic(), self.rng.choice(("g", "h"))
        floor = self.rng.randrange(len(self.model[name].records) + 1)

        def change(model: Model) -> None:
            model[name].groups[group] = (floor, frozenset())

        step = self.step(change)
        await self.engine.save_group(name, GroupState(group, {}, floor))
        self.acked(step)

    async def trim(self) -> None:
        name = self.topic()
        end = len(self.model[name].records)
        first = self.rng.randrange(self.model[name].first, end + 1)
        step = self.step(lambda model: setattr(model[name], "first", first))
        await self.engine.trim(name, first)
        self.acked(step)

    async def publish(self) -> None:
        name, sink = self.topic(), self.rng.choice(("s", "z"))
        parts = [[self.payload() for _ in range(3)] for _ in range(self.rng.randrange(1, 3))]
        tickets = [
            await self.engine.stage(name, encode_chunk(0, list(map(NewRecord, part))))
            for part in parts
        ]
        self.batch = batch = self.batch + 1

        def change(model: Model) -> None:
            model[name].sinks[sink] = (batch, len(model[name].records))
            model[name].records += [payload for part in parts for payload in part]

        step = self.step(change)
        await self.engine.publish_staged(name, sink, batch, tickets)
        self.acked(step)

    async def move(self) -> None:
        await self.engine.move_all()

    async def move_beside(self) -> None:
        if self.moving is not None:
            await self.moving
        self.moving = asyncio.get_running_loop().create_task(self.engine.move_all())

    async def remove(self) -> None:
        name = self.topic()
        step = self.step(lambda model: model.pop(name))
        await self.engine.remove(name)
        self.acked(step)
        await self.declare(name)


def adding(name: str, batch: list[bytes]) -> Callable[[Model], None]:
    return lambda model: model[name].records.extend(batch)


# -- cutting ----------------------------------------------------------------------------------------------------------


def cuts(run: Run, *, only: Callable[[int], bool]) -> Iterator[tuple[int, SimDisk]]:
    """The disk before every operation of the journal, and after the last."""
    disk = SimDisk()
    for number, again in enumerate(run.journal):
        if only(number):
            yield number, disk
        again(disk)
    yield len(run.journal), disk


def image(disk: SimDisk, luck: Luck, seed: int) -> SimDisk:
    """What a power cut leaves of a disk."""
    disk.rng = random.Random(seed)
    return disk.after_crash(luck)


async def check_cut(run: Run, number: int, disk: SimDisk, folder: Path) -> None:
    """Recover on what is left and compare with the script."""
    shutil.rmtree(folder / "checkpoint", ignore_errors=True)
    (folder / "checkpoint").mkdir(parents=True)
    saved = [data for at, data in run.checkpoints if at <= number]
    if saved:
        (folder / "checkpoint" / "data.mdb").write_bytes(saved[-1])
    moved = {folder / path.relative_to(run.folder): inode for path, inode in disk.names_now.items()}
    disk.names_now, disk.names_synced = moved, dict(moved)
    disk.folders = {folder / path.relative_to(run.folder) for path in disk.folders}
    engine = EmbeddedEngine(folder, ManualClock(), files=disk, options=SIZES)
    await engine.start()
    try:
        await compare(run, number, engine)
    finally:
        await engine.stop()


async def compare(run: Run, number: int, engine: EmbeddedEngine) -> None:
    found = {
        info.name: await snapshot(engine, info.name)
        for info in engine.topics()
        if info.name != "lax"
    }
    if any(info.name == "lax" for info in engine.topics()):
        lax = payloads(await read_all(engine, "lax"))
        assert lax == run.lax[: len(lax)]
    acked = sum(step.acked <= number for step in run.steps)
    begun = sum(step.begun <= number for step in run.steps)
    model: Model = {}
    wanted = []
    for done in range(begun + 1):
        if done:
            run.steps[done - 1].change(model)
        if done >= acked:
            wanted.append(copy.deepcopy(model))
    assert any(found == visible(model) for model in wanted), (number, acked, begun)
    for name in found:
        assert await begin(engine, name, NewRecord(b"next")) == engine.topic(name).end - 1


def visible(model: Model) -> Model:
    return {
        name: Topic(topic.first, topic.records[topic.first :], topic.groups, topic.sinks)
        for name, topic in model.items()
    }


async def snapshot(engine: EmbeddedEngine, name: str) -> Topic:
    records = await read_all(engine, name)
    assert await fetch_all(engine, name) == records
    assert [record.time_ms for record in records] == sorted(record.time_ms for record in records)
    groups = {g.name: (g.floor, frozenset(g.done)) for g in engine.groups(name)}
    sinks = engine._state.log(name).sinks
    return Topic(engine.topic(name).first, payloads(records), groups, dict(sinks))


__all__ = ["Inode", "Run", "check_cut", "cuts", "image", "run_script"]
