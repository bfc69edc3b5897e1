"""The thin layer between the engine and the disk, so that a test can put a disk there that forgets, fills or dies.

Invariant: every byte the engine writes outside of LMDB goes through here, and nothing here is
called from the event loop.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Protocol

from polybus.errors import FolderInUse, StorageError, StorageFull

MAX_PARTS: Final = 1024  # the system's limit for one gathering write
FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class OpenFile(Protocol):
    """One file, open for reading and writing at positions."""

    path: Path

    def write(self, position: int, parts: Sequence[bytes | bytearray | memoryview]) -> None:
        """Write all parts one after the other; an error leaves an unknown part of them there."""

    def read(self, position: int, size: int) -> bytes:
        """Up to `size` bytes; fewer at the end of the file."""

    def sync(self) -> None:
        """Return when the written bytes would survive a power cut."""

    def begin_sync(self, position: int, size: int) -> None:
        """Have the system begin to write these bytes, so that a later `sync` finds less to do; promises nothing."""

    def allocate(self, size: int) -> None:
        """Reserve room for `size` bytes, so that a later write neither fails nor changes the file's length."""

    def truncate(self, size: int) -> None:
        """Cut the file."""

    def size(self) -> int:
        """Its length now."""

    def close(self) -> None:
        """Give the handle back."""


class Files(Protocol):
    """What the engine needs of a file system."""

    def open(self, path: Path, *, create: bool = False) -> OpenFile:
        """Open a file, or create it (empty, replacing none)."""

    def rename(self, old: Path, new: Path) -> None:
        """Rename within one folder."""

    def unlink(self, path: Path) -> None:
        """Remove a file; one that is gone already is fine."""

    def make_folder(self, path: Path) -> None:
        """Create a folder and its parents."""

    def remove_folder(self, path: Path) -> None:
        """Remove a folder with its files."""

    def names(self, path: Path) -> list[str]:
        """What a folder holds, sorted; nothing when it is not there."""

    def sync_folder(self, path: Path) -> None:
        """Return when creations and renames in the folder would survive a power cut."""

    def sync_all(self, folder: Path, files: Sequence[OpenFile], folders: Iterable[Path]) -> None:
        """Sync many files and the folders they were created in; they all lie under `folder`."""

    def free(self, path: Path) -> int:
        """Bytes that may still be written where this folder is; a very large number where that cannot be told."""

    def give_back(self, path: Path, position: int, size: int) -> None:
        """Keep these synced bytes in memory no longer, if the system can; a file that is gone is fine."""


def storage_error(exc: OSError, doing: str) -> StorageError:
    """The storage error that stands for an error of the file system."""
    text = f"{doing}: {exc.strerror or exc}"
    return StorageFull(text) if exc.errno in FULL else StorageError(text)


class DiskFile:
    """A file of the machine."""

    __slots__ = ("_fd", "path")

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self._fd = fd

    def write(self, position: int, parts: Sequence[bytes | bytearray | memoryview]) -> None:
        if len(parts) <= MAX_PARTS:
            size = sum(map(len, parts))
            written = os.pwritev(self._fd, parts, position)
            if written == size:
                return
        else:
            written = 0
        data = memoryview(b"".join(parts))[written:]
        position += written
        while data:
            written = os.pwrite(self._fd, data, position)
            position += written
            data = data[written:]

    def read(self, position: int, size: int) -> bytes:
        data = os.pread(self._fd, size, position)
        while len(data) < size:
            more = os.pread(self._fd, size - len(data), position + len(data))
            if not more:
                break
            data += more
        return data

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def begin_sync(self, position: int, size: int) -> None:
        if _sync_file_range is not None:
            _sync_file_range(self._fd, position, size, _BEGIN)

    def allocate(self, size: int) -> None:
        os.posix_fallocate(self._fd, 0, size)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        os.close(self._fd)


class DiskFiles:
    """The file system of the machine."""

    MANY = 16  # above this, one sync of the file system is cheaper than one per file

    def open(self, path: Path, *, create: bool = False) -> DiskFile:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_TRUNC if create else 0)
        return DiskFile(path, os.open(path, flags, 0o640))

    def rename(self, old: Path, new: Path) -> None:
        os.rename(old, new)

    def unlink(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def make_folder(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)

    def remove_folder(self, path: Path) -> None:
        for name in self.names(path):
            self.unlink(path / name)
        if path.exists():
            path.rmdir()

    def names(self, path: Path) -> list[str]:
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def sync_folder(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def sync_all(self, folder: Path, files: Sequence[OpenFile], folders: Iterable[Path]) -> None:
        if len(files) > self.MANY and _syncfs is not None:
            fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                if _syncfs(fd) != 0:
                    number = ctypes.get_errno()
                    raise OSError(number, os.strerror(number))
            finally:
                os.close(fd)
            return
        for file in files:
            file.sync()
        for each in folders:
            self.sync_folder(each)

    def free(self, path: Path) -> int:
        found = os.statvfs(path)
        # Some file systems do not say.
        return found.f_bavail * found.f_frsize if found.f_blocks else sys.maxsize

    def give_back(self, path: Path, position: int, size: int) -> None:
        if sys.platform != "linux":
            return
        # Pages that stay do no harm: nothing that was written depends on this.
        with suppress(OSError):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.posix_fadvise(fd, position, size, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)


def _find(name: str, *types: Any) -> Any:
    # Linux has it in its C library; Python does not offer it.
    found = getattr(ctypes.CDLL(None, use_errno=True), name, None)
    if found is not None:
        found.argtypes = types
    return found


_syncfs = _find("syncfs", ctypes.c_int)
_sync_file_range = _find(
    "sync_file_range", ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint
)
_BEGIN: Final = 2  # SYNC_FILE_RANGE_WRITE


class FolderLock:
    """Keeps a second node out of a data folder for as long as it is held."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1

    def acquire(self) -> None:
        """Take the lock.

        Raises:
            FolderInUse: another process has it.
        """
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            os.close(fd)
            text = f"the data folder {self._path.parent} is in use by another process"
            raise FolderInUse(text) from exc
        self._fd = fd

    def release(self) -> None:
        """Give it back; idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class FolderHold:
    """Lets a backup, in another process, keep the node from removing files it is about to copy."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "hold"

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Hold everything that is there now; waits while files are being removed."""
        fd = self._open()
        try:
            fcntl.flock(fd, fcntl.LOCK_SH)
            yield
        finally:
            os.close(fd)

    @contextmanager
    def exclusive(self) -> Iterator[bool]:
        """Whether files may be removed now."""
        fd = self._open()
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            yield False
            return
        try:
            yield True
        finally:
            os.close(fd)

    def _open(self) -> int:
        return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
