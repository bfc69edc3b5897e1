"""The window in which a record with the same id is taken for a repeat.

Invariant: the window holds at most `dedup_ids` ids, none older than `dedup_ms`, and only of records
that are stored or on their way.
"""

from __future__ import annotations

from collections.abc import Sequence

from polybus.core.engine import TopicOptions

Mark = tuple[str, int, int]
"""Id, offset, time in milliseconds."""


class DedupWindow:
    """Ids of one topic, oldest first."""

    __slots__ = ("_fresh", "_marks", "_saved")

    def __init__(self) -> None:
        self._marks: dict[str, tuple[int, int]] = {}
        self._fresh: list[Mark] = []
        self._saved: list[
            tuple[int, int, int]
        ] = []  # of each saved run: first offset, last time, count

    def __len__(self) -> int:
        return len(self._marks)

    def find(self, id_: str, now_ms: int, options: TopicOptions) -> int | None:
        """The offset that `id_` has, or None when it is new."""
        mark = self._marks.get(id_)
        if mark is None or (options.dedup_ms and mark[1] < now_ms - options.dedup_ms):
            return None
        return mark[0]

    def add(self, id_: str, offset: int, now_ms: int, options: TopicOptions) -> None:
        """Remember an id, and forget what has left the window."""
        marks = self._marks
        # An id that comes again after its time goes to the end of the order.
        marks.pop(id_, None)
        marks[id_] = (offset, now_ms)
        self._fresh.append((id_, offset, now_ms))
        oldest = now_ms - options.dedup_ms if options.dedup_ms else 0
        most = options.dedup_ids or len(marks)
        while len(marks) > most or next(iter(marks.values()))[1] < oldest:
            del marks[next(iter(marks))]

    def forget_from(self, offset: int) -> None:
        """Take back the marks of records that could not be stored."""
        for id_ in [id_ for id_, (at, _) in self._marks.items() if at >= offset]:
            del self._marks[id_]
        self._fresh = [mark for mark in self._fresh if mark[1] < offset]

    def take_fresh(self, end: int) -> list[Mark]:
        """The marks of stored records since the last call, for the checkpoint."""
        taken = [mark for mark in self._fresh if mark[1] < end]
        if taken:
            self._fresh = [mark for mark in self._fresh if mark[1] >= end]
            self._saved.append((taken[0][1], taken[-1][2], len(taken)))
        return taken

    def take_expired(self, now_ms: int, options: TopicOptions) -> list[int]:
        """The first offsets of saved runs that have left the window."""
        expired = 0
        newer = sum(count for _, _, count in self._saved)
        for _, last_ms, count in self._saved:
            newer -= count
            in_time = not options.dedup_ms or last_ms >= now_ms - options.dedup_ms
            if in_time and (not options.dedup_ids or newer < options.dedup_ids):
                break
            expired += 1
        gone = [first for first, _, _ in self._saved[:expired]]
        del self._saved[:expired]
        return gone

    def restore(self, marks: Sequence[Mark]) -> None:
        """Put a saved run back; the oldest run comes first."""
        for id_, offset, time_ms in marks:
            self._marks[id_] = (offset, time_ms)
        self._saved.append((marks[0][1], marks[-1][2], len(marks)))
