"""One group: hands the records of its topic to its members and remembers what they confirmed.

Invariant: a record is in at most one place of: not read, in the backlog, in flight with one member, on its way to
the dead-letter topic, done. First deliveries are in log order; the attempt of a delivery is one more than the
deliveries before it, over restarts too as far as they were committed.

    log ──read──► backlog ──deliver──► in flight ──ack──► done
                     ▲                     │
                     └── nack, timeout, ───┤
                         member left       └── attempts used up ──► buried ──one commit──► dead letter, done
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from polybus.core.backlog import Backlog
from polybus.core.cursor import Cursor
from polybus.core.group_options import MAX_IN_FLIGHT, GroupInfo, GroupOptions
from polybus.core.journal import OWN_TOPICS
from polybus.core.ledger import Ledger
from polybus.core.member import Closed, Confirmed, Member
from polybus.errors import Conflict, PolybusError
from polybus.model.record import Delivery

if TYPE_CHECKING:
    from polybus.core.endpoint import Endpoint
    from polybus.core.groups import Groups

BURST: Final = 256  # deliveries in one go: about a millisecond, then the others have their turn


class Group:
    """See the module. Created and found through `Groups`; runs on the event loop only."""

    def __init__(
        self, hub: Groups, topic: str, name: str, options: GroupOptions, cursor: Cursor
    ) -> None:
        self.hub = hub
        self.topic = topic
        self.name = name
        self.options = options
        self.cursor = cursor
        self.members: dict[tuple[int, str], Member] = {}
        self.in_flight: dict[int, tuple[Member, int, float]] = {}  # in order of delivery
        self.buried: dict[int, str] = {}  # offset and cause, until it is in the dead-letter topic
        self.backlog = Backlog(self)
        self.ledger = Ledger(self)
        self.dirty = False  # the engine does not know all of the cursor yet
        self.closed = False
        self.first = 0  # of the topic, as far as it was noticed here
        self.orphan_since: float | None = None  # delete-on-exit, found at start without its members
        self._waiting: deque[Member] = deque()
        self._compiled = False
        self.delivered = self.redelivered = self.acked = self.nacked = 0
        self.timed_out = self.skipped = self.expired = self.dead = 0
        self._bury_exhausted()

    # -- members ----------------------------------------------------------------------------------------------

    def join(self, endpoint: Endpoint, id: str, on_closed: Closed | None) -> Member:
        """Add a member, or find the one that this endpoint has under this id.

        Raises:
            Conflict: the group is exclusive and another member is there; InvalidName: its filter cannot be compiled.
        """
        known = self.members.get((endpoint.id, id))
        if known is not None:
            return known
        if self.options.exclusive and self.members:
            raise Conflict(f"group {self.name} on topic {self.topic} is exclusive and has a member")
        if not self._compiled:
            self.backlog.predicate = self.hub.compile(self.options)
            self._compiled = True
        member = Member(self, endpoint, id, on_closed)
        self.members[endpoint.id, id] = member
        self.orphan_since = None
        return member

    def leave(self, member: Member) -> None:
        """Take a member out; what it held goes back in offset order."""
        member.closed = True
        del self.members[member.endpoint.id, member.id]
        if member.queued:
            self._waiting.remove(member)
        held = [(o, attempt) for o, (who, attempt, _) in self.in_flight.items() if who is member]
        for offset, attempt in sorted(held):
            del self.in_flight[offset]
            self._release(offset, attempt, "member left")
        if not self.members:
            self.backlog.unload()
        self.hub.has_left(self, member)
        self.hub.touch(self)

    def enqueue(self, member: Member) -> None:
        """Put the member at the end of those who wait, if it may get a record and is not there yet."""
        window = self.options.window or MAX_IN_FLIGHT
        may = member.wanted and member.in_flight < window and not member.closed
        if may and not member.queued:
            member.queued = True
            self._waiting.append(member)
        self.hub.touch(self)

    def credit(self, member: Member, records: int) -> None:
        """See `Member.credit`."""
        if member.closed or records <= 0:
            return
        again = min(records, member.recalled) if member.recalled else 0
        member.recalled -= again
        member.wanted = min(member.wanted + records, MAX_IN_FLIGHT)
        if self.options.ack:
            self.enqueue(member)
            return
        oldest: list[int] = []
        for offset in member.unconfirmed:
            if len(oldest) >= records - again:
                break
            oldest.append(offset)
        self.ack(member, oldest, None)

    # -- confirmations ----------------------------------------------------------------------------------------

    def ack(self, member: Member, offsets: Iterable[int], done: Confirmed | None) -> int:
        """See `Member.ack`."""
        in_flight, cursor, unconfirmed = self.in_flight, self.cursor, member.unconfirmed
        count = 0
        for offset in offsets:
            flight = in_flight.get(offset)
            if flight is not None and flight[0] is member:
                del in_flight[offset]
                cursor.finish(offset)
                unconfirmed.pop(offset, None)
                count += 1
        if count:
            member.in_flight -= count
            self.acked += count
            self.dirty = True
        if done is not None:
            self.ledger.waiters.append(done)
        self.enqueue(member)
        return count

    def nack(self, member: Member, offset: int, delay_s: float, reason: str) -> bool:
        """See `Member.nack`."""
        flight = self.in_flight.get(offset)
        if flight is None or flight[0] is not member:
            return False
        self.nacked += 1
        due = self.hub.clock.monotonic() + delay_s if delay_s > 0 else 0.0
        self._take_back(offset, f"refused: {reason}" if reason else "refused", due)
        return True

    def tick(self, now: float) -> None:
        """Take back what was not confirmed in time, and try again what failed."""
        if self.options.ack and self.options.ack_timeout_ms:
            since = now - self.options.ack_timeout_ms / 1000
            late = []
            # Deliveries are in time order, so the first that is not late ends it.
            for offset, flight in self.in_flight.items():
                if flight[2] > since:
                    break
                late.append(offset)
            for offset in late:
                self.timed_out += 1
                self._take_back(offset, "not confirmed in time")
        if self.dirty or self.ledger.has_due(now) or self.backlog.has_due(now):
            self.hub.touch(self)

    def _take_back(self, offset: int, cause: str, due: float = 0.0) -> None:
        member, attempt, _ = self.in_flight.pop(offset)
        member.in_flight -= 1
        member.unconfirmed.pop(offset, None)
        self._release(offset, attempt, cause, due)
        self.enqueue(member)

    def _release(self, offset: int, attempt: int, cause: str, due: float = 0.0) -> None:
        self.cursor.tries[offset] = attempt
        limit = self.options.limit(self.topic)
        if limit and attempt >= limit:
            self.buried[offset] = cause
        else:
            self.backlog.give_back(offset, due)

    def _bury_exhausted(self) -> None:
        limit = self.options.limit(self.topic)
        spent = {o for o, attempts in self.cursor.tries.items() if limit and attempts >= limit}
        self.backlog.withdraw(spent)
        for offset in sorted(spent):
            self.buried.setdefault(offset, "not confirmed")

    # -- delivery ---------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Deliver while there are records, members with credit, and room in the windows."""
        options, waiting, now = self.options, self._waiting, self.hub.clock.monotonic()
        if not waiting or options.paused or self.closed or not self.backlog.open(now):
            return
        window = options.window or MAX_IN_FLIGHT
        most = options.group_window or MAX_IN_FLIGHT
        cursor, in_flight, topic, name = self.cursor, self.in_flight, self.topic, self.name
        backlog, needs_ack = self.backlog, options.ack
        journal = None if topic.startswith(OWN_TOPICS) else self.hub.journal
        for _ in range(BURST):
            if not waiting or len(in_flight) >= most:
                return
            source = backlog.source()
            if source is None:
                return
            member = waiting.popleft()
            if member.endpoint.closed or not member.wanted:
                member.queued = False
                continue
            record = source.popleft()
            offset = record.offset
            attempt = cursor.tries.pop(offset, 0) + 1
            in_flight[offset] = (member, attempt, now)
            cursor.fresh_tries[offset] = attempt
            self.dirty = True
            self.delivered += 1
            if attempt > 1:
                self.redelivered += 1
                backlog.delivered_again(offset)
            if not needs_ack:
                member.unconfirmed[offset] = None
            member.in_flight += 1
            member.wanted -= 1
            if member.wanted and member.in_flight < window:
                waiting.append(member)
            else:
                member.queued = False
            if journal is not None:
                who, size = member.endpoint, len(record.payload)
                journal.note("deliver", who.wire, topic, who.identity.text, (size, size))
            member.deliver(Delivery(topic, name, record, attempt, member))
        self.hub.touch(self)

    def has_placed(self, offset: int) -> bool:
        """Whether reading (again) should pass this one by: done, in flight, given back or buried."""
        if offset in self.cursor.done:
            return True
        if offset in self.in_flight or offset in self.backlog or offset in self.buried:
            self.cursor.open[offset] = None
            return True
        return False

    def drop(self, offset: int) -> None:
        """Done without a confirmation: nobody wants it, or it is gone."""
        self.cursor.tries.pop(offset, None)
        self.cursor.finish(offset)
        self.dirty = True

    def trimmed(self, first: int) -> None:
        """Retention has taken what lies below `first`."""
        self.first = first
        self.backlog.drop_below(first)
        self.expired += self.cursor.drop_below(first, [*self.in_flight, *self.buried])
        self.dirty = True
        self.hub.touch(self)

    # -- administration ---------------------------------------------------------------------------------------

    def floor(self) -> int:
        """Everything below is done."""
        return self.cursor.head()

    async def edit(self, options: GroupOptions) -> None:
        """Change the rules. A new filter is asked about all that is neither confirmed nor in flight."""
        predicate = self.hub.compile(options)
        await self.ledger.save(options)
        old, self.options = self.options, options
        self.backlog.predicate, self._compiled = predicate, True
        if _rules(self.topic, old) != _rules(self.topic, options):
            self.backlog.rewind(self.cursor.head())
            self._bury_exhausted()
        if not options.ack:
            for offset, (member, _, _) in self.in_flight.items():
                member.unconfirmed[offset] = None
        for member in self.members.values():
            self.enqueue(member)
        self.hub.touch(self)

    async def reset(self, floor: int, done: Iterable[int] = ()) -> None:
        """Go on from another position; what is in flight is forgotten, and a confirmation of it will not count."""
        cursor = Cursor(floor, done)
        await self.ledger.save(self.options, cursor)
        self.backlog.clear()
        self.cursor = cursor
        self.in_flight.clear()
        self.buried.clear()
        for member in self.members.values():
            member.in_flight = 0
            member.unconfirmed.clear()
            self.enqueue(member)

    def close(self, error: PolybusError) -> None:
        """The group or its topic is gone: tell the members."""
        self.closed = True
        members, self.members = list(self.members.values()), {}
        self._waiting.clear()
        self.backlog.clear()
        self.ledger.fail(error)
        for member in members:
            member.closed = True
            self.hub.has_left(self, member)
            if member.on_closed is not None:
                member.on_closed(error)

    def info(self) -> GroupInfo:
        """Numbers for people."""
        end, floor = self.hub.engine.topic(self.topic).end, self.floor()
        return GroupInfo(
            topic=self.topic,
            name=self.name,
            options=self.options,
            floor=floor,
            remaining=len(self.cursor.open) + self.cursor.unread(end),
            lag=max(0, end - floor),
            in_flight=len(self.in_flight),
            waiting=len(self.backlog),
            delivered=self.delivered,
            redelivered=self.redelivered,
            acked=self.acked,
            nacked=self.nacked,
            timed_out=self.timed_out,
            skipped=self.skipped,
            expired=self.expired,
            dead=self.dead,
            problem=self.backlog.problem,
            members=tuple(member.info() for member in self.members.values()),
        )


def _rules(topic: str, options: GroupOptions) -> tuple[str, str, int]:
    return options.filter, options.dialect, options.limit(topic)
