"""One client of the Golem Service Bus as the others see it: what they send to it, and the calls it serves.

Invariants: every forwarded call is in the table of its service until its last reply or the end of either side;
each peer gets one write per batch.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from polybus.core.endpoint import ANONYMOUS, Endpoint, Identity
from polybus.core.journal import Opened
from polybus.model.message import Call, Publication, Reply, Status
from polybus.model.pattern import has_wildcard, matches
from polybus.protocols.gsb.names import below
from polybus.protocols.gsb.room import WIRE, GsbRoom
from polybus.protocols.gsb.wire import (
    BAD_REQUEST,
    OK,
    SERVICE_FAILURE,
    CallReply,
    CallRequest,
    Framing,
    Kind,
    encode_broadcast,
    encode_call,
    encode_reply,
    parse_call,
    parse_reply,
)
from polybus.transports.outbox import Outbox

MAX_SERVING: Final = (
    1 << 18
)  # unanswered calls of one service; this wire has no deadlines, memory has an end
MAX_STALLED: Final = 4096  # per client; more calls that wait for a stalled service fail at once

STALLED: Final = b"stalled connection"
GONE: Final = b"service disconnected"
OVERLOADED: Final = b"the service leaves too many calls unanswered"

_CODES: Final = {
    Status.OK: OK,
    Status.NOT_FOUND: BAD_REQUEST,
    Status.REFUSED: BAD_REQUEST,
    Status.TOO_LARGE: BAD_REQUEST,
}


class Rewritten:
    """A call whose request id was pending already: the service sees another id, the caller gets its own back."""

    __slots__ = ("caller", "opened", "request_id")

    def __init__(self, caller: GsbParty, request_id: str, opened: Opened | None) -> None:
        self.caller = caller
        self.request_id = request_id
        self.opened = opened


class GsbParty(Endpoint):
    """The endpoint half of a connection; the session half reads."""

    wire = WIRE
    __slots__ = (
        "_bridged",
        "_queue",
        "_room",
        "_router",
        "_stalled",
        "_topics",
        "framing",
        "instance_id",
        "max_frame",
        "opened",
        "outbox",
        "serving",
        "stopped",
    )

    def __init__(self, room: GsbRoom, identity: Identity = ANONYMOUS, peer: str = "") -> None:
        super().__init__(identity, peer)
        self._room = room
        self._router = room.router
        self.max_frame = room.options.max_frame
        self.outbox: Outbox = None  # type: ignore[assignment]  # set when the connection is made
        self.framing: Framing | None = None  # told by the client's first bytes
        self.instance_id: bytes | None = None  # of its Hello
        self.stopped = False
        self._queue: list[bytes] = []
        self.serving: dict[bytes, GsbParty] = {}
        """Calls it serves: request id → caller, where frames pass as they are; the rest is in `_bridged`."""
        self.opened: dict[bytes, Opened] = {}
        """The same calls for the journal, while one is kept."""
        self._bridged: dict[str, Call | Rewritten] | None = None
        self._stalled: deque[tuple[float, GsbParty, str]] | None = None
        self._topics: dict[str, tuple[str, ...]] | None = None
        """Shared name → the spellings it subscribed."""

    # -- calls it serves --

    def pending(self, request_id: str) -> GsbParty | Call | Rewritten | None:
        """Who waits for the answer to this id."""
        return self.serving.get(request_id.encode()) or (self._bridged or {}).get(request_id)

    def rewrite(self, request: CallRequest, caller: GsbParty, opened: Opened | None) -> None:
        """Send a call to this service under an id of ours, noted so that the reply gets the caller's id back."""
        assert self.framing is not None
        if self.in_flight >= MAX_SERVING:
            caller.send_reply(request.request_id, SERVICE_FAILURE, OVERLOADED)
            return
        request_id = f"{self._room.nonce}-{self._room.next_rewrite()}"
        self._bridges()[request_id] = Rewritten(caller, request.request_id, opened)
        body = encode_call(replace(request, request_id=request_id))
        self.enqueue(self.framing.encode(Kind.CALL_REQUEST, body))

    def _bridges(self) -> dict[str, Call | Rewritten]:
        if self._bridged is None:
            self._bridged = {}
        return self._bridged

    def answer_bridged(self, reply: CallReply, body: bytes) -> None:
        """A reply to a call that came in another shape; one that nobody waits for is ignored, as upstream."""
        bridged = (self._bridged or {}).get(reply.request_id)
        if bridged is None:
            return
        final = not reply.partial
        if final:
            self._bridges().pop(reply.request_id)
        status = Status.OK if reply.code == OK else Status.FAILED
        if isinstance(bridged, Rewritten):
            bridged.caller.send_reply(bridged.request_id, reply.code, reply.data, reply.partial)
            if final:
                self._note_rewritten(bridged, status, len(reply.data))
        else:
            answer = Reply(bridged, reply.data, status, final=final, wire=WIRE, frame=body)
            self._router.reply(answer)

    # -- the journal --

    def forget_opened(
        self, key: bytes, caller: GsbParty, size: int, status: Status = Status.OK, error: str = ""
    ) -> None:
        """A call to this service has ended."""
        opened = self.opened.pop(key, None) if self.opened else None
        if opened is not None:
            self.note_end(key.decode(), opened, caller, size, status, error)

    def note_end(
        self,
        request_id: str,
        opened: Opened,
        caller: GsbParty,
        size: int,
        status: Status = Status.OK,
        error: str = "",
    ) -> None:
        """Write the row of a call."""
        journal = self._router.journal
        if journal is not None:
            started, asked, name = opened
            who = caller.identity.text
            sizes = (asked, size)
            journal.call(started, request_id, (WIRE, WIRE), name, who, sizes, status, error)

    def _note_rewritten(self, call: Rewritten, status: Status, size: int = 0) -> None:
        if call.opened is not None:
            self.note_end(call.request_id, call.opened, call.caller, size, status)

    # -- Endpoint --

    @property
    def in_flight(self) -> int:
        return len(self.serving) + len(self._bridged or ())

    def deliver_call(self, call: Call) -> None:
        """A call from another wire: it gets an id of ours and the address in this service's spelling."""
        assert self.framing is not None
        found, room = call.registration, self._room
        if call.wire == WIRE:  # one whose calls are kept: nothing but the id is ours
            request = replace(parse_call(call.frame), request_id=f"{room.nonce}.{call.id}")
        else:
            request = CallRequest(
                caller=str(call.caller.identity),
                address=below(found.name, found.shared, call.name),
                request_id=f"{room.nonce}.{call.id}",
                data=call.payload,
                no_reply=not call.wants_reply,
            )
        frame = self.framing.encode(Kind.CALL_REQUEST, encode_call(request))
        if len(frame) > self.max_frame:
            self._router.fail(
                call, Status.TOO_LARGE, b"the payload is larger than the service's frame"
            )
            return
        call.forget_payload()
        if call.wants_reply:
            call.key = request.request_id
            self._bridges()[request.request_id] = call
        room.flush()  # what was queued before goes first
        if not self.outbox.offer(frame, call.caller.id):
            self._bridges().pop(request.request_id, None)
            self._router.fail(call, Status.STALLED, STALLED)

    def cancel_call(self, call: Call) -> None:
        # This wire cannot say "cancel"; without the entry the late reply is ignored.
        self._bridges().pop(call.key, None)

    def deliver_reply(self, reply: Reply) -> None:
        if reply.wire == WIRE:
            answer = parse_reply(reply.frame)
            self.send_reply(reply.call.token, answer.code, answer.data, answer.partial)
        else:
            code = _CODES.get(reply.status, SERVICE_FAILURE)
            data = reply.payload if code == OK else reply.text.encode()
            self.send_reply(reply.call.token, code, data, not reply.final)
        self._room.flush()

    def deliver_publication(self, publication: Publication) -> bool:
        assert self.framing is not None
        publisher = publication.publisher
        if isinstance(publisher, GsbParty):
            frame = publication.frame
            if publisher.framing is not self.framing:
                assert publisher.framing is not None
                _kind, body = publisher.framing.parse(frame)
                frame = self.framing.encode(Kind.BROADCAST_REQUEST, body)
            # In the order of what the same publisher sent the fast way; a full queue shows at the flush.
            self.enqueue(frame)
            return True
        self._room.flush()
        taken = False
        for topic in self._topics_of(publication.name or ""):
            body = encode_broadcast(str(publisher.identity), topic, publication.payload)
            frame = self.framing.encode(Kind.BROADCAST_REQUEST, body)
            taken = self._offer_publication(frame, publisher.id) or taken
        return taken

    def _topics_of(self, name: str) -> Sequence[str]:
        """The topics of this client that a shared name stands for; this wire has no wildcards, other wires have."""
        topics = self._topics or {}
        if has_wildcard(name):
            return [t for shared, found in topics.items() if matches(name, shared) for t in found]
        return topics.get(name, ())

    def hold_input(self, held: bool) -> None:
        self.outbox.throttle(held)

    def close(self, reason: str) -> None:
        self.outbox.close(reason)

    # -- output --

    def enqueue(self, data: bytes, count: int = 1) -> None:
        """Queue frames for this client; they are written at the end of the present batch."""
        self.traffic.messages_out += count
        queue = self._queue
        if not queue:
            self._room.waiting.append(self)
        queue.append(data)

    def write_queue(self, sender: GsbParty | None) -> None:
        """Write what was queued: in one piece, unless this client is congested."""
        queue = self._queue
        data = queue[0] if len(queue) == 1 else b"".join(queue)
        self._queue = []
        self.traffic.bytes_out += len(data)
        if sender is None or not self.outbox.congested:
            self.outbox.write(data)
        else:
            self._write_congested(data, sender)

    def _write_congested(self, data: bytes, sender: GsbParty) -> None:
        """One by one: calls and broadcasts need room, replies do not."""
        framing = self.framing
        assert framing is not None
        pos = 0
        while pos < len(data):
            end = pos + framing.length(data, pos)
            frame = data[pos:end]
            pos = end
            kind, body = framing.parse(frame)
            if kind == Kind.BROADCAST_REQUEST:
                self._offer_publication(frame, sender.id)
            elif kind != Kind.CALL_REQUEST:
                self.outbox.write(frame)
            elif not self.outbox.offer(frame, sender.id):
                request = parse_call(body)
                if request.no_reply:
                    self.traffic.dropped += 1
                else:
                    sender.stall(self, request.request_id)

    def _offer_publication(self, frame: bytes, sender: int) -> bool:
        taken = self.outbox.offer_publication(frame, sender)
        self.traffic.dropped += not taken
        return taken

    def send_reply(self, request_id: str, code: int, data: bytes, partial: bool = False) -> None:
        """Queue a reply to a call that this client made."""
        assert self.framing is not None
        body = encode_reply(request_id, code, data, partial)
        self.enqueue(self.framing.encode(Kind.CALL_REPLY, body))

    # -- ends --

    def stall(self, service: GsbParty, request_id: str) -> None:
        """A call of ours found no room at its service: it fails after the forward timeout unless that ends first."""
        if self._stalled is None:
            self._stalled = deque()
        self._stalled.append((self._router.clock.monotonic(), service, request_id))
        if len(self._stalled) > MAX_STALLED:
            self._fail_oldest_stalled()

    def _fail_stalled(self, now: float) -> None:
        timeout = self._room.options.forward_timeout
        while self._stalled and now - self._stalled[0][0] >= timeout:
            self._fail_oldest_stalled()

    def _fail_oldest_stalled(self) -> None:
        assert self._stalled
        _since, service, request_id = self._stalled.popleft()
        pending = service.abandon(request_id)
        if pending is not None:
            self.send_reply(pending, SERVICE_FAILURE, STALLED)

    def abandon(self, request_id: str) -> str | None:
        """Forget a call that never reached this service; the caller's own id of it if it was still pending."""
        caller = self.serving.pop(request_id.encode(), None)
        if caller is not None:
            self.forget_opened(request_id.encode(), caller, 0, Status.STALLED)
            return request_id
        bridged = (self._bridged or {}).pop(request_id, None)
        if not isinstance(bridged, Rewritten):
            return None
        self._note_rewritten(bridged, Status.STALLED)
        return bridged.request_id

    def leave(self) -> None:
        """Give up everything this connection held; its pending callers are told, in slices. Idempotent."""
        if self.closed:
            return
        room = self._room
        if room.instances.get(self.instance_id or b"") is self:
            del room.instances[self.instance_id or b""]
        room.departures += 1
        self._router.detach(self)
        self._router.chores.add(self._fail_pending(), room.flush)

    def _fail_pending(self) -> Iterator[None]:
        for key in tuple(self.serving):
            caller = self.serving.pop(key, None)
            if caller is not None:
                caller.send_reply(key.decode(), SERVICE_FAILURE, GONE)
                self.forget_opened(key, caller, 0, Status.GONE)
            yield
        bridged, self._bridged = self._bridged or {}, None
        for pending in bridged.values():
            if isinstance(pending, Rewritten):
                pending.caller.send_reply(pending.request_id, SERVICE_FAILURE, GONE)
                self._note_rewritten(pending, Status.GONE)
            yield

    def _shed(self) -> None:
        """Fail the oldest calls of a service that does not answer; looked at once a second, not at every call."""
        excess = max(0, len(self.serving) - MAX_SERVING)
        for key in [*itertools.islice(self.serving, excess)]:
            caller = self.serving.pop(key)
            caller.send_reply(key.decode(), SERVICE_FAILURE, OVERLOADED)
            self.forget_opened(key, caller, 0, Status.STALLED)

    def _forget_departed(self) -> Iterator[None]:
        """Callers that have gone will not be answered (protocol page §7); a call each step."""
        for key in tuple(self.serving):
            caller = self.serving.get(key)
            if caller is not None and caller.closed:
                del self.serving[key]
                self.forget_opened(key, caller, 0, Status.GONE, "the caller gave up")
            yield
        for request_id in tuple(self._bridged or ()):
            bridged = self._bridges().get(request_id)
            if isinstance(bridged, Rewritten) and bridged.caller.closed:
                del self._bridges()[request_id]
                self._note_rewritten(bridged, Status.GONE)
            yield
