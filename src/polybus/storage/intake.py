"""Where commits begin: gives out offsets and times, encodes entries, and collects them into batches for the commit log.

Invariant: what is taken in one call goes into one frame; a batch's effects are applied on the event
loop, in order, once the commit log has reported it; if it failed, everything behind it is taken
back as well, so that offsets stay dense.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from polybus.core.engine import Append, Done, Move, Operation
from polybus.errors import (
    Draining,
    LimitExceeded,
    NoSuchGroup,
    NoSuchTopic,
    PolybusError,
    StorageError,
)
from polybus.model.chunk import (
    MAX_BYTES,
    MAX_RECORDS,
    ChunkView,
    encode_chunk,
    encode_open,
    parse_chunk,
)
from polybus.model.clock import Clock
from polybus.model.message import NO_HEADERS
from polybus.model.record import NewRecord
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
from polybus.storage.topic_log import TopicLog

CHUNK_FROM: Final = 8  # so many records at once are cheaper to encode as columns than row by row

FEW_PARTS: Final = 16  # so many pieces are written as they are, without a copy
RETRY_S: Final = 0.5  # how soon moves are written again after a failure

_pack_row = ROW_HEAD.pack


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the intake, in bytes."""

    queue: int  # taken but not durable: beyond it producers are asked to pause
    append: int  # one append or one commit
    frame: int  # a batch is closed when it is this large


class Batch(Prepared):
    """A frame being filled, and what happens once it is durable."""

    __slots__ = ("changes", "dones", "ends", "loose", "offsets", "then")

    def __init__(self, sync: bool) -> None:
        super().__init__()
        self.sync = sync
        self.ends: dict[TopicLog, int] = {}
        self.changes: list[tuple[int, Change]] = []
        self.loose: list[tuple[int, Moved]] = []  # changes nobody waits for
        self.dones: list[Done] = []
        self.offsets: list[int] = []
        self.then: list[Callable[[StorageError | None], None]] = []

    @property
    def used(self) -> bool:
        """Whether anything depends on it."""
        return bool(self.parts or self.dones or self.then)


class Intake:
    """Open batches and the outstanding ones."""

    def __init__(
        self,
        state: State,
        clock: Clock,
        limits: Limits,
        submit: Callable[[Prepared], None],
        sequence: int,
    ) -> None:
        self._state = state
        self._topics = state.topics
        self._clock = clock
        self._limits = limits
        self._submit = submit
        self._loop = asyncio.get_running_loop()
        self.sequence = sequence  # of the next batch to be closed
        self.synced = sequence - 1  # everything up to here is durable
        self._epoch = 0
        self._open = Batch(sync=True)
        self._open_os = Batch(sync=False)
        self._scheduled = False
        self._now = 0
        self._outstanding: dict[int, Batch] = {}
        self._paused = False
        self._held: list[Batch] = []  # closed while paused
        self._plain_logs: list[TopicLog] = []  # those with plain records of this turn
        self._plain_bytes = 0
        self._max_plain = limits.append - ROW_OVERHEAD
        self._aside = Batch(sync=True)  # changes taken while paused: they do not wait
        self._queued_bytes = 0
        self.taken_bytes = 0  # of all batches so far, for whoever decides when to move
        self.refusal: PolybusError | None = None  # why nothing more is taken
        self._kept: dict[tuple[int, str], Moved] = {}  # moves of failed batches, to be tried again

    # -- taking -----------------------------------------------------------------------------------------------

    def append(self, topic: str, records: Sequence[NewRecord], done: Done) -> bool:
        """See `Engine.append`."""
        log = self._topics.get(topic)
        if log is None or log.removed:
            raise NoSuchTopic(topic)
        if self.refusal is not None:
            raise self.refusal
        if len(records) == 1:
            record = records[0]
            if not (record.id or record.key or record.tag or record.headers or record.time_ms):
                # The common case does the least that can be done now; the rest is done for many at once.
                size = len(record.payload)
                if size > self._max_plain:
                    self._check_size(records)
                if not log.plain:
                    self._plain_logs.append(log)
                log.plain.append(record)
                log.plain_dones.append(done)
                self._plain_bytes += size + ROW_OVERHEAD
                if not self._scheduled:
                    self._schedule()
                if self._plain_bytes > self._limits.frame:
                    self.flush()
                return self._queued_bytes + self._plain_bytes < self._limits.queue
        self._check_size(records)
        self.give_offsets()
        batch = self._batch_for(log)
        batch.offsets.append(self._store(batch, log, records))
        batch.dones.append(done)
        self._taken(batch)
        return self._queued_bytes + batch.size < self._limits.queue

    def _batch_for(self, log: TopicLog) -> Batch:
        return self._open_os if log.os and log.hold <= self.synced else self._open

    def give_offsets(self) -> None:
        """Give out offsets to the plain records of this turn, topic by topic, and encode them."""
        if not self._plain_logs:
            return
        logs, self._plain_logs, self._plain_bytes = self._plain_logs, [], 0
        now_ms = self.now_ms()
        for log in logs:
            batch = self._open_os if log.os and log.hold <= self.synced else self._open
            records, dones = log.plain, log.plain_dones
            first, count = log.next, len(records)
            if not log.items:
                log.oldest = self.sequence
            time_ms = log.last_ms = now_ms if now_ms > log.last_ms else log.last_ms
            if count < CHUNK_FROM:
                id_, offset = log.id, first
                for record in records:
                    payload = record.payload
                    size = len(payload)
                    batch.parts += (_pack_row(ROW, id_, offset, time_ms, size), payload)
                    size += ROW_OVERHEAD
                    batch.size += size
                    log.tail_bytes += size
                    log.bases.append(offset)
                    log.items.append((time_ms, record))
                    batch.offsets.append(offset)
                    offset += 1
                log.next = batch.ends[log] = offset
            else:
                self._store_payloads(batch, log, [record.payload for record in records], time_ms)
                batch.ends[log] = log.next
                batch.offsets += range(first, first + count)
            batch.dones += dones
            records.clear()
            dones.clear()

    def _store_payloads(
        self, batch: Batch, log: TopicLog, payloads: list[bytes], time_ms: int
    ) -> None:
        if len(payloads) > MAX_RECORDS or sum(map(len, payloads)) > MAX_BYTES:
            half = len(payloads) // 2
            if half:
                self._store_payloads(batch, log, payloads[:half], time_ms)
                self._store_payloads(batch, log, payloads[half:], time_ms)
                return
        self._store_view(batch, log, encode_open(log.next, time_ms * 1000, payloads))

    def _store_view(self, batch: Batch, log: TopicLog, view: ChunkView) -> None:
        batch.parts += encode_chunk_entry(log.id, view)
        batch.size += view.header.length
        log.add(log.next, view, view.header.length)
        log.next += view.header.count

    async def commit(self, operations: Sequence[Operation]) -> list[int]:
        """See `Engine.commit`."""
        self._check_open()
        logs = [self._check(operation) for operation in operations]
        self._check_size([r for o in operations if isinstance(o, Append) for r in o.records])
        self.give_offsets()
        lax = all(log.os and log.hold <= self.synced for log in logs)
        lax = lax and all(isinstance(operation, Append) for operation in operations)
        batch = self._open_os if lax else self._open
        offsets: list[int] = []
        for operation, log in zip(operations, logs, strict=True):
            if isinstance(operation, Move):
                offsets.append(-1)
                self._put_change(batch, log, _moved(operation))
            else:
                offsets.append(self._store(batch, log, operation.records))
                # Records of one topic become visible in order, so later ones must not overtake this batch.
                self.hold(log)
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
        self._taken(batch)

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
        self.hold(log)
        await self._settled(batch)

    async def barrier(self, callback: Callable[[int], None]) -> None:
        """Call `callback` on the event loop at a moment when everything applied is durable, with the last sequence."""
        batch = self._for_changes()
        batch.then.append(lambda error: None if error else callback(batch.sequence))
        await self._settled(batch)

    def pause(self) -> None:
        """Hold records back until `resume`: the mover is too far behind. Changes still go through."""
        self._paused = True

    def resume(self) -> None:
        """Hand over what was held back."""
        self._paused = False
        self.flush()
        held, self._held = self._held, []
        for batch in held:
            self._hand_over(batch)

    def refuse_held(self, error: StorageError) -> None:
        """Fail what is held back; nothing else may be on its way with records."""
        if self._held or self._open.used or self._open_os.used:
            self._take_back(error)

    def _for_changes(self) -> Batch:
        return self._aside if self._paused else self._open

    def hold(self, log: TopicLog) -> None:
        """Let the topic's next records not overtake those that are on their way with a synced batch."""
        log.hold = self.sequence + 1

    def now_ms(self) -> int:
        """The time that records taken now get."""
        return self._now or self._set_now()

    @property
    def oldest_outstanding(self) -> int:
        """No batch below this sequence is on its way."""
        return next(iter(self._outstanding), self.sequence)

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

    def _set_now(self) -> int:
        # One look at the clock per batch is exact enough, and it is not free.
        self._now = self._clock.wall_ms()
        if not self._scheduled:
            self._schedule()
        return self._now

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
                self._store_payloads(batch, log, [r.payload for r in fresh], times[0])
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
            log.add(log.next, (time_ms, record), size)
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

    def _put_change(self, batch: Batch, log: TopicLog, change: Change) -> None:
        data = encode_change(log.id, change)
        batch.parts.append(data)
        batch.size += len(data)
        batch.changes.append((log.id, change))

    # -- handing over -----------------------------------------------------------------------------------------

    async def _settled(self, batch: Batch) -> None:
        future: asyncio.Future[None] = self._loop.create_future()

        def settle(error: StorageError | None) -> None:
            if not future.done():
                if error is None:
                    future.set_result(None)
                else:
                    future.set_exception(error)

        batch.then.append(settle)
        self._taken(batch)
        await future

    def _taken(self, batch: Batch) -> None:
        if not self._scheduled:
            self._schedule()
        if batch.size > self._limits.frame:
            self.flush()

    def _schedule(self) -> None:
        # At the end of this turn of the loop: whatever came in with it goes into one frame.
        self._scheduled = True
        self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Close the open batches and hand them to the commit log."""
        self.give_offsets()
        self._scheduled = False
        self._now = 0
        if self._aside.used:
            batch, self._aside = self._aside, Batch(sync=True)
            self._put_kept(batch)
            self._close(batch, aside=True)
        if self._open_os.used:
            batch, self._open_os = self._open_os, Batch(sync=False)
            self._close(batch)
        if self._open.used:
            batch, self._open = self._open, Batch(sync=True)
            self._put_kept(batch)
            self._close(batch)

    def _close(self, batch: Batch, *, aside: bool = False) -> None:
        if len(batch.parts) > FEW_PARTS:
            batch.parts = [b"".join(batch.parts)]
        crc = 0
        for part in batch.parts:
            crc = zlib.crc32(part, crc)
        batch.crc = crc
        batch.size = sum(map(len, batch.parts))
        self._queued_bytes += batch.size
        if self._paused and not aside:
            self._held.append(batch)
        else:
            self._hand_over(batch)

    def _hand_over(self, batch: Batch) -> None:
        batch.sequence = self.sequence
        batch.epoch = self._epoch
        self.sequence += 1
        self.taken_bytes += batch.size
        self._outstanding[batch.sequence] = batch
        self._submit(batch)

    # -- what became of them ----------------------------------------------------------------------------------

    def reported(self, batches: Sequence[Batch], error: StorageError | None) -> None:
        """The commit log has finished with these batches."""
        if error is not None and batches[0].epoch == self._epoch:
            self._take_back(error)
        for batch in batches:
            del self._outstanding[batch.sequence]
            self._queued_bytes -= batch.size
            batch.parts = []
            if error is None:
                self._apply(batch)
            self._tell(batch, error)

    def _apply(self, batch: Batch) -> None:
        for log, end in batch.ends.items():
            log.end = end
            log.changed = True
        for topic, change in batch.changes:
            self._state.apply(topic, change)
        if batch.sync:
            self.synced = batch.sequence

    def _tell(self, batch: Batch, error: StorageError | None) -> None:
        for done, offset in zip(batch.dones, batch.offsets, strict=True):
            try:
                done(-1 if error else offset, error)
            except Exception as exc:
                context = {"message": "a producer's callback failed", "exception": exc}
                self._loop.call_exception_handler(context)
        for callback in batch.then:
            callback(error)

    def _take_back(self, error: StorageError) -> None:
        """A batch failed: so does all that was built on it."""
        self.give_offsets()
        self._epoch += 1
        lost = [*self._held, self._aside, self._open_os, self._open]
        self._queued_bytes -= sum(batch.size for batch in self._held)
        self._held = []
        self._aside, self._open, self._open_os = Batch(sync=True), Batch(sync=True), Batch(False)
        for batch in [*self._outstanding.values(), *lost]:
            for log in batch.ends:
                if log.next > log.end:
                    log.take_back()
            for topic, change in batch.loose:
                self._keep_move(topic, change)
        for batch in lost:
            self._tell(batch, error)
        if self._kept:
            # Acknowledgements go on while producers are refused: they are tried again, with whatever comes first.
            self._loop.call_later(RETRY_S, self._retry_moves)

    def _keep_move(self, topic: int, change: Moved) -> None:
        old = self._kept.get((topic, change.name))
        if old is not None:
            done = sorted({*old.done, *change.done})
            attempts = {**old.attempts, **change.attempts}
            change = Moved(change.name, max(old.floor, change.floor), done, attempts)
        self._kept[topic, change.name] = change

    def _put_kept(self, batch: Batch) -> None:
        kept, self._kept = self._kept, {}
        for (topic, _), change in kept.items():
            log = self._state.by_id.get(topic)
            if log is not None:
                self._put_change(batch, log, change)
                batch.loose.append((topic, change))

    def _retry_moves(self) -> None:
        self._put_kept(self._for_changes())
        self.flush()


def _moved(move: Move) -> Moved:
    return Moved(move.group, move.floor, list(move.done), dict(move.attempts))


def _are_plain(records: Sequence[NewRecord]) -> bool:
    return not any(r.id or r.key or r.tag or r.headers or r.time_ms for r in records)


def draining() -> Draining:
    """Why a stopping engine takes nothing."""
    return Draining("the node is stopping and takes nothing new")
