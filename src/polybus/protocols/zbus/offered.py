"""Services of other wires as Zbus lists them: topics with the rpc bit, so that brokers find them (DESIGN 3).

Invariant: every shared name that a Zbus call can spell belongs to exactly one such topic; where a topic of that name
exists, in any case, it is listed as itself.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from polybus.core.engine import TopicInfo, TopicOptions
from polybus.protocols.zbus.info import CLAIMS, MASK
from polybus.protocols.zbus.masks import RPC
from polybus.protocols.zbus.names import topic_of
from polybus.protocols.zbus.wire import WIRE

if TYPE_CHECKING:
    from polybus.protocols.zbus.room import ZbusRoom


class Offered:
    """What one node's other wires offer."""

    def __init__(self, room: ZbusRoom) -> None:
        self._room = room
        self._since = room.clock.wall_ms()
        self._epochs = (-1, -1)
        self._topics: dict[str, TopicInfo] = {}
        room.router.services.on_change.append(room.tracker.changed)

    def topics(self) -> list[TopicInfo]:
        """All of them."""
        return list(self._known().values())

    def get(self, topic: str) -> TopicInfo | None:
        """One of them, by its exact name: the other wires tell cases apart."""
        return self._known().get(topic)

    def _known(self) -> dict[str, TopicInfo]:
        room = self._room
        epochs = (room.router.services.epoch, room.era.number)
        if epochs != self._epochs:
            self._epochs = epochs
            foreign = (found for found in room.router.services if found.wire != WIRE)
            claims = Counter(topic_of(found.shared) for found in foreign if found.shared)
            self._topics = {
                name: self._info(name, count)
                for name, count in sorted(claims.items())
                if room.route(name) is None
            }
        return self._topics

    def _info(self, name: str, claims: int) -> TopicInfo:
        options = TopicOptions(extra={MASK: str(RPC), CLAIMS: str(claims)})
        return TopicInfo(name, options, 0, 0, 0, self._since, self._since, 0, 0)
