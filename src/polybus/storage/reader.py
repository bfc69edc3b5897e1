"""Reading a topic: from memory where it can be, else from segments and staged chunks, in threads.

Invariant: nothing at or above the high-water offset `end` is ever handed out, and a chunk whose
checksum does not match is an error, never a gap. Those who fetch may look at the checksums of
bodies themselves.
"""

from __future__ import annotations

import asyncio
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import TypeVar

from polybus.core.engine import Slice
from polybus.errors import CorruptRecord, OutOfRange
from polybus.model.chunk import ChunkView, parse_chunk
from polybus.model.record import Record
from polybus.storage.files import Files, storage_error
from polybus.storage.gathering import gather
from polybus.storage.recovery import read_staged
from polybus.storage.segment import Segment, load_index, read_chunk, read_run
from polybus.storage.topic_log import StagedPart, Tail, TopicLog, cut_records

_T = TypeVar("_T")


class ChunkCache:
    """The chunks read last, bounded in bytes; only the event loop touches it."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._views: OrderedDict[tuple[int, int], ChunkView] = OrderedDict()

    def get(self, topic: int, base: int) -> ChunkView | None:
        """The chunk of a topic that begins at `base`, if it is there."""
        view = self._views.get((topic, base))
        if view is not None:
            self._views.move_to_end((topic, base))
        return view

    def put(self, topic: int, view: ChunkView) -> None:
        """Keep a chunk, at the cost of the oldest ones."""
        old = self._views.pop((topic, view.header.base), None)
        if old is not None:
            self._bytes -= old.header.length
        self._views[topic, view.header.base] = view
        self._bytes += view.header.length
        while self._bytes > self._max_bytes:
            _, gone = self._views.popitem(last=False)
            self._bytes -= gone.header.length


class Reader:
    """Reads topics; coroutines on the event loop, disk work in the pool."""

    def __init__(self, files: Files, pool: Executor, cache: ChunkCache) -> None:
        self._files = files
        self._pool = pool
        self._cache = cache
        self._loop = asyncio.get_running_loop()
        self.at_work = 0  # threads that read

    def cached(
        self, log: TopicLog, start: int, max_records: int, max_bytes: int
    ) -> list[Record] | None:
        """See `Engine.cached`."""
        if start >= log.end:
            return []
        if log.bases and start >= log.bases[0]:
            return log.tail_records(start, max_records, max_bytes)
        segment = segment_at(log, start)
        if segment is None or segment.index is None:
            return None
        view = self._cache.get(log.id, segment.index.bases[segment.find(start)])
        if view is None or start >= view.header.end:
            return None
        return cut_records(view, start - view.header.base, max_records, max_bytes)

    async def read(
        self, log: TopicLog, start: int, max_records: int, max_bytes: int
    ) -> Sequence[Record]:
        """See `Engine.read`."""
        check_range(log, start)
        found = self.cached(log, start, max_records, max_bytes)
        if found is None:
            view = await self._view_at(log, start)
            found = cut_records(view, start - view.header.base, max_records, max_bytes)
        return found

    async def fetch(
        self, log: TopicLog, start: int, end: int, max_bytes: int, verify: bool
    ) -> Slice:
        """See `Engine.fetch`."""
        check_range(log, start)
        end = min(end, log.end)
        chunks: list[bytes | memoryview] = []
        at, total = start, 0
        while at < end and (not chunks or total < max_bytes):
            room = max_bytes - total
            if log.bases and at >= log.bases[0]:
                more = await self._encode_tail(log, log.visible(at, end), at, room)
            elif verify:
                more = [await self._view_at(log, at)]
            else:
                more = await self._views_at(log, at, partial(self._run_in, end, room))
            for view in more:
                chunks.append(view.raw)
                total += view.header.length
                at = view.header.end
        return Slice(start, max(min(at, end), start), chunks)

    async def offset_at(self, log: TopicLog, time_ms: int) -> int:
        """See `Engine.offset_at`."""
        while True:
            number = bisect_left(log.segments, time_ms, key=lambda segment: segment.last_ms)
            if number == len(log.segments):
                offset, item = log.tail_offset_at(time_ms)
                if isinstance(item, StagedPart):
                    view = await self._view_at(log, item.base)
                    offset = view.header.base + view.time_index(time_ms)
                return min(max(offset, log.first), log.end)
            segment = log.segments[number]
            try:
                await self._load_index(segment)
            except FileNotFoundError as exc:
                if segment in log.segments:
                    raise CorruptRecord(segment.path.name, 0, "the file is missing") from exc
                continue
            assert segment.index is not None
            # The last chunk where the one that is looked for is damaged: reading it will tell.
            chunk = bisect_left(segment.index.last_us, time_ms * 1000)
            base = segment.index.bases[min(chunk, len(segment.index.bases) - 1)]
            view = await self._view_at(log, max(base, log.first))
            offset = view.header.base + view.time_index(time_ms)
            return min(max(offset, log.first), log.end)

    # -- segments ---------------------------------------------------------------------------------------------

    async def _view_at(self, log: TopicLog, start: int) -> ChunkView:
        """The chunk that holds `start`, from cache, segment or staging file."""
        return (await self._views_at(log, start, self._view_in))[0]

    async def _views_at(
        self,
        log: TopicLog,
        start: int,
        read: Callable[[TopicLog, Segment, int], Awaitable[list[ChunkView]]],
    ) -> list[ChunkView]:
        """The chunk that holds `start`, and what `read` finds behind it where that is a segment."""
        while True:
            check_range(log, start)
            if log.bases and start >= log.bases[0]:
                return await self._encode_tail(log, log.visible(start, start + 1), start, 0)
            segment = segment_at(log, start)
            if segment is None:
                raise CorruptRecord(log.folder.name, 0, f"no segment holds offset {start}")
            try:
                return await read(log, segment, start)
            except FileNotFoundError as exc:
                # Merged or trimmed while we were on the way: look again, unless it really is gone.
                if segment_at(log, start) is segment:
                    raise CorruptRecord(segment.path.name, 0, "the file is missing") from exc

    async def _encode_tail(
        self, log: TopicLog, visible: Tail, start: int, max_bytes: int
    ) -> list[ChunkView]:
        try:
            return await self._run(partial(self._encode, visible, max_bytes))
        except FileNotFoundError as exc:
            # A staged chunk that was moved while we were on the way lies in a segment now.
            if log.bases and start >= log.bases[0]:
                raise CorruptRecord(str(exc.filename), 0, "the staged chunk is gone") from exc
            return [await self._view_at(log, start)]

    async def _view_in(self, log: TopicLog, segment: Segment, start: int) -> list[ChunkView]:
        await self._load_index(segment)
        assert segment.index is not None
        number = segment.find(start)
        view = self._cache.get(log.id, segment.index.bases[number])
        if view is None or start >= view.header.end:
            view = await self._run(lambda: read_chunk(self._files, segment, number))
            self._cache.put(log.id, view)
        return [view]

    async def _run_in(
        self, end: int, max_bytes: int, log: TopicLog, segment: Segment, start: int
    ) -> list[ChunkView]:
        # Past the cache: who reads all of a topic leaves it to those who follow the end.
        await self._load_index(segment)
        number = segment.find(start)
        return await self._run(partial(read_run, self._files, segment, number, end, max_bytes))

    async def _load_index(self, segment: Segment) -> None:
        while segment.index is None:
            length = segment.length
            index = await self._run(partial(load_index, self._files, segment, length))
            if segment.length == length:
                segment.index = index

    async def _run(self, work: Callable[[], _T]) -> _T:
        self.at_work += 1
        try:
            return await self._loop.run_in_executor(self._pool, work)
        except FileNotFoundError:
            raise
        except OSError as exc:
            raise storage_error(exc, "reading") from exc
        finally:
            self.at_work -= 1

    def _encode(self, tail: Tail, max_bytes: int) -> list[ChunkView]:
        """Chunks of the tail's items, until `max_bytes` are there."""
        views: list[ChunkView] = []
        total = 0
        for item in gather(tail, max_bytes):
            view = read_part(self._files, item) if isinstance(item, StagedPart) else item
            views.append(view)
            total += view.header.length
            if total >= max_bytes:
                break
        return views


def read_part(files: Files, part: StagedPart) -> ChunkView:
    """A published chunk from its staging file, at the offsets and times it got."""
    view = read_staged(files, part.path)
    last, now = part.last_ms * 1000, part.now_ms * 1000
    times = array("q", view.times)
    for number, time_us in enumerate(times):
        if time_us <= 0 or time_us > now:
            time_us = now
        times[number] = last = max(last, time_us)
    return parse_chunk(view.rebased(part.base, times), part.path.name, verify=False)


def segment_at(log: TopicLog, offset: int) -> Segment | None:
    """The segment that holds an offset."""
    number = bisect_right(log.segments, offset, key=lambda segment: segment.base) - 1
    if number < 0 or offset >= log.segments[number].end:
        return None
    return log.segments[number]


def check_range(log: TopicLog, start: int) -> None:
    """Refuse what the topic does not hold.

    Raises:
        OutOfRange.
    """
    if not log.first <= start <= log.end:
        raise OutOfRange(log.name, start, log.first, log.end)
