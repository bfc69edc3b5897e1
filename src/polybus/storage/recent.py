"""What of the segments stays in the system's page cache: what was written last, and not all that ever was.

Invariant: beyond `keep` bytes, what was written to the file that was begun first is given back. So a
node that writes day and night takes no memory from its neighbours, and writes into pages that it had before: fresh
ones cost ten times the copy where a hypervisor has to find them first (`benches/log/memory.py`). Who reads what was
given back reads it from the disk.
"""

from __future__ import annotations

from pathlib import Path

from polybus.storage.files import Files


class Recent:
    """The stretches of segments that were written last; used by the mover's thread only."""

    def __init__(self, files: Files, keep: int) -> None:
        self._files = files
        self._keep = keep
        self._stretches: dict[Path, tuple[int, int]] = {}
        """Where in each file the bytes lie that are not given back; the file that was begun first comes first."""
        self._bytes = 0

    def add(self, path: Path, position: int, size: int) -> None:
        """Note bytes that follow those of the file before, were written, and synced: others cannot be given back.

        A file's bytes are given back together, since with a thousand topics it is the calls that cost.
        """
        start, _ = self._stretches.get(path, (position, 0))
        self._stretches[path] = (start, position + size)
        self._bytes += size
        while self._bytes > self._keep:
            oldest, (start, end) = next(iter(self._stretches.items()))
            del self._stretches[oldest]
            self._bytes -= end - start
            self._files.give_back(oldest, start, end - start)
