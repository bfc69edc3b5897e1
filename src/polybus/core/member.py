"""A member of a group: an endpoint that takes records, as many at a time as it gave credit for.

Invariant: a member holds at most its group's window of unconfirmed records, and gets none without credit.

Plain typed Python which Cython also compiles, as `group`, `cursor` and `backlog` beside it (`.pxd` has the C types).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from polybus.core.group_options import MAX_IN_FLIGHT, MemberInfo
from polybus.errors import PolybusError

if TYPE_CHECKING:
    from polybus.core.endpoint import Endpoint
    from polybus.core.group import Group
    from polybus.model.record import Delivery

# Credit beyond it makes no difference: no more than a window each was recalled and is held
MOST: Final = 2 * MAX_IN_FLIGHT

Closed = Callable[[PolybusError], None]
Confirmed = Callable[[PolybusError | None], None]


class Member:
    """What a session holds on to; it comes as `Delivery.token` with every record. The group owns the fields."""

    __slots__ = (
        "closed",
        "deliver",
        "endpoint",
        "group",
        "id",
        "in_flight",
        "on_closed",
        "queued",
        "recalled",
        "unconfirmed",
        "wanted",
    )

    def __init__(self, group: Group, endpoint: Endpoint, id: str, on_closed: Closed | None) -> None:
        self.group = group
        self.endpoint = endpoint
        self.deliver: Callable[[Delivery], None] = endpoint.deliver_record
        """Gets the records; an endpoint may name another part of itself, which keeps the same promise."""
        self.id = id
        self.on_closed = on_closed
        self.wanted = 0  # credit that is left
        self.recalled = 0  # credit that was taken back and not given again
        self.in_flight = 0
        self.queued = False
        self.closed = False
        self.unconfirmed: dict[int, None] = {}  # oldest first; used only where nobody acks

    def credit(self, records: int = 1) -> None:
        """Give credit for so many more records; where nobody acks, it also confirms as many of the oldest ones held.

        Credit that was recalled and is given again confirms nothing: it was no sign that anything was dealt with.
        """
        # Clients name any number; compiled, a sum of two must not go round.
        self.group.credit(self, min(records, MOST))

    def recall(self) -> None:
        """Take the credit back that is not used yet; confirms nothing."""
        self.recalled += self.wanted
        self.wanted = 0

    def ack(self, offsets: Iterable[int], done: Confirmed | None = None) -> int:
        """Confirm records that this member holds; returns how many it did hold.

        `done` is called once the confirmation is durable, or with the error that prevents it for now: then it is
        kept in memory and tried again with the next one.
        """
        return self.group.ack(self, offsets, done)

    def nack(self, offset: int, delay_s: float = 0.0, reason: str = "") -> bool:
        """Give a record back, to be delivered again after `delay_s`; False when this member does not hold it."""
        return self.group.nack(self, offset, delay_s, reason)

    def leave(self) -> None:
        """Go, and give back what is held, to be delivered again at once. Idempotent."""
        if not self.closed:
            self.group.leave(self)

    def info(self) -> MemberInfo:
        """Numbers for people."""
        party = self.endpoint
        return MemberInfo(self.id, party.peer, party.wire, self.wanted, self.in_flight)
