"""The durable verbs of the bus: producing, consuming, reading, and the administration of topics and groups.

Invariant: an offset that was returned is durable; nothing here keeps state of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from polybus.client.arguments import check_record
from polybus.client.consumption import Consumer, Consumption
from polybus.client.link import Link
from polybus.client.message import encode_payload
from polybus.core.engine import TopicInfo
from polybus.core.group_options import BEGINNING, GroupInfo, Start
from polybus.errors import LocalProtocolError, RemoteProtocolError
from polybus.model.chunk import parse_chunk
from polybus.model.message import NO_HEADERS
from polybus.model.record import NewRecord, Record

WINDOW: Final = 256  # records held and not acknowledged: enough to hide the way to the node, few enough to give back
FETCH_BYTES: Final = 4 * 1024 * 1024

T = TypeVar("T")


class TopicVerbs:
    """What a bus can do with durable topics."""

    def _at_hand(self) -> Link | None:
        """The link when nothing has to be waited for."""
        raise NotImplementedError

    async def _settled(self) -> Link:
        raise NotImplementedError

    # -- records -------------------------------------------------------------------------------------------------------

    async def produce(
        self,
        topic: str,
        payload: object = b"",
        *,
        key: bytes = b"",
        tag: str = "",
        headers: Mapping[str, str] = NO_HEADERS,
        id: str = "",
        create: bool = False,
    ) -> int:
        """Store a record; its offset, once it is durable. Many at once share the way to the disk.

        Args:
            payload: bytes are stored as they are, anything else as JSON.
            id: a record with an id that the topic has seen lately is not stored again: for trying again safely.
            create: declare the topic if it is missing.

        Raises:
            NoSuchTopic, InvalidName, NotAuthorized, LimitExceeded, StorageFull: it is not stored.
            ConnectionLost: whether it is stored is not known; produce it again with the same id.
            LocalProtocolError: an argument is of the wrong type.
        """
        record = NewRecord(encode_payload(payload), key, tag, headers, id)
        check_record(record)
        link = self._at_hand() or await self._settled()
        return await link.produce(topic, record, create=create)

    async def produce_many(
        self, topic: str, records: Iterable[NewRecord | object], *, create: bool = False
    ) -> int:
        """Store records in order, all or none; the offset of the first. What is no NewRecord is a payload.

        Raises as `produce`.
        """
        batch = [
            _checked(record) if isinstance(record, NewRecord) else NewRecord(encode_payload(record))
            for record in records
        ]
        if not batch:
            raise LocalProtocolError("produce_many needs at least one record")
        return await (await self._settled()).produce_many(topic, batch, create=create)

    def consume(
        self,
        topic: str,
        group: str,
        *,
        window: int = WINDOW,
        start: Start | str | int = BEGINNING,
        create: bool = False,
        **options: Any,
    ) -> Consumption:
        """The records of a topic as a member of a group, which is declared if it is missing.

        Args:
            window: how many records may be here and not acknowledged.
            start: where a new group begins: "beginning", "end", an offset, or a `Start`.
            create: declare the topic if it is missing.
            options: of the group, as `GroupOptions` names them (`filter`, `exclusive`, `ack_timeout_ms` …).
        """

        async def join() -> Consumer:
            return await (await self._settled()).consume(
                topic,
                group,
                window,
                start=to_start(start),
                options=options or None,
                create=create,
            )

        return Consumption(topic, join)

    async def fetch(
        self, topic: str, start: int = 0, *, end: int | None = None, max_bytes: int = FETCH_BYTES
    ) -> list[Record]:
        """Records from offset `start` on, before `end`, without any group; empty at the end of the topic.

        About `max_bytes` are returned at once: go on from the last offset plus one.

        Raises:
            NoSuchTopic, OutOfRange, CorruptRecord, NotAuthorized.
        """
        found = await (await self._settled()).fetch(topic, start, end, max_bytes)
        stop = found.next if end is None else min(end, found.next)
        return [
            record
            for chunk in found.chunks
            for record in parse_chunk(chunk, topic).slice(start, stop)
        ]

    async def fetch_chunks(
        self, topic: str, start: int, end: int | None = None, *, max_bytes: int = FETCH_BYTES
    ) -> tuple[int, Sequence[bytes]]:
        """The same as encoded chunks, and the offset to go on from; a chunk may begin before `start`."""
        found = await (await self._settled()).fetch(topic, start, end, max_bytes)
        return found.next, found.chunks

    # -- topics --------------------------------------------------------------------------------------------------------

    async def topics(self) -> list[TopicInfo]:
        """All topics of the node."""
        return await self._ask("topic/list", {}, "topics", list[TopicInfo])

    async def topic(self, topic: str) -> TopicInfo:
        """One topic; raises NoSuchTopic."""
        return await self._ask("topic/info", {"topic": topic}, "topic", TopicInfo)

    async def declare_topic(self, topic: str, **options: Any) -> TopicInfo:
        """Find a topic or create it; options, as `TopicOptions` names them, replace all that it has.

        Raises:
            InvalidName, LimitExceeded, Conflict, NotAuthorized.
        """
        asked = {"topic": topic, "options": options}
        return await self._ask("topic/declare", asked, "topic", TopicInfo)

    async def edit_topic(self, topic: str, **options: Any) -> TopicInfo:
        """Change single options of a topic; raises as `declare_topic`, and NoSuchTopic."""
        asked = {"topic": topic, "options": options}
        return await self._ask("topic/edit", asked, "topic", TopicInfo)

    async def remove_topic(self, topic: str) -> None:
        """Drop a topic with its records and groups; raises NoSuchTopic."""
        await (await self._settled()).ask("topic/remove", {"topic": topic})

    async def empty_topic(self, topic: str) -> None:
        """Drop all records of a topic; offsets go on. Raises NoSuchTopic."""
        await (await self._settled()).ask("topic/empty", {"topic": topic})

    async def offset_at(self, topic: str, time_ms: int) -> int:
        """The first offset whose record is of that time or later; raises NoSuchTopic."""
        asked = {"topic": topic, "time_ms": time_ms}
        return await self._ask("topic/offset_at", asked, "offset", int)

    async def stage(self, topic: str, chunk: bytes) -> str:
        """Keep an encoded chunk on the node's disk, invisible until it is published; its ticket."""
        answer = await (await self._settled()).ask("topic/stage", {"topic": topic}, chunk)
        return str(answer["ticket"])

    async def publish_staged(
        self, topic: str, sink: str, batch: int, tickets: Sequence[str]
    ) -> int:
        """Make staged chunks visible at once and in order; the first offset. A repeat of (sink, batch) does nothing."""
        asked = {"topic": topic, "sink": sink, "batch": batch, "tickets": list(tickets)}
        return await self._ask("topic/publish", asked, "first", int)

    # -- groups --------------------------------------------------------------------------------------------------------

    async def groups(self, topic: str) -> list[GroupInfo]:
        """All groups of a topic; raises NoSuchTopic."""
        return await self._ask("group/list", {"topic": topic}, "groups", list[GroupInfo])

    async def group(self, topic: str, group: str) -> GroupInfo:
        """One group; raises NoSuchTopic, NoSuchGroup."""
        asked = {"topic": topic, "group": group}
        return await self._ask("group/info", asked, "group", GroupInfo)

    async def declare_group(
        self, topic: str, group: str, *, start: Start | str | int = BEGINNING, **options: Any
    ) -> GroupInfo:
        """Find a group or create it at `start`; the options named are changed.

        Raises:
            NoSuchTopic, InvalidName, LimitExceeded, Conflict, OutOfRange, NotAuthorized.
        """
        asked = {"topic": topic, "group": group, "options": options, "start": to_start(start)}
        return await self._ask("group/declare", asked, "group", GroupInfo)

    async def reset_group(self, topic: str, group: str, start: Start | str | int) -> GroupInfo:
        """Move a group to another position; raises as `declare_group`, and NoSuchGroup."""
        asked = {"topic": topic, "group": group, "start": to_start(start)}
        return await self._ask("group/reset", asked, "group", GroupInfo)

    async def remove_group(self, topic: str, group: str) -> None:
        """Forget a group; its members are told. Raises NoSuchTopic, NoSuchGroup."""
        await (await self._settled()).ask("group/remove", {"topic": topic, "group": group})

    async def _ask(
        self, question: str, arguments: Mapping[str, object], field: str, kind: type[T]
    ) -> T:
        answer = await (await self._settled()).ask(question, arguments)
        try:
            return msgspec.convert(answer[field], kind)
        except (KeyError, msgspec.ValidationError) as exc:
            raise RemoteProtocolError(f"the answer to {question} does not fit: {exc}") from exc


def _checked(record: NewRecord) -> NewRecord:
    check_record(record)
    return record


def to_start(start: Start | str | int) -> Start:
    """A start as people write it."""
    if isinstance(start, Start):
        return start
    if isinstance(start, int):
        return Start("offset", offset=start)
    if start not in ("beginning", "end"):
        raise ValueError(f"a start is 'beginning', 'end', an offset or a Start, not {start!r}")
    return Start("end") if start == "end" else BEGINNING
