"""What the protocol rooms tell the monitor: trackers of Zbus, twins of RMB.

Invariant: rooms and monitor do not know each other; this is the one place that knows both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from polybus.monitor.shapes import Tracker, Twin
from polybus.protocols.zbus.room import ZbusRoom
from polybus.protocols.zbus.wire import VERSION

if TYPE_CHECKING:
    from polybus.protocols.rmb.room import RmbRoom

MAX_TWINS: Final = 1000  # shown; a directory of the whole grid would be no list for people


def trackers_of(room: ZbusRoom) -> Sequence[Tracker]:
    """This server, those it tracks, and the trackers it has joined."""
    found = [
        Tracker(
            address=room.advertise,
            role="this server",
            ssl=room.ssl,
            version=VERSION,
            topics=len(room.topics.all()),
        )
    ]
    for info in room.tracker.tracked:
        address, topics = info.get("serverAddress") or {}, info.get("topicTable")
        found.append(
            Tracker(
                address=str(address.get("address", "")),
                role="tracked server",
                ssl=bool(address.get("sslEnabled")),
                version=str(info.get("serverVersion", "")),
                topics=len(topics) if isinstance(topics, dict) else None,
            )
        )
    for joined in room.options.trackers:
        bare = joined.removeprefix("[SSL]")
        found.append(
            Tracker(
                address=bare,
                role="joined tracker",
                ssl=bare != joined,
                version="",
                topics=None,
            )
        )
    return found


def twins_of(room: RmbRoom) -> Sequence[Twin]:
    """The own twin and those of its directory that are known by now."""
    found: list[Twin] = []
    if not hasattr(room, "directory"):
        return found  # it is opened when the room starts
    for twin in room.directory.all():
        if len(found) >= MAX_TWINS:
            break
        found.append(Twin(id=twin.id, own=twin.id == room.own, address=str(twin.address)))
    return found
