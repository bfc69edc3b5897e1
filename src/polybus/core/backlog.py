"""What a group has still to deliver: read from the log ahead of its members, or given back by them.

Invariant: at most one read is under way, and at most one batch of records is held for first deliveries and one for
redeliveries; the rest are offsets. A read may be ahead of its time: then it only brings what comes next into the
engine's memory. Redeliveries go first; within each kind the order is that of the log.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Sequence, Set
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

from polybus.errors import OutOfRange, PolybusError
from polybus.model.record import Record

if TYPE_CHECKING:
    from polybus.core.filter import Predicate
    from polybus.core.group import Group

log = logging.getLogger(__name__)

READ_RECORDS: Final = 128  # read ahead per group; enough to spread the cost of a read,
READ_BYTES: Final = 128 * 1024  # little enough that a thousand waiting groups fit in memory
SCANS: Final = 16  # reads in one go when a filter passes nearly everything over
MAX_DONE: Final = 65_536  # confirmed records above one that is not: then the group waits for it
RETRY_S: Final = 1.0  # between tries when the disk gives an error


class Backlog:
    """The reading side of one group."""

    __slots__ = (
        "_again",
        "_back",
        "_delayed",
        "_epoch",
        "_group",
        "_passed",
        "_ready",
        "_redo",
        "_retry_at",
        "_scans",
        "_warming",
        "predicate",
        "problem",
        "reading",
    )

    def __init__(self, group: Group) -> None:
        self._group = group
        self.predicate: Predicate | None = None
        self.problem = ""  # why nothing can be read
        self.reading = False
        self._ready: deque[Record] = deque()
        self._again: deque[Record] = deque()  # as _ready, for redelivery
        self._back: set[int] = set()  # all that was given back: in _again, _redo or _delayed
        self._redo: list[int] = []  # sorted
        self._delayed: list[tuple[float, int]] = []  # heap of (due, offset)
        self._passed: set[int] = set()  # given back, but the filter of today does not want it
        self._epoch = 0  # a read that began in an older one is dropped
        self._retry_at = 0.0
        self._scans = 0
        self._warming = False  # a read is under way only so that its records are in memory

    def __len__(self) -> int:
        return len(self._back)

    def __contains__(self, offset: int) -> bool:
        return offset in self._back

    def give_back(self, offset: int, due: float = 0.0) -> None:
        """Deliver this one again, not before `due`."""
        self._back.add(offset)
        if due:
            heappush(self._delayed, (due, offset))
        else:
            self._insert(offset)

    def delivered_again(self, offset: int) -> None:
        """This one is in flight again."""
        self._back.discard(offset)

    def _insert(self, offset: int) -> None:
        insort(self._redo, offset)
        if self._again and offset < self._again[-1].offset:
            self._unread_again()

    def _unread_again(self) -> None:
        for record in self._again:
            insort(self._redo, record.offset)
        self._again.clear()

    def has_due(self, now: float) -> bool:
        """Whether time alone has made something deliverable."""
        if self.problem:
            return now >= self._retry_at
        return bool(self._delayed) and self._delayed[0][0] <= now

    def open(self, now: float) -> bool:
        """Begin a round of `source`; False when a read has to end, or a problem to pass, first."""
        if self.reading or (self.problem and now < self._retry_at):
            return False
        while self._delayed and self._delayed[0][0] <= now:
            self._insert(heappop(self._delayed)[1])
        self._scans = SCANS
        return True

    def source(self) -> deque[Record] | None:
        """Where the next record comes from; None when there is none in memory now."""
        while True:
            if self._again:
                return self._again
            if self._ready and not self._redo:
                return self._ready
            if not self._scans:
                self._group.hub.touch(self._group)
                return None
            self._scans -= 1
            if not (self._fill_again() if self._redo else self._fill_ready()):
                return None

    # -- reading ----------------------------------------------------------------------------------------------

    def _fill_ready(self) -> bool:
        cursor = self._group.cursor
        if len(cursor.done) >= MAX_DONE:
            cursor.advance()
            if len(cursor.done) >= MAX_DONE:
                return False
        return self._fill(cursor.next, READ_RECORDS, again=False)

    def _fill_again(self) -> bool:
        # One run of neighbours at a time: what a leaving member held is usually one stretch.
        redo = self._redo
        run = 1
        while run < min(READ_RECORDS, len(redo)) and redo[run] == redo[0] + run:
            run += 1
        return self._fill(redo[0], run, again=True)

    def _fill(self, start: int, count: int, *, again: bool) -> bool:
        """Get records from memory, or begin to read them; True when it is worth looking again at once."""
        group, engine = self._group, self._group.hub.engine
        records = engine.cached(group.topic, start, count, READ_BYTES)
        if records:
            self._arrived(records, start, again)
            if not again:
                self._look_ahead()
            return True
        if self._warming:
            return False
        info = engine.topic(group.topic)
        if start < info.first:
            group.trimmed(info.first)
            return True
        if start < info.end:
            self.reading = True
            group.hub.spawn(self._read(start, count, again, self._epoch))
        return False

    def _look_ahead(self) -> None:
        """Have the disk asked for what comes next while what is here is delivered: nobody should wait for it then."""
        group, start = self._group, self._group.cursor.next
        if not self._warming and group.hub.engine.cached(group.topic, start, 1, 1) is None:
            self._warming = True
            group.hub.spawn(self._warm(start))

    async def _warm(self, start: int) -> None:
        group = self._group
        try:
            await group.hub.engine.read(group.topic, start, 1, 1)
        except PolybusError:
            pass  # told when it is read for good
        finally:
            self._warming = False
            group.hub.touch(group)

    async def _read(self, start: int, count: int, again: bool, epoch: int) -> None:
        group = self._group
        try:
            records = await group.hub.engine.read(group.topic, start, count, READ_BYTES)
        except OutOfRange as exc:
            if epoch == self._epoch:
                group.trimmed(exc.first)
        except PolybusError as exc:
            if not self.problem:
                log.error("group %s on %s stops at %d: %s", group.name, group.topic, start, exc)
            self.problem = str(exc)
            self._retry_at = group.hub.clock.monotonic() + RETRY_S
        else:
            self.problem = ""
            if epoch == self._epoch and records:
                self._arrived(records, start, again)
        finally:
            self.reading = False
            group.hub.touch(group)

    def _arrived(self, records: Sequence[Record], start: int, again: bool) -> None:
        self._group.dirty = True
        if again:
            self._arrived_again(records, start)
        else:
            self._arrived_first(records)

    def _arrived_first(self, records: Sequence[Record]) -> None:
        group, ready, predicate = self._group, self._ready, self.predicate
        cursor = group.cursor
        known, opened = cursor.known, cursor.open
        for record in records:
            offset = record.offset
            if offset < known and group.has_placed(offset):
                continue
            if predicate is not None and not predicate(record.tag):
                group.skipped += 1
                continue
            opened[offset] = None
            ready.append(record)
        cursor.next = max(cursor.next, records[-1].offset + 1)

    def _arrived_again(self, records: Sequence[Record], start: int) -> None:
        group, redo, predicate = self._group, self._redo, self.predicate
        low, high = bisect_left(redo, start), bisect_right(redo, records[-1].offset)
        wanted = set(redo[low:high])
        del redo[low:high]
        for record in records:
            if record.offset in wanted:
                wanted.discard(record.offset)
                if predicate is None or predicate(record.tag):
                    self._again.append(record)
                else:
                    # Passed over, not done: as long as the floor is below it, another filter may want it.
                    group.skipped += 1
                    self._back.discard(record.offset)
                    self._passed.add(record.offset)
                    group.cursor.open.pop(record.offset, None)
        for offset in wanted:
            group.expired += 1
            self._drop(offset)

    def _drop(self, offset: int) -> None:
        self._back.discard(offset)
        self._group.drop(offset)

    # -- forgetting -------------------------------------------------------------------------------------------

    def drop_below(self, first: int) -> None:
        """Retention has taken what lies below `first`."""
        self._epoch += 1
        self._ready = deque(record for record in self._ready if record.offset >= first)
        self.withdraw({offset for offset in self._back if offset < first})

    def withdraw(self, offsets: Set[int]) -> None:
        """These are not to be delivered again."""
        self._epoch += 1
        self._back -= offsets
        self._passed -= offsets
        self._again = deque(record for record in self._again if record.offset not in offsets)
        self._redo = [offset for offset in self._redo if offset not in offsets]
        self._delayed = [entry for entry in self._delayed if entry[1] not in offsets]
        heapify(self._delayed)

    def rewind(self, to: int) -> None:
        """Read again from `to` on; what was given back stays, but the filter is asked about it again."""
        self._epoch += 1
        self._ready.clear()
        self._unread_again()
        again = [offset for offset in self._passed if offset >= to]
        self._passed.difference_update(again)
        for offset in again:
            self.give_back(offset)
        self._group.cursor.rewind(to)

    def unload(self) -> None:
        """Keep no payloads: nobody is there to take them."""
        if self._ready:
            self.rewind(self._ready[0].offset)
        else:
            self._unread_again()

    def clear(self) -> None:
        """Forget everything."""
        self._ready.clear()
        self._passed.clear()
        self.withdraw(set(self._back))
