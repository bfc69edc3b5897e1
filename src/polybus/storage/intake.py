"""Where commits begin: gives out offsets and times, encodes entries, and collects them into batches for the commit log.

Invariant: what is taken in one call goes into one frame, and the records of a topic get their offsets
in the order they came. A record's time is never below that of the one before it, nor in the future.

Plain typed Python which Cython also compiles, as `batches` and `topic_log`: the `.pxd` beside each has the C types.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from polybus.core.engine import Append, Done, Move, Operation
from polybus.errors import (
    Draining,
    LimitExceeded,
    NoSuchGroup,
    NoSuchTopic,
    PolybusError,
)
from polybus.model.chunk import (
    HEADER_BYTES,
    MAX_BYTES,
    MAX_RECORDS,
    PLAIN_OVERHEAD,
    ChunkView,
    encode_chunk,
    encode_open,
    open_parts,
    parse_chunk,
)
from polybus.model.clock import Clock
from polybus.model.ends import ends_of
from polybus.model.message import NO_HEADERS
from polybus.model.record import NewRecord
from polybus.storage.batches import Batch, Batches, Limits
from polybus.storage.commit_log import Prepared
from polybus.storage.entry import (
    ROW,
    ROW_HEAD,
    ROW_OVERHEAD,
    Change,
    Moved,
    Published,
    encode_change,
    encode_chunk_entry,
    encode_row,
)
from polybus.storage.state import State
from polybus.storage.topic_log import Run, TopicLog, single

CHUNK_FROM: Final = 8  # so many records at once are cheaper to encode as columns than row by row

_pack_row = ROW_HEAD.pack
_fields = msgspec.structs.astuple


class Intake(Batches):
    """Takes appends, commits and changes into the open batches."""

    def __init__(
        self,
        state: State,
        clock: Clock,
        limits: Limits,
        submit: Callable[[Prepared], None],
        sequence: int,
    ) -> None:
        super().__init__(state, clock, limits, submit, sequence)
        self._topics = state.topics
        self._plain_logs: list[TopicLog] = []  # those with plain records of this turn
        self._plain_bytes = 0
        self._max_plain = limits.append - ROW_OVERHEAD
        self._max_frame = limits.frame
        self._max_queue = limits.queue
        self.refusal: PolybusError | None = None  # why nothing more is taken

    def append(self, topic: str, records: Sequence[NewRecord], done: Done) -> bool:
        """See `Engine.append`."""
        log = self._topics.get(topic)
        if log is None or log.removed:
            raise NoSuchTopic(topic)
        if self.refusal is not None:
            raise self.refusal
        if len(records) == 1:
            # All fields at once: asking for them one by one costs compiled code as much as all the rest here.
            payload, key, tag, headers, id_, time_ms = _fields(records[0])
            if not (key or tag or headers or id_ or time_ms):
                # The common case does the least that can be done now; the rest is done for many at once.
                size = len(payload)
                if size > self._max_plain:
                    self._check_size(records)
                if log.plain_first is None:
                    self._plain_logs.append(log)
                    log.plain_first = payload
                    log.plain_done = done
                else:
                    log.plain.append(payload)
                    log.plain_dones.append(done)
                self._plain_bytes += size + ROW_OVERHEAD
                if not self._scheduled:
                    self._schedule()
                if self._plain_bytes > self._max_frame:
                    self.flush()
                return self._queued_bytes + self._plain_bytes < self._max_queue
        elif len(records) >= CHUNK_FROM and _are_plain(records):
            # Measured and given a time as a whole: doing both record by record took longer than encoding them.
            payloads = tuple([record.payload for record in records])
            return self._append_payloads(log, payloads, done)
        self._check_size(records)
        self.give_offsets()
        batch = self._batch_for(log)
        batch.offsets.append(self._store(batch, log, records))
        batch.dones.append(done)
        self._taken(batch)
        return self._queued_bytes + batch.size < self._limits.queue

    def append_joined(
        self, topic: str, ends: array[int], parts: Sequence[bytes], done: Done
    ) -> bool:
        """See `Engine.append_joined`."""
        log = self._topics.get(topic)
        if log is None or log.removed:
            raise NoSuchTopic(topic)
        self._check_open()
        if len(ends) < 2:
            return self._append_payloads(log, (), done)
        batch = self._batch_for_many(log, ends[-1] + ROW_OVERHEAD * (len(ends) - 1))
        self._store_joined(batch, log, ends, parts)
        return self._many_taken(batch, log, done)

    def _append_payloads(self, log: TopicLog, payloads: tuple[bytes, ...], done: Done) -> bool:
        size = sum(map(len, payloads)) + ROW_OVERHEAD * len(payloads)
        batch = self._batch_for_many(log, size)
        self._store_payloads(batch, log, payloads, log.last_ms)
        return self._many_taken(batch, log, done)

    def _batch_for_many(self, log: TopicLog, size: int) -> Batch:
        """Where many plain payloads go, their first offset noted and their time in `log.last_ms`."""
        if size > self._limits.append:
            raise LimitExceeded("bytes in one append", limit=self._limits.append, actual=size)
        self.give_offsets()
        batch = self._batch_for(log)
        if not log.items:
            log.oldest = self.sequence
        log.last_ms = max(log.last_ms, self.now_ms())
        batch.offsets.append(log.next)
        return batch

    def _many_taken(self, batch: Batch, log: TopicLog, done: Done) -> bool:
        batch.ends[log] = log.next
        batch.dones.append(done)
        self._taken(batch)
        return self._queued_bytes + batch.size < self._limits.queue

    def _batch_for(self, log: TopicLog) -> Batch:
        """The batch for a topic's records; those of a lax one must not overtake any that wait for a sync."""
        if log.os and log.hold <= self.synced and log not in self._open.ends and not self._paused:
            return self._open_os
        return self._open

    def give_offsets(self) -> None:
        """Give out offsets to the plain records of this turn, topic by topic, and encode them."""
        if not self._plain_logs:
            return
        logs, self._plain_logs, self._plain_bytes = self._plain_logs, [], 0
        latest = now_ms = self.now_ms()
        for log in logs:
            batch = self._batch_for(log) if log.os else self._open
            payload, done = log.plain_first, log.plain_done
            assert payload is not None
            assert done is not None
            log.plain_first = log.plain_done = None
            batch.dones.append(done)
            first = log.next
            if not log.items:
                log.oldest = self.sequence
            # `now_ms` and `first` are objects that what is kept of the records shares: making them anew is not free.
            if latest >= log.last_ms:
                log.last_ms = latest
                time_ms = now_ms
            else:
                time_ms = log.last_ms
            if not log.plain:  # with many topics, most have one
                size = len(payload)
                batch.parts.append(_pack_row(ROW, log.id, first, time_ms, size))
                batch.parts.append(payload)
                size += ROW_OVERHEAD
                batch.size += size
                log.add(first, time_ms, payload, size)
                log.next = batch.ends[log] = first + 1
                batch.offsets.append(first)
                continue
            payloads = (payload, *log.plain)
            count = len(payloads)
            if count < CHUNK_FROM:
                id_, offset, total = log.id, first, 0
                for payload in payloads:
                    size = len(payload)
                    batch.parts.append(_pack_row(ROW, id_, offset, time_ms, size))
                    batch.parts.append(payload)
                    batch.offsets.append(offset)
                    total += size + ROW_OVERHEAD
                    offset += 1
                batch.size += total
                log.add(first, time_ms, Run(payloads, total), total)
                log.next = offset
            else:
                self._store_payloads(batch, log, payloads, time_ms)
                batch.offsets += range(first, first + count)
            batch.ends[log] = log.next
            batch.dones += log.plain_dones
            log.plain.clear()
            log.plain_dones.clear()

    def _store_payloads(
        self, batch: Batch, log: TopicLog, payloads: tuple[bytes, ...], time_ms: int
    ) -> None:
        if not payloads:
            return
        ends = ends_of(payloads)
        size = ends[-1]
        if len(payloads) > MAX_RECORDS or size > MAX_BYTES:
            half = len(payloads) // 2
            if half:
                self._store_payloads(batch, log, payloads[:half], time_ms)
                self._store_payloads(batch, log, payloads[half:], time_ms)
                return
        count = len(payloads)
        times_us = array("q", (time_ms * 1000,)) * count
        batch.parts += encode_chunk_entry(log.id, open_parts(log.next, times_us, ends, payloads))
        size += HEADER_BYTES + count * PLAIN_OVERHEAD
        batch.size += size
        log.add(log.next, time_ms, Run(payloads, size), size)
        log.next += count

    def _store_joined(
        self, batch: Batch, log: TopicLog, ends: array[int], parts: Sequence[bytes]
    ) -> None:
        count = len(ends) - 1
        half = count // 2
        if half and (count > MAX_RECORDS or ends[-1] > MAX_BYTES):
            whole, cut = b"".join(parts), ends[half]
            rest = array("i", [end - cut for end in ends[half:]])
            self._store_joined(batch, log, ends[: half + 1], [whole[:cut]])
            self._store_joined(batch, log, rest, [whole[cut:]])
            return
        times_us = array("q", (log.last_ms * 1000,)) * count
        self._store_view(batch, log, encode_open(log.next, times_us, ends, parts))

    def _store_view(self, batch: Batch, log: TopicLog, view: ChunkView) -> None:
        assert isinstance(view.buf, bytes)
        batch.parts += encode_chunk_entry(log.id, [view.buf])
        batch.size += len(view.buf)
        log.add(log.next, view.header.last_us // 1000, view, len(view.buf))
        log.next += view.header.count

    async def commit(self, operations: Sequence[Operation]) -> list[int]:
        """See `Engine.commit`."""
        self._check_open()
        logs = [self._check(operation) for operation in operations]
        self._check_size([r for o in operations if isinstance(o, Append) for r in o.records])
        self.give_offsets()
        batch = self._open
        if all(isinstance(operation, Append) for operation in operations) and not any(
            self._batch_for(log) is self._open for log in logs
        ):
            batch = self._open_os
        offsets: list[int] = []
        for operation, log in zip(operations, logs, strict=True):
            if isinstance(operation, Move):
                offsets.append(-1)
                self._put_change(batch, log, _moved(operation))
            else:
                offsets.append(self._store(batch, log, operation.records))
        await self._settled(batch)
        return offsets

    def move(self, move: Move) -> None:
        """See `Engine.move`."""
        log = self._state.log(move.topic)
        if move.group not in log.groups:
            raise NoSuchGroup(move.topic, move.group)
        batch, change = self._for_changes(), _moved(move)
        self._put_change(batch, log, change)
        batch.loose.append((log.id, change))
        self._taken_loose(batch)

    async def change(self, topic: int, change: Change) -> None:
        """Commit one small change and wait until it is applied."""
        self._check_open()
        batch = self._for_changes()
        batch.parts.append(encode_change(topic, change))
        batch.changes.append((topic, change))
        await self._settled(batch)

    async def publish(self, log: TopicLog, change: Published) -> None:
        """Commit the publication of staged chunks and wait until it is visible."""
        self._check_open()
        batch = self._open
        if not log.items:
            log.oldest = self.sequence
        self._put_change(batch, log, change)
        self._state.add_published(log, change)
        batch.ends[log] = log.next
        await self._settled(batch)

    def _check_open(self) -> None:
        if self.refusal is not None:
            raise self.refusal

    def _check(self, operation: Operation) -> TopicLog:
        log = self._state.log(operation.topic)
        if isinstance(operation, Move) and operation.group not in log.groups:
            raise NoSuchGroup(operation.topic, operation.group)
        return log

    def _check_size(self, records: Sequence[NewRecord]) -> None:
        size = 0
        headers: Mapping[str, str] = NO_HEADERS
        header_bytes = 0
        for record in records:
            if record.headers is not headers:  # the records of one producer mostly share theirs
                headers = record.headers
                header_bytes = sum(len(name) + len(value) for name, value in headers.items())
            size += len(record.payload) + len(record.key) + len(record.tag) + len(record.id)
            size += header_bytes + ROW_OVERHEAD
        if size > self._limits.append:
            raise LimitExceeded("bytes in one append", limit=self._limits.append, actual=size)

    def _time(self, log: TopicLog, record: NewRecord, now_ms: int) -> int:
        """The time a record gets: its own where it has one, but never in the future and never before the last one's."""
        given = record.time_ms
        time_ms = given if 0 < given < now_ms else now_ms
        log.last_ms = max(log.last_ms, time_ms)
        return log.last_ms

    def _store(self, batch: Batch, log: TopicLog, records: Sequence[NewRecord]) -> int:
        """Give out offsets and encode; the offset of the first record."""
        now_ms = self.now_ms()
        first = log.next
        known: list[int] = []
        fresh = records
        if any(record.id for record in records):
            fresh, known = self._without_repeats(log, records, now_ms)
        if fresh:
            if not log.items:
                log.oldest = self.sequence
            times = [self._time(log, record, now_ms) for record in fresh]
            if len(fresh) >= CHUNK_FROM and _are_plain(fresh):
                self._store_payloads(batch, log, tuple([r.payload for r in fresh]), times[0])
            elif len(fresh) < CHUNK_FROM:
                self._store_rows(batch, log, fresh, times)
            else:
                self._store_chunks(batch, log, fresh, times)
            batch.ends[log] = log.next
        return known[0] if known else first

    def _without_repeats(
        self, log: TopicLog, records: Sequence[NewRecord], now_ms: int
    ) -> tuple[list[NewRecord], list[int]]:
        fresh: list[NewRecord] = []
        offsets: list[int] = []
        for record in records:
            offset = log.dedup.find(record.id, now_ms, log.options) if record.id else None
            if offset is None:
                offset = log.next + len(fresh)
                fresh.append(record)
                if record.id:
                    log.dedup.add(record.id, offset, now_ms, log.options)
            offsets.append(offset)
        return fresh, offsets

    def _store_rows(
        self, batch: Batch, log: TopicLog, records: Sequence[NewRecord], times: Sequence[int]
    ) -> None:
        for record, time_ms in zip(records, times, strict=True):
            parts = encode_row(log.id, log.next, time_ms, record)
            batch.parts += parts
            size = ROW_OVERHEAD + len(record.payload)
            batch.size += size + len(record.key)
            log.add(log.next, time_ms, single(record), size)
            log.next += 1

    def _store_chunks(
        self, batch: Batch, log: TopicLog, records: Sequence[NewRecord], times: Sequence[int]
    ) -> None:
        start = 0
        while start < len(records):
            stop, size = start, 0
            while stop < len(records) and stop - start < MAX_RECORDS and size < MAX_BYTES:
                size += len(records[stop].payload)
                stop += 1
            chunk = encode_chunk(log.next, records[start:stop], times[start:stop])
            self._store_view(batch, log, parse_chunk(chunk, verify=False))
            start = stop


def _moved(move: Move) -> Moved:
    return Moved(move.group, move.floor, list(move.done), dict(move.attempts))


def _are_plain(records: Sequence[NewRecord]) -> bool:
    return not any(r.id or r.key or r.tag or r.headers or r.time_ms for r in records)


def draining() -> Draining:
    """Why a stopping engine takes nothing."""
    return Draining("the node is stopping and takes nothing new")
