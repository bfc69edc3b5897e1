"""Checks a data folder that no node uses: every checksum, every offset, every time.

Invariant: it changes nothing, and one problem never hides the next.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from polybus.errors import CorruptRecord, PolybusError
from polybus.storage.checkpoint import Checkpoint, Meta
from polybus.storage.entry import scan_entries
from polybus.storage.files import DiskFiles, FolderLock
from polybus.storage.reader import read_part
from polybus.storage.recovery import LogReader, check_version, replay
from polybus.storage.segment import (
    SEGMENT_HEADER_BYTES,
    Segment,
    check_segment_header,
    load_index,
    read_chunk,
)
from polybus.storage.state import State
from polybus.storage.topic_log import StagedPart, TopicLog, item_count

Progress = Callable[[int, int], None]
"""Called with bytes checked so far and in all."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is not as it was written."""

    where: str
    position: int
    reason: str


@dataclass(slots=True)
class Findings:
    """What was looked at, and what was wrong."""

    topics: int = 0
    segments: int = 0
    chunks: int = 0
    records: int = 0
    frames: int = 0
    bytes: int = 0
    problems: list[Problem] = field(default_factory=list)

    def add(self, error: CorruptRecord) -> None:
        """Note a problem."""
        self.problems.append(Problem(error.segment, error.position, error.reason))


def verify_folder(folder: Path, progress: Progress | None = None) -> Findings:
    """Check everything in a data folder.

    Raises:
        FolderInUse: a node runs on it.
        FormatTooNew: a newer version wrote it.
        PolybusError: it is no data folder.
    """
    files = DiskFiles()
    if not check_version(files, folder):
        raise PolybusError(f"{folder} is no data folder: it has no version file")
    lock = FolderLock(folder / "lock")
    lock.acquire()
    try:
        return Verification(folder, progress).run()
    finally:
        lock.release()


class Verification:
    """One walk over a folder."""

    def __init__(self, folder: Path, progress: Progress | None) -> None:
        self._folder = folder
        self._files = DiskFiles()
        self._progress = progress
        self._total = 0
        self.found = Findings()

    def run(self) -> Findings:
        """Check the checkpoint, then the segments, then the commit log."""
        checkpoint = Checkpoint(self._folder / "checkpoint", readonly=True)
        try:
            checkpoint.open()
            meta, state = checkpoint.load(self._folder)
        except CorruptRecord as exc:
            self.found.add(exc)
            return self.found
        finally:
            checkpoint.close()
        segments = [segment for topic in state.topics.values() for segment in topic.segments]
        self._total = sum(segment.length - SEGMENT_HEADER_BYTES for segment in segments)
        for topic in state.topics.values():
            for problem in self._check_topic(topic):
                self.found.add(problem)
        self._check_log(meta, state)
        return self.found

    def _check_topic(self, topic: TopicLog) -> Iterator[CorruptRecord]:
        expected, last_us = None, 0
        for segment in topic.segments:
            if expected is not None and segment.base != expected:
                reason = f"begins at offset {segment.base}, {expected} was next"
                yield CorruptRecord(segment.path.name, 0, reason)
            expected = segment.end
            try:
                last_us = yield from self._check_segment(topic, segment, last_us)
            except FileNotFoundError:
                yield CorruptRecord(segment.path.name, 0, "the file is missing")
        if topic.segments and topic.segments[-1].end < topic.moved:
            reason = f"ends at offset {topic.segments[-1].end}, {topic.moved} were moved"
            yield CorruptRecord(topic.segments[-1].path.name, 0, reason)

    def _check_segment(
        self, topic: TopicLog, segment: Segment, last_us: int
    ) -> Generator[CorruptRecord, None, int]:
        self.found.segments += 1
        name = segment.path.name
        file = self._files.open(segment.path)
        try:
            check_segment_header(file.read(0, SEGMENT_HEADER_BYTES), segment, topic.id)
            size = file.size()
        except CorruptRecord as exc:
            yield exc
            size = file.size()
        finally:
            file.close()
        if size < segment.length:
            yield CorruptRecord(name, size, f"{segment.length} bytes were written")
        segment.index = load_index(self._files, segment, min(size, segment.length))
        expected = segment.base
        for number, position in enumerate(segment.index.positions):
            try:
                view = read_chunk(self._files, segment, number)
                view.check(name, position)
            except CorruptRecord as exc:
                yield exc
                expected = segment.end  # what a damaged chunk held is not known
                continue
            if view.header.first_us < last_us:
                yield CorruptRecord(name, position, "the times fall")
            last_us = view.header.last_us
            expected = view.header.end
            self.found.chunks += 1
            self.found.records += view.header.count
            self.found.bytes += view.header.length
            if self._progress is not None:
                self._progress(self.found.bytes, self._total)
        if expected != segment.end and size >= segment.length:
            yield CorruptRecord(name, size, f"ends at offset {expected}, not {segment.end}")
        return last_us

    def _check_log(self, meta: Meta, state: State) -> None:
        try:
            for frame in LogReader(self._files, self._folder / "log", meta).read():
                self.found.frames += 1
                self.found.bytes += len(frame.body)
                for entry in scan_entries(frame.body, frame.source, frame.position):
                    replay(state, entry, frame.sequence, meta)
        except CorruptRecord as exc:
            self.found.add(exc)
        # Topics declared since the last checkpoint count too, and so do records that wait for the mover.
        self.found.topics = len(state.topics)
        for topic in state.topics.values():
            for item in topic.items:
                self.found.records += item_count(item)
                if isinstance(item, StagedPart):
                    try:
                        read_part(self._files, item).check(item.path.name)
                    except CorruptRecord as exc:
                        self.found.add(exc)
                    except FileNotFoundError:
                        gone = CorruptRecord(item.path.name, 0, "the staged chunk is gone")
                        self.found.add(gone)
