"""Opening a data folder: the checkpoint, then what the commit log says beyond it.

Invariant: reading changes nothing on disk, so that a refusal leaves the folder as it was. A frame
is taken when its predecessor in the chain was taken; a gap is a torn tail, to be cut, unless a
later frame proves that what is missing had been synced: then it is damage, and reported.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from polybus.errors import CorruptRecord, FormatTooNew
from polybus.model.chunk import HEADER_BYTES, ChunkView, parse_chunk, parse_header
from polybus.storage.checkpoint import FORMAT, Checkpoint, Meta
from polybus.storage.commit_log import LogFile, LogTail
from polybus.storage.entry import Entry, Published, scan_entries
from polybus.storage.files import Files
from polybus.storage.frame import (
    FRAME_HEADER_BYTES,
    Frame,
    padded,
    parse_file_header,
    scan_frames,
)
from polybus.storage.segment import Segment
from polybus.storage.state import State
from polybus.storage.topic_log import Item, TopicLog, item_bytes, single

log = logging.getLogger("polybus.storage")
VERSION_FILE: Final = "version"
SAY_AFTER_S: Final = 1.0  # a shorter recovery needs no words

Progress = Callable[[int, int], None]
"""Called with bytes of the commit log read so far and in all."""


@dataclass(slots=True)
class Recovered:
    """What a data folder holds."""

    meta: Meta
    state: State
    tail: LogTail
    frames: int
    cut: list[tuple[Path, int]]  # torn places: file and position
    damaged: list[CorruptRecord]  # ends of segments that do not fit their checksums


def check_version(files: Files, folder: Path) -> bool:
    """Whether the folder has been used before.

    Raises:
        FormatTooNew: by a newer version.
    """
    if VERSION_FILE not in files.names(folder):
        return False
    file = files.open(folder / VERSION_FILE)
    try:
        text = file.read(0, 64).decode("ascii", "replace").strip()
    finally:
        file.close()
    if not text.isdigit() or int(text) > FORMAT:
        text = f"the data folder {folder} has format {text!r}, this version knows {FORMAT}"
        raise FormatTooNew(f"{text}: start it with the version that wrote it")
    return True


def write_version(files: Files, folder: Path) -> None:
    """Mark a folder as ours; a crash in between leaves it unmarked."""
    temporary = folder / (VERSION_FILE + ".new")
    file = files.open(temporary, create=True)
    try:
        file.write(0, [f"{FORMAT}\n".encode()])
        file.sync()
    finally:
        file.close()
    files.rename(temporary, folder / VERSION_FILE)
    files.sync_folder(folder)


def recover(
    files: Files, folder: Path, checkpoint: Checkpoint, progress: Progress | None = None
) -> Recovered:
    """Read the whole state of a data folder.

    Raises:
        CorruptRecord: something that had been acknowledged is missing from the commit log.
    """
    meta, state = checkpoint.load(folder)
    damaged = []
    for topic in state.topics.values():
        for segment in topic.segments[-1:]:
            try:
                check_last_chunk(files, segment)
            except CorruptRecord as exc:
                # Its readers will be told; the topic goes on in a new segment, and the others are not concerned.
                log.error("%s: %s", topic.name, exc)
                segment.closed = True
                damaged.append(exc)
    reader = LogReader(files, folder / "log", meta)
    frames = reader.read(progress)
    for frame in frames:
        for entry in scan_entries(frame.body, frame.source, frame.position):
            replay(state, entry, frame.sequence, meta)
    for topic in state.topics.values():
        topic.end = topic.next = max(topic.next, topic.first)
        topic.drop_tail(topic.first)
    return Recovered(meta, state, reader.tail(), len(frames), reader.cut, damaged)


def check_last_chunk(files: Files, segment: Segment) -> None:
    """Verify the end of a topic's last segment: it is what the last run wrote.

    Raises:
        CorruptRecord.
    """
    try:
        file = files.open(segment.path)
    except FileNotFoundError as exc:
        raise CorruptRecord(segment.path.name, 0, "the file is missing") from exc
    try:
        data = file.read(segment.last_position, segment.length - segment.last_position)
    finally:
        file.close()
    parse_chunk(data, segment.path.name, segment.last_position)


def replay(state: State, entry: Entry, sequence: int, meta: Meta) -> None:
    """Do one entry again, unless its effect is in the checkpoint or in the segments."""
    if len(entry) == 4:
        topic, offset, time_ms, record = entry
        log = state.by_id.get(topic)
        if log is not None:
            _put_back(log, offset, single(record), 1, time_ms, sequence)
            if record.id:
                log.dedup.add(record.id, offset, time_ms, log.options)
        return
    topic, thing = entry
    log = state.by_id.get(topic)
    if isinstance(thing, ChunkView):
        if log is not None:
            header = thing.header
            last_ms = header.last_us // 1000
            _put_back(log, header.base, thing, header.count, last_ms, sequence)
            for number, id_ in enumerate(thing.ids(0, header.count) or ()):
                if id_:
                    time_ms = thing.times[number] // 1000
                    log.dedup.add(id_.decode(), header.base + number, time_ms, log.options)
        return
    if isinstance(thing, Published) and log is not None:
        parts = [part for part in thing.parts if part.base >= log.moved]
        if parts and not log.items:
            log.oldest = sequence
        kept = Published(thing.sink, thing.batch, thing.last_ms, thing.now_ms, parts)
        state.add_published(log, kept)
        log.end = max(log.end, log.next)
    if sequence > meta.applied:
        state.apply(topic, thing)


def _put_back(
    log: TopicLog, base: int, item: Item, count: int, last_ms: int, sequence: int
) -> None:
    if base < log.moved:
        return
    if not log.items:
        log.oldest = sequence
    elif base != log.next:
        reason = f"frame {sequence} holds offset {base} of {log.name}, {log.next} was next"
        raise CorruptRecord("commit log", 0, reason)
    log.add(base, last_ms, item, item_bytes(item))
    log.next = log.end = base + count
    log.last_ms = max(log.last_ms, last_ms)


@dataclass(frozen=True, slots=True)
class FoundFrame:
    """A frame of the chain and where it stood."""

    sequence: int
    source: str
    position: int
    body: memoryview


class LogReader:
    """Reads the files of the commit log into the chain of frames above the trimmed ones."""

    def __init__(self, files: Files, folder: Path, meta: Meta) -> None:
        self._files = files
        self._folder = folder
        self._meta = meta
        self._chain: list[FoundFrame] = []
        self._kept: list[LogFile] = []
        self._spares: list[Path] = []
        self._highest = max(meta.applied, meta.trimmed)
        self._number = 1
        self.cut: list[tuple[Path, int]] = []

    def read(self, progress: Progress | None = None) -> list[FoundFrame]:
        """The frames to replay, in order.

        Raises:
            CorruptRecord: a synced frame is missing or damaged.
        """
        names = [name for name in self._files.names(self._folder) if name.endswith(".log")]
        began, total, done = time.monotonic(), 0, 0
        for name in names:
            path = self._folder / name
            file = self._files.open(path)
            try:
                data = file.read(0, file.size())
            finally:
                file.close()
            total = max(total, len(data) * len(names))
            self._read_file(path, data)
            done += len(data)
            if progress is not None:
                progress(done, total)
            if time.monotonic() - began > SAY_AFTER_S:
                log.info("recovering: %d of about %d bytes of the commit log", done, total)
        return self._chain

    def _read_file(self, path: Path, data: bytes) -> None:
        digits = path.stem
        number = int(digits) if digits.isdigit() else 0
        self._number = max(self._number, number + 1)
        header = parse_file_header(data)
        if header is None or header[0] != number:
            # Never finished, or renamed for reuse just before a crash: it holds nothing that counts.
            self._spares.append(path)
            return
        last = end = 0
        for frame in scan_frames(memoryview(data), header[1]):
            self._highest = max(self._highest, frame.sequence)
            last = max(last, frame.sequence)
            if frame.position > end and end:
                self.cut.append((path, end))
            end = frame.position + FRAME_HEADER_BYTES + padded(len(frame.body))
            self._link(path, frame)
        if last <= self._meta.trimmed:
            self._spares.append(path)
        else:
            self._kept.append(LogFile(path, number, last))

    def _link(self, path: Path, frame: Frame) -> None:
        last = self._chain[-1].sequence if self._chain else self._meta.trimmed
        if frame.sequence <= last:
            return  # trimmed, or the remains of a write that was given up
        # A frame whose predecessor is not the last one tells that those in between were given up.
        while self._chain and self._chain[-1].sequence > frame.before:
            self._chain.pop()
        last = self._chain[-1].sequence if self._chain else self._meta.trimmed
        if frame.before <= last:
            self._chain.append(FoundFrame(frame.sequence, path.name, frame.position, frame.body))
        elif frame.synced > last:
            reason = f"frame {frame.synced} had been synced and is not there (last is {last})"
            raise CorruptRecord(path.name, frame.position, reason)

    def tail(self) -> LogTail:
        """Where the log goes on."""
        last = self._chain[-1].sequence if self._chain else self._meta.trimmed
        return LogTail(self._kept, self._spares, last, self._highest + 1, self._number)


def read_staged(files: Files, path: Path) -> ChunkView:
    """A staged chunk.

    Raises:
        CorruptRecord: it is damaged.
        FileNotFoundError: it is gone, since it was moved or by accident.
    """
    file = files.open(path)
    try:
        size = parse_header(file.read(0, HEADER_BYTES), path.name).length
        return parse_chunk(file.read(0, size), path.name)
    finally:
        file.close()
