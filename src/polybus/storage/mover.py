"""The mover: brings what the commit log holds into segments, saves the checkpoint, and gives the log's files back.

Invariant: a record leaves memory and log only after its segment is synced and a checkpoint that
knows of it is saved. The steps of a round are never reordered: write segments, sync them, save the
checkpoint, then trim the log and unlink files.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from polybus.errors import CorruptRecord
from polybus.model.chunk import ChunkHeader
from polybus.model.clock import Clock
from polybus.storage.checkpoint import (
    Changes,
    Checkpoint,
    Meta,
    collect,
    segment_key,
    topic_of,
)
from polybus.storage.commit_log import CommitLog
from polybus.storage.files import Files, FolderHold, OpenFile
from polybus.storage.intake import Intake
from polybus.storage.merger import is_ragged, merge_segment
from polybus.storage.packing import pack_items
from polybus.storage.recent import Recent
from polybus.storage.retention import is_aged, segment_limit
from polybus.storage.segment import (
    SEGMENT_HEADER_BYTES,
    ChunkIndex,
    Segment,
    encode_segment_header,
    segment_name,
)
from polybus.storage.state import State
from polybus.storage.topic_log import StagedPart, Tail, TopicLog, item_bytes

log = logging.getLogger("polybus.storage")
OPEN_AT_ONCE: Final = 64  # files between two syncs, well below any limit on descriptors
AT_A_TIME: Final = 64  # topics in one turn of the event loop: with a thousand it would be felt
MERGES: Final = 8  # segments rewritten per round, so that a round stays short
SMALL_TAIL: Final = (
    256 << 10
)  # a topic with less waits for a forced round, so that chunks get large


@dataclass(slots=True)
class Written:
    """A chunk that was written to a segment."""

    segment: Segment
    position: int
    header: ChunkHeader


@dataclass(slots=True)
class Job:
    """What one topic has to move: items in order, and where its last segment stands."""

    topic: TopicLog
    tail: Tail
    end: int
    active: Segment | None
    position: int
    limit: int
    bytes: int
    staged: list[Path] = field(default_factory=list)
    written: list[Written] = field(default_factory=list)
    made: list[Path] = field(default_factory=list)


def write_jobs(files: Files, folder: Path, jobs: Sequence[Job], recent: Recent) -> None:
    """Write and sync what the jobs hold; runs in the mover's thread."""
    opened: list[OpenFile] = []
    folders: list[Path] = []
    try:
        for job in jobs:
            _write_job(files, job, opened, folders)
            if len(opened) >= OPEN_AT_ONCE:
                _sync(files, folder, opened, folders)
        _sync(files, folder, opened, folders)
    except Exception:
        _give_up(files, jobs)
        raise
    finally:
        for file in opened:
            file.close()
    for job in jobs:
        for written in job.written:
            recent.add(written.segment.path, written.position, written.header.length)


def _give_up(files: Files, jobs: Sequence[Job]) -> None:
    """Take back the files that a failed round made: nothing refers to them, and a full disk has no room for them.

    What it wrote at the end of a file that was there is written over by the next round.
    """
    for path in [path for job in jobs for path in job.made]:
        with suppress(OSError):
            files.unlink(path)


def _sync(files: Files, folder: Path, opened: list[OpenFile], folders: list[Path]) -> None:
    if opened:
        files.sync_all(folder, opened, folders)
        for file in opened:
            file.close()
        opened.clear()
        folders.clear()


def _write_job(files: Files, job: Job, opened: list[OpenFile], folders: list[Path]) -> None:
    segment, position = job.active, job.position
    file, end = None, job.tail.base
    compression = job.topic.options.compression
    for view in pack_items(files, job.tail, compression, job.staged.append):
        length = view.header.length
        is_full = position + length > job.limit and position > SEGMENT_HEADER_BYTES
        if segment is None or is_full or view.header.base != end:
            base = view.header.base
            folder = job.topic.folder
            if not job.topic.segments:
                files.make_folder(folder)
                folders.append(folder.parent)
            segment = Segment(folder / segment_name(base, 0), base, 0, base)
            job.made.append(segment.path)
            file = files.open(segment.path, create=True)
            opened.append(file)
            folders.append(folder)
            file.write(0, [encode_segment_header(job.topic.id, 0, base)])
            position = SEGMENT_HEADER_BYTES
        elif file is None:
            file = files.open(segment.path)
            opened.append(file)
        file.write(position, [view.head, view.body])
        # Megabytes that wait for one sync would hold up those of the commit log in between.
        file.begin_sync(position, length)
        # The chunk itself is let go: where readers are not far behind, they still got it from the tail.
        job.written.append(Written(segment, position, view.header))
        position += length
        end = view.header.end


class Mover:
    """Runs rounds; one at a time."""

    def __init__(
        self,
        files: Files,
        folder: Path,
        state: State,
        intake: Intake,
        commit_log: CommitLog,
        checkpoint: Checkpoint,
        pool: Executor,
        clock: Clock,
        meta: Meta,
        segment_bytes: int,
        recent: int,
    ) -> None:
        self._files = files
        self._recent = Recent(files, recent)
        self._folder = folder
        self._state = state
        self._intake = intake
        self._commit_log = commit_log
        self._checkpoint = checkpoint
        self._pool = pool
        self._clock = clock
        self._segment_bytes = segment_bytes
        self._loop = asyncio.get_running_loop()
        self._saved = meta
        self._unsaved: Changes | None = None
        self._rows: dict[bytes, Segment] = {}  # for the next checkpoint
        self._row_deletes: list[bytes] = []
        self._unlink: list[Path] = []  # files that the next checkpoint does not know any more
        self._unmergeable: set[Path] = set()
        self._hold = FolderHold(folder)
        self._lock = asyncio.Lock()

    async def round(self, *, everything: bool) -> None:
        """Move what is worth moving, or everything; then save and trim.

        Raises:
            StorageError, OSError: nothing is lost; the next round tries again.
        """
        async with self._lock:
            # What the options let go needs no room: it goes first, so that a full disk can heal.
            self._drop_trimmed()
            if self._unlink or self._state.gone:
                await self._save()
            # What is on its way now, or comes later, stays in the log however far the jobs get.
            outstanding = self._intake.oldest_outstanding
            jobs: list[Job] = []
            now_ms = self._clock.wall_ms()
            for topic in list(self._state.topics.values()):
                if topic.items and (everything or topic.tail_bytes >= SMALL_TAIL):
                    jobs.append(self._job(topic, now_ms))
                    if len(jobs) % AT_A_TIME == 0:
                        await asyncio.sleep(0)
            if jobs:
                await self._run(lambda: write_jobs(self._files, self._folder, jobs, self._recent))
                for number, job in enumerate(jobs):
                    self._take_over(job, outstanding)
                    if number % AT_A_TIME == 0:
                        await asyncio.sleep(0)
                # The records are freed where it disturbs nobody.
                await self._run(jobs.clear)
            self._drop_trimmed()
            await self._merge()
            if everything or self._has_news():
                await self._save()

    @property
    def works(self) -> bool:
        """Whether a round is under way."""
        return self._lock.locked()

    def _has_news(self) -> bool:
        """Whether a checkpoint would set anything free; if not, the log holds all, and its rows can wait."""
        return bool(
            self._rows
            or self._row_deletes
            or self._unlink
            or self._state.gone
            or self._unsaved is not None
        )

    def drop_segment(self, topic: TopicLog, segment: Segment) -> None:
        """Let a segment go that the topic does not list any more; its file goes after the next checkpoint."""
        self._rows.pop(segment_key(topic.id, segment.base), None)
        self._row_deletes.append(segment_key(topic.id, segment.base))
        self._unlink.append(segment.path)

    def put_segment(self, topic: TopicLog, segment: Segment) -> None:
        """Let the next checkpoint know a segment, as it stands then."""
        self._rows[segment_key(topic.id, segment.base)] = segment

    def _job(self, topic: TopicLog, now_ms: int) -> Job:
        tail = topic.visible(topic.bases[0], topic.end)
        active = topic.segments[-1] if topic.segments else None
        if active is not None and (active.closed or active.end != tail.base):
            active = None  # damaged, or the records in between were trimmed before they were moved
        if is_aged(topic, now_ms):
            active = None
        limit = segment_limit(topic, self._segment_bytes)
        size = topic.tail_bytes
        if len(topic.items) > len(tail.items):
            size -= sum(map(item_bytes, topic.items[len(tail.items) :]))
        return Job(topic, tail, topic.end, active, active.length if active else 0, limit, size)

    def _take_over(self, job: Job, outstanding: int) -> None:
        """On the event loop: the topic's records now lie in segments."""
        topic = job.topic
        if topic.removed:
            return
        for written in job.written:
            segment, header = written.segment, written.header
            if not topic.segments or topic.segments[-1] is not segment:
                topic.segments.append(segment)
                segment.first_ms = header.first_us // 1000
                segment.index = ChunkIndex()
            if segment.index is not None:
                segment.index.add(header.base, written.position, header.length, header.last_us)
            segment.end, segment.last_ms = header.end, header.last_us // 1000
            segment.last_position, segment.chunks = written.position, segment.chunks + 1
            segment.length = written.position + header.length
            self.put_segment(topic, segment)
        if topic.bases and topic.bases[0] == job.tail.base:
            topic.drop_first(len(job.tail.items), job.bytes)
        else:
            topic.drop_tail(job.end)  # some of it was trimmed in the meantime
        self._unlink += job.staged
        topic.oldest = outstanding
        topic.moved = max(topic.moved, job.end)
        topic.changed = True

    def _drop_trimmed(self) -> None:
        for topic in self._state.topics.values():
            while topic.segments and topic.segments[0].end <= topic.first:
                self.drop_segment(topic, topic.segments.pop(0))
            if topic.bases and topic.bases[0] < topic.first:
                for item in topic.drop_tail(topic.first):
                    if isinstance(item, StagedPart):
                        self._unlink.append(item.path)

    async def _merge(self) -> None:
        ragged = [
            (topic, number, segment)
            for topic in self._state.topics.values()
            for number, segment in enumerate(topic.segments)
            if is_ragged(segment) and segment.path not in self._unmergeable
        ]
        for topic, number, segment in ragged[:MERGES]:
            try:
                twin = await self._loop.run_in_executor(
                    self._pool, partial(merge_segment, self._files, topic, segment)
                )
            except CorruptRecord as exc:
                self._unmergeable.add(segment.path)
                log.error("not merged: %s", exc)
                continue
            if topic.removed:
                continue  # its folder goes as a whole
            topic.segments[number] = twin
            self.put_segment(topic, twin)
            self._unlink.append(segment.path)

    async def _save(self) -> None:
        """Save a checkpoint, then give back what it does not need."""
        found: list[tuple[Changes, list[Path], list[TopicLog]]] = []
        await self._intake.barrier(lambda sequence: found.append(self._collect(sequence)))
        changes, unlink, gone = found[0]
        if self._unsaved is not None:
            changes.over(self._unsaved)
        self._unsaved = changes
        try:
            await self._run(lambda: self._checkpoint.save(changes))
        except BaseException:
            self._unlink += unlink
            self._state.gone += gone
            raise
        self._unsaved, self._saved = None, changes.meta
        if not await self._loop.run_in_executor(
            self._pool, partial(self._clean, changes.meta.trimmed, unlink, gone)
        ):
            # A backup reads the folder: what it may still need goes with a later round.
            self._unlink += unlink
            self._state.gone += gone

    def _collect(self, sequence: int) -> tuple[Changes, list[Path], list[TopicLog]]:
        unmoved = [topic.oldest for topic in self._state.topics.values() if topic.items]
        trimmed = min([sequence, *(oldest - 1 for oldest in unmoved)])
        meta = Meta(applied=sequence, trimmed=trimmed, next_topic=self._state.next_id)
        changes = collect(self._state, meta, self._clock.wall_ms())
        changes.delete += self._row_deletes
        # A topic removed since its segments were written has no rows any more.
        known = self._state.by_id
        changes.put |= {key: row for key, row in self._rows.items() if topic_of(key) in known}
        unlink, gone = self._unlink, list(self._state.gone)
        self._rows, self._row_deletes, self._unlink = {}, [], []
        self._state.gone.clear()
        return changes, unlink, gone

    def _clean(self, trimmed: int, unlink: Sequence[Path], gone: Sequence[TopicLog]) -> bool:
        with self._hold.exclusive() as free:
            if free:
                self._commit_log.trim(trimmed)
                for path in unlink:
                    self._files.unlink(path)
                for topic in gone:
                    self._files.remove_folder(topic.folder)
        return free

    async def _run(self, work: Callable[[], None]) -> None:
        await self._loop.run_in_executor(self._pool, work)
