"""Durable topics as sessions use them: declaring, producing, and the groups that consume.

Invariant: nothing reaches the engine under a name or of a size that was not checked here, and every change of what
can be read gives the groups of that topic their turn.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from polybus.core.endpoint import Endpoint
from polybus.core.engine import Done, Engine, TopicInfo, TopicOptions
from polybus.core.group_options import check_topic
from polybus.core.groups import Groups
from polybus.core.journal import OWN_TOPICS, Journal
from polybus.core.limits import Owner
from polybus.core.topic_events import Listener, Listeners, TopicEvent
from polybus.errors import Conflict, LimitExceeded, NoSuchTopic, PolybusError
from polybus.model.clock import Clock
from polybus.model.message import NO_HEADERS
from polybus.model.record import NewRecord

MAX_RECORD_BYTES: Final = (
    32 * 1024 * 1024
)  # the largest message a stock Zbus server takes (protocol page §1)

OWNER: Final = "owner"  # the mark of a topic that is counted for somebody


class Topics:
    """The durable half of a node. Group verbs are on `groups`; raw reading is on `engine`.

    Args:
        create: whether producing to an unknown topic declares it, unless the producer says otherwise.
    """

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        *,
        create: bool = False,
        max_record_bytes: int = MAX_RECORD_BYTES,
    ) -> None:
        self.engine = engine
        self.create = create
        self.max_record_bytes = max_record_bytes
        self.journal: Journal | None = None
        """Told of what is produced; None when no journal is kept."""
        self._listeners = Listeners()
        self.groups = Groups(engine, clock, self._listeners, self._need)
        # Produced to a topic that is just being declared: they keep their order behind it.
        self._held: dict[str, list[tuple[Sequence[NewRecord], Done]]] = {}
        self._declaring: dict[str, str] = {}
        """Topics that are on their way to the disk, with whom they are counted for."""

    async def start(self) -> None:
        """Take up what the engine kept. The engine runs already."""
        self.groups.start()

    async def stop(self) -> None:
        """Hand everything to the engine, which is stopped after this."""
        await self.groups.stop()

    def tick(self, now: float) -> None:
        """See `Groups.tick`."""
        self.groups.tick(now)

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Hear of every change of topics, groups and members; returns the way to stop that."""
        return self._listeners.add(listener)

    # -- topics -----------------------------------------------------------------------------------------------

    def info(self, topic: str) -> TopicInfo:
        """One topic.

        Raises:
            NoSuchTopic.
        """
        return self.engine.topic(topic)

    def all(self) -> Sequence[TopicInfo]:
        """All topics."""
        return self.engine.topics()

    def has(self, topic: str) -> bool:
        """Whether the topic exists."""
        try:
            self.engine.topic(topic)
        except NoSuchTopic:
            return False
        return True

    async def declare(
        self, topic: str, options: TopicOptions | None = None, *, owner: Owner | None = None
    ) -> TopicInfo:
        """Find the topic, create it if it is missing, and give it `options` unless they are None.

        Args:
            owner: whom a topic that is created here is counted for.

        Raises:
            InvalidName, LimitExceeded: nothing is changed.
        """
        check_topic(topic)
        async with self.groups.lock(topic):
            if self.has(topic):
                info = self.engine.topic(topic)
                if options is not None and OWNER in info.options.extra:
                    options = _owned(options, info.options.extra[OWNER])
                if options is None or options == info.options:
                    return info
                return await self._write(topic, options, "edited")
            options = options or TopicOptions()
            if owner is None:
                return await self._write(topic, options, "declared")
            self._admit(topic, owner)
            try:
                return await self._write(topic, _owned(options, owner.name), "declared")
            finally:
                del self._declaring[topic]

    def _admit(self, topic: str, owner: Owner) -> None:
        there = sum(info.options.extra.get(OWNER) == owner.name for info in self.all())
        # Those on their way to the disk count too: many may be declared at once.
        there += sum(name == owner.name for name in self._declaring.values())
        if there >= owner.limit:
            text = f"too many topics of {owner.name}"
            raise LimitExceeded(text, limit=owner.limit, actual=there + 1)
        self._declaring[topic] = owner.name

    async def edit(self, topic: str, **changes: Any) -> TopicInfo:
        """Change single options of a topic.

        Raises:
            NoSuchTopic, LimitExceeded; Conflict: there is no option of that name.
        """
        async with self.groups.lock(topic):
            old = self.engine.topic(topic).options
            unknown = sorted(set(changes) - set(TopicOptions.__slots__))
            if unknown:
                raise Conflict(f"a topic has no option {', '.join(unknown)}")
            return await self._write(topic, replace(old, **changes), "edited")

    async def remove(self, topic: str) -> None:
        """Drop a topic with all its records and groups; members are told.

        Raises:
            NoSuchTopic.
        """
        async with self.groups.lock(topic):
            await self.engine.remove(topic)
            self.groups.forget(topic)
            self._listeners.tell(TopicEvent("removed", topic))

    async def empty(self, topic: str) -> None:
        """Drop all records of a topic; offsets go on where they are.

        Raises:
            NoSuchTopic.
        """
        async with self.groups.lock(topic):
            end = self.engine.topic(topic).end
            await self.engine.trim(topic, end)
            for group in self.groups.of(topic):
                group.trimmed(end)
            self._listeners.tell(TopicEvent("emptied", topic))

    async def _write(self, topic: str, options: TopicOptions, change: Any) -> TopicInfo:
        for name in ("retain_ms", "retain_bytes", "dedup_ms", "dedup_ids"):
            value = getattr(options, name)
            if value < 0:
                raise LimitExceeded(f"{name} cannot be negative", limit=0, actual=value)
        info = await self.engine.declare(topic, options)
        self._listeners.tell(TopicEvent(change, topic))
        return info

    async def _need(self, topic: str) -> None:
        # No lock when it is there: whoever holds it may be waiting for the group that asks.
        if not self.has(topic):
            await self.declare(topic)

    # -- producing --------------------------------------------------------------------------------------------

    def produce(
        self,
        topic: str,
        records: Sequence[NewRecord],
        done: Done,
        *,
        create: bool | None = None,
        owner: Owner | None = None,
        by: Endpoint | None = None,
    ) -> bool:
        """Store records in order; `done` gets the first offset once they are durable, or the error.

        Returns False when the producer should pause until its `done` comes (see `Engine.append`).

        Args:
            by: the producer, for the journal.

        Raises:
            NoSuchTopic, InvalidName, LimitExceeded: nothing is taken.
        """
        self._check_sizes(records)
        if not records:
            raise LimitExceeded("at least one record is needed to produce", limit=1, actual=0)
        if self.journal is not None and by is not None and not topic.startswith(OWN_TOPICS):
            done = _noting(self.journal, topic, records, by, done)
        if topic in self._held:
            self._held[topic].append((records, done))
            return False
        try:
            return self.engine.append(topic, records, self._telling(topic, done))
        except NoSuchTopic:
            if not (self.create if create is None else create):
                raise
        check_topic(topic)
        self._held[topic] = [(records, done)]
        self.groups.spawn(self._create(topic, owner))
        return False

    def produce_joined(
        self, topic: str, ends: array[int], parts: Sequence[bytes], done: Done
    ) -> bool:
        """Store many small payloads of this node's own to a topic that exists (see `Engine.append_joined`).

        Raises:
            NoSuchTopic, LimitExceeded: nothing is taken.
        """
        return self.engine.append_joined(topic, ends, parts, self._telling(topic, done))

    async def publish_staged(
        self, topic: str, sink: str, batch: int, tickets: Sequence[str]
    ) -> int:
        """See `Engine.publish_staged`."""
        first = await self.engine.publish_staged(topic, sink, batch, tickets)
        self.groups.grown(topic)
        return first

    def _telling(self, topic: str, done: Done) -> Done:
        grown = self.groups.grown

        def stored(first: int, error: PolybusError | None) -> None:
            if error is None:
                grown(topic)
            done(first, error)

        return stored

    def _check_sizes(self, records: Sequence[NewRecord]) -> None:
        headers: Mapping[str, str] = NO_HEADERS
        header_bytes = 0
        for record in records:
            if record.headers is not headers:  # the messages of one producer mostly share theirs
                headers = record.headers
                header_bytes = sum(len(key) + len(value) for key, value in headers.items())
            size = len(record.payload) + len(record.key) + len(record.tag) + len(record.id)
            size += header_bytes
            if size > self.max_record_bytes:
                raise LimitExceeded("record too large", limit=self.max_record_bytes, actual=size)

    async def _create(self, topic: str, owner: Owner | None) -> None:
        error: PolybusError | None = None
        try:
            await self.declare(topic, owner=owner)
        except PolybusError as exc:
            error = exc
        finally:
            held = self._held.pop(topic)
        for records, done in held:
            if error is None:
                error = self._append_held(topic, records, done)
            if error is not None:
                done(-1, error)

    def _append_held(
        self, topic: str, records: Sequence[NewRecord], done: Done
    ) -> PolybusError | None:
        try:
            self.engine.append(topic, records, self._telling(topic, done))
        except PolybusError as exc:
            return exc
        return None


def _owned(options: TopicOptions, owner: str) -> TopicOptions:
    return replace(options, extra={**options.extra, OWNER: owner})


def _noting(
    journal: Journal, topic: str, records: Sequence[NewRecord], by: Endpoint, done: Done
) -> Done:
    """The same `done`, which also writes a row for each record."""
    who = by.identity.text

    def stored(first: int, error: PolybusError | None) -> None:
        if error is None:
            for record in records:
                size = len(record.payload)
                journal.note("produce", by.wire, topic, who, (size, size), record.id)
        else:
            journal.error(by.wire, who, f"produce to {topic}: {error.text}")
        done(first, error)

    return stored
