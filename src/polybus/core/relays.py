"""Relays: topics whose new records are published live, the reverse of a capture (DESIGN 3).

Invariant: every record is published at least once, over restarts too, in log order; it carries the topics it has
passed, so that captures do not send it round in circles.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from polybus.core.endpoint import Endpoint, Identity
from polybus.core.group_options import END, GroupOptions
from polybus.core.member import Member
from polybus.core.router import Router
from polybus.core.subscriptions import EXACT
from polybus.core.topics import Topics
from polybus.errors import PolybusError
from polybus.model.journal import NAME, VIA
from polybus.model.message import Publication
from polybus.model.name import check_name
from polybus.model.record import Delivery

log = logging.getLogger("polybus.relay")

RELAY: Final = "relay"
GROUP: Final = "polybus.relay"
CREDIT: Final = 256  # records on their way; publishing one is over when it returns


@dataclass(frozen=True, slots=True)
class Relay:
    """What to publish under which name; an empty one stands for the name that a record was captured under."""

    topic: str
    name: str = ""


class Relays:
    """All relays of a node."""

    def __init__(self, router: Router, topics: Topics, rules: Sequence[Relay]) -> None:
        """Check the rules.

        Raises:
            InvalidName.
        """
        for rule in rules:
            if rule.name:
                check_name(rule.name)
        self._router = router
        self._topics = topics
        self._rules = rules

    async def start(self) -> None:
        """Join a group on each topic; one that is new begins with the next record."""
        self._router.add_wire(RELAY, EXACT)
        for rule in self._rules:
            await self._topics.declare(rule.topic)
            name = f"{GROUP}.{rule.name.replace('/', '.')}" if rule.name else GROUP
            options = GroupOptions(exclusive=True, ack_timeout_ms=0, max_attempts=0)
            await self._topics.groups.declare(rule.topic, name, options, END)
            endpoint = Relaying(self._router, rule)
            self._router.attach(endpoint)
            self._topics.groups.join(endpoint, rule.topic, name).credit(CREDIT)


class Relaying(Endpoint):
    """A member of a group that publishes what it gets, on a wire of its own."""

    wire = RELAY
    __slots__ = ("_router", "_rule")

    def __init__(self, router: Router, rule: Relay) -> None:
        super().__init__(Identity("local"), f"relay of {rule.topic}")
        self._router = router
        self._rule = rule

    def deliver_record(self, delivery: Delivery) -> None:
        member: Member = delivery.token  # type: ignore[assignment]  # what a group puts there
        record = delivery.record
        name = self._rule.name or record.headers.get(NAME, "")
        via = record.headers.get(VIA, "")
        headers = {**record.headers, VIA: f"{via},{delivery.topic}" if via else delivery.topic}
        if name:
            try:
                self._router.publish(Publication(self, name, name, record.payload, headers=headers))
            except PolybusError as exc:
                log.warning("record %d of %s not relayed: %s", record.offset, delivery.topic, exc)
        else:
            self.traffic.dropped += 1  # nobody captured it, and the relay has no name of its own
        member.ack([record.offset])
        member.credit()

    def close(self, reason: str) -> None:
        """It has no connection."""
