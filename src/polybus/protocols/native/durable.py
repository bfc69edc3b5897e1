"""The durable verbs of the native wire: produce, consume, fetch, and what administers topics and groups.

Invariant: a Produce is answered after its records are durable and not before; a consumer never gets more than it gave
credit for, in records and in bytes. Nothing here waits: what takes time answers when it is done.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Coroutine, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import msgspec

from polybus.core.engine import TopicOptions
from polybus.core.group_options import GroupOptions
from polybus.core.limits import Owner
from polybus.core.member import Member
from polybus.core.topics import Topics
from polybus.errors import Conflict, LimitExceeded, NotReachable, PolybusError, RemoteProtocolError
from polybus.model.record import Delivery
from polybus.protocols.native import wire
from polybus.protocols.native.metas import (
    CREATE,
    Consume,
    Credit,
    Fetch,
    Nack,
    encode_offset,
    size_of,
)
from polybus.protocols.native.wire import Delivered, Frame

if TYPE_CHECKING:
    from polybus.protocols.native.session import Head, NativeSession

MAX_BATCH_BYTES: Final = 1024 * 1024  # deliveries of one frame, so that others get their turn
MAX_CONSUMERS: Final = 1024  # of one connection
MAX_FETCH: Final = 16 * 1024 * 1024

Options = TypeVar("Options", TopicOptions, GroupOptions)


class Consumer:
    """One membership of a connection; its id is that of the Consume that began it."""

    __slots__ = ("_bytes_left", "_owed", "_size", "_unsent", "ident", "member")

    def __init__(self, ident: int, member: Member) -> None:
        self.ident = ident
        self.member = member
        self._bytes_left: int | None = None
        self._owed = 0  # credit in records that waits for credit in bytes
        self._unsent: list[Delivered] = []
        self._size = 0

    def credit(self, credit: Credit) -> None:
        """Let it have more."""
        if credit.bytes is not None:
            self._bytes_left = (self._bytes_left or 0) + credit.bytes
        self._owed += credit.records
        if self._bytes_left is None or self._bytes_left > 0:
            owed, self._owed = self._owed, 0
            self.member.credit(owed)

    def add(self, delivery: Delivery) -> bool:
        """Put a record into the next frame; True when that frame is large enough."""
        record = delivery.record
        size = size_of(record)
        self._unsent.append(Delivered(record, delivery.attempt))
        self._size += size
        if self._bytes_left is not None:
            self._bytes_left -= size
            if self._bytes_left <= 0:
                # The record that crosses the line is sent, so that one larger than the credit is not stuck.
                self._owed += self.member.wanted
                self.member.recall()
        return self._size >= MAX_BATCH_BYTES

    def take_frame(self) -> bytes | None:
        """What waits, as one Delivery."""
        if not self._unsent:
            return None
        unsent, self._unsent, self._size = self._unsent, [], 0
        return wire.encode(wire.DELIVERY, self.ident, "", wire.encode_list(unsent))


class Durable:
    """The durable side of one session."""

    def __init__(self, session: NativeSession, topics: Topics) -> None:
        self._session = session
        self.topics = topics
        self._consumers: dict[int, Consumer] = {}
        self._by_member: dict[Member, Consumer] = {}
        self._unsent: dict[Consumer, None] = {}
        self._full = 0  # produces that met a full commit queue and are not done yet

    def left(self) -> None:
        """The connection is gone."""
        self._unsent.clear()
        self._consumers.clear()
        self._by_member.clear()
        self.topics.groups.left(self._session)

    # -- producing -----------------------------------------------------------------------------------------------------

    def produce(self, frame: bytes, head: Head) -> None:
        """Store the records of a Produce."""
        _length, _kind, flags, name_size, ident, _arg, meta_size = head
        session = self._session
        name_end = wire.HEAD + name_size
        topic = wire.to_text(frame[wire.HEAD : name_end])
        records = wire.parse_new_records(frame[name_end + meta_size :])
        producing = Producing(self, ident)
        try:
            session.router.check(session.identity, "produce", topic)
            create = self._may_create(topic) if flags & CREATE else None
            if not self.topics.produce(
                topic, records, producing, create=create, owner=self._owner(), by=session
            ):
                producing.holds_reading = True
                self._full += 1
                session.outbox.pause_reading()
        except PolybusError as exc:
            session.answer_error(ident, exc)

    def _may_create(self, topic: str) -> bool:
        """True, unless the topic is missing and may not be declared.

        Raises:
            NotAuthorized.
        """
        if not self.topics.has(topic):
            self._session.router.check(self._session.identity, "declare", topic)
        return True

    def _owner(self) -> Owner | None:
        return self._session.router.quotas.owner(self._session.identity)

    def produced(self, producing: Producing, first: int, error: PolybusError | None) -> None:
        """The records of a Produce are durable, or cannot be."""
        session = self._session
        if session.closed:
            return
        if producing.holds_reading:
            self._full -= 1
            if not self._full:
                session.outbox.resume_reading()
        if error is not None:
            session.answer_error(producing.ident, error)
        elif producing.ident:
            session.send(wire.encode(wire.PRODUCED, producing.ident, "", encode_offset(first)))

    # -- consuming -----------------------------------------------------------------------------------------------------

    def consume(self, frame: Frame) -> None:
        """Join a group; the records come under the id of this frame."""
        wanted = wire.parse_meta(frame.meta, Consume)
        self._session.router.check(self._session.identity, "consume", frame.name)
        if wanted.create:
            self._may_create(frame.name)
        if not frame.id or frame.id in self._consumers:
            raise RemoteProtocolError(f"a consumer cannot have the id {frame.id}")
        if len(self._consumers) >= MAX_CONSUMERS:
            raise LimitExceeded("consumers", limit=MAX_CONSUMERS, actual=len(self._consumers) + 1)
        self.later(frame.id, self._join(frame.id, frame.name, wanted))

    async def _join(self, ident: int, topic: str, wanted: Consume) -> Mapping[str, object]:
        topics = self.topics
        if wanted.create:
            await topics.declare(topic, owner=self._owner())
        options = None
        if wanted.options is not None:
            options = group_options(topics, topic, wanted.group, wanted.options)
        await topics.groups.declare(topic, wanted.group, options, wanted.start)
        if self._session.closed:
            return {}
        member = topics.groups.join(
            self._session, topic, wanted.group, str(ident), partial(self._closed, ident)
        )
        consumer = Consumer(ident, member)
        self._consumers[ident] = consumer
        self._by_member[member] = consumer
        return {"group": member.group.name}

    def _closed(self, ident: int, error: PolybusError) -> None:
        consumer = self._forget(ident)
        if consumer is not None and not self._session.closed:
            self._session.send(wire.encode_error(ident, error))

    def credit(self, frame: Frame) -> None:
        """A consumer takes more."""
        credit = wire.parse_meta(frame.meta, Credit)
        if credit.records < 0 or (credit.bytes or 0) < 0:
            raise RemoteProtocolError("credit cannot be negative")
        consumer = self._consumers.get(frame.id)
        if consumer is not None:
            consumer.credit(credit)

    def ack(self, frame: Frame) -> None:
        """A consumer has done with some records."""
        offsets = wire.parse_offsets(frame.payload)
        consumer = self._consumers.get(frame.id)
        if consumer is not None:
            consumer.member.ack(offsets)

    def nack(self, frame: Frame) -> None:
        """A consumer gives some records back."""
        offsets = wire.parse_offsets(frame.payload)
        nack = wire.parse_meta(frame.meta, Nack)
        consumer = self._consumers.get(frame.id)
        if consumer is not None:
            for offset in offsets:
                consumer.member.nack(offset, nack.delay_ms / 1000, nack.reason)

    def leave(self, frame: Frame) -> None:
        """A consumer goes; what it holds goes to others."""
        consumer = self._forget(frame.id)
        if consumer is not None:
            consumer.member.leave()
        self._session.answer(frame.id)

    def _forget(self, ident: int) -> Consumer | None:
        consumer = self._consumers.pop(ident, None)
        if consumer is not None:
            self._by_member.pop(consumer.member, None)
            self._unsent.pop(consumer, None)
        return consumer

    def deliver(self, delivery: Delivery) -> None:
        """Send a record; those of one turn of the event loop share a frame."""
        consumer = self._by_member.get(cast(Member, delivery.token))
        if consumer is None:
            return
        if consumer.add(delivery):
            self._flush_one(consumer)
        elif consumer not in self._unsent:
            if not self._unsent:
                asyncio.get_running_loop().call_soon(self._flush)
            self._unsent[consumer] = None

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, {}
        for consumer in unsent:
            self._flush_one(consumer)

    def _flush_one(self, consumer: Consumer) -> None:
        frame = consumer.take_frame()
        if frame is not None and not self._session.closed:
            self._session.send(frame)

    # -- what takes time -----------------------------------------------------------------------------------------------

    def fetch(self, frame: Frame) -> None:
        """Raw chunks, for readers elsewhere."""
        wanted = wire.parse_meta(frame.meta, Fetch)
        self._session.router.check(self._session.identity, "consume", frame.name)
        self.topics.groups.spawn(self._fetch(frame.id, frame.name, wanted))

    async def _fetch(self, ident: int, topic: str, wanted: Fetch) -> None:
        session = self._session
        try:
            end = self.topics.info(topic).end if wanted.end is None else wanted.end
            most = min(max(wanted.max_bytes, 1), MAX_FETCH)
            found = await self.topics.engine.fetch(
                topic, wanted.start, end, most, verify=wanted.verify
            )
        except PolybusError as exc:
            session.answer_error(ident, exc)
            return
        if not session.closed:
            sizes = [len(chunk) for chunk in found.chunks]
            meta = wire.encode_meta({"first": found.first, "next": found.next, "sizes": sizes})
            session.send(wire.encode(wire.CHUNKS, ident, meta=meta, follows=sum(sizes)))
            for chunk in found.chunks:
                session.send_rest(chunk)

    def later(self, ident: int, work: Coroutine[Any, Any, Mapping[str, object] | None]) -> None:
        """Answer a request once `work` is done."""
        self.topics.groups.spawn(self._answer(ident, work))

    async def _answer(
        self, ident: int, work: Coroutine[Any, Any, Mapping[str, object] | None]
    ) -> None:
        session = self._session
        try:
            result = await work
        except PolybusError as exc:
            if not session.closed:
                session.answer_error(ident, exc)
        else:
            if not session.closed:
                session.answer(ident, result)


class Producing:
    """A Produce that is on its way to the disk; called when it is there."""

    __slots__ = ("_durable", "holds_reading", "ident")

    def __init__(self, durable: Durable, ident: int) -> None:
        self._durable = durable
        self.ident = ident
        self.holds_reading = False

    def __call__(self, first: int, error: PolybusError | None) -> None:
        self._durable.produced(self, first, error)


def group_options(
    topics: Topics, topic: str, group: str, changes: Mapping[str, Any]
) -> GroupOptions:
    """The options that a group has, or would have, with some of them changed.

    Raises:
        Conflict: there is no option of that name, or a value is of the wrong kind.
    """
    try:
        present = topics.groups.get(topic, group).options
    except NotReachable:
        present = GroupOptions()
    return changed(present, changes, "a group")


def changed(present: Options, changes: Mapping[str, Any], what: str) -> Options:
    """Options with some of them replaced by what came over the wire.

    Raises:
        Conflict: there is no option of that name, or a value is of the wrong kind.
    """
    unknown = sorted(set(changes) - {field.name for field in dataclasses.fields(present)})
    if unknown:
        raise Conflict(f"{what} has no option {', '.join(unknown)}")
    whole = {**dataclasses.asdict(present), **changes}
    try:
        return msgspec.convert(whole, type(present))
    except msgspec.ValidationError as exc:
        raise Conflict(f"an option of {what} does not fit: {exc}") from exc
