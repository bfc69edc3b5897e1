"""How the state of a group reaches the engine: moves, commits that somebody waits for, dead letters.

Invariant: at most one write of a group is under way, and moves leave in the order they were taken. A record enters
the dead-letter topic in the same commit that marks it done in its group: never one without the other.
"""

from __future__ import annotations

import asyncio
import logging
from itertools import islice
from typing import TYPE_CHECKING, Final

from polybus.core.cursor import Cursor
from polybus.core.engine import Append, GroupState, Move
from polybus.core.group_options import GroupOptions, options_to
from polybus.errors import OutOfRange, PolybusError
from polybus.model.record import NewRecord, Record

if TYPE_CHECKING:
    from polybus.core.group import Group
    from polybus.core.member import Confirmed

log = logging.getLogger(__name__)

BURIALS: Final = 16  # dead letters per commit: their payloads are all in memory at that moment
READ_BYTES: Final = 1  # of one record, whatever its size: an engine returns at least one
RETRY_S: Final = 1.0  # between tries when a dead letter cannot be stored


class Ledger:
    """The writing side of one group."""

    __slots__ = ("_bury_at", "_group", "_lock", "_troubled", "_writing", "waiters")

    def __init__(self, group: Group) -> None:
        self._group = group
        self._lock = asyncio.Lock()
        self._writing = False
        self._bury_at = 0.0
        self._troubled = False
        self.waiters: list[Confirmed] = []

    def has_due(self, now: float) -> bool:
        """Whether a dead letter can be tried (again)."""
        return bool(self._group.buried) and now >= self._bury_at

    def flush(self, now: float) -> None:
        """Hand over what the engine does not know yet, now or soon; waits for nothing."""
        group = self._group
        if self._writing or self._lock.locked() or group.closed:
            return
        if self.waiters or self.has_due(now):
            self._writing = True
            group.hub.spawn(self._write())
        elif group.dirty:
            group.hub.save_soon(group)

    def move(self) -> None:
        """Tell the engine of the moves that nobody waits for; a write that is under way is followed by another turn."""
        group = self._group
        if group.dirty and not (self._writing or self._lock.locked() or group.closed):
            group.hub.engine.move(self._take())

    def fail(self, error: PolybusError) -> None:
        """Tell all who wait that it will not happen."""
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            waiter(error)

    async def save(self, options: GroupOptions, cursor: Cursor | None = None) -> None:
        """Write the whole state, with the position of `cursor` if one is given."""
        group = self._group
        async with self._lock:
            move = self._take()
            attempts = {offset: flight[1] for offset, flight in group.in_flight.items()}
            if cursor is None:
                cursor = group.cursor
                attempts |= cursor.tries
            else:
                attempts = {}
            state = GroupState(
                group.name, options_to(options), cursor.floor, set(cursor.done), attempts
            )
            try:
                await group.hub.engine.save_group(group.topic, state)
            except PolybusError:
                self._give_back(move)
                raise

    async def _write(self) -> None:
        group = self._group
        try:
            async with self._lock:
                while self.waiters or self.has_due(group.hub.clock.monotonic()):
                    if self.waiters:
                        await self._confirm()
                    else:
                        await self._bury()
        finally:
            self._writing = False
            group.hub.touch(group)

    async def _confirm(self) -> None:
        waiters, self.waiters = self.waiters, []
        move = self._take()
        error = None
        try:
            await self._group.hub.engine.commit([move])
        except PolybusError as exc:
            self._give_back(move)
            error = exc
        for waiter in waiters:
            waiter(error)

    async def _bury(self) -> None:
        group = self._group
        try:
            letters = {}
            for offset, cause in list(islice(group.buried.items(), BURIALS)):
                record = await self._record(offset)
                if record is None:
                    del group.buried[offset]
                    group.expired += 1
                    group.drop(offset)
                else:
                    letters[offset] = self._letter(record, cause)
            if letters:
                await self._commit_letters(letters)
        except PolybusError as exc:
            self._bury_at = group.hub.clock.monotonic() + RETRY_S
            if not self._troubled:
                log.error("group %s on %s cannot dead-letter: %s", group.name, group.topic, exc)
            self._troubled = True
        else:
            self._troubled = False

    async def _commit_letters(self, letters: dict[int, NewRecord]) -> None:
        group, engine = self._group, self._group.hub.engine
        dead_topic = group.options.dead_topic(group.topic)
        await group.hub.need_topic(dead_topic)
        move = self._take()
        done = [*move.done, *letters]
        attempts = {o: n for o, n in move.attempts.items() if o not in letters}
        whole = Move(move.topic, move.group, move.floor, done, attempts)
        try:
            await engine.commit([Append(dead_topic, list(letters.values())), whole])
        except PolybusError:
            self._give_back(move)
            raise
        for offset in letters:
            del group.buried[offset]
            group.dead += 1
            group.drop(offset)
        group.hub.grown(dead_topic)

    async def _record(self, offset: int) -> Record | None:
        engine, topic = self._group.hub.engine, self._group.topic
        try:
            records = engine.cached(topic, offset, 1, READ_BYTES)
            records = records or await engine.read(topic, offset, 1, READ_BYTES)
        except OutOfRange:
            return None
        return records[0] if records and records[0].offset == offset else None

    def _letter(self, record: Record, cause: str) -> NewRecord:
        group = self._group
        headers = {
            **record.headers,
            "dead-topic": group.topic,
            "dead-group": group.name,
            "dead-offset": str(record.offset),
            "dead-attempts": str(group.cursor.tries.get(record.offset, 0)),
            "dead-cause": cause,
            "dead-time": str(group.hub.clock.wall_ms()),
        }
        return NewRecord(record.payload, record.key, record.tag, headers)

    def _take(self) -> Move:
        self._group.dirty = False
        return self._group.cursor.take(self._group.topic, self._group.name)

    def _give_back(self, move: Move) -> None:
        self._group.dirty = True
        self._group.cursor.give_back(move)
