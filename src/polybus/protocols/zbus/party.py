"""One Zbus client: what it sends is carried out, what is for it is sent (protocol page Zbus §3, §5, §8).

Invariant: requests of one connection take effect in their order, although declaring and removing wait for the disk;
a consume that waits holds up nobody. Consecutive messages for one topic are stored as one batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from polybus.core.endpoint import ANONYMOUS, Endpoint, Identity, Traffic
from polybus.errors import Conflict, NoSuchGroup, NoSuchTopic, PolybusError
from polybus.model.ids import random_id
from polybus.model.message import Publication, Reply, Status
from polybus.model.record import NewRecord
from polybus.protocols.zbus import answers
from polybus.protocols.zbus.bridge import Asked, wrap_result
from polybus.protocols.zbus.plan import Kind, Plan
from polybus.protocols.zbus.planning import make_plan, may_pass_by
from polybus.protocols.zbus.relay import GAP, Consuming, Line, RpcCall, Slot
from polybus.protocols.zbus.rpc import fail_all
from polybus.protocols.zbus.wire import (
    JSON,
    MAX_ID,
    WIRE,
    encode_reply,
    new_id,
    reply_headers,
)

if TYPE_CHECKING:
    from polybus.http.request import Request
    from polybus.http.session import HttpSession
    from polybus.protocols.zbus.room import ZbusRoom


_PRODUCE: Final = (
    Kind.PRODUCE
)  # per message, as CPython 3.11 takes five times as long to find it in the class


class LineTraffic(Traffic):
    """Counters of a party: what comes and goes is counted where it passes, and looked up when somebody asks."""

    __slots__ = ("_line",)

    def __init__(self, line: Line) -> None:
        self._line = line
        self.bytes_out = self.calls = self.failures = self.dropped = 0

    @property
    def messages_in(self) -> int:  # type: ignore[override]
        return self._line.taken

    @property
    def messages_out(self) -> int:  # type: ignore[override]
        return self._line.sent

    @property
    def bytes_in(self) -> int:  # type: ignore[override]
        return self._line.connection.received


class ZbusParty(Endpoint):
    """The application's side of one HTTP connection (`http.site.Party`), and an endpoint of the core."""

    wire = WIRE
    __slots__ = (
        "_acks",
        "_backlog",
        "_busy",
        "_records",
        "_slots",
        "_topic",
        "_unfinished",
        "connection",
        "line",
        "room",
        "sender",
        "stamp",
        "who",
    )

    def __init__(self, room: ZbusRoom, connection: HttpSession) -> None:
        identity: Identity = connection.identity or ANONYMOUS
        super().__init__(identity, connection.peer)
        self.who = identity
        """Of the request at hand, which may carry a token of its own."""
        self.room = room
        self.connection = connection
        self.sender = random_id()
        self.stamp = {
            "sender": self.sender,
            "host": room.advertise,
            "remote-addr": f"/{connection.peer}",
        }
        # The run of messages for one topic that is being collected
        self._topic = ""
        self._records: list[NewRecord] = []
        self._acks: list[tuple[Request, bytes]] = []
        self._unfinished = 0
        # Commands that wait for the disk hold those behind them
        self._busy = False
        self._backlog: deque[Request] = deque()
        self._slots: dict[tuple[str, str], Slot] = {}
        self.line = Line(self, connection, self.sender)
        self.line.plain = True
        self.traffic = LineTraffic(self.line)
        room.join(self)

    # -- http.site.Party --------------------------------------------------------------------------------------

    def take(self, request: Request) -> None:
        if self._busy:
            self._backlog.append(request)
            return
        if not request.head.ordered:
            self.line.plain = False
        plan: Plan | None = request.head.memo
        room = self.room
        if plan is None or plan.era != room.era.number or plan.rules != room.router.policy.epoch:
            found = make_plan(self, request)
            if found is None:
                return
            plan = request.head.memo = found
        self.who = plan.who
        if not request.id:
            request.id = new_id()
        if self.room.tracers:
            self.room.trace(self, plan.command, request)
        kind = plan.kind
        if kind == _PRODUCE:
            self._produce(plan, request)
            return
        if self._records:
            self._end_run()
        if kind == Kind.CALL:
            self._call(plan, request)
        elif kind == Kind.ROUTE:
            self._route(plan, request)
        elif kind == Kind.CONSUME:
            self._consume(plan, request)
        else:
            self.room.commands.run(self, plan.command, request)

    def passed_over(self, request: Request) -> None:
        """An answer of a service that is too large ends its call: who asked would wait for it in vain."""
        headers = request.head.headers
        ident = request.id or headers.get("id", "")
        call = self.line.served(headers.get("recver", ""), ident.encode())
        if call is not None:
            text = "the answer is larger than a Zbus message may be"
            call.exchange.topic.fail(call, Status.TOO_LARGE, text)

    def flush(self) -> None:
        if self._records:
            self._end_run()

    def lost(self, exc: Exception | None) -> None:
        self._backlog.clear()
        self._records.clear()
        for slot in self._slots.values():
            slot.closed = True
            slot.waiting.clear()
            if slot.plain and exc is None and slot.member is not None:
                # A browser or curl that has read its answer does not come back to confirm it.
                slot.member.ack(list(slot.member.unconfirmed))
            if slot.exchange is not None:
                slot.exchange.topic.leave(self)
        self._slots.clear()
        self.room.leave(self)
        self.line.closed = True
        self.room.router.chores.add(fail_all(deque(self.line.unserved())))
        self.line.serving.clear()
        self.line.latest = self.line.before = None

    def tick(self, now: float) -> None:
        """Nothing: heartbeats count as any other input, and the session ends who is silent."""

    # -- produce ----------------------------------------------------------------------------------------------

    def _produce(self, plan: Plan, request: Request) -> None:
        ident = request.id
        if len(ident) > MAX_ID:
            if plan.acknowledged:
                request.send(
                    answers.bad(ident, plan.topic, f"Message.Id length should <= {MAX_ID}")
                )
            elif request.head.ordered:
                request.send(encode_reply(200, reply_headers(ident)))
            return
        if plan.topic != self._topic and self._records:
            self._end_run()
        self._topic = plan.topic
        body = request.body if plan.body is None else plan.body
        # The id is the record's key: not its id, which would deduplicate, and not one of the headers, which all
        # messages of this plan share.
        key = ident.encode()
        repeat = ident if self.room.options.deduplicate else ""
        self._records.append(NewRecord(body, key, plan.tag, plan.headers, repeat))
        self.line.held = self.connection.gathering = True
        if plan.acknowledged:
            self._acks.append((request, plan.answer_head + key))
        elif request.head.ordered:
            request.send(encode_reply(200, reply_headers(ident)))

    def _end_run(self) -> None:
        """Store what was collected, and answer once it is on disk."""
        topic, records, acks = self._topic, self._records, self._acks
        self._records, self._acks = [], []
        self.line.held = self._busy
        self.line.taken += len(records)

        def stored(first: int, error: PolybusError | None) -> None:
            self._unfinished -= 1
            if self.closed:
                return
            if error is None:
                self._confirm(acks)
            else:
                for request, _ in acks:
                    request.send(answers.error(request.id, topic, error))
            if not self._unfinished and self.connection.outbox.reading_paused:
                self.connection.outbox.resume_reading()

        self._unfinished += 1
        try:
            room_left = self.room.topics.produce(topic, records, stored, create=False, by=self)
        except PolybusError as exc:
            stored(-1, exc)
            return
        if not room_left:
            # The commit queue is full: the producer waits until its own messages are through.
            self.connection.outbox.pause_reading()

    def _confirm(self, acks: list[tuple[Request, bytes]]) -> None:
        end = GAP + str(self.room.clock.wall_ms()).encode()
        connection = self.connection
        if connection.framed or any(request.head.ordered for request, _ in acks):
            for request, head in acks:
                request.send(head + end)
        elif acks:
            self.line.sent += len(acks)
            lines = [head for _, head in acks]
            lines.append(b"")
            connection.send(end.join(lines))

    # -- rpc --------------------------------------------------------------------------------------------------

    def _call(self, plan: Plan, request: Request) -> None:
        body = request.body if plan.body is None else plan.body
        rpc = plan.rpc
        assert rpc is not None
        self.line.taken += 1
        if not (plan.judged or self.room.permits.allow_call(plan.who, rpc.name, body)):
            request.send(answers.forbidden(request.id, plan.command.topic))
            return
        if request.head.ordered:
            self.expect_routed(request)
        if plan.counted:
            self.room.bridge_or_fail(self, plan.command, request, body)
            return
        head = plan.head if plan.sized else plan.head + b"content-length: %d\r\n" % len(body)
        ident = request.id.encode()
        call = RpcCall(rpc.exchange, head, ident, body, self.line, self.sender)
        if not rpc.exchange.call(call):
            self.room.bridge_or_fail(self, plan.command, request, body)
        elif self.room.router.calls.watch is not None:
            call.watched = self.room.watch_call(plan.who, rpc.name, body)

    def _route(self, plan: Plan, request: Request) -> None:
        room, body = self.room, request.body
        ident = request.id.encode()
        self.line.taken += 1
        self.line.answered(plan.recver, ident, plan.status, body)
        target = room.parties.get(plan.recver)
        if target is not None:
            size = b"" if plan.sized else b"content-length: %d\r\n" % len(body)
            target.line.deliver(ident, [plan.head, size, b"id: ", ident, GAP, body])
        elif plan.recver == room.bridge_id:
            for rpc in tuple(room.rpc.values()):
                if rpc.routed(request.id, plan.status, body):
                    break
        if request.head.ordered:
            request.send(encode_reply(200, reply_headers(request.id)))

    def deliver_routed(self, ident: str, raw: bytes) -> None:
        """Send this caller an answer that is no service's."""
        self.line.deliver(ident.encode(), [raw])

    def expect_routed(self, request: Request) -> None:
        """The answer to this plain HTTP request will be routed here."""
        self.line.ordered[request.id.encode()] = request

    @property
    def serving(self) -> int:
        """How many calls this connection has taken and not answered."""
        return len(self.line.unserved())

    # -- consume ----------------------------------------------------------------------------------------------

    def _consume(self, plan: Plan, request: Request) -> None:
        slot = plan.slot
        if slot is None or slot.closed:
            slot = plan.slot = self._slot(plan, request)
            if slot is None:
                return
            if may_pass_by(self, request):
                most = self.room.options.max_waiting
                request.head.shortcut = Consuming(request.head, plan, slot, most, self.room.era)
        if plan.several and len(slot.waiting) >= self.room.options.max_waiting:
            request.send(answers.bad(request.id, plan.topic, "too many consumes are waiting"))
            return
        slot.add(request, plan.several)

    def _slot(self, plan: Plan, request: Request) -> Slot | None:
        """Join the group that a consume names; None when it was answered with an error."""
        room = self.room
        asked = plan.command.group or plan.topic
        group = room.group_named(plan.topic, asked)
        if group is None:
            request.send(answers.no_group(request.id, plan.command.topic, asked))
            return None
        rpc = room.rpc.get(plan.topic)
        exchange = None if rpc is None else rpc.exchange
        known = self._slots.get((plan.topic, group.name))
        # A topic that was removed and declared again has another exchange.
        if known is not None and not known.closed and known.exchange is exchange:
            return known
        slot = Slot(self, self.line, None, exchange)
        if exchange is None:
            try:
                slot.member = room.groups.join(
                    self, plan.topic, group.name, on_closed=self._closed(slot, plan.command.topic)
                )
            except Conflict:
                text = f"ConsumeGroup({group.name}) exclusive, forbbiden"
                request.send(answers.text(401, request.id, plan.command.topic, text))
                return None
            except PolybusError as exc:
                request.send(answers.error(request.id, plan.command.topic, exc))
                return None
            slot.member.deliver = slot.deliver
        self._slots[plan.topic, group.name] = slot
        return slot

    def _closed(self, slot: Slot, topic: str) -> Callable[[PolybusError], None]:
        def closed(error: PolybusError) -> None:
            slot.closed = True
            for request in slot.waiting:
                if isinstance(error, NoSuchGroup):
                    request.send(answers.no_group(request.id, topic, error.group))
                elif isinstance(error, NoSuchTopic):
                    request.send(answers.no_topic(request.id, topic))
                else:
                    request.send(answers.error(request.id, topic, error))
            slot.waiting.clear()

        return closed

    def slot_of(self, topic: str, group: str) -> Slot | None:
        """The slot of a group, by its exact names."""
        return self._slots.get((topic, group))

    def drop_waiting(self, request: Request) -> None:
        """A consume was replaced: its id is never answered, but HTTP wants every request answered in turn."""
        if request.head.ordered:
            text = "replaced by a later consume on this connection"
            request.send(answers.text(409, request.id, "", text))

    # -- what takes time --------------------------------------------------------------------------------------

    def wait_for(self, work: Coroutine[Any, Any, None]) -> None:
        """Carry out a command that waits for the disk; later requests of this connection come after it."""
        self._busy = self.line.held = True
        self.connection.outbox.pause_reading()
        self.room.topics.groups.spawn(self._wait(work))

    async def _wait(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        finally:
            self._busy = self.line.held = False
            if not self.closed:
                while self._backlog and not self._busy:
                    self.take(self._backlog.popleft())
                self.flush()
                if not self._busy and not self._unfinished:
                    self.connection.outbox.resume_reading()

    # -- Endpoint ---------------------------------------------------------------------------------------------

    def deliver_reply(self, reply: Reply) -> None:
        """The answer of a service on another wire to a call of this client."""
        asked: Asked = reply.call.token
        whole = asked.joined(reply, self.room.options.max_body)
        if whole is None:
            return
        self.room.router.cancel(reply.call)  # nothing may follow the answer
        status, body = wrap_result(whole)
        headers = {**reply_headers(asked.ident, asked.topic), **(JSON if status == 200 else {})}
        self.deliver_routed(asked.ident, encode_reply(status, headers, body))

    def deliver_publication(self, publication: Publication) -> bool:
        return False  # this wire has no live publications

    def hold_input(self, held: bool) -> None:
        self.connection.outbox.throttle(held)

    def close(self, reason: str) -> None:
        self.connection.outbox.close(reason)
