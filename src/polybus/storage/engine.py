"""The embedded engine: durable topics in one folder of this machine.

Invariant: see `core.engine`. This file only puts the parts together and keeps their order at start
and stop; how a commit is made is in `intake` and `commit_log`, what happens to it later in `mover`,
how it is read in `reader`.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeVar

from polybus.core.engine import (
    Done,
    GroupState,
    Move,
    Operation,
    Slice,
    TopicInfo,
    TopicOptions,
)
from polybus.errors import Conflict, Draining, NoSuchGroup, StorageError, StorageFull
from polybus.model.clock import Clock
from polybus.model.message import Call, Publication
from polybus.model.name import check_name
from polybus.model.record import NewRecord, Record
from polybus.storage import staging
from polybus.storage.backup import Backup, back_up
from polybus.storage.batches import Limits
from polybus.storage.checkpoint import Changes, Checkpoint, Meta
from polybus.storage.commit_log import CommitLog, Prepared
from polybus.storage.entry import Declared, Forgotten, Published, Removed, Saved, Staged, Trimmed
from polybus.storage.files import DiskFiles, Files, FolderHold, FolderLock, storage_error
from polybus.storage.intake import Intake, draining
from polybus.storage.mover import Mover
from polybus.storage.reader import ChunkCache, Reader
from polybus.storage.recovery import Progress, Recovered, check_version, recover, write_version
from polybus.storage.retention import retained_first
from polybus.storage.state import State
from polybus.storage.topic_log import StagedPart

log = logging.getLogger("polybus.storage")
_T = TypeVar("_T")
MiB: Final = 1 << 20
# The mover's thread computes, and with Python's 5 ms each wake-up of the event loop could wait that long for it.
SWITCH_S: Final = 0.0005
AGAIN_S: Final = 5.0  # after a round of the mover has failed, or a log file could not be made
HEAL_S: Final = 1.0  # between rounds that are to make room on a full disk
FAR_BEHIND: Final = 2  # times the log's size at which producers wait for the mover


@dataclass(frozen=True, slots=True)
class StorageOptions:
    """Sizes, in bytes. The defaults suit a node that has the folder for itself."""

    log_file: int = 16 * MiB
    # Beyond it every topic is moved, so that recovery stays short. With a thousand small topics the mover's work is
    # mostly per file, and with a third less of it those who append do not have to wait for the mover.
    log_total: int = 192 * MiB
    move_after: int = 16 * MiB
    segment: int = 64 * MiB
    queue: int = 32 * MiB
    append: int = 32 * MiB
    cache: int = 32 * MiB
    recent: int = 256 * MiB  # of segments, what was written last, in the system's page cache
    upkeep_s: float = 30.0  # how often retention and expiry are looked at; also how soon a failed round is tried again


def published_tickets(state: State) -> set[str]:
    """The staged files that topics still need."""
    return {
        item.path.name
        for topic in state.topics.values()
        for item in topic.items
        if isinstance(item, StagedPart)
    }


class EmbeddedEngine:
    """Durable topics in `folder`; see `core.engine.Engine`."""

    def __init__(
        self,
        folder: Path,
        clock: Clock,
        *,
        files: Files | None = None,
        options: StorageOptions | None = None,
        progress: Progress | None = None,
    ) -> None:
        self._folder = folder
        self._clock = clock
        self._files = files or DiskFiles()
        self._options = options or StorageOptions()
        self._progress = progress
        self._lock = FolderLock(folder / "lock")
        self._checkpoint = Checkpoint(folder / "checkpoint")
        self._changing = asyncio.Lock()  # one change of a topic or group at a time
        self._wanted = asyncio.Event()
        self._moved_at = 0  # bytes taken in when the last round began
        self._saved_at = -1  # and when the last one that went well did
        self._running = False
        self._preparing: asyncio.Task[None] | None = None
        self._prepare_at = 0.0  # not before
        self._heal_at = 0.0  # likewise
        self._full = False  # the log found no room on the disk
        self._at_work = 0  # threads with something of this file to do

    # -- life -------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        if sys.getswitchinterval() > SWITCH_S:
            sys.setswitchinterval(SWITCH_S)
        self._pool = ThreadPoolExecutor(2, "polybus-read")
        self._mover_pool = ThreadPoolExecutor(1, "polybus-move")
        try:
            found = await self._loop.run_in_executor(self._mover_pool, self._open)
        except BaseException as exc:
            await self._close()
            if isinstance(exc, OSError):
                raise storage_error(exc, f"opening {self._folder}") from exc
            raise
        self._state: State = found.state
        size = self._options
        limits = Limits(size.queue, size.append, size.log_file // 8)
        self._commit_log = CommitLog(
            self._folder / "log",
            self._files,
            size.log_file,
            size.log_total // size.log_file,
            self._report,
        )
        self._intake = Intake(
            self._state, self._clock, limits, self._commit_log.submit, found.tail.next_sequence
        )
        self._reader = Reader(self._files, self._pool, ChunkCache(size.cache))
        self._mover = Mover(
            self._files,
            self._folder,
            self._state,
            self._intake,
            self._commit_log,
            self._checkpoint,
            self._mover_pool,
            self._clock,
            found.meta,
            size.segment,
            size.recent,
        )
        # The busiest path goes without a step in between.
        self.append = self._intake.append  # type: ignore[method-assign]
        self._commit_log.start(found.tail)
        self._running = True
        self._timer = self._loop.call_later(self._options.upkeep_s, self._look_after)
        self._task = self._loop.create_task(self._move_when_wanted())
        if found.frames:
            self._wanted.set()

    def _open(self) -> Recovered:
        """Lock, read, then tidy up; in the mover's thread."""
        files, folder = self._files, self._folder
        folder.mkdir(parents=True, exist_ok=True)
        self._lock.acquire()
        if not check_version(files, folder):
            self._create()
        self._checkpoint.open()
        found = recover(files, folder, self._checkpoint, self._progress)
        with FolderHold(folder).exclusive() as free:
            if free:
                self._tidy(found.state)
            else:
                # A backup reads the folder: leave its files alone, also those the log would use again.
                found.tail = replace(found.tail, spares=())
        return found

    def _create(self) -> None:
        """Make an empty data folder; the version comes last, so that a crash leaves none or a whole one."""
        files, folder = self._files, self._folder
        if any(name.endswith(".log") for name in files.names(folder / "log")):
            raise StorageError(f"{folder} holds a log but no version: it is not a data folder")
        for name in ("log", "topics", "staged"):
            files.make_folder(folder / name)
        (folder / "checkpoint").mkdir(exist_ok=True)
        self._checkpoint.open()
        if self._checkpoint.used:
            # A copy that did not come to its end would begin as a node that has lost its records.
            raise StorageError(f"{folder} holds topics but no version: it is half of a data folder")
        self._checkpoint.save(Changes(Meta()))
        files.sync_folder(folder / "checkpoint")
        write_version(files, folder)

    def _tidy(self, state: State) -> None:
        """Remove what a crash left behind and nothing refers to."""
        topics = self._folder / "topics"
        known = {topic.folder.name: topic for topic in state.topics.values()}
        for name in self._files.names(topics):
            topic = known.get(name)
            if topic is None:
                self._files.remove_folder(topics / name)
                continue
            segments = {segment.path.name for segment in topic.segments}
            for file in self._files.names(topic.folder):
                if file not in segments:
                    self._files.unlink(topic.folder / file)
        self._expire_staged(published_tickets(state))

    def _expire_staged(self, published: set[str]) -> None:
        folder = self._folder / "staged"
        names = [name for name in self._files.names(folder) if name not in published]
        for name in staging.expired_tickets(names, self._clock.wall_ms()):
            self._files.unlink(folder / name)

    def _expire_if_free(self, published: set[str]) -> None:
        with FolderHold(self._folder).exclusive() as free:
            if free:
                self._expire_staged(published)

    async def stop(self) -> None:
        if not self._running:
            return
        self._running = False
        self._intake.refusal = draining()
        self._timer.cancel()
        self._wanted.set()
        await self._task
        if self._preparing is not None:
            await self._preparing
        try:
            await self._mover.round(everything=True)
        except (StorageError, OSError) as exc:
            log.warning("stopping without a last checkpoint, the commit log has all: %s", exc)
        await self._loop.run_in_executor(self._mover_pool, self._commit_log.stop)
        await self._close()

    async def _close(self) -> None:
        await self._loop.run_in_executor(self._mover_pool, self._checkpoint.close)
        self._pool.shutdown(wait=False)
        self._mover_pool.shutdown(wait=False)
        self._lock.release()

    def _report(self, batches: list[Prepared], error: StorageError | None) -> None:
        self._loop.call_soon_threadsafe(self._reported, batches, error)

    def _reported(self, batches: list[Prepared], error: StorageError | None) -> None:
        self._intake.reported(batches, error)  # type: ignore[arg-type]
        now = self._clock.monotonic()
        idle = self._preparing is None and self._running
        if idle and self._commit_log.low and now >= self._prepare_at:
            self._preparing = self._loop.create_task(self._prepare())
        if isinstance(error, StorageFull) and now >= self._heal_at:
            # What lies in segments can be let go by retention, and what is moved gives the log's files back.
            self._heal_at = now + HEAL_S
            self._full = True
            self._wanted.set()
        if self._intake.taken_bytes - self._moved_at >= self._options.move_after:
            self._wanted.set()
            if self._commit_log.size > self._options.log_total * FAR_BEHIND:
                self._intake.pause()

    async def _move_when_wanted(self) -> None:
        while self._running:
            await self._wanted.wait()
            self._wanted.clear()
            # Also of a round that fails: the next one waits for as much again, and not for the report of this one.
            self._moved_at = taken = self._intake.taken_bytes
            try:
                if self._intake.refusal is None:
                    # On a full disk the round may make the room that saying what is let go takes.
                    with suppress(StorageFull):
                        await self.retain()
                if taken != self._saved_at:
                    # An idle node leaves the disk alone.
                    everything = self._full or self._commit_log.size > self._options.log_total
                    await self._mover.round(everything=everything)
                    self._saved_at = taken
                    self._full = False
                self._intake.resume()
            except Draining:
                return  # the stop came in between; it runs the last round itself
            except (StorageError, OSError) as exc:
                log.warning("moving into segments failed, will be tried again: %s", exc)
                await self._refuse_held(exc)
            except Exception:
                # A mistake of ours; but producers must not wait for a mover that is no more.
                log.exception("moving into segments failed, will be tried again")
            else:
                continue
            # Producers may be waiting for it, and nothing else would tell them when there is room again.
            self._loop.call_later(AGAIN_S, self._wanted.set)

    async def _refuse_held(self, exc: StorageError | OSError) -> None:
        """Producers that wait for the mover learn that it cannot get on."""
        error = exc if isinstance(exc, StorageError) else storage_error(exc, "moving into segments")
        if isinstance(error, StorageFull):
            with suppress(StorageError):
                await self._in_pool(self._commit_log.drop_spares)
        refused: list[bool] = []
        try:
            # While records are held back none are handed over, so what was on its way is through before long.
            while not any(refused):
                await self._intake.barrier(
                    lambda _: refused.append(self._intake.refuse_held(error))
                )
        except StorageError:
            log.warning("the commit log cannot be written either")

    async def retain(self) -> None:
        """Drop what the topics' options let go, and staged chunks that nobody published."""
        now_ms = self._clock.wall_ms()
        due = [
            (topic.id, Trimmed(first))
            for topic in self._state.topics.values()
            if not topic.removed and (first := retained_first(topic, now_ms)) > topic.first
        ]
        await asyncio.gather(*(self._intake.change(id_, change) for id_, change in due))
        async with self._changing:
            # Under the lock, so that nothing is published while it expires.
            published = published_tickets(self._state)
            await self._in_pool(lambda: self._expire_if_free(published))

    async def _prepare(self) -> None:
        try:
            await self._in_pool(self._commit_log.prepare)
        except StorageError as exc:
            # The commit log makes its own file when it needs one, and reports if it cannot.
            log.info("no commit log file was prepared: %s", exc)
            self._prepare_at = self._clock.monotonic() + AGAIN_S
        self._preparing = None

    def _look_after(self) -> None:
        self._wanted.set()
        self._timer = self._loop.call_later(self._options.upkeep_s, self._look_after)

    async def move_all(self) -> None:
        """Bring everything into segments and save a checkpoint now."""
        await self._mover.round(everything=True)

    async def back_up(self, target: Path, progress: Progress | None = None) -> Backup:
        """Copy everything that is durable now to a new folder, while work goes on."""
        return await self._in_pool(
            lambda: back_up(self._folder, target, progress, self._checkpoint.copy)
        )

    # -- topics -----------------------------------------------------------------------------------------------

    async def declare(self, topic: str, options: TopicOptions) -> TopicInfo:
        check_name(topic)
        async with self._changing:
            known = self._state.topics.get(topic)
            id_ = known.id if known else self._state.next_id
            await self._intake.change(id_, Declared(topic, options, self._clock.wall_ms()))
        return self.topic(topic)

    async def remove(self, topic: str) -> None:
        async with self._changing:
            found = self._state.log(topic)
            found.removed = True
            try:
                await self._intake.change(found.id, Removed())
            except StorageError:
                found.removed = False
                raise
        self._wanted.set()

    async def trim(self, topic: str, first: int) -> None:
        found = self._state.log(topic)
        await self._intake.change(found.id, Trimmed(min(first, found.end)))
        self._wanted.set()

    def topics(self) -> Sequence[TopicInfo]:
        return [found.info() for found in self._state.topics.values()]

    def topic(self, topic: str) -> TopicInfo:
        return self._state.log(topic).info()

    # -- records ----------------------------------------------------------------------------------------------

    def append(self, topic: str, records: Sequence[NewRecord], done: Done) -> bool:
        return self._intake.append(topic, records, done)

    def append_joined(
        self, topic: str, ends: array[int], parts: Sequence[bytes], done: Done
    ) -> bool:
        return self._intake.append_joined(topic, ends, parts, done)

    async def commit(self, operations: Sequence[Operation]) -> list[int]:
        return await self._intake.commit(operations)

    def move(self, move: Move) -> None:
        self._intake.move(move)

    def cached(
        self, topic: str, start: int, max_records: int, max_bytes: int
    ) -> Sequence[Record] | None:
        found = self._state.log(topic)
        if start < found.first:
            return None
        return self._reader.cached(found, start, max_records, max_bytes)

    async def read(
        self, topic: str, start: int, max_records: int, max_bytes: int
    ) -> Sequence[Record]:
        return await self._reader.read(self._state.log(topic), start, max_records, max_bytes)

    async def fetch(
        self, topic: str, start: int, end: int, max_bytes: int, *, verify: bool = True
    ) -> Slice:
        return await self._reader.fetch(self._state.log(topic), start, end, max_bytes, verify)

    async def offset_at(self, topic: str, time_ms: int) -> int:
        return await self._reader.offset_at(self._state.log(topic), time_ms)

    # -- groups -----------------------------------------------------------------------------------------------

    async def save_group(self, topic: str, state: GroupState) -> None:
        async with self._changing:
            found = self._state.log(topic)
            saved = Saved(
                state.name, state.options, state.floor, sorted(state.done), state.attempts
            )
            await self._intake.change(found.id, saved)

    async def remove_group(self, topic: str, group: str) -> None:
        async with self._changing:
            found = self._state.log(topic)
            if group not in found.groups:
                raise NoSuchGroup(topic, group)
            await self._intake.change(found.id, Forgotten(group))

    def groups(self, topic: str) -> Sequence[GroupState]:
        return list(self._state.log(topic).groups.values())

    # -- bulk writers -----------------------------------------------------------------------------------------

    async def stage(self, topic: str, chunk: bytes) -> str:
        found = self._state.log(topic)
        folder, now_ms = self._state.staged_folder, self._clock.wall_ms()
        return await self._in_pool(
            lambda: staging.write_staged(self._files, folder, found.id, chunk, now_ms)
        )

    async def publish_staged(
        self, topic: str, sink: str, batch: int, tickets: Sequence[str]
    ) -> int:
        async with self._changing:
            found = self._state.log(topic)
            last = found.sinks.get(sink)
            if last is not None and batch <= last[0]:
                return last[1]
            if len(set(tickets)) != len(tickets):
                raise Conflict("a ticket is named twice")
            folder = self._state.staged_folder
            sizes = await self._in_pool(
                lambda: [staging.find_staged(self._files, folder, found.id, t) for t in tickets]
            )
            self._state.log(topic)  # it may have been removed meanwhile
            self._intake.give_offsets()
            base, parts = found.next, []
            for ticket, (count, size) in zip(tickets, sizes, strict=True):
                parts.append(Staged(ticket, base, count, size))
                base += count
            first = found.next
            now_ms = max(self._intake.now_ms(), found.last_ms)
            await self._intake.publish(found, Published(sink, batch, found.last_ms, now_ms, parts))
            return first

    # -- other nodes ------------------------------------------------------------------------------------------

    async def claim(self, name: str, prefix: bool) -> None:
        """There are no other nodes to tell."""

    async def release(self, name: str) -> None:
        """There are no other nodes to tell."""

    def forward_call(self, call: Call) -> bool:
        return False

    def forward_publication(self, publication: Publication) -> None:
        """There are no other nodes to hand it to."""

    @property
    def works(self) -> bool:
        """Whether one of its threads is at work, and will want the interpreter again and again."""
        return bool(
            self._intake.oldest_outstanding < self._intake.sequence
            or self._mover.works
            or self._reader.at_work
            or self._at_work
        )

    async def _in_pool(self, work: Callable[[], _T]) -> _T:
        self._at_work += 1
        try:
            return await self._loop.run_in_executor(self._pool, work)
        except OSError as exc:
            raise storage_error(exc, "working on the data folder") from exc
        finally:
            self._at_work -= 1
