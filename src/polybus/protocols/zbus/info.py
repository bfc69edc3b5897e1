"""What the server tells about itself, in the JSON shapes that the real clients read (protocol page §10).

Invariant: keys are sorted, nulls are left out (the Java clients fail on them), and every answer about a server or a
tracker has a larger `infoVersion` than the one before, since clients drop what is not newer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from polybus.model.ids import counter
from polybus.protocols.zbus.wire import VERSION

if TYPE_CHECKING:
    from polybus.core.engine import TopicInfo
    from polybus.core.group import Group
    from polybus.protocols.zbus.room import ZbusRoom

MASK: Final = "zbus.mask"
CLAIMS: Final = "zbus.claims"  # of a service of other wires: how many names it has
CREATOR: Final = "zbus.creator"
CREATED: Final = "zbus.created"
UPDATED: Final = "zbus.updated"

Shape = dict[str, Any]


def encode_info(shape: Mapping[str, Any]) -> bytes:
    """JSON with sorted keys."""
    return msgspec.json.encode(shape, order="deterministic")


def server_address(address: str, ssl: bool = False) -> Shape:
    """One address; the prefix `[SSL]` is the other way to say that it speaks TLS."""
    if address.startswith("[SSL]"):
        address, ssl = address.removeprefix("[SSL]"), True
    return {"address": address, "sslEnabled": ssl}


def address_key(address: Mapping[str, Any]) -> str:
    """How tables are keyed."""
    return ("[SSL]" if address.get("sslEnabled") else "") + str(address.get("address", ""))


class Infos:
    """Makes the shapes of one node."""

    def __init__(self, room: ZbusRoom) -> None:
        self._room = room
        start = room.clock.wall_ms()
        self._next_server = counter(start)
        self._next_tracker = counter(start)

    @property
    def address(self) -> Shape:
        """What clients connect to."""
        return server_address(self._room.advertise, self._room.ssl)

    def group(self, group: Group) -> Shape:
        """ConsumeGroupInfo."""
        extra = group.options.extra
        rpc = self._room.rpc.get(group.topic)
        if rpc is None:
            consumers = [_peer(member.endpoint.peer) for member in group.members.values()]
            info = group.info()
            # What is out with a consumer counts as read, as the original counts it.
            left = max(0, info.remaining - info.in_flight)
        else:
            consumers = [_peer(party.peer) for party in rpc.exchange.consumers]
            left = rpc.exchange.depth
        shape: Shape = {
            "topicName": group.topic,
            "groupName": group.name,
            "mask": int(extra.get(MASK, "0")),
            "messageCount": left,
            "consumerCount": len(consumers),
            "consumerList": consumers,
            "createdTime": int(extra.get(CREATED, "0")),
            "lastUpdatedTime": int(extra.get(UPDATED, "0")),
        }
        if group.options.filter:
            shape["filter"] = group.options.filter
        if CREATOR in extra:
            shape["creator"] = extra[CREATOR]
        return shape

    def topic(self, info: TopicInfo, groups: Iterable[Group] | None = None) -> Shape:
        """TopicInfo; `groups` are those that the asker may see."""
        room = self._room
        shown = [self.group(g) for g in (room.groups.of(info.name) if groups is None else groups)]
        rpc = room.rpc.get(info.name)
        shape: Shape = {
            "serverAddress": self.address,
            "serverVersion": VERSION,
            "topicName": info.name,
            "mask": int(info.options.extra.get(MASK, "0")),
            "messageDepth": info.end if rpc is None else rpc.exchange.count,
            "consumerCount": sum(group["consumerCount"] for group in shown)
            or int(info.options.extra.get(CLAIMS, "0")),
            "consumeGroupList": shown,
            "createdTime": info.created_ms,
            "lastUpdatedTime": info.updated_ms,
        }
        if CREATOR in info.options.extra:
            shape["creator"] = info.options.extra[CREATOR]
        return shape

    def server(self, topics: Iterable[TopicInfo] | None = None) -> Shape:
        """ServerInfo; `topics` are those that the asker may see."""
        room = self._room
        shown = [*room.topics.all(), *room.offered.topics()] if topics is None else topics
        return {
            "serverAddress": self.address,
            "serverVersion": VERSION,
            "infoVersion": self._next_server(),
            "trackerList": [server_address(tracker) for tracker in room.options.trackers],
            "topicTable": {info.name: self.topic(info) for info in shown},
        }

    def tracker(
        self, tracked: Mapping[str, Shape], topics: Iterable[TopicInfo] | None = None
    ) -> Shape:
        """TrackerInfo: this server and those it tracks; the list is what the documentation has beside the table."""
        table = {address_key(self.address): self.server(topics), **tracked}
        return {
            "serverAddress": self.address,
            "serverVersion": VERSION,
            "infoVersion": self._next_tracker(),
            "serverTable": table,
            "trackedServerList": [info["serverAddress"] for info in table.values()],
        }


def _peer(peer: str) -> str:
    return f"/{peer}"
