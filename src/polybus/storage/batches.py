"""Batches: what goes to the commit log together, and what becomes of it.

Invariant: a batch's effects are applied on the event loop, in order, once the commit log has reported
it; if it failed, everything behind it is taken back as well, so that offsets stay dense. Moves that
nobody waits for are kept and tried again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from polybus.core.engine import Done
from polybus.errors import StorageError
from polybus.model.checksum import crc32
from polybus.model.clock import Clock
from polybus.storage.commit_log import Prepared
from polybus.storage.entry import Change, Moved, encode_change
from polybus.storage.state import State
from polybus.storage.topic_log import TopicLog

FEW_PARTS: Final = 16  # so many pieces are written as they are, without a copy
LOOSE_S: Final = 0.01  # how long a move may wait for company
RETRY_S: Final = 0.5  # how soon moves are written again after a failure


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the intake, in bytes."""

    queue: int  # taken but not durable: beyond it producers are asked to pause
    append: int  # one append or one commit
    frame: int  # a batch is closed when it is this large


class Batch:
    """A frame being filled, and what happens once it is durable."""

    def __init__(self, sync: bool) -> None:
        self.sequence = 0
        self.epoch = 0
        self.parts: list[bytes] = []
        self.size = 0
        self.crc = 0
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


class Batches:
    """The open batches and the outstanding ones."""

    def __init__(
        self,
        state: State,
        clock: Clock,
        limits: Limits,
        submit: Callable[[Prepared], None],
        sequence: int,
    ) -> None:
        self._state = state
        self._clock = clock
        self._limits = limits
        self._submit = submit
        self._loop = asyncio.get_running_loop()
        self.sequence = sequence  # of the next batch to be handed over
        self.synced = sequence - 1  # everything up to here is durable
        self.taken_bytes = 0  # of all batches so far, for whoever decides when to move
        self._epoch = 0
        self._now = 0
        self._open = Batch(sync=True)
        self._open_os = Batch(sync=False)
        self._aside = Batch(sync=True)  # changes taken while paused: they do not wait
        self._scheduled = False
        self._loose_timer: asyncio.TimerHandle | None = None
        self._paused = False
        self._held: list[Batch] = []  # closed while paused
        self._outstanding: dict[int, Batch] = {}
        self._queued_bytes = 0
        self._kept: dict[tuple[int, str], Moved] = {}  # moves of failed batches, to be tried again

    def give_offsets(self) -> None:
        """Put what was taken in this turn into the open batches."""

    def now_ms(self) -> int:
        """The time that records taken now get."""
        return self._now or self._set_now()

    @property
    def oldest_outstanding(self) -> int:
        """No batch below this sequence is on its way."""
        return next(iter(self._outstanding), self.sequence)

    def _set_now(self) -> int:
        # One look at the clock per batch is exact enough, and it is not free.
        self._now = self._clock.wall_ms()
        if not self._scheduled:
            self._schedule()
        return self._now

    async def barrier(self, callback: Callable[[int], None]) -> None:
        """Call `callback` on the event loop at a moment when everything applied is durable, with the last sequence."""
        batch = self._for_changes()
        batch.then.append(lambda error: None if error else callback(batch.sequence))
        await self._settled(batch)

    def pause(self) -> None:
        """Hold records back until `resume`: the mover is too far behind. Changes still go through."""
        if not self._paused:
            # Changes that were taken before, with records, must not be held: the mover itself may wait for one.
            self.flush()
            self._paused = True

    def resume(self) -> None:
        """Hand over what was held back."""
        self._paused = False
        held, self._held = self._held, []
        for batch in held:
            self._hand_over(batch)

    def refuse_held(self, error: StorageError) -> bool:
        """Fail what is held back, if anything is; False while records are on their way, which has to end first.

        They will be reported done: taken back with the others, their offsets would be given out a second time.
        """
        if not self._paused:
            return True
        if any(batch.ends for batch in self._outstanding.values()):
            return False
        if self._held or self._open.used or self._open_os.used:
            self._take_back(error)
        return True

    def _for_changes(self) -> Batch:
        return self._aside if self._paused else self._open

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

    def _taken_loose(self, batch: Batch) -> None:
        """As `_taken`, for what nobody waits for: it goes with what comes next, or soon by itself.

        A consumer that takes one message at a time moves its group with each of them; a commit for every move would
        cost more than the message.
        """
        if not self._scheduled and self._loose_timer is None:
            self._loose_timer = self._loop.call_later(LOOSE_S, self._flush_loose)
        if batch.size > self._limits.frame:
            self.flush()

    def _flush_loose(self) -> None:
        self._loose_timer = None
        if not self._scheduled:
            self.flush()

    def _schedule(self) -> None:
        # At the end of this turn of the loop: whatever came in with it goes into one frame.
        self._scheduled = True
        self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Close the open batches and hand them to the commit log."""
        self.give_offsets()
        self._scheduled = False
        if self._loose_timer is not None:
            self._loose_timer.cancel()
            self._loose_timer = None
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
            crc = crc32(part, crc)
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
        if batch.sync:
            for log in batch.ends:
                log.hold = batch.sequence
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
        dones, offsets = batch.dones, batch.offsets
        for number in range(len(dones)):
            done = dones[number]
            try:
                done(-1 if error else offsets[number], error)
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
