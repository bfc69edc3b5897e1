"""The Endpoint contract: what the core may ask of a connected party.

An endpoint is a session, a queue worker, an SDK client in this process or a peer node. Invariant: every `deliver_*`
returns at once and never raises for a reason that lies with the party (it queues, drops and counts, or closes
itself).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from polybus.model.ids import counter

if TYPE_CHECKING:
    from polybus.core.services import Registration
    from polybus.model.message import Call, Publication, Reply
    from polybus.model.record import Delivery

_next_id = counter()


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a party is: how it was told (`kind`) and its name there."""

    kind: str  # anonymous, token, certificate, uid, twin, local
    name: str = ""
    text: str = field(init=False, compare=False, repr=False)
    """Made once: the journal writes it with every row."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", f"{self.kind}:{self.name}" if self.name else self.kind)

    def __str__(self) -> str:
        return self.text


ANONYMOUS: Final = Identity("anonymous")


class Traffic:
    """Counters of one endpoint or one name; plain numbers, read by the monitor and the metrics."""

    __slots__ = (
        "bytes_in",
        "bytes_out",
        "calls",
        "dropped",
        "failures",
        "messages_in",
        "messages_out",
    )

    def __init__(self) -> None:
        self.messages_in = 0
        self.messages_out = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.calls = 0
        self.failures = 0
        self.dropped = 0

    def add(self, other: Traffic) -> None:
        """Count what another counted as well."""
        self.messages_in += other.messages_in
        self.messages_out += other.messages_out
        self.bytes_in += other.bytes_in
        self.bytes_out += other.bytes_out
        self.calls += other.calls
        self.failures += other.failures
        self.dropped += other.dropped


class Endpoint:
    """A party that the core can deliver to. Rooms subclass it; the core owns the fields below `traffic`.

    Guaranteed to an endpoint: replies to one call come in the order the service gave them; publications of one
    publisher come in its order; nothing is delivered after `closed` is true. Not guaranteed: any order between calls,
    and delivery of a publication to an endpoint whose queue is full.
    """

    wire: str = ""
    __slots__ = (
        "calls_made",
        "calls_taken",
        "closed",
        "id",
        "identity",
        "names_size",
        "peer",
        "registrations",
        "traffic",
    )

    def __init__(self, identity: Identity = ANONYMOUS, peer: str = "") -> None:
        self.id = _next_id()
        self.identity = identity
        self.peer = peer
        self.closed = False
        self.traffic = Traffic()
        # Core-owned. None until used: ten thousand idle connections should not pay for empty sets.
        self.registrations: dict[str, Registration] | None = None
        self.names_size = 0
        self.calls_made: set[Call] | None = None
        self.calls_taken: set[Call] | None = None

    def deliver_call(self, call: Call) -> None:
        """Pass a call to the service behind this endpoint.

        If `call.wire` is this endpoint's wire, `call.frame` goes out with only those fields changed that the wire
        obliges the server to set. Otherwise the room translates name, payload and headers. The answer comes back
        through `Router.reply`. A call that cannot be passed on is answered at once with a failure reply.
        """
        raise NotImplementedError

    def deliver_reply(self, reply: Reply) -> None:
        """Pass one part of an answer to the caller behind this endpoint; `reply.call.token` says which request."""
        raise NotImplementedError

    def deliver_publication(self, publication: Publication) -> bool:
        """Pass a publication on; False when it was dropped (and counted) because the queue is full."""
        raise NotImplementedError

    def deliver_record(self, delivery: Delivery) -> None:
        """Pass a durable record to a member of a group; confirmed by `Groups.ack` or as its wire has it."""
        raise NotImplementedError

    @property
    def in_flight(self) -> int:
        """How many calls wait for an answer of this party; a drain waits for them."""
        return len(self.calls_taken or ())

    def cancel_call(self, call: Call) -> None:
        """The caller has gone or the deadline has passed: tell the service where the wire can say so (default:
        no)."""

    def hold_input(self, held: bool) -> None:
        """Read no more from this party for now, or go on (default: it has no input that could wait)."""

    def close(self, reason: str) -> None:
        """End this party from our side; counted and logged with the reason."""
        raise NotImplementedError
