"""What of the segments stays in the system's page cache."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

from polybus.core.engine import TopicOptions
from polybus.storage.engine import EmbeddedEngine, StorageOptions
from polybus.storage.files import DiskFiles
from polybus.storage.recent import Recent
from tests.storage.client import put, read_all
from tests.storage.conftest import Opener
from tests.storage.simdisk import SimDisk

PAGE = mmap.PAGESIZE


def cached_pages(path: Path) -> int:
    """How many pages of a file the system has in memory."""
    pages = -(-path.stat().st_size // PAGE)
    found = (ctypes.c_ubyte * pages)()
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        start = ctypes.c_char.from_buffer(mapped)
        libc = ctypes.CDLL(None, use_errno=True)
        failed = libc.mincore(ctypes.byref(start), ctypes.c_size_t(pages * PAGE), found)
        del start
    assert not failed
    return sum(byte & 1 for byte in found)


def test_the_oldest_stretch_goes_when_more_was_written_than_is_kept():
    disk = SimDisk()
    recent = Recent(disk, keep=100)
    for number in range(4):
        recent.add(Path(f"/{number}"), 64, 40)
    assert disk.given_back == [(Path("/0"), 64, 40), (Path("/1"), 64, 40)]


def test_what_one_file_got_goes_at_once():
    disk = SimDisk()
    recent = Recent(disk, keep=100)
    for position in (0, 30, 60):
        recent.add(Path("/a"), position, 30)
    recent.add(Path("/b"), 90, 30)
    assert disk.given_back == [(Path("/a"), 0, 90)]


def test_files_that_take_turns_go_in_the_order_in_which_they_began():
    disk = SimDisk()
    recent = Recent(disk, keep=100)
    for position in (0, 20, 40):
        for name in ("/a", "/b"):
            recent.add(Path(name), position, 20)
    assert disk.given_back == [(Path("/a"), 0, 60)]
    recent.add(Path("/a"), 60, 45)
    assert disk.given_back[1:] == [(Path("/b"), 0, 60)]


def test_of_one_long_segment_nothing_is_passed_over():
    disk = SimDisk()
    recent = Recent(disk, keep=100)
    for position in range(0, 1000, 50):
        recent.add(Path("/a"), position, 50)
    end = 0
    for _, position, size in disk.given_back:
        assert position == end
        end += size
    assert 1000 - 150 <= end <= 1000


def test_what_was_given_back_is_in_memory_no_longer_and_still_on_disk(tmp_path: Path):
    files = DiskFiles()
    data = os.urandom(64 * PAGE)
    for name in ("given back", "kept", "by hand"):
        file = files.open(tmp_path / name, create=True)
        file.write(0, [data])
        file.sync()
        file.close()
    files.give_back(tmp_path / "given back", 0, len(data))
    with (tmp_path / "by hand").open("rb") as plain:
        os.posix_fadvise(plain.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    # A file system in memory gives nothing back, whoever asks.
    assert cached_pages(tmp_path / "given back") == cached_pages(tmp_path / "by hand")
    assert cached_pages(tmp_path / "kept") == 64
    assert (tmp_path / "given back").read_bytes() == data


def test_a_file_that_is_gone_needs_no_giving_back(tmp_path: Path):
    DiskFiles().give_back(tmp_path / "gone", 0, PAGE)


async def test_a_mover_gives_back_what_it_wrote_long_ago_and_all_stays_readable(opened: Opener):
    disk = SimDisk()
    options = StorageOptions(log_file=64 << 10, segment=32 << 10, recent=48 << 10)
    engine: EmbeddedEngine = await opened(disk, options)
    await engine.declare("t", TopicOptions())
    sent = [bytes([number]) * 4096 for number in range(40)]
    for payload in sent:
        await put(engine, "t", payload)
        await engine.move_all()
    segments = {path for path in disk.names_now if path.suffix == ".seg"}
    given_back = sum(size for _, _, size in disk.given_back)
    assert given_back >= 40 * 4096 - (48 << 10)
    assert {path for path, _, _ in disk.given_back} & segments
    assert [record.payload for record in await read_all(engine, "t")] == sent
