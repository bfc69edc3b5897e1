"""A durable node without sockets for tests: topics on some engine, a manual clock, consumers that remember."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from polybus.core.endpoint import Endpoint
from polybus.core.engine import Append, Engine, TopicOptions
from polybus.core.group import Group
from polybus.core.group_options import BEGINNING, GroupOptions, Start
from polybus.core.member import Member
from polybus.core.topics import Topics
from polybus.errors import PolybusError
from polybus.model.clock import ManualClock
from polybus.model.record import Delivery, NewRecord, Record


class Consumer(Endpoint):
    """A party that remembers what it got and confirms nothing by itself."""

    __slots__ = ("got", "react")
    wire = "test"

    def __init__(self, peer: str = "") -> None:
        super().__init__(peer=peer)
        self.got: list[Delivery] = []
        self.react: Callable[[Delivery], None] | None = None

    def deliver_record(self, delivery: Delivery) -> None:
        self.got.append(delivery)
        if self.react is not None:
            self.react(delivery)

    @property
    def offsets(self) -> list[int]:
        return [delivery.record.offset for delivery in self.got]

    @property
    def attempts(self) -> list[tuple[int, int]]:
        return [(delivery.record.offset, delivery.attempt) for delivery in self.got]


BARRIER = "barrier"  # a topic of its own: what is in it is durable after all that came before


class DurableNode:
    """Topics on an engine, with the verbs that nearly every test needs."""

    def __init__(self, engine: Engine, clock: ManualClock) -> None:
        self.engine = engine
        self.clock = clock
        self.topics = Topics(engine, clock)
        self.groups = self.topics.groups

    async def settle(self) -> None:
        """Let everything happen that is going to happen without time passing."""
        if not self.topics.has(BARRIER):
            await self.engine.declare(BARRIER, TopicOptions())
        for _ in range(3):
            await self.engine.commit([Append(BARRIER, [NewRecord(b"")])])
            await self.groups.idle()

    async def settle_without_commit(self) -> None:
        """As `settle` where the engine has no space."""
        for _ in range(3):
            await asyncio.sleep(0)
            await self.groups.idle()

    async def tick_without_commit(self, seconds: float) -> None:
        self.topics.tick(self.clock.advance(seconds))
        await self.settle_without_commit()

    async def pass_time(self, seconds: float) -> None:
        self.topics.tick(self.clock.advance(seconds))
        await self.settle()

    async def produce(self, topic: str, *records: str | NewRecord) -> int:
        new = [NewRecord(r.encode(), tag=r) if isinstance(r, str) else r for r in records]
        stored: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def done(first: int, error: PolybusError | None) -> None:
            if error is None:
                stored.set_result(first)
            else:
                stored.set_exception(error)

        self.topics.produce(topic, new, done)
        first = await stored
        await self.settle()
        return first

    async def group(
        self, topic: str = "t", name: str = "g", *, start: Start = BEGINNING, **options: object
    ) -> Group:
        wanted = GroupOptions(**options)  # type: ignore[arg-type]
        return await self.groups.declare(topic, name, wanted, start)

    async def join(
        self, credit: int = 0, topic: str = "t", name: str = "g", id: str = ""
    ) -> tuple[Consumer, Member]:
        consumer = Consumer()
        member = self.groups.join(consumer, topic, name, id)
        member.credit(credit)
        await self.settle()
        return consumer, member

    async def read(self, topic: str) -> list[Record]:
        return await read_all(self.engine, topic)


async def read_all(engine: Engine, topic: str) -> list[Record]:
    """Everything in a topic; one read may return less than there is."""
    info = engine.topic(topic)
    found: list[Record] = []
    start = info.first
    while start < info.end:
        found += await engine.read(topic, start, 1000, 1_000_000)
        start = found[-1].offset + 1
    return found
