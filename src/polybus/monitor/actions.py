"""What the monitor changes: only for identities that may `admin`, and never without a line in the log.

Invariant: every method here asks the policy first, and logs who did what from where before it returns.
"""

from __future__ import annotations

import asyncio
import binascii
import logging
from base64 import b64decode
from collections.abc import Mapping
from typing import Final

from polybus.core.endpoint import Endpoint, Identity
from polybus.core.engine import TopicOptions
from polybus.core.group_options import Start
from polybus.core.topics import Topics
from polybus.errors import Conflict, NoSuchTopic, NotReachable, PolybusError
from polybus.model.message import NO_HEADERS, Call, Reply, Status
from polybus.model.record import NewRecord
from polybus.monitor import shapes
from polybus.monitor.api import Problems
from polybus.monitor.records import WHOLE, show
from polybus.monitor.sources import Sources

log = logging.getLogger("polybus.monitor")

WIRE: Final = "monitor"
MAX_ANSWER: Final = 8 * 1024 * 1024  # bytes of an answer that are kept for the page
EVERYTHING: Final = "polybus/monitor"
"""The name under which the policy is asked about what concerns no topic."""


class Caller(Endpoint):
    """The party that makes one call for somebody at the page."""

    wire = WIRE
    __slots__ = ("_have", "answer", "parts")

    def __init__(self, identity: Identity, peer: str) -> None:
        super().__init__(identity, peer)
        self.parts: list[bytes] = []
        self._have = 0
        self.answer: asyncio.Future[Status] = asyncio.get_running_loop().create_future()

    def deliver_reply(self, reply: Reply) -> None:
        payload = reply.payload
        if payload and self._have <= MAX_ANSWER:
            self.parts.append(payload)
            self._have += len(payload)
        if reply.final and not self.answer.done():
            self.answer.set_result(reply.status)


class Actions:
    """The changes, each for one identity."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    @property
    def topics(self) -> Topics:
        """The durable half.

        Raises:
            NoSuchTopic: this node has none.
        """
        if self._sources.topics is None:
            raise NoSuchTopic("any (this node keeps no topics)")
        return self._sources.topics

    def may(self, who: Identity) -> bool:
        """Whether this identity may change things at all."""
        return self._sources.router.policy.may(who, "admin", EVERYTHING)

    async def add_topic(self, who: Identity, peer: str, asked: shapes.NewTopic) -> shapes.Done:
        self._check(who, asked.name)
        if self.topics.has(asked.name):
            raise Conflict(f"there is a topic {asked.name} already")
        options = TopicOptions(
            durability=asked.durability,
            retain_ms=asked.retain_ms,
            retain_bytes=asked.retain_bytes,
        )
        await self.topics.declare(asked.name, options)
        return self._done(who, peer, f"topic {asked.name} was added")

    async def remove_topic(self, who: Identity, peer: str, topic: str) -> shapes.Done:
        self._check(who, topic)
        await self.topics.remove(topic)
        return self._done(who, peer, f"topic {topic} was removed with its groups")

    async def empty_topic(self, who: Identity, peer: str, topic: str) -> shapes.Done:
        self._check(who, topic)
        await self.topics.empty(topic)
        return self._done(who, peer, f"topic {topic} was emptied")

    async def produce(
        self, who: Identity, peer: str, topic: str, asked: shapes.Produce
    ) -> shapes.Produced:
        self._check(who, topic)
        record = NewRecord(
            decode(asked.payload, asked.encoding),
            asked.key.encode(),
            asked.tag,
            asked.headers,
            asked.id,
        )
        stored: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def done(first: int, error: PolybusError | None) -> None:
            if stored.done():
                return
            if error is None:
                stored.set_result(first)
            else:
                stored.set_exception(error)

        self.topics.produce(topic, [record], done, create=False)
        offset = await stored
        self._done(who, peer, f"a record was produced to {topic} at offset {offset}")
        return shapes.Produced(topic=topic, offset=offset)

    async def reset(
        self, who: Identity, peer: str, topic: str, group: str, asked: shapes.Reset
    ) -> shapes.Done:
        self._check(who, topic)
        start = Start(asked.to, offset=asked.offset, time_ms=asked.time_ms)
        await self.topics.groups.reset(topic, group, start)
        floor = self.topics.groups.get(topic, group).floor()
        return self._done(who, peer, f"group {group} on {topic} goes on at offset {floor}")

    def disconnect(self, who: Identity, peer: str, number: int) -> shapes.Done:
        self._check(who, EVERYTHING)
        for connection in self._sources.connections.open:
            if connection.id == number:
                connection.outbox.close("closed by an operator")
                return self._done(who, peer, f"connection {number} of {connection.peer} was closed")
        raise NotReachable(f"no open connection has the number {number}")

    async def call(
        self,
        who: Identity,
        peer: str,
        asked: shapes.CallQuestion,
        trace: Mapping[str, str] = NO_HEADERS,
    ) -> shapes.CallAnswer:
        self._check(who, asked.name)
        router = self._sources.router
        caller = Caller(who, peer)
        started = router.clock.monotonic()
        router.attach(caller)
        try:
            router.call(
                Call(
                    caller,
                    asked.name,
                    decode(asked.payload, asked.encoding),
                    headers={**trace, **asked.headers},
                    deadline=started + asked.timeout_s,
                )
            )
            status = await caller.answer
        finally:
            router.detach(caller)
        payload = b"".join(caller.parts)
        format, text, truncated = show(payload, WHOLE)
        self._done(who, peer, f"{asked.name} was called: {status.name}")
        return shapes.CallAnswer(
            status=status.name,
            took_ms=round((router.clock.monotonic() - started) * 1000, 3),
            parts=len(caller.parts),
            size=len(payload),
            format=format,
            payload=text,
            truncated=truncated,
        )

    def _check(self, who: Identity, name: str) -> None:
        self._sources.router.check(who, "admin", name)

    def _done(self, who: Identity, peer: str, what: str) -> shapes.Done:
        log.info("monitor: %s by %s from %s", what, who, peer, extra={"peer": peer})
        return shapes.Done(done=what)


def decode(text: str, encoding: str) -> bytes:
    """A payload as it was typed in.

    Raises:
        Problems: it is not the base64 that it says it is.
    """
    if encoding == "text":
        return text.encode("utf-8", "surrogatepass")
    try:
        return b64decode(text, validate=True)
    except (binascii.Error, ValueError) as exc:
        raise Problems(400, f"the payload is no base64: {exc}") from exc
