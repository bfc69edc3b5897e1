"""RPC topics: calls are handed from callers to consumers in memory and never touch the log (protocol page §8).

Invariant: a topic with consumers is offered to the other wires; a call that ends in any way but its answer is told to
its caller in that caller's words. Who gets which call is the business of the exchange (`relay`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from polybus.core.endpoint import Endpoint, Identity
from polybus.errors import PolybusError
from polybus.model.message import Call, Reply, Status
from polybus.protocols.zbus import answers
from polybus.protocols.zbus.bridge import unwrap_result, wrap_call
from polybus.protocols.zbus.names import from_shared
from polybus.protocols.zbus.relay import Exchange, RpcCall
from polybus.protocols.zbus.wire import (
    OK,
    WIRE,
    encode_reply,
    new_id,
    reply_headers,
)

if TYPE_CHECKING:
    from polybus.protocols.zbus.party import ZbusParty
    from polybus.protocols.zbus.room import ZbusRoom


class RpcTopic(Endpoint):
    """One topic with the rpc bit; also the endpoint through which other wires call it."""

    wire = WIRE
    __slots__ = (
        "_registered",
        "bridged",
        "exchange",
        "name",
        "room",
    )

    def __init__(self, room: ZbusRoom, name: str) -> None:
        # The node's own: those who consume from it were asked whether they may register it.
        super().__init__(Identity("local"), peer=f"zbus topic {name}")
        self.room = room
        self.name = name
        options = room.options
        self.exchange = Exchange(self, options.rpc_queue_calls, options.rpc_queue_bytes)
        self.bridged: dict[str, RpcCall] = {}
        """By id, the calls of other wires that are not answered yet."""
        self._registered = False

    # -- callers ----------------------------------------------------------------------------------------------

    def fail(self, call: RpcCall, status: Status = Status.GONE, text: str = "") -> None:
        """Tell the caller that its call will not be answered."""
        if call.watched is not None:
            call.watched.answered(b"", status)
        if call.origin is not None:
            self.bridged.pop(call.id.decode(), None)
            self.room.router.fail(call.origin, status, text.encode() if text else None)
        elif call.caller is not None:
            ident = call.id.decode("utf-8", "replace")
            call.caller.deliver(call.id, [service_down(self.name, ident, text)])

    # -- services ---------------------------------------------------------------------------------------------

    def consumed(self) -> None:
        """There is a new consumer."""
        self._register()
        self.room.tracker.changed()

    def leave(self, party: ZbusParty) -> None:
        """A consumer is gone; without any, nobody is left to wait for."""
        if self.exchange.leave(party):
            self.room.tracker.changed()
            if not self.exchange.consumers:
                self.retire()

    def removed(self) -> None:
        """The topic is gone, or no RPC topic any more: consumers hear what makes clients declare it again."""
        for slot in tuple(self.exchange.waiting):
            slot.closed = True
            for request in slot.waiting:
                request.send(answers.no_topic(request.id, self.name))
            slot.waiting.clear()
        self.retire()

    def retire(self) -> None:
        """There are no consumers any more: calls that wait for one end."""
        self._unregister()
        self.room.router.chores.add(fail_all(deque(self.exchange.close())))

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
        head = OK + self.room.bridge_head(self.name, call.headers, body)
        call.forget_payload()
        carrying = RpcCall(self.exchange, head, ident.encode(), body, None, self.room.bridge_id)
        carrying.origin = call
        if call.wants_reply:
            call.key = ident
            self.bridged[ident] = carrying
        if not self.exchange.call(carrying):
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
        if carrying is not None:
            self.exchange.drop(carrying)

    def close(self, reason: str) -> None:
        self.retire()


def fail_all(calls: deque[RpcCall]) -> Iterator[None]:
    """Steps that tell the callers of these that there is no service any more, a call each."""
    while calls:
        call = calls.popleft()
        call.exchange.topic.fail(call)
        yield


def service_down(topic: str, ident: str, text: str = "") -> bytes:
    """The answer to a call that nobody takes, or that was not answered for the reason given."""
    body = f"502: {text or f'Service({topic}) Down'}"
    return encode_reply(502, reply_headers(ident, topic), body.encode())
