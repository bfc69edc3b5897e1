"""The bus as an endpoint of the core: its handlers and all other twins, as seen from other wires (DESIGN 3).

Invariant: a call that was delivered here ends by an answer of the twin that was asked or at its deadline.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Final

from polybus.core.alias import origin
from polybus.core.endpoint import Endpoint, Identity
from polybus.errors import ConfigError, Refused
from polybus.model.ids import random_id
from polybus.model.message import Call, Publication, Reply, Status
from polybus.model.name import is_name
from polybus.model.record import Delivery
from polybus.protocols.rmb.answers import decode_dat, encode_dat
from polybus.protocols.rmb.hops import MAX_HOPS, hops_of, with_hops
from polybus.protocols.rmb.message import REPLY_QUEUE, Message
from polybus.protocols.rmb.names import WIRE, from_shared, to_shared, to_twin
from polybus.protocols.rmb.pending import Waiting
from polybus.protocols.rmb.queues import is_reserved
from polybus.protocols.rmb.serving import Asked

if TYPE_CHECKING:
    from polybus.protocols.rmb.room import RmbRoom

log = logging.getLogger("polybus.rmb")

TWINS: Final = "twin"  # the prefix under which the others are called
_BELOW: Final = ".**"
_NO_DEADLINE: Final = 3600  # seconds, as the wire's own default


class RmbParty(Endpoint):
    """One per room."""

    wire = WIRE
    __slots__ = ("declared", "room")

    def __init__(self, room: RmbRoom) -> None:
        super().__init__(Identity("twin", str(room.own)), f"twin {room.own}")
        self.room = room
        self.declared: set[str] = set()
        """Names that handlers declared and that are registered for them."""

    def register(self, services: tuple[str, ...]) -> None:
        """Offer the declared commands, and the other twins, to everybody.

        Raises:
            ConfigError, NameTaken.
        """
        # The operator's own words, which no rule has to allow once more.
        offered = self.room.router.services
        offered.register(self, TWINS, TWINS, prefix=True)
        for text in services:
            cmd = text.removesuffix(_BELOW)
            shared = to_shared(cmd)
            if shared is None or not is_name(shared) or "*" in cmd:
                raise ConfigError(f"rmb.services: {text!r} is neither a command nor one with .**")
            # The wire's own spelling of a prefix is cut at `/`, as the core matches prefixes.
            offered.register(self, shared, shared, prefix=text != cmd)

    def declare(self, commands: set[str]) -> None:
        """Offer what handlers declare now, and no longer what they declared before."""
        router = self.room.router
        wanted = {name for cmd in commands if (name := to_shared(cmd)) and not is_reserved(cmd)}
        for name in self.declared - wanted:
            router.unregister(self, name)
        for name in tuple(wanted - self.declared):
            try:
                router.register(self, name, name)
            except Refused as exc:
                log.debug("%s is not offered: %s", name, exc.text)  # by the configuration already
                wanted.discard(name)
        self.declared = wanted

    # -- Endpoint --

    def deliver_call(self, call: Call) -> None:
        room = self.room
        router = room.router
        found = to_twin(call.name)
        dst, cmd = found if found is not None else (room.own, from_shared(call.name) or "")
        if not cmd or is_reserved(cmd):
            router.fail(call, Status.NOT_FOUND, f"no command is called {call.name}".encode())
            return
        hops = _hops_before(call)
        if hops > MAX_HOPS:
            text = f"{hops} twins have passed this call on: aliases that lead to each other?"
            router.fail(call, Status.REFUSED, text.encode())
            return
        now = room.wall_ms() // 1000
        left = _NO_DEADLINE
        if call.deadline is not None:
            # Whole seconds from a `now` without its fraction: one more, or the caller would be told of an error of the
            # service before its own deadline has passed.
            left = max(0, math.ceil(call.deadline - router.clock.monotonic())) + 1
        m = Message(
            uid=with_hops(random_id(), hops),
            cmd=cmd,
            exp=left,
            tries=2,
            dat=encode_dat(call.payload),
            src=room.own,
            dst=[dst],
            ret=REPLY_QUEUE,
            now=now,
            err="",
        )
        if len(m.dat) > room.options.max_body:
            router.fail(call, Status.TOO_LARGE, b"the payload is larger than a message may be")
            return
        self._ask(call, m, dst)

    def _ask(self, call: Call, m: Message, dst: int) -> None:
        room = self.room
        waiting = Waiting(m.uid, dst, m)
        waiting.answer = lambda reply: self._answer(call, reply)
        call.key = waiting.key
        room.pending.add(waiting)
        if dst == room.own:
            room.serving.enqueue(m, None)
        else:
            room.forward.send(waiting)

    def _answer(self, call: Call, m: Message) -> None:
        router = self.room.router
        if m.failed:
            router.reply(Reply(call, (m.err or "").encode(), Status.FAILED))
        else:
            router.reply(Reply(call, decode_dat(m.dat)))

    def cancel_call(self, call: Call) -> None:
        # This wire cannot say "cancel": the late answer finds nobody.
        if call.key is not None:
            self.room.pending.take(*call.key)

    def deliver_reply(self, reply: Reply) -> None:
        self.room.serving.bridged(reply)

    def deliver_publication(self, publication: Publication) -> bool:
        return False

    def deliver_record(self, delivery: Delivery) -> None:
        raise AssertionError("this wire has no durable topics")

    def close(self, reason: str) -> None:
        """It has no connection that could end: what handlers declared goes, and may be declared again.

        What the operator offers stays as no rule has to allow it, and twins still call through it by their own rights.
        """
        for name in self.declared:
            self.room.router.unregister(self, name)
        self.declared.clear()


def _hops_before(call: Call) -> int:
    """How many twins a call has come through, this one included; 0 when it began here."""
    asked = origin(call).token
    return hops_of(asked.request.uid) + 1 if isinstance(asked, Asked) else 0
