"""Input that does not make a whole frame yet.

Invariant: pieces are joined once, when what is needed is there, so a frame in a thousand pieces is copied once.
"""

from __future__ import annotations


class Pieces:
    """The beginning of a frame, with the number of bytes that it takes to go on."""

    __slots__ = ("_have", "_need", "_parts")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._have = 0
        self._need = 0

    def __len__(self) -> int:
        return self._have

    def add(self, data: bytes) -> bytes | None:
        """All input so far; None while more is needed."""
        if not self._have:
            return data
        self._parts.append(data)
        self._have += len(data)
        if self._have < self._need:
            return None
        joined = b"".join(self._parts)
        self._parts.clear()
        self._have = 0
        return joined

    def keep(self, rest: bytes, need: int) -> None:
        """Keep what was not used until there are `need` bytes of it."""
        self._parts.append(rest)
        self._have = len(rest)
        self._need = need
