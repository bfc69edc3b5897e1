"""Backups: a copy of a data folder as of one moment, made while its node runs or not.

Invariant: what a backup holds is what the node would recover from after a crash at that moment: the
checkpoint is copied first, and nothing it refers to is removed while the copy is made. Log files are
taken in order and only those that were there when the copy began, so that no later frame is without
its predecessors.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from polybus.core.engine import TopicInfo
from polybus.errors import Conflict, PolybusError
from polybus.storage.checkpoint import Checkpoint
from polybus.storage.files import DiskFiles, FolderHold, storage_error
from polybus.storage.frame import (
    FILE_HEADER_BYTES,
    FRAME_HEADER_BYTES,
    padded,
    parse_file_header,
    scan_frames,
)
from polybus.storage.recovery import VERSION_FILE, check_version, recover
from polybus.storage.verify import Verification

PIECE: Final = 1 << 20

Progress = Callable[[int, int], None]
"""Called with bytes copied so far and in all."""


@dataclass(frozen=True, slots=True)
class Backup:
    """What a backup holds."""

    bytes: int
    topics: list[TopicInfo]


def back_up(
    folder: Path,
    target: Path,
    progress: Progress | None = None,
    copy_checkpoint: Callable[[Path], None] | None = None,
) -> Backup:
    """Copy the data folder `folder` to the new folder `target`.

    Args:
        copy_checkpoint: for a node that backs itself up, since LMDB cannot be opened twice in one process.

    Raises:
        PolybusError: no data folder there.
        Conflict: the target is not empty.
        CorruptRecord: what was copied cannot be recovered from.
        StorageFull, StorageError: the target could not be written.
    """
    _check_source(folder)
    with _filling(target):
        (target / "checkpoint").mkdir()
        with FolderHold(folder).shared():
            (copy_checkpoint or _copier(folder))(target / "checkpoint")
            size = _Copy(folder, target, progress).run()
        shutil.copyfile(folder / VERSION_FILE, target / VERSION_FILE)
        return Backup(size, contents(target))


def restore(source: Path, folder: Path, progress: Progress | None = None) -> Backup:
    """Make a new data folder of a backup, after checking all of it.

    Raises:
        PolybusError: no backup there.
        Conflict: the folder is not empty.
        CorruptRecord: the backup is damaged.
        StorageFull, StorageError: the folder could not be written.
    """
    _check_source(source)
    with _filling(folder):
        found = Verification(source, None).run()
        if found.problems:
            first = found.problems[0]
            raise Conflict(
                f"the backup has {len(found.problems)} problems; the first is in {first.where} at byte "
                f"{first.position}: {first.reason}"
            )
        names = [
            path for path in sorted(source.rglob("*")) if path.is_file() and path.name != "lock.mdb"
        ]
        total = sum(path.stat().st_size for path in names)
        done = 0
        for path in names:
            goal = folder / path.relative_to(source)
            goal.parent.mkdir(parents=True, exist_ok=True)
            done += _copy_file(path, goal, path.stat().st_size)
            if progress is not None:
                progress(done, total)
        return Backup(done, contents(folder))


def contents(folder: Path) -> list[TopicInfo]:
    """The topics of a folder that no node uses."""
    checkpoint = Checkpoint(folder / "checkpoint", readonly=True)
    checkpoint.open()
    try:
        state = recover(DiskFiles(), folder, checkpoint).state
    finally:
        checkpoint.close()
    return [topic.info() for topic in state.topics.values()]


def _copier(folder: Path) -> Callable[[Path], None]:
    def copy(target: Path) -> None:
        checkpoint = Checkpoint(folder / "checkpoint", readonly=True, beside_writer=True)
        checkpoint.open()
        try:
            checkpoint.copy(target)
        finally:
            checkpoint.close()

    return copy


def _check_source(folder: Path) -> None:
    if not check_version(DiskFiles(), folder):
        raise PolybusError(f"{folder} is no data folder: it has no version file")


@contextmanager
def _filling(target: Path) -> Iterator[None]:
    """Fill a folder that is new or empty; what fails leaves it empty, as half a copy could be taken for a whole one."""
    try:
        if target.exists() and any(target.iterdir()):
            raise Conflict(f"{target} is not empty")
        target.mkdir(parents=True, exist_ok=True)
        try:
            yield
        except BaseException:
            for path in target.iterdir():
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)
            raise
    except OSError as exc:
        raise storage_error(exc, f"copying to {target}") from exc


class _Copy:
    """Copies what the copied checkpoint refers to."""

    def __init__(self, folder: Path, target: Path, progress: Progress | None) -> None:
        self._folder = folder
        self._target = target
        self._progress = progress
        self._done = 0
        self._total = 0

    def run(self) -> int:
        checkpoint = Checkpoint(self._target / "checkpoint", readonly=True)
        checkpoint.open()
        try:
            _, state = checkpoint.load(self._folder)
        finally:
            checkpoint.close()
        segments = [s for topic in state.topics.values() for s in topic.segments]
        logs = sorted((self._folder / "log").glob("[0-9]*.log"))
        # Staged files are listed after the log files: a publication in the log has its chunks there.
        for name in ("log", "topics", "staged"):
            (self._target / name).mkdir()
        self._total = sum(s.length for s in segments) + sum(map(_size, logs))
        for path in logs:
            self._advance(_copy_log(path, self._target / "log" / path.name))
        staged = sorted((self._folder / "staged").iterdir())
        for path in staged:
            self._advance(
                _copy_file(path, self._target / "staged" / path.name, path.stat().st_size)
            )
        for segment in segments:
            goal = self._target / segment.path.relative_to(self._folder)
            goal.parent.mkdir(parents=True, exist_ok=True)
            self._advance(_copy_file(segment.path, goal, segment.length))
        for path in {self._target, *(p.parent for p in self._target.rglob("*"))}:
            DiskFiles().sync_folder(path)
        return self._done

    def _advance(self, size: int) -> None:
        self._done += size
        if self._progress is not None:
            self._progress(self._done, max(self._total, self._done))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0  # a trimmed log file, renamed for its next use


def _copy_log(source: Path, goal: Path) -> int:
    """Copy the whole frames of a log file up to the first gap.

    A gap is where the node was writing while we read: what stands behind it may be newer than what stands before it.
    """
    try:
        data = source.read_bytes()
    except FileNotFoundError:
        return 0  # a trimmed file, renamed for its next use
    header = parse_file_header(data[:FILE_HEADER_BYTES])
    end = FILE_HEADER_BYTES
    if header is not None:
        for frame in scan_frames(memoryview(data), header[1]):
            if frame.position != end:
                break
            end = frame.position + FRAME_HEADER_BYTES + padded(len(frame.body))
    with goal.open("wb") as file:
        file.write(data[:end])
        file.flush()
        os.fsync(file.fileno())
    return len(data)


def _copy_file(source: Path, goal: Path, size: int) -> int:
    """Copy the first `size` bytes and sync them."""
    left = size
    with source.open("rb") as reader, goal.open("wb") as writer:
        while left > 0:
            piece = reader.read(min(left, PIECE))
            if not piece:
                break
            writer.write(piece)
            left -= len(piece)
        writer.flush()
        os.fsync(writer.fileno())
    return size - left
