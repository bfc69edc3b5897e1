"""What of the segments stays in the system's page cache: what was written last, and not all that ever was.

Invariant: beyond `keep` bytes, the oldest stretch that was written is given back before another is remembered. So a
node that writes day and night takes no memory from its neighbours, and writes into pages that it had before: fresh
ones cost ten times the copy where a hypervisor has to find them first (0.4 GB/s instead of 6 on the machine of the
benchmarks). Who reads what was given back reads it from the disk, which keeps what is read once more.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path

from polybus.storage.files import Files


class Recent:
    """The stretches of segments that were written last; used by the mover's thread only."""

    def __init__(self, files: Files, keep: int) -> None:
        self._files = files
        self._keep = keep
        self._stretches: deque[tuple[Path, int, int]] = deque()
        self._bytes = 0

    def add(self, path: Path, position: int, size: int) -> None:
        """Note a stretch that was written and synced: pages that are not yet on disk cannot be given back."""
        self._bytes += size
        if self._stretches:
            last, start, length = self._stretches[-1]
            # Pages on the seam of two stretches would stay.
            if last == path and start + length == position and length + size <= self._keep:
                self._stretches[-1] = (path, start, length + size)
                return
        self._stretches.append((path, position, size))
        while self._bytes > self._keep:
            path, position, size = self._stretches.popleft()
            self._bytes -= size
            self._files.give_back(path, position, size)
