"""What memory costs the log: `python benches/log/memory.py`.

Writes of 1 MiB into new files of 64 MiB, synced one by one: into fresh pages of the system's page cache, and into
pages that the files before gave back. And checksums by zlib and by what the node uses.
"""

from __future__ import annotations

import os
import tempfile
import time
import timeit
import zlib
from pathlib import Path

from polybus.model.checksum import crc32
from polybus.storage.files import DiskFiles

FILES = 24
MIB = 1 << 20
FILE_MIB = 64


def writing(folder: Path, *, giving_back: bool) -> float:
    """GB/s of the writes alone, without the syncs."""
    files, data, spent = DiskFiles(), os.urandom(MIB), 0.0
    for number in range(FILES):
        path = folder / str(number)
        file = files.open(path, create=True)
        began = time.perf_counter()
        for at in range(FILE_MIB):
            file.write(at * MIB, [data])
        spent += time.perf_counter() - began
        file.sync()
        file.close()
        if giving_back:
            files.give_back(path, 0, FILE_MIB * MIB)
    for number in range(FILES):
        files.unlink(folder / str(number))
    return FILES * FILE_MIB * MIB / spent / 1e9


with tempfile.TemporaryDirectory() as name:
    for _ in range(2):
        print(f"fresh pages {writing(Path(name), giving_back=False):.2f} GB/s")
        print(f"pages given back {writing(Path(name), giving_back=True):.2f} GB/s")
for size in (1024, 512 * 1024):
    block = os.urandom(size)
    for what, function in (("zlib", zlib.crc32), ("the node's", crc32)):
        rounds = 400 * MIB // size
        took = (
            min(timeit.repeat(lambda f=function, b=block: f(b), number=rounds, repeat=3)) / rounds
        )
        print(f"checksum of {size} bytes, {what}: {size / took / 1e9:.1f} GB/s")
