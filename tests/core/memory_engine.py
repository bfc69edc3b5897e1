"""An engine in memory that obeys the contract, with the power switch in the test's hand.

Invariant: what is confirmed is in the image that `crash` starts from; what waits for `sync` is not.
"""

from __future__ import annotations

import asyncio
from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from polybus.core.engine import (
    Append,
    Done,
    GroupState,
    Move,
    Operation,
    Slice,
    TopicInfo,
    TopicOptions,
)
from polybus.errors import NoSuchGroup, NoSuchTopic, OutOfRange, PolybusError, StorageFull
from polybus.model.message import Call, Publication
from polybus.model.record import NewRecord, Record


def copy_of(state: GroupState) -> GroupState:
    return replace(state, done=set(state.done), attempts=dict(state.attempts))


@dataclass
class Topic:
    options: TopicOptions
    records: list[Record] = field(default_factory=list)
    first: int = 0
    end: int = 0
    groups: dict[str, GroupState] = field(default_factory=dict)

    def copy(self) -> Topic:
        groups = {name: copy_of(state) for name, state in self.groups.items()}
        return Topic(self.options, list(self.records), self.first, self.end, groups)


@dataclass
class Pending:
    operations: Sequence[Operation]
    done: Callable[[list[int], PolybusError | None], None]


class MemoryEngine:
    """`manual`: nothing is durable before `sync`. `cold`: nothing is in memory, every read is awaited."""

    def __init__(self, *, manual: bool = False, cold: bool = False) -> None:
        self.manual = manual
        self.cold = cold
        self.full = False
        self.broken: PolybusError | None = None
        self.reads = 0
        self.moves: list[Move] = []
        self.commits: list[Sequence[Operation]] = []
        self._topics: dict[str, Topic] = {}
        self._image: dict[str, Topic] = {}
        self._pending: list[Pending] = []
        self._scheduled = False
        self._leaving: set[str] = set()

    def punch(self, topic: str, offset: int) -> None:
        """Take one record out of the middle, as other engines can."""
        held = self._get(topic)
        held.records = [record for record in held.records if record.offset != offset]

    def crash(self) -> MemoryEngine:
        """What is left after the power went: a new engine with what was durable."""
        engine = MemoryEngine(manual=self.manual, cold=self.cold)
        engine._topics = {name: topic.copy() for name, topic in self._image.items()}
        engine._image = self._image
        return engine

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        self.sync()

    def sync(self) -> bool:
        """One group commit; whether there was anything to do."""
        self._scheduled = False
        pending, self._pending = self._pending, []
        for entry in pending:
            try:
                firsts = [self._apply(operation) for operation in entry.operations]
            except PolybusError as exc:
                entry.done([], exc)
                continue
            entry.done(firsts, None)
        self._image = {name: topic.copy() for name, topic in self._topics.items()}
        return bool(pending)

    def _apply(self, operation: Operation) -> int:
        topic = self._get(operation.topic)
        if isinstance(operation, Move):
            return -1
        first = topic.end
        topic.end += len(operation.records)
        for index, new in enumerate(operation.records):
            offset = first + index
            topic.records.append(
                Record(offset, new.time_ms, new.payload, new.key, new.tag, new.headers, new.id)
            )
        return first

    def _move(self, move: Move) -> None:
        self.moves.append(move)
        state = self._get(move.topic).groups.get(move.group)
        if state is None:
            raise NoSuchGroup(move.topic, move.group)
        assert move.floor >= state.floor, "a floor never falls by a move"
        state.floor = move.floor
        state.done = {o for o in (*state.done, *move.done) if o >= move.floor}
        attempts = {**state.attempts, **move.attempts}
        state.attempts = {
            o: n for o, n in attempts.items() if o >= move.floor and o not in state.done
        }

    def _enter(self, entry: Pending) -> None:
        self._pending.append(entry)
        if not self.manual and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self.sync)

    def _get(self, topic: str) -> Topic:
        if topic not in self._topics or topic in self._leaving:
            raise NoSuchTopic(topic)
        return self._topics[topic]

    # -- topics ---------------------------------------------------------------------------------

    async def declare(self, topic: str, options: TopicOptions) -> TopicInfo:
        if self.full:
            raise StorageFull("no space")
        self._topics.setdefault(topic, Topic(options)).options = options
        self.sync()
        return self.topic(topic)

    async def remove(self, topic: str) -> None:
        self._get(topic)
        self._leaving.add(topic)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        self._leaving.remove(topic)
        del self._topics[topic]
        self.sync()

    async def trim(self, topic: str, first: int) -> None:
        held = self._get(topic)
        held.records = [record for record in held.records if record.offset >= first]
        held.first = max(held.first, first)
        self.sync()

    def topics(self) -> Sequence[TopicInfo]:
        return [self.topic(name) for name in self._topics if name not in self._leaving]

    def topic(self, topic: str) -> TopicInfo:
        held = self._get(topic)
        size = sum(len(record.payload) for record in held.records)
        times = [record.time_ms for record in held.records] or [0]
        return TopicInfo(
            topic, held.options, held.first, held.end, size, 0, times[-1], times[0], times[-1]
        )

    # -- records --------------------------------------------------------------------------------

    def append(self, topic: str, records: Sequence[NewRecord], done: Done) -> bool:
        self._get(topic)
        if self.full:
            asyncio.get_running_loop().call_soon(done, -1, StorageFull("no space"))
            return True
        self._enter(
            Pending(
                [Append(topic, records)],
                lambda firsts, error: done(-1 if error else firsts[0], error),
            )
        )
        return True

    def append_joined(
        self, topic: str, ends: array[int], parts: Sequence[bytes], done: Done
    ) -> bool:
        whole = b"".join(parts)
        return self.append(topic, [NewRecord(whole[a:b]) for a, b in pairwise(ends)], done)

    async def commit(self, operations: Sequence[Operation]) -> list[int]:
        if self.full:
            raise StorageFull("no space")
        waiter: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()

        def done(firsts: list[int], error: PolybusError | None) -> None:
            if waiter.cancelled():
                return
            if error is None:
                waiter.set_result(firsts)
            else:
                waiter.set_exception(error)

        for operation in operations:
            self._get(operation.topic)
        # A commit is one entry of the log, so its moves take effect with its records, not before.
        moves = [operation for operation in operations if isinstance(operation, Move)]

        def apply(firsts: list[int], error: PolybusError | None) -> None:
            try:
                for move in moves:
                    self._move(move)
            except PolybusError as exc:
                error = exc
            done(firsts, error)

        self.commits.append(operations)
        self._enter(Pending(operations, apply))
        return await waiter

    def move(self, move: Move) -> None:
        self._move(move)
        self._enter(Pending([move], lambda firsts, error: None))

    def cached(
        self, topic: str, start: int, max_records: int, max_bytes: int
    ) -> Sequence[Record] | None:
        if self.cold or start < self._get(topic).first:
            return None
        return self._read(topic, start, max_records, max_bytes)

    async def read(
        self, topic: str, start: int, max_records: int, max_bytes: int
    ) -> Sequence[Record]:
        self.reads += 1
        await asyncio.sleep(0)
        if self.broken is not None:
            raise self.broken
        info = self.topic(topic)
        if not info.first <= start <= info.end:
            raise OutOfRange(topic, start, info.first, info.end)
        return self._read(topic, start, max_records, max_bytes)

    def _read(self, topic: str, start: int, max_records: int, max_bytes: int) -> list[Record]:
        held = self._get(topic)
        at = bisect_left(held.records, start, key=lambda record: record.offset)
        found = held.records[at : at + max_records]
        size = 0
        for index, record in enumerate(found):
            size += len(record.payload)
            if index and size > max_bytes:
                return found[:index]
        return found

    async def fetch(
        self, topic: str, start: int, end: int, max_bytes: int, *, verify: bool = True
    ) -> Slice:
        raise NotImplementedError

    async def offset_at(self, topic: str, time_ms: int) -> int:
        info = self.topic(topic)
        found = (r.offset for r in self._get(topic).records if r.time_ms >= time_ms)
        return next(found, info.end)

    # -- groups ---------------------------------------------------------------------------------

    async def save_group(self, topic: str, state: GroupState) -> None:
        if self.full:
            raise StorageFull("no space")
        self._get(topic).groups[state.name] = copy_of(state)
        self.sync()

    async def remove_group(self, topic: str, group: str) -> None:
        if self._get(topic).groups.pop(group, None) is None:
            raise NoSuchGroup(topic, group)
        self.sync()

    def groups(self, topic: str) -> Sequence[GroupState]:
        return list(self._get(topic).groups.values())

    # -- what these tests do not need -----------------------------------------------------------

    async def stage(self, topic: str, chunk: bytes) -> str:
        self._get(topic)
        return chunk.decode()

    async def publish_staged(
        self, topic: str, sink: str, batch: int, tickets: Sequence[str]
    ) -> int:
        records = [NewRecord(ticket.encode()) for ticket in tickets]
        return (await self.commit([Append(topic, records)]))[0]

    async def claim(self, name: str, prefix: bool) -> None:
        raise NotImplementedError

    async def release(self, name: str) -> None:
        raise NotImplementedError

    def forward_call(self, call: Call) -> bool:
        raise NotImplementedError

    def forward_publication(self, publication: Publication) -> None:
        raise NotImplementedError
