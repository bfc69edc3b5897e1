"""Who waits for an answer.

Invariant: every call that was opened ends exactly once: with a final reply, or with a failure when its service, its
caller, its time or the node has gone. Late and second answers are ignored.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator

from polybus.core.endpoint import Endpoint
from polybus.core.services import Registration
from polybus.core.watch import Watch
from polybus.model.ids import counter
from polybus.model.message import Call, Reply, Status

TEXTS = {
    Status.GONE: b"service disconnected before it answered",
    Status.TIMED_OUT: b"no reply before the deadline",
    Status.DRAINING: b"the node is stopping",
}


class Calls:
    """The pending calls that go through the core; a wire's own fast path keeps its own table with the same
    invariant."""

    def __init__(self) -> None:
        self._next_id = counter()
        self._deadlines: list[tuple[float, int, Call]] = []
        self.pending = 0
        self.on_end: Callable[[Call, Status | None], None] | None = None
        """Told how each call ended, by its status; None when its caller gave up. Set by whoever measures."""
        self.watch: Watch | None = None
        """Notes calls for the journal and captures; None when neither is on."""

    def open(self, call: Call, registration: Registration, now: float) -> None:
        """Note a call that is about to be delivered."""
        service = registration.endpoint
        call.id = self._next_id()
        call.registration = registration
        call.service = service
        call.started = now
        if self.watch is not None:
            self.watch.call_opened(call)
        if not call.wants_reply:
            return
        call.open = True
        self.pending += 1
        caller: Endpoint = call.caller
        if caller.calls_made is None:
            caller.calls_made = set()
        caller.calls_made.add(call)
        if service.calls_taken is None:
            service.calls_taken = set()
        service.calls_taken.add(call)
        if call.charged is not None:
            call.charged.calls += 1
        if call.deadline is not None:
            heapq.heappush(self._deadlines, (call.deadline, call.id, call))

    def reply(self, reply: Reply) -> bool:
        """Pass one part of an answer on; False when the call has ended already."""
        call = reply.call
        if not call.open or self._abandoned(call):
            return False
        if call.watched is not None:
            call.watched.replied(reply)
        if reply.final:
            self._end(call, reply.status)
        call.caller.deliver_reply(reply)
        return True

    def fail(self, call: Call, status: Status, text: bytes | None = None) -> None:
        """End a call from our side."""
        if call.open and not self._abandoned(call):
            self._end(call, status)
            reply = Reply(call, TEXTS.get(status, b"") if text is None else text, status)
            if call.watched is not None:
                call.watched.replied(reply)
            call.caller.deliver_reply(reply)

    def cancel(self, call: Call) -> None:
        """The caller no longer wants the answer; the service is told where its wire can say so."""
        if call.open:
            self._end(call, None)
            if call.watched is not None:
                call.watched.abandoned()
            call.service.cancel_call(call)

    def leave(self, endpoint: Endpoint) -> Iterator[None]:
        """Steps that cancel what a `closed` endpoint asked and fail what it was asked, a call each."""
        made, endpoint.calls_made = endpoint.calls_made or set(), None
        taken, endpoint.calls_taken = endpoint.calls_taken or set(), None
        return self._give_up(made, taken)

    def _give_up(self, made: set[Call], taken: set[Call]) -> Iterator[None]:
        # Taken out one by one, as to free them all in the end would take its time too.
        while made:
            self.cancel(made.pop())
            yield
        while taken:
            self.fail(taken.pop(), Status.GONE)
            yield

    def tick(self, now: float) -> None:
        """End what is past its deadline."""
        deadlines = self._deadlines
        while deadlines and deadlines[0][0] <= now:
            call = heapq.heappop(deadlines)[2]
            if call.open:
                self.fail(call, Status.TIMED_OUT)
                call.service.cancel_call(call)
        # Calls are usually answered long before their deadline: without this their entries would pile up.
        if len(deadlines) > 1024 and len(deadlines) > 4 * self.pending:
            self._deadlines = [entry for entry in deadlines if entry[2].open]
            heapq.heapify(self._deadlines)

    def _abandoned(self, call: Call) -> bool:
        """Whether its caller has gone; one with many calls takes some turns to cancel them all."""
        if call.caller.closed:
            self.cancel(call)
        return not call.open

    def _end(self, call: Call, status: Status | None) -> None:
        call.open = False
        self.pending -= 1
        if call.charged is not None:
            call.charged.calls -= 1
        # None while such a party is leaving.
        if call.caller.calls_made is not None:
            call.caller.calls_made.discard(call)
        if call.service.calls_taken is not None:
            call.service.calls_taken.discard(call)
        if self.on_end is not None:
            self.on_end(call, status)
