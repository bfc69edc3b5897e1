"""The load that `polybus bench` puts on a node.

Invariant: every client has a connection of its own, and a message counts only once the node or the receiver has
confirmed it, unless the bench was told to want no confirmation.
"""

from __future__ import annotations

import asyncio
import struct
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, Final

import polybus
from polybus.cli.bench_figures import Figures, Tally, figures
from polybus.client import Bus
from polybus.errors import PolybusError
from polybus.model.record import NewRecord

QUIET_S: Final = 2.0  # with nothing new for so long, what has not come is lost
LOOK_S: Final = 0.05
_STAMP: Final = struct.Struct("<d")

Send = Callable[[int], Awaitable[object]]
"""Sends so many messages and returns when they are confirmed."""


@dataclass(frozen=True, slots=True)
class Load:
    """How much, by how many, and how fast."""

    url: str
    clients: int
    msgs: int | None
    """In all; None: as many as fit into `duration`."""
    size: int
    batch: int
    duration: float | None = None
    sleep: float = 0.0
    throughput: float = 0.0
    """Messages a second in all; 0: as many as possible."""

    def share(self, client: int) -> int | None:
        """How many messages are this client's."""
        if self.msgs is None:
            return None
        return self.msgs // self.clients + (client < self.msgs % self.clients)

    def payload(self) -> bytes:
        return bytes(self.size)


Watch = Callable[[str, Sequence[Tally]], None]
"""Told, before a phase, which tallies to look at for its progress."""


class Pace:
    """One client's turns: so many messages, until then, not faster than that."""

    def __init__(self, load: Load, client: int) -> None:
        self._left = load.share(client)
        self._until = None if load.duration is None else perf_counter() + load.duration
        self._interval = load.clients / load.throughput if load.throughput else 0.0
        self._due = perf_counter()

    async def turn(self, most: int) -> int:
        """How many messages to send now; 0: it is over."""
        if self._left == 0 or (self._until is not None and perf_counter() >= self._until):
            return 0
        now = most if self._left is None else min(most, self._left)
        if self._left is not None:
            self._left -= now
        if self._interval:
            # The next turn is counted from when this one was due, so that a late one is made up for.
            wait, self._due = self._due - perf_counter(), self._due + self._interval * now
            if wait > 0:
                await asyncio.sleep(wait)
        return now


async def drive(
    load: Load, send: Send, pace: Pace, tally: Tally, *, together: bool = False
) -> None:
    """Keep `batch` messages of one client under way; `together` sends them as one, else each for itself."""

    async def slot() -> None:
        while count := await pace.turn(load.batch if together else 1):
            began = perf_counter()
            await send(count)
            tally.add(count, count * load.size, began, perf_counter())
            if load.sleep:
                await asyncio.sleep(load.sleep)

    await all_of(slot() for _ in range(1 if together else load.batch))


async def all_of(jobs: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run jobs side by side; the first error ends them all and is raised by itself."""
    try:
        async with asyncio.TaskGroup() as group:
            for job in jobs:
                group.create_task(job)
    except BaseExceptionGroup as errors:
        known = errors.subgroup(PolybusError)
        if known is None:
            raise
        raise _first(known) from None


def _first(errors: BaseExceptionGroup[PolybusError]) -> PolybusError:
    error = errors.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error


async def connect_all(stack: AsyncExitStack, load: Load) -> list[Bus]:
    """One connection for each client."""
    return [await stack.enter_async_context(polybus.connect(load.url)) for _ in range(load.clients)]


def fresh_name() -> str:
    """A name that nobody else uses."""
    return f"bench/{uuid.uuid4().hex[:12]}"


# -- the benches -------------------------------------------------------------------------------------------------------


async def bench_pub(load: Load, watch: Watch, *, name: str, confirmed: bool) -> list[Figures]:
    """Clients publish; how fast the node takes it."""
    tallies = [Tally() for _ in range(load.clients)]
    payload = load.payload()
    async with AsyncExitStack() as stack:
        buses = await connect_all(stack, load)
        watch("pub", tallies)

        def sender(bus: Bus) -> Send:
            verb = bus.publish if confirmed else bus.publish_nowait
            return lambda _: verb(name, payload)

        await all_of(
            drive(load, sender(bus), Pace(load, number), tallies[number])
            for number, bus in enumerate(buses)
        )
        if not confirmed:
            # An answer to this comes only after all that was sent before it.
            for bus, tally in zip(buses, tallies, strict=True):
                await bus.publish(name + "/end")
                tally.ended = perf_counter()
    return [figures("pub", tallies)]


async def bench_sub(load: Load, watch: Watch, *, name: str) -> list[Figures]:
    """Clients subscribe to one publisher; how fast it reaches them, and how long each message is on its way."""
    tallies = [Tally() for _ in range(load.clients)]
    sent = Tally()
    one = replace(load, clients=1)
    rest = bytes(max(0, load.size - _STAMP.size))

    async def receive(bus: Bus, tally: Tally, ready: asyncio.Event) -> None:
        async with bus.subscribe(name) as messages:
            ready.set()
            async for message in messages:
                began, now = _STAMP.unpack_from(message.payload)[0], perf_counter()
                tally.add(1, len(message.payload), began, now)

    async with AsyncExitStack() as stack:
        buses = await connect_all(stack, load)
        publisher = await stack.enter_async_context(polybus.connect(load.url))
        ready = [asyncio.Event() for _ in buses]
        readers = [
            asyncio.create_task(receive(*both)) for both in zip(buses, tallies, ready, strict=True)
        ]
        try:
            for event in ready:
                await event.wait()
            watch("sub", tallies)
            await drive(
                one,
                lambda _: publisher.publish(name, _STAMP.pack(perf_counter()) + rest),
                Pace(one, 0),
                sent,
            )
            wanted = sent.msgs * load.clients
            await _until_quiet(tallies, wanted)
        finally:
            await _end(readers)
    return [figures("sub", tallies, lost=wanted - sum(tally.msgs for tally in tallies))]


async def bench_call(load: Load, watch: Watch, *, service: str | None) -> list[Figures]:
    """Clients call a service: the one named, or one of the bench's own that answers with what was sent."""
    tallies = [Tally() for _ in range(load.clients)]
    payload = load.payload()
    async with AsyncExitStack() as stack:
        name = service
        if name is None:
            name = fresh_name()
            owner = await stack.enter_async_context(polybus.connect(load.url))
            await owner.serve(name, lambda body: body)
        buses = await connect_all(stack, load)
        watch("call", tallies)

        def caller(bus: Bus) -> Send:
            return lambda _: bus.call(name, payload)

        await all_of(
            drive(load, caller(bus), Pace(load, number), tallies[number])
            for number, bus in enumerate(buses)
        )
    return [figures("call", tallies)]


@dataclass(frozen=True, slots=True)
class Durable:
    """Where `bench durable` stores, and how."""

    topic: str | None
    """None: one of the bench's own, removed at the end."""
    create: bool = False
    purge: bool = False
    dedup: bool = False
    together: bool = False
    """Whether a batch is acknowledged as one."""
    consume: bool = True


async def bench_durable(load: Load, watch: Watch, how: Durable) -> list[Figures]:
    """Clients store records and wait until each is on disk; then as many read them as one group."""
    async with polybus.connect(load.url) as admin:
        topic = how.topic or fresh_name()
        if how.topic is None or how.create:
            await admin.declare_topic(topic)
        if how.purge:
            await admin.empty_topic(topic)
        try:
            start = (await admin.topic(topic)).end
            found = [await _produce(load, watch, topic, how)]
            if how.consume:
                end = (await admin.topic(topic)).end
                found.append(await _consume(load, watch, admin, topic, start, end))
        finally:
            if how.topic is None:
                await admin.remove_topic(topic)
    return found


async def _produce(load: Load, watch: Watch, topic: str, how: Durable) -> Figures:
    tallies = [Tally() for _ in range(load.clients)]
    payload = load.payload()

    def record() -> NewRecord:
        return NewRecord(payload, id=uuid.uuid4().hex if how.dedup else "")

    def producer(bus: Bus) -> Send:
        if how.together:
            return lambda count: bus.produce_many(topic, [record() for _ in range(count)])
        return lambda _: bus.produce(topic, payload, id=uuid.uuid4().hex if how.dedup else "")

    async with AsyncExitStack() as stack:
        buses = await connect_all(stack, load)
        watch("produce", tallies)
        await all_of(
            drive(load, producer(bus), Pace(load, number), tallies[number], together=how.together)
            for number, bus in enumerate(buses)
        )
    return figures("produce", tallies)


async def _consume(
    load: Load, watch: Watch, admin: Bus, topic: str, start: int, end: int
) -> Figures:
    tallies = [Tally() for _ in range(load.clients)]
    group = fresh_name()

    async def read(bus: Bus, tally: Tally) -> None:
        began = perf_counter()
        async with bus.consume(topic, group, start=start) as records:
            async for record in records:
                tally.count(1, len(record.payload), began, perf_counter())

    async with AsyncExitStack() as stack:
        buses = await connect_all(stack, load)
        watch("consume", tallies)
        readers = [asyncio.create_task(read(*both)) for both in zip(buses, tallies, strict=True)]
        try:
            await _until_quiet(tallies, end - start)
        finally:
            await _end(readers)
            await admin.remove_group(topic, group)
    return figures("consume", tallies, lost=max(0, end - start - sum(t.msgs for t in tallies)))


async def _until_quiet(tallies: Sequence[Tally], wanted: int) -> None:
    """Return when all has come, or nothing new for a while."""
    seen, since = -1, perf_counter()
    while (now := sum(tally.msgs for tally in tallies)) < wanted:
        if now != seen:
            seen, since = now, perf_counter()
        elif perf_counter() - since > QUIET_S:
            return
        await asyncio.sleep(LOOK_S)


async def _end(readers: Sequence[asyncio.Task[None]]) -> None:
    for reader in readers:
        reader.cancel()
    for ended in await asyncio.gather(*readers, return_exceptions=True):
        if isinstance(ended, PolybusError):
            raise ended
