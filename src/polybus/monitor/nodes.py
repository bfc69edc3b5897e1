"""GSB's own monitoring paths, as its router has them: `/health`, `/nodes`, `/nodes/{prefix}`, `/events` (protocol
page GSB §13).

Invariant: a node is a GSB connection that registered a name of the form `/net/<id>/…`; it is known by the id of its
first such name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from polybus.core.endpoint import Endpoint
from polybus.http.request import Request
from polybus.monitor.sampler import Sampler
from polybus.monitor.streams import Viewers

WIRE: Final = "gsb"
JSON: Final = {"content-type": "application/json"}
_NET: Final = re.compile(r"/net/(0x[0-9a-fA-F]+)(?:/|$)")

Node = dict[str, Any]


class GsbNodes:
    """What the paths answer with."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._sources = sampler.sources
        self._viewers = Viewers()
        self._epoch = -1
        self._known: dict[str, Node] = {}
        self._seen: dict[int, str] = {}
        self._dropped = 0
        self._waiting: list[Callable[[], None]] = []
        """What is to be done once it is known who is there now."""
        self._looking = False
        sampler.on_sample.append(self._look)

    def health(self, request: Request) -> None:
        """`/health`."""
        router = self._sources.router
        endpoints = sum(1 for e in router.endpoints if e.wire == WIRE)
        answer = {
            "service": "polybus",
            "status": "ok" if self._sources.health().ready else self._sources.health().state,
            "connections": endpoints,
            "endpoints": len(router.services.of(WIRE)),
            "topics": router.subscribed(WIRE),
        }
        request.respond(200, JSON, msgspec.json.encode(answer))

    def nodes(self, request: Request) -> None:
        """`/nodes` and `/nodes/{hex digits that the id begins with}`."""
        prefix = request.path.removeprefix("/nodes").strip("/").lower()
        if prefix and not re.fullmatch("[0-9a-f]+", prefix):
            request.respond(400, JSON, b'{"error":"the prefix is not hexadecimal"}')
            return

        def answer() -> None:
            found = {k: v for k, v in self._known.items() if k.startswith("0x" + prefix)}
            listed = {"count": len(found), "nodes": found}
            request.respond(200, JSON, msgspec.json.encode(listed))

        self._update(answer)

    def events(self, request: Request) -> None:
        """`/events`."""
        self._update()
        self._viewers.add(request)

    def _look(self) -> None:
        traffic = self._sampler.totals.wires.get(WIRE)
        dropped = 0 if traffic is None else traffic.dropped
        if dropped > self._dropped:
            self._viewers.tell("drop", {"count": dropped - self._dropped})
        self._dropped = dropped
        self._update()

    def _update(self, then: Callable[[], None] = lambda: None) -> None:
        """Look who is there, which takes some turns where they are many."""
        router = self._sources.router
        if router.services.epoch == self._epoch:
            then()
            return
        self._waiting.append(then)
        if not self._looking:
            router.chores.add(self._look_for_those_who_wait())

    def _look_for_those_who_wait(self) -> Iterator[None]:
        """One look at a time, since each costs memory: those who ask during one share the next."""
        self._looking = True
        try:
            while self._waiting:
                waiting, self._waiting = self._waiting, []
                if self._sources.router.services.epoch != self._epoch:
                    yield from self._look_again()
                for then in waiting:
                    then()
        finally:
            self._looking = False

    def _look_again(self) -> Iterator[None]:
        """Tells of those who came and went since the last look; a name each step."""
        services = self._sources.router.services
        epoch = services.epoch
        owners: dict[Endpoint, dict[str, None]] = {}
        for found in tuple(services.of(WIRE)):
            match = _NET.match(found.name) if not found.endpoint.closed else None
            if match is not None:
                owners.setdefault(found.endpoint, {})[match[1].lower()] = None
            yield
        self._epoch = epoch
        known = {next(iter(ids)): self._node(owner, list(ids)) for owner, ids in owners.items()}
        before, self._known = self._known, known
        self._seen = {owner.id: self._seen[owner.id] for owner in owners}
        for name in known.keys() - before.keys():
            self._viewers.tell("new-node", known[name])
        for name in before.keys() - known.keys():
            self._viewers.tell("lost-node", before[name])

    def _node(self, owner: Endpoint, ids: list[str]) -> Node:
        now = datetime.fromtimestamp(self._sampler.clock.wall_ms() / 1000, UTC)
        seen = self._seen.setdefault(owner.id, now.isoformat(timespec="milliseconds"))
        instance: bytes | None = getattr(owner, "instance_id", None)
        return {
            "id": ids[0],
            "identities": ids,
            "seen": seen,
            "peer": owner.peer,
            "session_id": (instance or b"").hex(),
        }
