"""Second names for services: for wires that cannot spell the first one (DESIGN 3).

Invariant: a call to an alias is a call to its target with the caller's deadline, and ends when that one ends.
"""

from __future__ import annotations

from polybus.core.endpoint import Endpoint, Identity
from polybus.core.router import Router
from polybus.core.subscriptions import EXACT
from polybus.core.watch import ALIAS
from polybus.errors import InvalidName, NotAuthorized, PolybusError
from polybus.model.message import Call, Reply, Status
from polybus.model.name import check_name


def origin(call: Call) -> Call:
    """The call that an alias, or none, stands behind."""
    while call.caller.wire == ALIAS:
        call = call.token
    return call


class Aliases(Endpoint):
    """The service that answers every alias of a node, on a wire of its own."""

    wire = ALIAS
    __slots__ = ("_router", "targets")

    def __init__(self, router: Router, targets: dict[str, str]) -> None:
        """Check the names.

        Raises:
            InvalidName: no name, or an alias of an alias.
        """
        super().__init__(Identity("local"), "aliases")
        for name, target in targets.items():
            check_name(name)
            check_name(target)
            if target in targets:
                raise InvalidName(target, "an alias stands for a service, not for another alias")
        self._router = router
        self.targets = targets

    def start(self) -> None:
        """Claim the names; whoever serves one of them itself, on the caller's own wire, still comes first."""
        self._router.add_wire(ALIAS, EXACT)
        self._router.attach(self)
        for name in self.targets:
            self._router.register(self, name, name)

    def deliver_call(self, call: Call) -> None:
        inner = Call(
            self,
            self.targets[call.name],
            call.payload,
            token=call,
            deadline=call.deadline,
            headers=call.headers,
            wants_reply=call.wants_reply,
        )
        call.key = inner
        try:
            # A second name is no way around the rules for the first.
            self._router.check(call.identity or call.caller.identity, "call", inner.name)
            self._router.call(inner)
        except NotAuthorized as exc:
            self._router.fail(call, Status.REFUSED, exc.text.encode())
        except PolybusError as exc:
            self._router.fail(call, Status.NOT_FOUND, exc.text.encode())

    def deliver_reply(self, reply: Reply) -> None:
        outer: Call = reply.call.token
        passed = Reply(outer, reply.payload, reply.status, final=reply.final, headers=reply.headers)
        self._router.reply(passed)

    def cancel_call(self, call: Call) -> None:
        self._router.cancel(call.key)

    def close(self, reason: str) -> None:
        """It has no connection."""
