"""Bodies in chunks, taken apart as they come.

Invariant: no more than `limit` bytes of body are ever held, and any split of the input gives the same body.
"""

from __future__ import annotations

import re
from typing import Final

from polybus.http.head import BadHead

MAX_LINE: Final = 4096  # a size line with extensions, or one trailer line
MAX_TRAILERS: Final = 64
# int() alone would also take signs, spaces, underscores and 0x, which others on the way read differently.
_SIZE: Final = re.compile(rb"[0-9a-fA-F]{1,16}")


class ChunkedBody:
    """Collects one body. Feed it until `done`, then `take` it."""

    __slots__ = (
        "_left",
        "_limit",
        "_line",
        "_parts",
        "_said",
        "_state",
        "_trailers",
        "done",
        "have",
    )

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._said = 0
        self.have = 0
        """Bytes of the body that have come."""
        self._left = 0
        self._line = b""
        self._state = "size"  # size -> data -> end -> size … -> trailer -> done
        self._trailers = 0
        self.done = False

    def take(self) -> bytes:
        """The whole body."""
        return b"".join(self._parts)

    def feed(self, data: bytes, pos: int) -> int:
        """Take what belongs to the body from `data[pos:]`; returns the position after it.

        Raises:
            BadHead: 400 for bytes that are no chunks, 413 when the body is over the limit.
        """
        size = len(data)
        while pos < size and not self.done:
            if self._state == "data":
                part = data[pos : pos + self._left]
                self._parts.append(part)
                self.have += len(part)
                self._left -= len(part)
                pos += len(part)
                if not self._left:
                    self._state = "end"
                continue
            at = data.find(b"\n", pos)
            end = size if at < 0 else at + 1
            self._line += data[pos:end]
            pos = end
            if len(self._line) > MAX_LINE:
                raise BadHead("a chunk line is too long")
            if at >= 0:
                line, self._line = self._line, b""
                if not line.endswith(b"\r\n") or b"\r" in line[:-2]:
                    # Whoever takes a line end to be elsewhere sees another request behind this one.
                    raise BadHead("a chunk line does not end with CR LF")
                self._take_line(line[:-2])
        return pos

    def _take_line(self, line: bytes) -> None:
        if self._state == "end":
            if line:
                raise BadHead("a chunk is longer than it said")
            self._state = "size"
        elif self._state == "trailer":
            self._trailers += 1
            if self._trailers > MAX_TRAILERS:
                raise BadHead("too many trailers")
            self.done = not line
        else:
            self._begin(line.partition(b";")[0].strip(b" \t"))

    def _begin(self, size: bytes) -> None:
        if not _SIZE.fullmatch(size):
            raise BadHead(f"{size[:20]!r} is no chunk size")
        self._left = int(size, 16)
        self._said += self._left
        if self._said > self._limit:
            raise BadHead(f"a body of more than {self._limit} bytes", 413)
        self._state = "data" if self._left else "trailer"
