"""Collects the rows of `polybus.journal` and hands them to the log (DESIGN 3; `model.journal` has the row).

Invariant: a row delays nothing. Rows are collected as tuples, become text and go to the log many at a time, and are
dropped and counted while the log does not keep up. What the journal's own topics do is not noted: it would never end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from secrets import token_hex
from typing import Any, Final

import msgspec

from polybus.core.engine import Done
from polybus.errors import PolybusError
from polybus.model.clock import Clock
from polybus.model.journal import VERSION, Kind
from polybus.model.message import Status

BATCH: Final = 4096  # rows that become text in one go: about two milliseconds
MAX_WAITING: Final = 1 << 17  # rows handed over and not stored: beyond it they are dropped
MAX_DRIFT_US: Final = 1_000_000  # so far may the wall clock go away from ours before we follow it
OWN_TOPICS: Final = "polybus."

Row = tuple[Any, ...]
Write = Callable[[list[bytes], Done], bool]


class Journal:
    """The journal of one node. Hot loops append to `rows` themselves and call `settle` at the end of a batch."""

    def __init__(self, clock: Clock, write: Write) -> None:
        self.rows: list[Row] = []
        self.written = 0
        self.dropped = 0
        self._clock = clock
        self._write = write
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
        ended = (*wires, name, caller, *sizes, int(status), now - started, error)
        self.rows.append((VERSION, now, "call", id, *ended))

    def note(
        self, kind: Kind, wire: str, name: str, who: str, sizes: tuple[int, int], id: str = ""
    ) -> None:
        """A publication, produce or delivery."""
        self.rows.append((VERSION, self.now(), kind, id, wire, "", name, who, *sizes, 0, -1, ""))

    def error(self, wire: str, who: str, text: str) -> None:
        """A connection was closed for a fault of its peer."""
        row = (VERSION, self.now(), "error", "", wire, "", "", who, 0, 0, int(Status.REFUSED))
        self.rows.append((*row, -1, text))

    def settle(self) -> None:
        """The end of a batch: hand over what is enough for a write of its own."""
        if len(self.rows) >= BATCH:
            self.flush()

    def tick(self) -> None:
        """Hand over what there is, and follow a wall clock that was set."""
        if self.rows:
            self.flush()
        offset = self._measure_offset()
        if abs(offset - self._offset_us) > MAX_DRIFT_US:
            self._offset_us = offset

    def flush(self) -> None:
        """Hand all rows over; when the log is too far behind they are dropped."""
        rows = self.rows
        while rows:
            part = rows[:BATCH]
            del rows[:BATCH]  # in place: a hot loop may hold on to the list
            self._hand_over(part)

    def _hand_over(self, rows: Sequence[Row]) -> None:
        size = len(rows)
        if self._waiting + size > MAX_WAITING:
            self.dropped += size
            return
        lines = self._encode(rows).split(b"\n")
        lines.pop()

        def stored(first: int, error: PolybusError | None) -> None:
            self._waiting -= size
            if error is None:
                self.written += size
            else:
                self.dropped += size

        self._waiting += size
        try:
            self._write(lines, stored)
        except PolybusError as exc:
            stored(-1, exc)

    def _measure_offset(self) -> int:
        return self._clock.wall_ms() * 1000 - int(self._clock.monotonic() * 1e6)
