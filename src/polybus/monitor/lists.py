"""The lists of the monitor: topics, groups, services, connections, dead letters.

Invariant: of a long list only keys are looked at; whole rows are made for the page that was asked for, and both in
turns (see `turns`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from polybus.core.endpoint import Traffic
from polybus.core.engine import TopicInfo
from polybus.core.group import Group as CoreGroup
from polybus.core.group_options import DEAD_SUFFIX
from polybus.core.services import Registration
from polybus.core.topics import Topics
from polybus.monitor import shapes
from polybus.monitor.sampler import Sampler, endpoint_of, protocol_of
from polybus.monitor.turns import window
from polybus.transports.connection import Connection

NO_TRAFFIC: Final = Traffic()

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Cut(Generic[T]):
    """A page before it is written out: `row` makes the shape of each item."""

    items: list[T]
    row: Callable[[T], shapes.Shape]
    total: int
    matching: int
    page: int
    limit: int


async def cut(
    question: shapes.Listing,
    found: Iterator[tuple[Any, T]],
    total: int,
    row: Callable[[T], shapes.Shape],
) -> Cut[T]:
    """The page that was asked for, of items that match, given with their keys."""
    start = (question.page - 1) * question.limit
    items, matching = await window(
        found, start, question.limit, descending=question.order == "desc"
    )
    return Cut(items, row, total, matching, question.page, question.limit)


class Lists:
    """Makes them."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._sources = sampler.sources
        self._clock = sampler.clock

    # -- topics -----------------------------------------------------------------------------------------------

    async def topics(self, question: shapes.TopicListing) -> Cut[TopicInfo]:
        topics = self._sources.topics
        everything = self._sampler.topics()
        rates, wanted = self._sampler.topic_rates, question.q.lower()
        keys: dict[str, Callable[[TopicInfo], Any]] = {
            "name": lambda t: t.name,
            "records": lambda t: t.end - t.first,
            "bytes": lambda t: t.bytes,
            "rate": lambda t: rates.get(t.name),
            "oldest_ms": lambda t: t.oldest_ms,
            "newest_ms": lambda t: t.newest_ms,
            "groups": lambda t: len(topics.groups.of(t.name)) if topics is not None else 0,
        }
        key = keys[question.sort]
        found = ((key(t), t) for t in everything if not wanted or wanted in t.name.lower())
        return await cut(question, found, len(everything), self.topic)

    def topic(self, info: TopicInfo) -> shapes.Topic:
        """One topic."""
        topics = self._sources.topics
        groups = topics.groups.of(info.name) if topics is not None else []
        options = info.options
        return shapes.Topic(
            name=info.name,
            records=info.end - info.first,
            bytes=info.bytes,
            first=info.first,
            end=info.end,
            created_ms=info.created_ms,
            oldest_ms=info.oldest_ms,
            newest_ms=info.newest_ms,
            rate=round(self._sampler.topic_rates.get(info.name), 2),
            groups=len(groups),
            consumers=sum(len(group.members) for group in groups),
            durability=options.durability,
            retain_ms=options.retain_ms,
            retain_bytes=options.retain_bytes,
            dead_letters=info.name.endswith(DEAD_SUFFIX),
            marks=dict(options.extra),
        )

    # -- groups -----------------------------------------------------------------------------------------------

    async def groups(self, question: shapes.GroupListing) -> Cut[CoreGroup]:
        topics = self._sources.topics
        everything: list[tuple[CoreGroup, int]] = []
        if topics is not None:
            infos = [topics.info(question.topic)] if question.topic else self._sampler.topics()
            everything = [(g, info.end) for info in infos for g in topics.groups.of(info.name)]
        wanted = question.q.lower()
        keys: dict[str, Callable[[CoreGroup, int], Any]] = {
            "name": lambda g, _: g.name,
            # One text rather than two: texts are compared ten times as fast as pairs.
            "topic": lambda g, _: f"{g.topic}\0{g.name}",
            "lag": lambda g, end: end - g.floor(),
            "in_flight": lambda g, _: len(g.in_flight),
            "redelivered": lambda g, _: g.redelivered,
            "dead": lambda g, _: g.dead,
            "members": lambda g, _: len(g.members),
        }
        key = keys[question.sort]
        found = (
            (key(group, end), group)
            for group, end in everything
            if not wanted or wanted in group.name.lower() or wanted in group.topic.lower()
        )
        return await cut(question, found, len(everything), self.group)

    def group(self, group: CoreGroup) -> shapes.Group:
        """One group."""
        info, options = group.info(), group.options
        history = self._sampler.lags.get((group.topic, group.name), ())
        limited = options.limit(group.topic)
        members = [
            shapes.Member(
                id=m.id, peer=m.peer, protocol=m.wire, credit=m.credit, in_flight=m.in_flight
            )
            for m in info.members
        ]
        return shapes.Group(
            topic=info.topic,
            name=info.name,
            filter=options.filter,
            paused=options.paused,
            exclusive=options.exclusive,
            ack=options.ack,
            dead_letter=options.dead_topic(group.topic) if limited else "",
            floor=info.floor,
            remaining=info.remaining,
            lag=info.lag,
            in_flight=info.in_flight,
            waiting=info.waiting,
            delivered=info.delivered,
            redelivered=info.redelivered,
            acked=info.acked,
            nacked=info.nacked,
            timed_out=info.timed_out,
            expired=info.expired,
            dead=info.dead,
            problem=info.problem,
            members=members,
            lag_history=list(history),
            marks=dict(options.extra),
        )

    # -- services ---------------------------------------------------------------------------------------------

    async def services(self, question: shapes.ServiceListing) -> Cut[Registration]:
        everything = list(self._sources.router.services.all())
        rates, wanted = self._sampler.service_rates, question.q.lower()
        keys: dict[str, Callable[[Registration], Any]] = {
            "name": lambda s: s.name,
            "protocol": lambda s: s.wire,
            "calls": lambda s: s.traffic.calls,
            "rate": lambda s: rates.get(s.age),
            "failures": lambda s: s.traffic.failures,
            "in_flight": lambda s: s.endpoint.in_flight,
            "p99_ms": lambda s: self._percentile(s, 0.99) or 0.0,
        }
        key = keys[question.sort]
        found = (
            (key(service), service)
            for service in everything
            if question.protocol in ("", service.wire)
            and wanted in service.name.lower()
            and not service.endpoint.closed
        )
        return await cut(question, found, len(everything), self.service)

    def service(self, found: Registration) -> shapes.Service:
        """One service."""
        return shapes.Service(
            name=found.name,
            shared=found.shared,
            prefix=found.prefix,
            protocol=found.wire,
            owner=found.endpoint.peer or "this node",
            identity=str(found.endpoint.identity),
            calls=found.traffic.calls,
            rate=round(self._sampler.service_rates.get(found.age), 2),
            failures=found.traffic.failures,
            in_flight=found.endpoint.in_flight,
            p50_ms=self._percentile(found, 0.5),
            p99_ms=self._percentile(found, 0.99),
        )

    def _percentile(self, found: Registration, share: float) -> float | None:
        durations = self._sampler.durations.get(found.age)
        if durations is None:
            return None
        seconds = durations.percentile(share, self._clock.monotonic())
        return None if seconds is None else round(seconds * 1000, 3)

    # -- connections ------------------------------------------------------------------------------------------

    async def connections(self, question: shapes.ConnectionListing) -> Cut[Connection]:
        everything = tuple(self._sources.connections.open)
        wanted = question.q.lower()
        keys: dict[str, Callable[[Connection], Any]] = {
            "id": lambda c: c.id,
            "protocol": protocol_of,
            "peer": lambda c: c.peer,
            "identity": _identity,
            "age_s": lambda c: -c.opened_at,
            "pending_bytes": lambda c: c.outbox.pending_bytes,
            "in": lambda c: _traffic(c, "messages_in"),
            "out": lambda c: _traffic(c, "messages_out"),
        }
        key = keys[question.sort]

        def matches(connection: Connection) -> bool:
            if question.protocol and protocol_of(connection) != question.protocol:
                return False
            return not wanted or wanted in f"{connection.peer} {_identity(connection)}".lower()

        found = ((key(c), c) for c in everything if matches(c))
        return await cut(question, found, len(everything), self.connection)

    def connection(self, connection: Connection) -> shapes.Connection:
        """One connection."""
        endpoint = endpoint_of(connection)
        traffic = NO_TRAFFIC if endpoint is None else endpoint.traffic
        return shapes.Connection(
            id=connection.id,
            protocol=protocol_of(connection) if endpoint is None else endpoint.wire,
            peer=connection.peer,
            identity=_identity(connection),
            transport=connection.transport_kind,
            age_s=round(self._clock.monotonic() - connection.opened_at, 1),
            pending_bytes=connection.outbox.pending_bytes,
            congested=connection.outbox.congested,
            messages_in=traffic.messages_in,
            messages_out=traffic.messages_out,
            bytes_in=traffic.bytes_in,
            bytes_out=traffic.bytes_out,
            services=len(endpoint.registrations or ()) if endpoint is not None else 0,
        )

    # -- dead letters -----------------------------------------------------------------------------------------

    async def dead_letters(self, question: shapes.Listing) -> Cut[tuple[TopicInfo, list[str]]]:
        topics = self._sources.topics
        rows = [] if topics is None else _dead_topics(topics, self._sampler.topics())
        wanted = question.q.lower()
        found = ((info.name, (info, s)) for info, s in rows if wanted in info.name.lower())
        return await cut(question, found, len(rows), _dead_row)


def _dead_topics(topics: Topics, infos: Sequence[TopicInfo]) -> list[tuple[TopicInfo, list[str]]]:
    """Topics that groups give up into, with those groups, and those that are called so."""
    sources: dict[str, list[str]] = {}
    for info in infos:
        for group in topics.groups.of(info.name):
            if group.options.limit(info.name):
                dead = group.options.dead_topic(info.name)
                sources.setdefault(dead, []).append(f"{info.name} / {group.name}")
    return [
        (info, sources.get(info.name, []))
        for info in infos
        if info.name in sources or info.name.endswith(DEAD_SUFFIX)
    ]


def _dead_row(item: tuple[TopicInfo, list[str]]) -> shapes.DeadLetters:
    info, sources = item
    return shapes.DeadLetters(
        topic=info.name,
        records=info.end - info.first,
        bytes=info.bytes,
        newest_ms=info.newest_ms,
        sources=sources,
    )


def _identity(connection: Connection) -> str:
    who = endpoint_of(connection) or connection.session
    found = getattr(who, "identity", None)
    return "" if found is None else str(found)


def _traffic(connection: Connection, name: str) -> int:
    endpoint = endpoint_of(connection)
    return 0 if endpoint is None else int(getattr(endpoint.traffic, name))
