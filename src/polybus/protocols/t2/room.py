"""What all connections of the T2 Bus on one node share.

Invariant: one counter numbers every message to any client (protocol page §3).
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from polybus.core.endpoint import Identity
from polybus.core.router import Router
from polybus.model.ids import counter
from polybus.protocols.t2.relay import Route, frame_head
from polybus.protocols.t2.topics import MATCHING
from polybus.transports.connection import is_loopback

if TYPE_CHECKING:
    from polybus.core.journal import Journal, Opened
    from polybus.protocols.t2.party import T2Party

WIRE: Final = "t2"
MAX_ROUTES: Final = 4096  # cached topics per identity
MAX_ROUTED: Final = (
    1 << 18
)  # recipients on all cached routes: 2 MiB, as in the index of subscriptions


@dataclass(frozen=True, slots=True)
class T2Options:
    """Settings of the room."""

    matching: Literal["upstream", "documented"] = "upstream"
    stop: Literal["local", "any", "never"] = "local"
    request_timeout: float = 30.0  # protocol page §7
    idle_timeout: float = 90.0  # protocol page §8


class T2Room:
    """Shared state of the bus."""

    def __init__(
        self,
        router: Router,
        options: T2Options | None = None,
        on_stop: Callable[[], None] | None = None,
    ) -> None:
        """Join a node.

        Args:
            on_stop: called when a client that may do so stops the bus; without it all T2 clients are disconnected.
        """
        self.router = router
        self.options = options or T2Options()
        self.clock = router.clock.monotonic
        self.deadline = 0.0  # of requests that come in the present batch
        self.journal: Journal | None = None  # the router's, as of the present batch
        self.now = 0  # the journal's time of the present batch
        self._noted = 0  # calls of it that the journal was told of
        # What the last of them was like
        self._alike: tuple[Opened, T2Party, int, int] | None = None
        self._ids: list[bytes] = []  # of the calls that were like it
        self.on_stop = on_stop
        self.stopping = False
        self.parties: set[T2Party] = set()
        self.next_number = counter()  # of connections, from 1
        self.next_id = 0  # of messages, from 0
        self.waiting: list[T2Party] = []
        """Parties with queued output; written out at the end of the batch, one write each."""
        self._routes: dict[Identity, dict[bytes, Route]] = {}
        self._routed = 0
        self._epochs = self._present_epochs()
        router.add_wire(WIRE, MATCHING[self.options.matching])

    # -- routes --

    def routes_of(self, identity: Identity) -> dict[bytes, Route]:
        """The cached routes of all connections of one identity, as the policy may tell identities apart."""
        return self._routes.setdefault(identity, {})

    def begin_batch(self) -> None:
        """Some input has come: look at the clock once for all of it."""
        self.deadline = self.clock() + self.options.request_timeout
        self.journal = self.router.journal
        if self.journal is not None:
            self.now = self.journal.now()
            self.journal.settle(self._noted)
            self._noted = 0
            self._alike = None
        self.refresh()

    def note_answered(self, opened: Opened, requester: T2Party, size: int, status: int) -> None:
        """Write the row of a request between T2 clients that was answered now."""
        journal = self.journal
        assert journal is not None
        same = (opened, requester, size, status)
        if same != self._alike:
            self._alike = same
            who = requester.identity.text
            self._ids = journal.alike(self.now, WIRE, opened, who, size, status)
        self._ids.append(journal.new_id().encode())
        self._noted += 1

    def refresh(self) -> None:
        """Drop the routes that were found under an older epoch."""
        epochs = self._present_epochs()
        if epochs != self._epochs:
            self._epochs = epochs
            self._forget_routes()

    def keep_route(self, routes: dict[bytes, Route], prefix: bytes, route: Route) -> None:
        """Remember a route under the bytes that led to it."""
        self._routed += len(route.targets)
        if len(routes) >= MAX_ROUTES or self._routed > MAX_ROUTED:
            self._forget_routes()
            self._routed = len(route.targets)
        routes[prefix] = route

    def _forget_routes(self) -> None:
        self._routed = 0
        for routes in self._routes.values():
            routes.clear()

    def _present_epochs(self) -> tuple[int, int, int, bool]:
        router = self.router
        return (
            router.subscription_epoch,
            router.services.epoch,
            router.policy.epoch,
            router.draining,
        )

    # -- output --

    def take_id(self) -> int:
        """The next message id."""
        number = self.next_id
        self.next_id = number + 1 & 0xFFFFFFFF
        return number

    def free_id(self, *taken: Container[bytes]) -> int:
        """An id that no pending request of these tables has; the counter stands at it."""
        while any(frame_head(self.next_id, 0)[8:] in ids for ids in taken):
            self.take_id()
        return self.next_id

    def flush(self) -> None:
        """Write what the present batch has queued, each party once."""
        waiting = self.waiting
        if waiting:
            self.waiting = []
            for party in waiting:
                party.write_queue()

    def in_flight(self) -> int:
        """Requests that wait for an answer."""
        return sum(len(party.serving) for party in self.parties)

    # -- the end --

    def may_stop(self, identity: Identity, peer: str) -> bool:
        """Whether a Stop from this party is obeyed."""
        setting = self.options.stop
        if setting != "local":
            return setting == "any"
        known = identity.kind != "anonymous" or is_loopback(peer)
        return known and self.router.policy.may(identity, "admin", "t2/stop")

    def stop(self) -> None:
        """A client has stopped the bus."""
        self.stopping = True
        for party in tuple(self.parties):
            party.close("stopped by a client")
        if self.on_stop is not None:
            self.on_stop()
