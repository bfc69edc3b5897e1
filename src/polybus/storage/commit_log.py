"""The commit log: one file sequence for all topics, one write and one sync per group commit.

Invariant: a batch is reported done only after its frame is synced (or, for batches that do not ask
for it, written), in the order of submission; after a failure nothing of the failed batch, nor of
any batch that was made before the failure was known, is ever reported done.

One thread writes and syncs. The bodies come prepared, so that it needs the interpreter only for a
few microseconds between two syncs: a busy event loop must not slow the disk down.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Final, Protocol

from polybus.errors import StorageError
from polybus.storage.files import Files, OpenFile, storage_error
from polybus.storage.frame import (
    FILE_HEADER_BYTES,
    FRAME_HEADER_BYTES,
    SALT_BYTES,
    encode_file_header,
    encode_frame_header,
    padded,
)

RESERVE: Final = 128 << 10  # bytes of a file for changes only: of topics, options, groups
ZEROS: Final = memoryview(bytes(1 << 20))
VOID: Final = bytes(FRAME_HEADER_BYTES)
_PAD: Final = (b"", b"\0" * 7, b"\0" * 6, b"\0" * 5, b"\0" * 4, b"\0" * 3, b"\0" * 2, b"\0")


class Prepared(Protocol):
    """The bytes of one frame on their way to the disk."""

    sequence: int
    epoch: int
    parts: list[bytes]  # the body, in few pieces
    size: int  # of the body
    crc: int
    sync: bool

    @property
    def ends(self) -> Mapping[Any, int]:
        """Of topics that it has records of."""


Report = Callable[[list[Prepared], StorageError | None], None]
"""Called in the commit thread with batches in order, and why they failed if they did."""


@dataclass(slots=True)
class LogFile:
    """A file of the log; `last` is the highest sequence it holds."""

    path: Path
    number: int
    last: int


@dataclass(frozen=True, slots=True)
class LogTail:
    """Where the log stood when it was read."""

    files: Sequence[LogFile]
    spares: Sequence[Path]
    last: int  # the last frame of the chain
    next_sequence: int
    next_number: int


def log_name(number: int) -> str:
    """The file name of a log file in use."""
    return f"{number:012d}.log"


class CommitLog:
    """Group commit in a thread of its own.

    Args:
        max_spares: how many trimmed files are kept for reuse. Their blocks are allocated, which makes syncing cheaper,
            and a round of the mover may trim the whole log at once.
    """

    def __init__(
        self, folder: Path, files: Files, file_bytes: int, max_spares: int, report: Report
    ) -> None:
        self._folder = folder
        self._files = files
        self._file_bytes = file_bytes
        self._max_spares = max_spares
        self._reserve = min(RESERVE, file_bytes // 64)
        self._report = report
        self._mutex = threading.Lock()
        self._wake = threading.Lock()  # held while there is nothing to do
        self._wake.acquire()
        self._queue: list[Prepared] = []
        self._idle = True
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="polybus-commit", daemon=True)
        self._kept: list[LogFile] = []
        self._spares: list[Path] = []
        self._file: OpenFile | None = None
        self._salt = b""
        self._position = self._size = 0
        self._unsynced = False
        self._number = 0
        self._last = 0  # the last frame written
        self._synced = 0  # the last frame known to be on disk
        self._epoch = 0
        self._error: StorageError | None = None

    def start(self, tail: LogTail) -> None:
        """Go on behind `tail`, in a new file: what a crash left behind the tail stays out of the way."""
        self._kept = list(tail.files)
        self._spares = list(tail.spares)
        self._number = tail.next_number
        self._last = self._synced = tail.last
        self._thread.start()

    def submit(self, batch: Prepared) -> None:
        """Hand a batch over; called from the event loop."""
        with self._mutex:
            self._queue.append(batch)
            if not self._idle:
                return
            self._idle = False
        self._wake.release()

    def stop(self) -> None:
        """Write what was submitted, then end the thread. Idempotent."""
        if self._thread.ident is None or self._closing:
            return
        with self._mutex:
            self._closing = True
            idle, self._idle = self._idle, False
        if idle:
            self._wake.release()
        self._thread.join()
        if self._file is not None:
            self._file.close()
            self._file = None

    @property
    def size(self) -> int:
        """Bytes of all files that are still needed."""
        return len(self._kept) * self._file_bytes

    def trim(self, sequence: int) -> None:
        """Give up the files that hold no frame above `sequence`; called from the mover's thread."""
        with self._mutex:
            current = self._kept[-1] if self._file is not None and self._kept else None
            gone = [file for file in self._kept if file.last <= sequence and file is not current]
            self._kept = [file for file in self._kept if file not in gone]
        for file in gone:
            if len(self._spares) < self._max_spares and self._is_whole(file):
                self._spares.append(file.path)
            else:
                self._files.unlink(file.path)

    def drop_spares(self) -> None:
        """Give the disk back what is kept for reuse; called from a thread that may wait."""
        while (spare := self._take_spare()) is not None:
            self._files.unlink(spare)

    def _take_spare(self) -> Path | None:
        # Two threads may be here: whether there is one is known when it has been taken.
        try:
            return self._spares.pop()
        except IndexError:
            return None

    @property
    def low(self) -> bool:
        """Whether the file in use is half full and there is none to follow it."""
        return not self._spares and self._position > self._file_bytes // 2

    def prepare(self) -> None:
        """Make a file to follow; called from a thread that may wait.

        Its blocks are written, not only reserved: the first write into a reserved block changes the file system's own
        records, which made each sync take two to three times as long where it was measured.
        """
        # A name nobody has: the spare before it may be on its way to become the log's next file at this moment, and
        # opened under its old name it would be written with zeros under its new one.
        taken = self._files.names(self._folder)
        number = next(n for n in count(1) if f"spare-{n}.log" not in taken)
        path = self._folder / f"spare-{number}.log"
        self._check_room(self._file_bytes, made=True)
        file = self._files.open(path, create=True)
        try:
            file.allocate(self._file_bytes)
            for position in range(0, self._file_bytes, len(ZEROS)):
                file.write(position, [ZEROS[: self._file_bytes - position]])
            file.sync()
        except OSError:
            self._files.unlink(path)
            raise
        finally:
            file.close()
        self._spares.append(path)

    def _is_whole(self, file: LogFile) -> bool:
        opened = self._files.open(file.path)
        try:
            return opened.size() == self._file_bytes
        finally:
            opened.close()

    # -- the commit thread ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            self._wake.acquire()
            while True:
                with self._mutex:
                    batches = self._queue
                    if not batches:
                        if self._closing:
                            return
                        self._idle = True
                        break
                    self._queue = []
                self._commit(batches)

    def _commit(self, batches: list[Prepared]) -> None:
        """Write as many as fit the file, sync, report; then the rest."""
        while batches:
            if batches[0].epoch < self._epoch:
                late = [batch for batch in batches if batch.epoch < self._epoch]
                self._report(late, self._error)
                batches = batches[len(late) :]
                continue
            try:
                batches = self._write(batches)
            except OSError as exc:
                self._fail(batches, storage_error(exc, "writing the commit log"))
                return

    def _write(self, batches: list[Prepared]) -> list[Prepared]:
        room = self._room(batches[0])
        if self._file is None or FRAME_HEADER_BYTES + padded(batches[0].size) > room:
            needed = FRAME_HEADER_BYTES + padded(batches[0].size) + self._reserve
            self._rotate(needed, records=bool(batches[0].ends))
            room = self._room(batches[0])
        assert self._file is not None
        parts: list[bytes] = []
        used = taken = 0
        last, wants_sync = self._last, False
        for batch in batches:
            size = batch.size
            if used + FRAME_HEADER_BYTES + padded(size) > min(room, self._room(batch)) and taken:
                break
            head = encode_frame_header(
                self._salt, batch.sequence, last, self._synced, size, batch.crc
            )
            parts += (head, *batch.parts, _PAD[size % 8])
            used += FRAME_HEADER_BYTES + padded(size)
            last = batch.sequence
            wants_sync = wants_sync or batch.sync
            taken += 1
        written, rest = batches[:taken], batches[taken:]
        self._file.write(self._position, parts)
        if wants_sync:
            early = [batch for batch in written if not batch.sync]
            if early:
                self._report(early, None)
                batches[:taken] = written = [batch for batch in written if batch.sync]
            self._file.sync()
            self._synced = last
        self._unsynced = not wants_sync
        self._position += used
        self._last = self._kept[-1].last = last
        self._report(written, None)
        return rest

    def _room(self, batch: Prepared) -> int:
        """Records leave some for changes, without which a full disk could not be made free."""
        return self._size - self._position - (self._reserve if batch.ends else 0)

    def _rotate(self, needed: int, *, records: bool) -> None:
        """Begin a new file, a trimmed one if there is any; when that fails, the old one stays in use.

        A frame that does not fit the usual size gets a file of its own size.
        """
        size = max(self._file_bytes, FILE_HEADER_BYTES + needed)
        if records:
            self._check_room(size, made=not self._spares or size != self._file_bytes)
        if self._file is not None and self._unsynced:
            self._file.sync()
            self._synced = self._last
            self._unsynced = False
        opened, salt = self._new_file(self._number, size)
        if self._file is not None:
            self._file.close()
        with self._mutex:
            self._kept.append(LogFile(opened.path, self._number, self._last))
        self._file, self._salt, self._position = opened, salt, FILE_HEADER_BYTES
        self._size = size
        self._number += 1

    def _check_room(self, size: int, *, made: bool) -> None:
        """Leave as much of the disk free as it takes to bring all that the log will hold into segments.

        A log that has taken the last of the disk could not be moved any more, and so never be trimmed. Changes do not
        ask: what they free may be what is missing.
        """
        if self._files.free(self._folder) < self.size + size * (2 if made else 1):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _new_file(self, number: int, size: int) -> tuple[OpenFile, bytes]:
        path = self._folder / log_name(number)
        spare = self._take_spare() if size == self._file_bytes else None
        if spare is not None:
            self._files.rename(spare, path)
        opened = self._files.open(path, create=spare is None)
        salt = os.urandom(SALT_BYTES)
        try:
            if spare is None:
                opened.allocate(size)
            opened.write(0, [encode_file_header(number, salt)])
            opened.sync()
            # The name must be on disk before a frame in it counts.
            self._files.sync_folder(self._folder)
        except OSError:
            opened.close()
            self._files.unlink(path)
            raise
        return opened, salt

    def _fail(self, batches: list[Prepared], error: StorageError) -> None:
        self._epoch = 1 + max(batch.epoch for batch in batches)
        if self._file is not None:
            try:
                # A frame that was written but not acknowledged must not come back after a restart.
                self._file.write(self._position, [VOID])
                self._file.sync()
            except OSError:
                # The file cannot be trusted any more; the next batch begins another one.
                self._file.close()
                self._file = None
        self._error = error
        self._report(batches, error)
