"""One topic in memory: its segments, the tail that is not in segments yet, its groups, sinks and ids.

Invariant: `first <= moved <= end <= next` wherever there is a tail; offsets below `end` are durable
and visible, those from `end` to `next` are on their way and may still be taken back. Only the event
loop touches it.

        first          moved                 end            next
          |--segments----|-------tail---------|--on its way--|
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec

from polybus.core.engine import Done, GroupState, TopicInfo, TopicOptions
from polybus.model.chunk import ChunkView
from polybus.model.record import NewRecord, Record
from polybus.storage.dedup import DedupWindow
from polybus.storage.entry import ROW_OVERHEAD
from polybus.storage.segment import Segment


class Run(msgspec.Struct, frozen=True, gc=False):
    """Records with nothing but a payload that were taken at one time.

    They stay as the producer handed them in: copying them took longer than all that was done with them.
    """

    payloads: tuple[bytes, ...]  # of no concern to the garbage collector, as a list would be
    size: int


@dataclass(frozen=True, slots=True)
class StagedPart:
    """A published chunk that still lies in its staging file; its times are cut to `last_ms`..`now_ms`."""

    path: Path
    base: int
    count: int
    size: int
    last_ms: int
    now_ms: int

    @property
    def end(self) -> int:
        """The offset after the last record."""
        return self.base + self.count


Item = bytes | NewRecord | Run | ChunkView | StagedPart
"""What stands in the tail, the payload of a single record that has nothing else included.

With a thousand topics nearly all records are such, hundreds of thousands of them: an object around each was what the
mover, the event loop and the garbage collector spent a fifth of their time on.
"""


class Tail(NamedTuple):
    """Neighbouring items of the tail, the first of which is at `base`, and the time of each one's last record."""

    base: int
    times_ms: list[int]
    items: list[Item]


def single(record: NewRecord) -> Item:
    """The item for one record."""
    is_plain = not (record.key or record.tag or record.id or record.headers)
    return record.payload if is_plain else record


def item_count(item: Item) -> int:
    """How many records an item of the tail stands for."""
    if isinstance(item, (bytes, NewRecord)):
        return 1
    if isinstance(item, Run):
        return len(item.payloads)
    return item.header.count if isinstance(item, ChunkView) else item.count


def item_bytes(item: Item) -> int:
    """Roughly what an item takes in memory or, if staged, on disk."""
    if isinstance(item, bytes):
        return ROW_OVERHEAD + len(item)
    if isinstance(item, NewRecord):
        return ROW_OVERHEAD + len(item.payload)
    return item.header.length if isinstance(item, ChunkView) else item.size


class TopicLog:
    """A topic's state; see the module for the offsets."""

    __slots__ = (
        "bases",
        "changed",
        "changed_groups",
        "changed_sinks",
        "created_ms",
        "dedup",
        "end",
        "first",
        "folder",
        "groups",
        "hold",
        "id",
        "items",
        "last_ms",
        "moved",
        "name",
        "next",
        "oldest",
        "options",
        "os",
        "plain",
        "plain_done",
        "plain_dones",
        "plain_first",
        "removed",
        "segments",
        "sinks",
        "tail_bytes",
        "times_ms",
        "updated_ms",
    )

    def __init__(
        self, id_: int, name: str, options: TopicOptions, created_ms: int, folder: Path
    ) -> None:
        self.id = id_
        self.name = name
        self.folder = folder
        self.created_ms = self.updated_ms = self.last_ms = created_ms
        self.first = self.moved = self.end = self.next = 0
        self.segments: list[Segment] = []
        self.bases: list[int] = []
        self.times_ms: list[int] = []  # of the last record of each item; of a staged one, its bound
        self.items: list[Item] = []
        self.tail_bytes = 0
        self.oldest = 0  # no frame below this sequence holds a record of the tail
        self.hold = 0  # until this sequence is synced, the topic's records go with synced batches
        self.groups: dict[str, GroupState] = {}
        self.sinks: dict[str, tuple[int, int]] = {}
        self.dedup = DedupWindow()
        self.removed = False
        # Payloads taken in this turn of the loop, without offsets yet. The first stands apart: with many topics it is
        # the only one, and a list that is emptied gives its memory back each time.
        self.plain_first: bytes | None = None
        self.plain_done: Done | None = None
        self.plain: list[bytes] = []
        self.plain_dones: list[Done] = []
        self.changed = True
        self.changed_groups: set[str] = set()
        self.changed_sinks: set[str] = set()
        self.set_options(options, created_ms)

    def set_options(self, options: TopicOptions, time_ms: int) -> None:
        """Take new options."""
        self.options = options
        self.os = options.durability == "os"
        self.updated_ms = max(self.updated_ms, time_ms)
        self.changed = True

    def add(self, base: int, time_ms: int, item: Item, size: int) -> None:
        """Put an item at the end of the tail; `time_ms` is that of its last record."""
        self.bases.append(base)
        self.times_ms.append(time_ms)
        self.items.append(item)
        self.tail_bytes += size

    def take_back(self) -> None:
        """Drop what is on its way; its offsets will be given out again."""
        keep = bisect_left(self.bases, self.end)
        self.tail_bytes -= sum(map(item_bytes, self.items[keep:]))
        del self.bases[keep:], self.times_ms[keep:], self.items[keep:]
        self.dedup.forget_from(self.end)
        self.next = self.end

    def drop_tail(self, below: int) -> list[Item]:
        """Drop the items of the tail that lie wholly below an offset, and return them."""
        keep = bisect_right(self.bases, below)
        if keep and self.bases[keep - 1] + item_count(self.items[keep - 1]) > below:
            keep -= 1
        gone = self.items[:keep]
        self.drop_first(keep, sum(map(item_bytes, gone)))
        return gone

    def drop_first(self, count: int, size: int) -> None:
        """Drop so many items of the tail, whose size is known."""
        self.tail_bytes -= size
        del self.bases[:count], self.times_ms[:count], self.items[:count]

    def visible(self, start: int, end: int) -> Tail:
        """The tail's items that hold records from `start` to `end`."""
        low = max(bisect_right(self.bases, start) - 1, 0)
        high = bisect_left(self.bases, end)
        base = self.bases[low] if low < high else end
        return Tail(base, self.times_ms[low:high], self.items[low:high])

    def tail_records(self, start: int, max_records: int, max_bytes: int) -> list[Record] | None:
        """Records of the tail from `start` on, at least one; None where a staged chunk must be read first."""
        found: list[Record] = []
        total = 0
        at = bisect_right(self.bases, start) - 1
        while start < self.end and len(found) < max_records and total < max_bytes:
            item, time_ms = self.items[at], self.times_ms[at]
            if isinstance(item, bytes):
                total += len(item)
                if found and total > max_bytes:
                    break
                found.append(Record(start, time_ms, item))
                start += 1
            elif isinstance(item, NewRecord):
                total += len(item.payload)
                if found and total > max_bytes:
                    break
                found.append(
                    Record(start, time_ms, item.payload, item.key, item.tag, item.headers, item.id)
                )
                start += 1
            elif isinstance(item, Run):
                low = start - self.bases[at]
                for payload in item.payloads[low : low + max_records - len(found)]:
                    total += len(payload)
                    if found and total > max_bytes:
                        return found
                    found.append(Record(start, time_ms, payload))
                    start += 1
            elif isinstance(item, ChunkView):
                low = start - item.header.base
                more = cut_records(item, low, max_records - len(found), max_bytes - total)
                total += item.payload_ends[low + len(more)] - item.payload_ends[low]
                if found and total > max_bytes:
                    break
                found += more
                start += len(more)
                if start < item.header.end:
                    break
            else:
                return found or None
            at += 1
        return found

    def tail_offset_at(self, time_ms: int) -> tuple[int, Item | None]:
        """The first visible offset at or after a time, and the staged part that must be read to know."""
        at = bisect_left(self.times_ms, time_ms, 0, bisect_left(self.bases, self.end))
        if at == len(self.bases) or self.bases[at] >= self.end:
            return self.end, None
        base, item = self.bases[at], self.items[at]
        if isinstance(item, ChunkView):
            return base + item.time_index(time_ms), None
        return base, item if isinstance(item, StagedPart) else None

    def info(self) -> TopicInfo:
        """The topic as it stands."""
        oldest = newest = 0
        visible = bisect_left(self.bases, self.end)
        if self.end > self.first:
            if visible:
                newest = self.times_ms[visible - 1]
                oldest = self._oldest_ms()
            if self.segments:
                oldest = self.segments[0].first_ms
                newest = newest or self.segments[-1].last_ms
        size = self.tail_bytes + sum(segment.length for segment in self.segments)
        return TopicInfo(
            self.name,
            self.options,
            self.first,
            self.end,
            size,
            self.created_ms,
            max(self.updated_ms, newest),
            oldest,
            newest,
        )

    def _oldest_ms(self) -> int:
        item = self.items[0]
        if isinstance(item, ChunkView):
            return item.header.first_us // 1000
        return item.last_ms if isinstance(item, StagedPart) else self.times_ms[0]


def cut_records(view: ChunkView, low: int, max_records: int, max_bytes: int) -> list[Record]:
    """Records of a chunk from index `low` on, within both bounds but at least one."""
    ends = view.payload_ends
    high = min(view.header.count, low + max(max_records, 1))
    high = max(low + 1, bisect_right(ends, ends[low] + max_bytes, low, high + 1) - 1)
    return view.records(low, high)
