"""Captures: live publications and calls that are also kept in a durable topic (DESIGN 3).

Invariant: a capture delays nothing it looks at: what the log does not take in time is dropped and counted. A
publication that came out of a topic, through a relay, never goes into that topic again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from polybus.core.endpoint import Endpoint, Identity
from polybus.core.relays import RELAY
from polybus.core.router import Router
from polybus.core.subscriptions import EXACT
from polybus.core.topics import Topics
from polybus.errors import PolybusError
from polybus.model.journal import NAME, PUBLISHER, VIA, WIRE
from polybus.model.message import Publication
from polybus.model.pattern import check_pattern, matches
from polybus.model.record import NewRecord

CAPTURE: Final = "capture"
MAX_WAITING: Final = 64 * 1024 * 1024  # bytes handed over and not stored
OVERHEAD: Final = 512  # bytes of a record beside its payload and what its headers say
MAX_CACHED: Final = 4096  # names whose captures are remembered


@dataclass(frozen=True, slots=True)
class Capture:
    """What to keep where."""

    pattern: str
    topic: str
    kind: Literal["publication", "call"] = "publication"


class Captured:
    """Records on their way into one topic, handed over once per turn of the loop."""

    def __init__(self, topics: Topics, topic: str) -> None:
        self.topic = topic
        self.stored = 0
        self.dropped = 0
        self._topics = topics
        self._records: list[NewRecord] = []
        self._bytes = 0
        self._waiting = 0

    def add(self, record: NewRecord) -> None:
        """Keep a record, unless too much waits already."""
        size = OVERHEAD + len(record.payload) + sum(map(len, record.headers.values()))
        if self._waiting + self._bytes + size > MAX_WAITING:
            self.dropped += 1
            return
        if not self._records:
            asyncio.get_running_loop().call_soon(self._hand_over)
        self._records.append(record)
        self._bytes += size

    def _hand_over(self) -> None:
        records, size = self._records, self._bytes
        self._records, self._bytes = [], 0
        self._waiting += size

        def done(first: int, error: PolybusError | None) -> None:
            self._waiting -= size
            if error is None:
                self.stored += len(records)
            else:
                self.dropped += len(records)

        try:
            self._topics.produce(self.topic, records, done, create=True)
        except PolybusError as exc:
            done(-1, exc)


class Captures:
    """All captures of a node."""

    def __init__(self, router: Router, topics: Topics, rules: Sequence[Capture]) -> None:
        """Check the rules.

        Raises:
            InvalidName: a pattern nobody can match.
        """
        for rule in rules:
            check_pattern(rule.pattern)
        self._router = router
        self._rules = rules
        self._calls = [rule for rule in rules if rule.kind == "call"]
        self._found: dict[str, tuple[Captured, ...]] = {}
        self.targets = {rule.topic: Captured(topics, rule.topic) for rule in rules}

    def start(self) -> None:
        """Subscribe to what is wanted."""
        self._router.add_wire(CAPTURE, EXACT)
        for rule in self._rules:
            if rule.kind == "publication":
                endpoint = Capturing(self.targets[rule.topic])
                self._router.attach(endpoint)
                self._router.subscribe(endpoint, rule.pattern, rule.pattern)

    def of_call(self, name: str) -> tuple[Captured, ...]:
        """Where calls to a name are kept."""
        found = self._found.get(name)
        if found is None:
            if len(self._found) >= MAX_CACHED:
                self._found.clear()
            topics = {rule.topic: None for rule in self._calls if matches(rule.pattern, name)}
            found = self._found[name] = tuple(self.targets[topic] for topic in topics)
        return found


class Capturing(Endpoint):
    """The subscriber that a capture of publications is, on a wire of its own."""

    wire = CAPTURE
    __slots__ = ("_into",)

    def __init__(self, into: Captured) -> None:
        super().__init__(Identity("local"), f"capture into {into.topic}")
        self._into = into

    def deliver_publication(self, publication: Publication) -> bool:
        """Keep it; False, since publishers are told of live subscribers only."""
        publisher: Endpoint = publication.publisher
        headers = {
            **publication.headers,
            NAME: publication.name or publication.topic,
            WIRE: publisher.wire,
            PUBLISHER: publisher.identity.text,
        }
        # Only a relay knows what a record has passed: a client that says so itself is captured like any other.
        via = headers.pop(VIA, "")
        if publisher.wire == RELAY and via:
            if self._into.topic in via.split(","):
                return False
            headers[VIA] = via
        self._into.add(NewRecord(publication.payload, b"", headers[NAME], headers))
        return False

    def close(self, reason: str) -> None:
        """It has no connection."""
