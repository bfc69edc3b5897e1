"""Collects the rows of `polybus.journal` and hands them to the log (DESIGN 3; `model.journal` has the row).

Invariant: a row delays nothing. Rows are collected as tuples, become text and go to the log many at a time, and are
dropped and counted while the log does not keep up. What the journal's own topics do is not noted: it would never end.

A busy bus ends calls many at a time, and those of one batch mostly differ in their ids alone. So a hot loop notes one
row and the ids it stands for; the row becomes text once, and the ids are put into it by a single join.

Plain typed Python which Cython also compiles (`journal.pxd` has the C types).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from itertools import accumulate, count
from secrets import token_hex
from typing import Any, Final

import msgspec

from polybus.core.engine import Done
from polybus.errors import PolybusError
from polybus.model.clock import Clock
from polybus.model.journal import VERSION, Kind
from polybus.model.message import Status
from polybus.model.name import MAX_NAME_BYTES

# Rows that go together: with those of one more batch of input they still fit a chunk
BATCH: Final = 3072
MAX_WAITING: Final = 1 << 17  # rows handed over and not stored: beyond it they are dropped
MAX_DRIFT_US: Final = 1_000_000  # so far may the wall clock go away from ours before we follow it
OWN_TOPICS: Final = "polybus."
# Characters of what clients write themselves: a row must not grow with its message, or one client could fill the log's
# share of the journal and have everybody's rows dropped.
MAX_ID: Final = 256
MAX_NAME: Final = MAX_NAME_BYTES
MAX_ERROR: Final = 200

NO_ID: Final = b'"call",""'  # in the text of a row that stands for several calls: nothing but digits precedes it
# What stands in JSON as it is. Ids are numbers or the like: anything else is written the long way.
PLAIN: Final = bytes(byte for byte in range(32, 127) if byte not in b'"\\')

Row = tuple[Any, ...]
Opened = tuple[int, int, str]
"""When a call came, the size of its request, and its name."""
Write = Callable[["array[int]", list[bytes], Done], bool]


class Journal:
    """The journal of one node. Hot loops use `alike` and call `settle` at the end of a batch."""

    def __init__(self, clock: Clock, write: Write) -> None:
        self.written = 0
        self.dropped = 0
        self._clock = clock
        self._write = write
        self._rows: list[Row] = []
        self._ids: list[list[bytes] | None] = []
        """Beside each row: the ids of the calls that it stands for, or None if it stands for itself."""
        self._count = 0
        self._encode = msgspec.json.Encoder().encode_lines
        self._waiting = 0
        self._offset_us = self._measure_offset()
        self._nonce = token_hex(4)
        self._next = count(1).__next__

    def now(self) -> int:
        """Microseconds since 1970 that never go back between two looks, so that durations are right."""
        return int(self._clock.monotonic() * 1e6) + self._offset_us

    def new_id(self) -> str:
        """An id for a call whose wire has none that stands alone."""
        return f"{self._nonce}-{self._next()}"

    def call(
        self,
        started: int,
        id: str,
        wires: tuple[str, str],
        name: str,
        caller: str,
        sizes: tuple[int, int],
        status: Status = Status.OK,
        error: str = "",
    ) -> None:
        """A call has ended; `started` is what `now` said when it came."""
        now = self.now()
        took = now - started
        id, name, error = id[:MAX_ID], name[:MAX_NAME], error[:MAX_ERROR]
        self._add(
            (VERSION, now, "call", id, *wires, name, caller, *sizes, int(status), took, error)
        )

    def alike(
        self, now: int, wire: str, opened: Opened, caller: str, size: int, status: int = 0
    ) -> list[bytes]:
        """Calls of one wire end now that differ in nothing but their ids.

        Returns:
            Where to put the ids, in ASCII; how many these were `settle` is told.
        """
        started, asked, name = opened
        took = now - started
        name = name[:MAX_NAME]
        self._rows.append(
            (VERSION, now, "call", "", wire, wire, name, caller, asked, size, status, took, "")
        )
        ids: list[bytes] = []
        self._ids.append(ids)
        return ids

    def note(
        self, kind: Kind, wire: str, name: str, who: str, sizes: tuple[int, int], id: str = ""
    ) -> None:
        """A publication, produce or delivery."""
        name, id = name[:MAX_NAME], id[:MAX_ID]
        self._add((VERSION, self.now(), kind, id, wire, "", name, who, *sizes, 0, -1, ""))

    def error(self, wire: str, who: str, text: str) -> None:
        """A connection was closed for a fault of its peer."""
        row = (VERSION, self.now(), "error", "", wire, "", "", who, 0, 0, int(Status.REFUSED))
        self._add((*row, -1, text[:MAX_ERROR]))

    def _add(self, row: Row) -> None:
        self._rows.append(row)
        self._ids.append(None)
        self._count += 1

    def settle(self, count: int) -> None:
        """The end of a batch, in which so many ids were noted: hand over what is enough for a write of its own."""
        self._count += count
        if self._count >= BATCH:
            self.flush()

    def tick(self) -> None:
        """Hand over what there is, and follow a wall clock that was set."""
        if self._rows:
            self.flush()
        offset = self._measure_offset()
        if abs(offset - self._offset_us) > MAX_DRIFT_US:
            self._offset_us = offset

    def flush(self) -> None:
        """Hand all rows over; when the log is too far behind they are dropped."""
        rows, ids = self._rows, self._ids
        self._rows, self._ids, self._count = [], [], 0
        count = sum(1 if alike is None else len(alike) for alike in ids)
        if self._waiting + count > MAX_WAITING:
            self.dropped += count
            return
        texts = self._encode(rows).split(b"\n")
        texts.pop()
        self._hand_over(count, *_with_ids(texts, ids))

    def _hand_over(self, count: int, ends: array[int], parts: list[bytes]) -> None:
        def stored(first: int, error: PolybusError | None) -> None:
            self._waiting -= count
            if error is None:
                self.written += count
            else:
                self.dropped += count

        self._waiting += count
        try:
            self._write(ends, parts, stored)
        except PolybusError as exc:
            stored(-1, exc)

    def _measure_offset(self) -> int:
        return self._clock.wall_ms() * 1000 - int(self._clock.monotonic() * 1e6)


def _with_ids(
    texts: list[bytes], ids: Sequence[list[bytes] | None]
) -> tuple[array[int], list[bytes]]:
    """The texts of all calls, out of one for those that were alike: where each ends, and all of them in pieces."""
    parts: list[bytes] = []
    sizes: list[int] = []
    for text, alike in zip(texts, ids, strict=True):
        if alike is None:
            parts.append(text)
            sizes.append(len(text))
            continue
        cut = text.index(NO_ID) + len(NO_ID) - 1
        head, tail, rest = text[:cut], text[cut:], len(text)
        if len(alike) == 1:
            id = alike[0]
            if not id.isalnum() or len(id) > MAX_ID:
                id = _escaped(id)
            parts += (head, id, tail)
            sizes.append(rest + len(id))
            continue
        lengths = [len(id) for id in alike]
        if max(lengths) > MAX_ID or b"".join(alike).translate(None, PLAIN):
            alike = [_escaped(id) for id in alike]
            lengths = [len(id) for id in alike]
        parts += (head, (tail + head).join(alike), tail)
        sizes += [rest + length for length in lengths]
    return array("i", accumulate(sizes, initial=0)), parts


def _escaped(id: bytes) -> bytes:
    return msgspec.json.encode(id[:MAX_ID].decode())[1:-1]
