"""The hot path: calls to the consumers that wait for them, their answers back, and messages (protocol page §5, §8).

Invariant: every call ends: with what the service routes back, or with 502 when no service is there, the queue is
full, or the service's connection goes before it answered. Waiting consumers are served first come, first served.
A request whose head has come before is carried out by the head's shortcut, any other by the party: with the same
outcome, as both end here, and as a shortcut takes nothing once its era or the rules have changed.

Plain typed Python which Cython also compiles (`relay.pxd` has the C types).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from polybus.http.head import Head, Shortcut
from polybus.http.request import Request
from polybus.model.message import Status
from polybus.protocols.zbus.bridge import unwrap_result
from polybus.protocols.zbus.deliveries import Deliveries

if TYPE_CHECKING:
    from polybus.core.member import Member
    from polybus.core.router import Router
    from polybus.core.watch import Watched
    from polybus.http.session import HttpSession
    from polybus.model.message import Call
    from polybus.model.record import Delivery
    from polybus.protocols.zbus.party import ZbusParty
    from polybus.protocols.zbus.plan import Plan
    from polybus.protocols.zbus.rpc import RpcTopic

MAX_SERVING: Final = 65_536  # calls that a service took before its last two, and has not answered
GAP: Final = b"\r\n\r\n"
SMALL: Final = 16_384  # bytes; of a larger answer, a system call of its own is no great part


class Era:
    """What shortcuts take for granted: the number rises when topics or those who trace change."""

    __slots__ = ("calls", "number", "policy")

    def __init__(self, router: Router) -> None:
        self.number = 0
        self.policy = router.policy
        self.calls = router.calls

    def stands(self, number: int, rules: int) -> bool:
        """Whether nothing has changed since, the rules of the node included."""
        return number == self.number and rules == self.policy.epoch


class RpcCall:
    """A call on its way to a service. `head` is its message up to what depends on who takes it."""

    __slots__ = (
        "body",
        "caller",
        "exchange",
        "head",
        "id",
        "origin",
        "queued",
        "sender",
        "watched",
    )

    def __init__(
        self,
        exchange: Exchange,
        head: bytes,
        id: bytes,
        body: bytes,
        caller: Line | None,
        sender: str,
    ) -> None:
        self.exchange = exchange
        self.head = head
        self.id = id
        self.body = body
        self.caller = caller
        self.sender = sender
        self.queued = False
        self.origin: Call | None = None
        """The call of another wire that this one carries; it has no `caller`."""
        self.watched: Watched | None = None
        """What the journal and captures have noted of it."""


class Line:
    """One connection as calls and their answers pass over it, in either role."""

    __slots__ = (
        "before",
        "closed",
        "connection",
        "deliveries",
        "held",
        "latest",
        "ordered",
        "party",
        "plain",
        "sender",
        "sent",
        "serving",
        "taken",
    )

    def __init__(self, party: ZbusParty, connection: HttpSession, sender: str) -> None:
        self.party = party
        self.connection = connection
        self.sender = sender
        self.closed = False
        self.held = False
        """Whether something has to end before the next request, so that no shortcut may be taken."""
        self.latest: RpcCall | None = None
        """The last call that this connection has taken, until it answers it: most take one at a time,"""
        self.before: RpcCall | None = None
        """or the next one just before they answer."""
        self.serving: dict[tuple[str, bytes], RpcCall] = {}
        """Those before these two that are not answered yet, oldest first, by sender and id."""
        self.ordered: dict[bytes, Request] = {}
        """Plain HTTP requests whose answers will be routed here."""
        self.plain = False
        """Whether all its calls came as such: what answers none of them has no place in HTTP's order."""
        self.deliveries = Deliveries()
        self.taken = 0
        """Messages of this client, and in `sent` those to it."""
        self.sent = 0

    def deliver(self, ident: bytes, pieces: list[bytes]) -> None:
        """Send what a service answered to this caller."""
        if self.closed:
            return
        if self.ordered or self.plain:
            request = self.ordered.pop(ident, None)
            if request is not None:
                self.sent += 1
                request.send(b"".join(pieces))
                return
            if self.plain:
                return  # a second answer
        self.sent += 1
        self.connection.send_pieces(pieces, len(pieces[-1]) <= SMALL)

    def serve(self, call: RpcCall) -> None:
        """This connection takes a call: its caller is told when the connection ends before the answer."""
        if self.latest is not None:
            before, self.before = self.before, self.latest
            if before is not None:
                self._serve_many(before)
        self.latest = call

    def _serve_many(self, call: RpcCall) -> None:
        serving = self.serving
        serving[call.sender, call.id] = call
        if len(serving) > MAX_SERVING:
            oldest = serving.pop(next(iter(serving)))
            text = "the service leaves too many calls unanswered"
            oldest.exchange.topic.fail(oldest, Status.STALLED, text)

    def served(self, recver: str, ident: bytes) -> RpcCall | None:
        """The call of that name, which this connection is done with."""
        call = self.latest
        if call is not None and call.id == ident and call.sender == recver:
            self.latest = None
            return call
        call = self.before
        if call is not None and call.id == ident and call.sender == recver:
            self.before = None
            return call
        return self.serving.pop((recver, ident), None)

    def unserved(self) -> list[RpcCall]:
        """All calls that this connection has taken and not answered, oldest first."""
        calls = [*self.serving.values(), self.before, self.latest]
        return [call for call in calls if call is not None]

    def answered(self, recver: str, ident: bytes, status: int, body: bytes) -> None:
        """This connection answers a call, if it has taken one of that name."""
        call = self.served(recver, ident)
        if call is not None and call.watched is not None:
            failed, text = unwrap_result(status, body)
            error = text.decode("utf-8", "replace") if failed else ""
            call.watched.answered(body, Status.FAILED if failed else Status.OK, error)


class Slot:
    """Where the consumes of one connection on one group wait for their messages: `member` for a durable topic, else
    `exchange`.

    Each waiting consume is answered with exactly one message; a second one replaces the first, which is then never
    answered (protocol page §5), unless the client asked to have several waiting.
    """

    __slots__ = ("closed", "exchange", "line", "member", "party", "places", "plain", "waiting")

    def __init__(
        self, party: ZbusParty, line: Line, member: Member | None, exchange: Exchange | None
    ) -> None:
        self.party = party
        self.line = line
        self.member = member
        self.exchange = exchange
        self.waiting: list[Request] = []  # most have room for one
        self.places = 0
        """How often it stands in the exchange's line of those who wait."""
        self.closed = False
        self.plain = False
        """Whether the last delivery answered a plain HTTP request, which no later consume has to confirm."""

    def add(self, request: Request, several: bool) -> None:
        """Let a consume wait, or take the place of another."""
        waiting = self.waiting
        if waiting and not several:
            self.party.drop_waiting(waiting.pop())
            waiting.append(request)
            return
        if self.exchange is not None:
            call = self.exchange.oldest(self)
            if call is not None:
                self.hand_over(call, request.id.encode(), request, True)
            else:
                waiting.append(request)
                self.exchange.wait(self)
            return
        waiting.append(request)
        if self.member is not None:
            # Several that wait are served together; it takes one alone to gain by being served at once.
            group = self.member.group
            if several or len(group.members) > 1:
                group.credit(self.member, 1)
            else:
                self.party.room.groups.serve(self.member)

    def deliver(self, delivery: Delivery) -> None:
        """Answer a consume with a message of the group; one that nobody waits for goes back."""
        if not self.waiting:
            if self.member is not None:
                self.member.nack(delivery.record.offset)
            return
        request = self.waiting.pop(0)
        line = self.line
        line.sent += 1
        self.plain = request.head.ordered
        raw = line.deliveries.encode(delivery, request)
        if self.waiting:
            request.send(raw)
        else:
            request.send_now(raw)

    def hand_over(self, call: RpcCall, ident: bytes, request: Request | None, busy: bool) -> None:
        """Answer a consume of this id with a call; the request itself is needed where answers are in order.

        While services are busy, what goes to all of them is gathered; one that was idle gets its call at once.
        """
        line, exchange = self.line, call.exchange
        line.serve(call)
        pieces = [
            call.head,
            b"id: ",
            ident,
            b"\r\norigin_id: ",
            call.id,
            b"\r\noffset: ",
            str(exchange.count).encode(),
            GAP,
            call.body,
        ]
        exchange.count += 1
        if request is not None and request.head.ordered:
            request.send(b"".join(pieces))
        elif busy:
            line.connection.send_pieces(pieces)
        else:
            line.connection.send_now(b"".join(pieces))


class Exchange:
    """The calls to one topic and the consumers that wait for them."""

    __slots__ = (
        "_calls",
        "_max_calls",
        "_max_size",
        "consumers",
        "count",
        "depth",
        "size",
        "topic",
        "waiting",
    )

    def __init__(self, topic: RpcTopic, max_calls: int, max_size: int) -> None:
        self.topic = topic
        self._max_calls = max_calls
        self._max_size = max_size
        self.consumers: dict[ZbusParty, None] = {}
        self.waiting: deque[Slot] = deque()
        # Oldest first; those that were cancelled are not `queued` any more, and passed over
        self._calls: deque[RpcCall] = deque()
        self.depth = 0
        """How many calls no consumer has taken yet, and in `size` their bytes."""
        self.size = 0
        self.count = 0

    def call(self, call: RpcCall) -> bool:
        """Pass a call to whoever waits, or keep it for the next who does; False when nobody can take it."""
        waiting = self.waiting
        while waiting:
            slot = waiting.popleft()
            slot.places -= 1
            if slot.waiting:
                request = slot.waiting.pop(0)
                slot.hand_over(call, request.id.encode(), request, False)
                return True
        size = len(call.body) + len(call.head)
        if not self.consumers or self.depth >= self._max_calls or self.size + size > self._max_size:
            return False
        call.queued = True
        self._calls.append(call)
        self.depth += 1
        self.size += size
        return True

    def oldest(self, slot: Slot) -> RpcCall | None:
        """Take the oldest call that nobody has taken, for this consumer."""
        if slot.party not in self.consumers:
            self.consumers[slot.party] = None
            self.topic.consumed()
        calls = self._calls
        while calls:
            call = calls.popleft()
            if not call.queued:
                continue
            self._forget(call)
            if call.caller is None or not call.caller.closed:
                return call
            if call.watched is not None:
                call.watched.abandoned()
        return None

    def wait(self, slot: Slot) -> None:
        """A consumer waits for the next call."""
        # Who takes a consume back keeps the place, or the line would grow with every change of mind.
        if slot.places < len(slot.waiting):
            slot.places += 1
            self.waiting.append(slot)

    def drop(self, call: RpcCall) -> None:
        """Nobody waits for the answer any more."""
        if call.queued:
            self._forget(call)
            if 2 * self.depth < len(self._calls):
                self._calls = deque([each for each in self._calls if each.queued])

    def _forget(self, call: RpcCall) -> None:
        call.queued = False
        self.depth -= 1
        self.size -= len(call.body) + len(call.head)

    def leave(self, party: ZbusParty) -> bool:
        """A consumer is gone; whether it was one."""
        if party not in self.consumers:
            return False
        del self.consumers[party]
        self.waiting = deque([slot for slot in self.waiting if slot.party is not party])
        return True

    def close(self) -> list[RpcCall]:
        """There are no consumers any more; the calls that nobody will take."""
        self.consumers.clear()
        for slot in self.waiting:
            slot.places = 0
        self.waiting.clear()
        calls = [call for call in self._calls if call.queued]
        self._calls.clear()
        for call in calls:
            self._forget(call)
        return calls


class Calling(Shortcut):
    """Calls of one caller to one topic."""

    __slots__ = ("_era", "_exchange", "_head", "_line", "_number", "_rules")

    def __init__(self, line: Line, plan: Plan, exchange: Exchange, era: Era) -> None:
        self._line = line
        self._exchange = exchange
        self._head = plan.head
        self._era = era
        self._number = era.number
        self._rules = plan.rules

    def take(self, ident: bytes, body: bytes) -> bool:
        line = self._line
        era = self._era
        if line.held or not era.stands(self._number, self._rules):
            return False
        if era.calls.watch is not None:
            return False
        call = RpcCall(self._exchange, self._head, ident, body, line, line.sender)
        if not self._exchange.call(call):
            return False
        line.taken += 1
        return True


class Answering(Shortcut):
    """Answers of one service to one caller."""

    __slots__ = ("_era", "_head", "_line", "_number", "_recver", "_rules", "_status", "_target")

    def __init__(self, line: Line, plan: Plan, target: Line, era: Era) -> None:
        self._line = line
        self._target = target
        self._head = plan.head + b"id: "
        self._recver = plan.recver
        self._status = plan.status
        self._era = era
        self._number = era.number
        self._rules = plan.rules

    def take(self, ident: bytes, body: bytes) -> bool:
        line = self._line
        if line.held or not self._era.stands(self._number, self._rules):
            return False
        line.taken += 1
        line.answered(self._recver, ident, self._status, body)
        self._target.deliver(ident, [self._head, ident, GAP, body])
        return True


class Consuming(Shortcut):
    """Consumes of one connection on one group."""

    __slots__ = ("_era", "_head", "_most", "_number", "_rules", "_slot")

    def __init__(self, head: Head, plan: Plan, slot: Slot, most: int, era: Era) -> None:
        self._head = head
        self._slot = slot
        self._most = most if plan.several else 0
        self._era = era
        self._number = era.number
        self._rules = plan.rules

    def take(self, ident: bytes, body: bytes) -> bool:
        slot = self._slot
        line = slot.line
        if line.held or slot.closed or not self._era.stands(self._number, self._rules):
            return False
        most = self._most
        if most and len(slot.waiting) >= most:
            return False
        if slot.exchange is not None and not slot.waiting:
            call = slot.exchange.oldest(slot)
            if call is not None:
                slot.hand_over(call, ident, None, True)
                return True
        slot.add(Request(line.connection, self._head, ident.decode(), body), most > 0)
        return True
