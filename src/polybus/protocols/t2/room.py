"""What all connections of the T2 Bus on one node share.

Invariants: one counter numbers every message to any client (protocol page §3); every request that was passed on is in
`pending` until its answer, its timeout, or the end of either side.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from polybus.core.endpoint import Identity
from polybus.core.router import Router
from polybus.model.ids import counter
from polybus.model.message import Call, Status
from polybus.protocols.t2.relay import Route, frame_head
from polybus.protocols.t2.topics import MATCHING

if TYPE_CHECKING:
    from polybus.protocols.t2.party import T2Party

WIRE: Final = "t2"
MAX_ROUTES: Final = 4096  # cached topics per identity

Pending = tuple["T2Party | None", "bytes | Call", "T2Party", float]
"""Who asked (None: the core), its own id of the request (or the core's call), who was asked, until when."""


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
        self.request_timeout = self.options.request_timeout
        self.clock = router.clock.monotonic
        self.on_stop = on_stop
        self.stopping = False
        self.parties: set[T2Party] = set()
        self.next_number = counter()  # of connections, from 1
        self.next_id = 0  # of messages, from 0
        self.pending: dict[bytes, Pending] = {}
        """By the encoded id of the request as the owner sees it; in the order of their deadlines."""
        self.waiting: list[T2Party] = []
        """Parties with queued output; written out at the end of the batch, one write each."""
        self._routes: dict[Identity, dict[bytes, Route]] = {}
        self._epochs = self._present_epochs()
        self._ticked = 0.0
        router.add_wire(WIRE, MATCHING[self.options.matching])

    # -- routes --

    def routes_of(self, identity: Identity) -> dict[bytes, Route]:
        """The cached routes of all connections of one identity, as the policy may tell identities apart."""
        return self._routes.setdefault(identity, {})

    def refresh(self) -> None:
        """Drop the routes that were found under an older epoch."""
        epochs = self._present_epochs()
        if epochs != self._epochs:
            self._epochs = epochs
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

    def free_head(self, size: int) -> bytes:
        """The head of a request whose id is not pending; the counter stands at it."""
        while True:
            head = frame_head(self.next_id, size)
            if head[8:] not in self.pending:
                return head
            self.take_id()

    def flush(self) -> None:
        """Write what the present batch has queued, each party once."""
        waiting = self.waiting
        if waiting:
            self.waiting = []
            for party in waiting:
                party.write_queue()

    # -- requests --

    def tick(self, now: float) -> None:
        """Answer requests whose time is over; cheap to call once per session and second."""
        if now == self._ticked:
            return
        self._ticked = now
        due = []
        for key, entry in self.pending.items():
            if entry[3] > now:
                break
            due.append(key)
        for key in due:
            self.time_out(key)

    def time_out(self, key: bytes) -> None:
        """End a pending request with the reply that means nobody answered."""
        requester, asked, owner, _deadline = self.pending.pop(key)
        owner.asked -= 1
        if isinstance(asked, Call):
            self.router.fail(asked, Status.TIMED_OUT)
        elif requester is not None:
            requester.asking -= 1
            requester.send_timeout(asked)

    def forget(self, party: T2Party) -> None:
        """A party has gone: what it was asked is answered with Timeout, what it asked is dropped."""
        if not party.asked and not party.asking:
            return
        asked = [key for key, entry in self.pending.items() if entry[2] is party]
        asking = [key for key, entry in self.pending.items() if entry[0] is party]
        for key in asking:
            _requester, _id, owner, _deadline = self.pending.pop(key)
            owner.asked -= 1
        party.asking = 0
        for key in asked:
            if key in self.pending:
                self.time_out(key)

    # -- the end --

    def may_stop(self, identity: Identity, peer: str) -> bool:
        """Whether a Stop from this party is obeyed."""
        setting = self.options.stop
        if setting != "local":
            return setting == "any"
        if identity.kind in ("local", "uid") or _is_loopback(peer):
            return True
        return identity.kind != "anonymous" and self.router.policy.may(identity, "admin", "t2/stop")

    def stop(self) -> None:
        """A client has stopped the bus."""
        self.stopping = True
        for party in tuple(self.parties):
            party.close("stopped by a client")
        if self.on_stop is not None:
            self.on_stop()


def _is_loopback(peer: str) -> bool:
    host = peer.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
