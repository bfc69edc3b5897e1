"""A disk in memory that forgets what was not synced, and can die or fill up at any operation.

The invariant: after `after_crash` only what a power cut may leave is there: synced bytes for sure,
unsynced ones in any mixture of sectors, names only where their folder was synced (or by luck).
"""

from __future__ import annotations

import errno
import random
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal

from polybus.storage.files import OpenFile

SECTOR = 512
Luck = Literal["none", "all", "torn"]


class Inode:
    def __init__(self) -> None:
        self.data = bytearray()
        self.synced = b""
        self.pending: list[tuple[int, bytes]] = []

    def after_crash(self, luck: Luck, rng: random.Random) -> Inode:
        left = Inode()
        if luck == "all":
            left.data = bytearray(self.data)
        else:
            left.data = bytearray(self.synced)
            for position, written in self.pending if luck == "torn" else ():
                for start in range(0, len(written), SECTOR):
                    if rng.random() < 0.5:
                        part = written[start : start + SECTOR]
                        at = position + start
                        left.data.extend(bytes(max(0, at + len(part) - len(left.data))))
                        left.data[at : at + len(part)] = part
        left.synced = bytes(left.data)
        return left


class SimFile:
    def __init__(self, disk: SimDisk, path: Path, inode: Inode) -> None:
        self.path = path
        self._disk = disk
        self._inode = inode

    def write(self, position: int, parts: Sequence[bytes | bytearray | memoryview]) -> None:
        data = b"".join(parts)
        with self._disk.step("write", self.path) as cut:
            if cut is not None:
                data = data[: cut.randrange(len(data) + 1)] if data else data
            inode = self._inode
            inode.data.extend(bytes(max(0, position + len(data) - len(inode.data))))
            inode.data[position : position + len(data)] = data
            inode.pending.append((position, data))

    def read(self, position: int, size: int) -> bytes:
        self._disk.check()
        return bytes(self._inode.data[position : position + size])

    def sync(self) -> None:
        with self._disk.step("sync", self.path) as cut:
            if cut is None:
                self._inode.synced = bytes(self._inode.data)
                self._inode.pending = []

    def begin_sync(self, position: int, size: int) -> None:
        self._disk.check()

    def allocate(self, size: int) -> None:
        with self._disk.step("allocate", self.path):
            self._inode.data.extend(bytes(max(0, size - len(self._inode.data))))

    def truncate(self, size: int) -> None:
        with self._disk.step("truncate", self.path):
            del self._inode.data[size:]

    def size(self) -> int:
        self._disk.check()
        return len(self._inode.data)

    def close(self) -> None:
        pass


class Step:
    """One operation: counted, and where the crash happens cut short by the random numbers it yields."""

    def __init__(self, disk: SimDisk, operation: str, path: Path) -> None:
        self._disk = disk
        self._what = (operation, path)
        self._dies = False

    def __enter__(self) -> random.Random | None:
        disk = self._disk
        disk.mutex.acquire()
        try:
            disk.check()
            fault = disk.fault and disk.fault(*self._what)
            if fault is not None:
                raise fault
        except OSError:
            disk.mutex.release()
            raise
        disk.count += 1
        disk.trace.append(self._what)
        self._dies = disk.count == disk.crash_at
        return disk.rng if self._dies else None

    def __exit__(self, *exc: object) -> None:
        if self._dies:
            self._disk.dead = True
        self._disk.mutex.release()
        if self._dies:
            self._disk.check()


class SimDisk:
    """See the module."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = random.Random(seed)
        self.mutex = threading.RLock()
        self.names_now: dict[Path, Inode] = {}
        self.names_synced: dict[Path, Inode] = {}
        self.folders: set[Path] = set()
        self.count = 0
        self.crash_at = 0
        self.dead = False
        self.fault: Callable[[str, Path], OSError | None] | None = None
        self.trace: list[tuple[str, Path]] = []
        self.given_back: list[tuple[Path, int, int]] = []
        self.room = sys.maxsize

    def free(self, path: Path) -> int:
        self.check()
        with self.mutex:
            return self.room - sum(len(inode.data) for inode in self.names_now.values())

    def check(self) -> None:
        if self.dead:
            raise OSError(errno.EIO, "the machine is off")

    def step(self, operation: str, path: Path) -> Step:
        return Step(self, operation, path)

    def after_crash(self, luck: Luck) -> SimDisk:
        left = SimDisk(self.rng.randrange(1 << 30))
        left.folders = set(self.folders)
        names = self.names_synced
        if luck == "all" or (luck == "torn" and self.rng.random() < 0.5):
            names = self.names_now
        inodes: dict[int, Inode] = {}
        for path, inode in names.items():
            if id(inode) not in inodes:
                inodes[id(inode)] = inode.after_crash(luck, self.rng)
            left.names_now[path] = inodes[id(inode)]
        left.names_synced = dict(left.names_now)
        return left

    # -- the file layer -------------------------------------------------------------------------------------------

    def open(self, path: Path, *, create: bool = False) -> SimFile:
        if create:
            with self.step("create", path):
                self.names_now[path] = Inode()
        self.check()
        if path not in self.names_now:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        return SimFile(self, path, self.names_now[path])

    def rename(self, old: Path, new: Path) -> None:
        with self.step("rename", new) as cut:
            if cut is None or cut.random() < 0.5:
                self.names_now[new] = self.names_now.pop(old)

    def unlink(self, path: Path) -> None:
        with self.step("unlink", path):
            self.names_now.pop(path, None)

    def make_folder(self, path: Path) -> None:
        self.check()
        self.folders.add(path)

    def remove_folder(self, path: Path) -> None:
        for file in [file for file in self.names_now if file.parent == path]:
            self.unlink(file)
        self.folders.discard(path)

    def names(self, path: Path) -> list[str]:
        self.check()
        files = {file.name for file in self.names_now if file.parent == path}
        return sorted(files | {folder.name for folder in self.folders if folder.parent == path})

    def sync_folder(self, path: Path) -> None:
        with self.step("sync_folder", path) as cut:
            if cut is None:
                kept = {p: i for p, i in self.names_synced.items() if p.parent != path}
                now = {p: i for p, i in self.names_now.items() if p.parent == path}
                self.names_synced = kept | now

    def sync_all(self, folder: Path, files: Sequence[OpenFile], folders: Iterable[Path]) -> None:
        for file in files:
            file.sync()
        for each in folders:
            self.sync_folder(each)

    def give_back(self, path: Path, position: int, size: int) -> None:
        self.check()
        self.given_back.append((path, position, size))
