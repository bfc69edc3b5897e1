"""Which servers a broker may use, by the votes of its trackers (protocol page §9).

Invariant: a server is in the table exactly while at least the wanted share of the known trackers lists it, or it was
added by hand; `topic_table` is always made of the servers that are in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from polybus.protocols.zbus.info import address_key

SHARE: Final = 0.5  # of the trackers that have to list a server, as the original clients want it


@dataclass(slots=True)
class Vote:
    """What one tracker said last."""

    version: int
    servers: list[str] = field(default_factory=list)


class BrokerRouteTable:
    """Servers, their topics, and the votes they stand on."""

    def __init__(self, share: float = SHARE) -> None:
        self.share = share
        self.server_table: dict[str, dict[str, Any]] = {}
        """Address -> ServerInfo."""
        self.topic_table: dict[str, list[dict[str, Any]]] = {}
        """Topic -> its TopicInfo on each server."""
        self.votes_table: dict[str, Vote] = {}
        """Tracker -> its vote."""
        self._trackers: set[str] = set()
        self._added: set[str] = set()

    def update_votes(self, tracker_info: Mapping[str, Any]) -> list[str]:
        """Take what a tracker says; returns the servers that fell out."""
        tracker = address_key(tracker_info["serverAddress"])
        self._trackers.add(tracker)
        version = int(tracker_info["infoVersion"])
        known = self.votes_table.get(tracker)
        if known is not None and known.version >= version:
            return []
        servers = tracker_info.get("serverTable") or {}
        listed = [address_key(info["serverAddress"]) for info in servers.values()]
        # 1. the tracker's vote is what it lists now
        self.votes_table[tracker] = Vote(version, listed)
        # 2. what is newer about a server replaces what was known
        for info in servers.values():
            self._merge(info)
        # 3. servers with too few votes go, and the topics are put together again
        return self._purge()

    def remove_tracker(self, tracker: str) -> list[str]:
        """A tracker is out of reach: its vote no longer counts, though it is still one of all."""
        self.votes_table.pop(tracker, None)
        return self._purge()

    def add_server(self, server_info: Mapping[str, Any]) -> None:
        """Add a server by hand; no vote is needed for it."""
        self._added.add(self._merge(server_info))
        self._rebuild()

    def remove_server(self, address: str) -> None:
        """Take a server out, until it is told of again."""
        self._added.discard(address)
        self.server_table.pop(address, None)
        self._rebuild()

    def _merge(self, info: Mapping[str, Any]) -> str:
        key = address_key(info["serverAddress"])
        known = self.server_table.get(key)
        if known is None or int(known.get("infoVersion", 0)) < int(info.get("infoVersion", 0)):
            self.server_table[key] = dict(info)
        return key

    def _purge(self) -> list[str]:
        needed = len(self._trackers) * self.share
        removed = []
        for server in list(self.server_table):
            votes = sum(server in vote.servers for vote in self.votes_table.values())
            if votes < needed and server not in self._added:
                del self.server_table[server]
                removed.append(server)
        self._rebuild()
        return removed

    def _rebuild(self) -> None:
        table: dict[str, list[dict[str, Any]]] = {}
        for info in self.server_table.values():
            for name, topic in (info.get("topicTable") or {}).items():
                table.setdefault(name, []).append(topic)
        self.topic_table = table
