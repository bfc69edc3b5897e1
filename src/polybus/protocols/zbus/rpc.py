"""RPC topics: calls are handed from callers to consumers in memory and never touch the log (protocol page §8).

Invariant: every call ends: with what the service routes back, or with 502 when no service is there, the queue is
full, or the service's connection goes before it answered. Waiting consumers are served first come, first served.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Final

from polybus.core.endpoint import Endpoint, Identity
from polybus.errors import PolybusError
from polybus.model.message import Call, Reply, Status
from polybus.protocols.zbus.bridge import unwrap_result, wrap_call
from polybus.protocols.zbus.names import from_shared
from polybus.protocols.zbus.wire import (
    WIRE,
    encode_reply,
    new_id,
    reply_headers,
)

if TYPE_CHECKING:
    from polybus.core.watch import Watched
    from polybus.protocols.zbus.party import ZbusParty
    from polybus.protocols.zbus.room import ZbusRoom
    from polybus.protocols.zbus.slot import Slot

OK: Final = b"HTTP/1.1 200 OK\r\n"


class RpcCall:
    """A call on its way to a service. `head` are the header lines that do not depend on who takes it."""

    __slots__ = ("body", "caller", "head", "id", "origin", "topic", "watched")

    def __init__(
        self,
        topic: str,
        head: bytes,
        id: str,
        body: bytes,
        caller: ZbusParty | None,
        origin: Call | None = None,
    ) -> None:
        self.topic = topic
        self.head = head
        self.id = id
        self.body = body
        self.caller = caller
        self.origin = origin
        """The call of another wire that this one carries."""
        self.watched: Watched | None = None
        """What the journal and captures have noted of it."""


class RpcTopic(Endpoint):
    """One topic with the rpc bit; also the endpoint through which other wires call it."""

    wire = WIRE
    __slots__ = (
        "_bytes",
        "_registered",
        "bridged",
        "calls",
        "consumers",
        "count",
        "name",
        "room",
        "waiting",
    )

    def __init__(self, room: ZbusRoom, name: str) -> None:
        # The node's own: those who consume from it were asked whether they may register it.
        super().__init__(Identity("local"), peer=f"zbus topic {name}")
        self.room = room
        self.name = name
        self.waiting: deque[Slot] = deque()
        self.consumers: dict[ZbusParty, None] = {}
        self.calls: OrderedDict[RpcCall, None] = OrderedDict()
        """Those that no consumer has taken yet, oldest first; any of them may be cancelled."""
        self.bridged: dict[str, RpcCall] = {}
        """By id, the calls of other wires that are not answered yet."""
        self.count = 0
        self._bytes = 0
        self._registered = False

    # -- callers ----------------------------------------------------------------------------------------------

    def call(self, call: RpcCall) -> bool:
        """Pass a call to whoever waits, or keep it for the next who does; False when nobody can take it."""
        waiting = self.waiting
        while waiting:
            slot = waiting.popleft()
            request = slot.next_waiting()
            if request is not None:
                slot.hand_over(request, call, self.count, busy=False)
                self.count += 1
                return True
        options = self.room.options
        if not self.consumers:
            return False
        size = len(call.body) + len(call.head)
        if (
            len(self.calls) >= options.rpc_queue_calls
            or self._bytes + size > options.rpc_queue_bytes
        ):
            return False
        self.calls[call] = None
        self._bytes += size
        return True

    def _unqueue(self, call: RpcCall) -> None:
        del self.calls[call]
        self._bytes -= len(call.body) + len(call.head)

    def fail(self, call: RpcCall, status: Status = Status.GONE, text: str = "") -> None:
        """Tell the caller that its call will not be answered."""
        if call.watched is not None:
            call.watched.answered(b"", status)
        if call.origin is not None:
            self.bridged.pop(call.id, None)
            self.room.router.fail(call.origin, status, text.encode() if text else None)
        elif call.caller is not None:
            call.caller.deliver_routed(call.id, service_down(call.topic, call.id, text))

    # -- services ---------------------------------------------------------------------------------------------

    def wait(self, slot: Slot) -> None:
        """A consumer waits for the next call."""
        if slot.party not in self.consumers:
            self.consumers[slot.party] = None
            self._register()
            self.room.tracker.changed()
        while self.calls:
            call = next(iter(self.calls))
            if call.caller is not None and call.caller.closed:
                self._unqueue(call)
                if call.watched is not None:
                    call.watched.abandoned()
                continue
            request = slot.next_waiting()
            if request is not None:
                self._unqueue(call)
                slot.hand_over(request, call, self.count, busy=True)
                self.count += 1
            return
        self.waiting.append(slot)

    def leave(self, party: ZbusParty) -> None:
        """A consumer is gone; without any, nobody is left to wait for."""
        if self.consumers.pop(party, party) is None:
            self.waiting = deque(slot for slot in self.waiting if slot.party is not party)
            self.room.tracker.changed()
            if not self.consumers:
                self._fail_all()

    def retire(self) -> None:
        """The topic is gone, or no RPC topic any more."""
        self.consumers.clear()
        self.waiting.clear()
        self._fail_all()

    def _fail_all(self) -> None:
        self._unregister()
        calls, self.calls = self.calls, OrderedDict()
        self._bytes = 0
        for call in calls:
            self.fail(call)

    # -- other wires ------------------------------------------------------------------------------------------

    def _register(self) -> None:
        if not self._registered:
            router = self.room.router
            router.attach(self)
            self.closed = False
            try:
                # By prefix, since `a/c` and `a/b/c` are methods of the topic `a` (DESIGN 3).
                router.register(self, self.name, self.name, prefix=True)
            except PolybusError as exc:
                self.room.log.warning("topic %s is not offered to other wires: %s", self.name, exc)
            self._registered = True

    def _unregister(self) -> None:
        if self._registered:
            self._registered = False
            self.room.router.detach(self)

    def deliver_call(self, call: Call) -> None:
        where = from_shared(call.name, self.name)
        if where is None:
            self.room.router.fail(
                call, Status.NOT_FOUND, b"a method has at most a module before it"
            )
            return
        body = wrap_call(where[0], where[1], call.payload)
        if len(body) > self.room.options.max_body:
            text = b"the payload is larger than a Zbus message may be"
            self.room.router.fail(call, Status.TOO_LARGE, text)
            return
        ident = new_id()
        head = self.room.bridge_head(self.name, call.headers, body)
        call.forget_payload()
        carrying = RpcCall(self.name, head, ident, body, None, call)
        if call.wants_reply:
            call.key = ident
            self.bridged[ident] = carrying
        if not self.call(carrying):
            self.bridged.pop(ident, None)
            self.room.router.fail(call, Status.STALLED, b"no service takes the call")

    def routed(self, ident: str, status: int, body: bytes) -> bool:
        """What a service sent back for a call of another wire; False when no such call is open here."""
        carrying = self.bridged.pop(ident, None)
        if carrying is None or carrying.origin is None:
            return False
        failed, payload = unwrap_result(status, body)
        outcome = Status.FAILED if failed else Status.OK
        self.room.router.reply(Reply(carrying.origin, payload, outcome))
        return True

    def cancel_call(self, call: Call) -> None:
        carrying = self.bridged.pop(call.key, None)
        if carrying is not None and carrying in self.calls:
            self._unqueue(carrying)

    def close(self, reason: str) -> None:
        self.retire()


def service_down(topic: str, ident: str, text: str = "") -> bytes:
    """The answer to a call that nobody takes, or that was not answered for the reason given."""
    body = f"502: {text or f'Service({topic}) Down'}"
    return encode_reply(502, reply_headers(ident, topic), body.encode())


def call_message(call: RpcCall, consume_id: str, offset: int) -> bytes:
    """A call as the answer to a consume."""
    own = f"id: {consume_id}\r\norigin_id: {call.id}\r\noffset: {offset}\r\n\r\n"
    return b"".join((OK, call.head, own.encode("utf-8", "replace"), call.body))
