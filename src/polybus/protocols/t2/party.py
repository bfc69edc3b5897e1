"""One client of the T2 Bus as the others see it: what they send to it.

Invariants: every request that was passed on is in the table of its owner until its answer, its timeout, or the owner's
end; each party gets one write per batch, in the order in which messages were numbered; nothing larger than a frame and
no topic that the real client would stop at is ever sent to it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Final

from polybus.core.endpoint import ANONYMOUS, Endpoint, Identity
from polybus.core.journal import Opened
from polybus.errors import PolybusError
from polybus.model.message import Call, Publication, Reply, Status
from polybus.protocols.t2.names import from_shared
from polybus.protocols.t2.relay import MAX_TAIL, Route, frame_head
from polybus.protocols.t2.room import WIRE, T2Room
from polybus.protocols.t2.wire import (
    CLIENT_KINDS,
    EMPTY,
    MAX_BODY,
    OK,
    TIMEOUT,
    decode_data,
    encode_data,
    parse_message,
    payload_content,
    response_content,
)
from polybus.transports.outbox import Outbox

MAX_TEXT: Final = 64 * 1024  # bytes of a foreign error; whoever writes more means no text
TOO_LARGE: Final = b"the reply is larger than a T2 frame"


class Asked:
    """What a requester needs to get its answer from another wire; `parts` collects a streamed one."""

    __slots__ = ("message_id", "parts", "size")

    def __init__(self, message_id: bytes) -> None:
        self.message_id = message_id
        self.parts: list[bytes] = []
        self.size = 0


Pending = tuple["T2Party | None", "bytes | Call", float, "Opened | None"]
"""Who asked (None: the core), its own id of the request (or the core's call), until when."""


class T2Party(Endpoint):
    """The endpoint half of a connection; the session half reads."""

    wire = WIRE
    __slots__ = (
        "acks",
        "asked",
        "number",
        "outbox",
        "queue",
        "room",
        "routes",
        "serving",
        "stopped",
    )

    def __init__(self, room: T2Room, identity: Identity = ANONYMOUS, peer: str = "") -> None:
        super().__init__(identity, peer)
        self.room = room
        self.routes: dict[bytes, Route] = room.routes_of(identity)
        self.outbox: Outbox = None  # type: ignore[assignment]  # set when the connection is made
        self.queue: list[bytes] = []
        """Output of the present batch: Acks in one piece, all other messages in two."""
        self.acks = 0
        self.asked: dict[bytes, T2Party] = {}
        """Requests it waits for, by the id that their owner knows them by."""
        self.serving: dict[bytes, Pending] = {}
        """Requests it has to answer, by the encoded id that it knows them by, in the order of their deadlines."""
        self.number = room.next_number()
        self.stopped = False

    # -- output --

    def enqueue(self, content: bytes) -> None:
        """Queue one message; it is written at the end of the present batch."""
        if not self.queue:
            self.room.waiting.append(self)
        self.queue.append(frame_head(self.room.take_id(), len(content)))
        self.queue.append(content)

    def write_queue(self) -> None:
        """Write what was queued, in one piece."""
        queue = self.queue
        data = b"".join(queue)
        traffic = self.traffic
        traffic.messages_in += self.acks  # every message gets exactly one
        traffic.messages_out += (len(queue) + self.acks) >> 1
        traffic.bytes_out += len(data)
        self.acks = 0
        queue.clear()
        self.outbox.write(data)

    def offer(self, frame: bytes, sender: Endpoint) -> bool:
        """Send to a party that does not keep up: False when the sender's share of its queue is used up."""
        return self._offer(frame, sender, self.outbox.offer)

    def offer_publication(self, frame: bytes, sender: Endpoint) -> bool:
        """The same for what nobody waits for, which may cost the party its connection."""
        return self._offer(frame, sender, self.outbox.offer_publication)

    def _offer(self, frame: bytes, sender: Endpoint, offer: Callable[[bytes, int], bool]) -> bool:
        if self.queue:
            self.room.waiting.remove(self)
            self.write_queue()
        if not offer(frame, sender.id):
            self.traffic.dropped += 1
            return False
        self.traffic.messages_out += 1
        self.traffic.bytes_out += len(frame)
        return True

    def send_timeout(self, message_id: bytes, text: bytes = b"") -> None:
        """The answer that says nobody answered, with what a service of another wire said instead.

        The real typed client turns it into its error whatever the payload is, and ours reads the text; the real
        `request_bytes` looks at no status and returns the payload (protocol page §7).
        """
        data = encode_data(text[:MAX_TEXT]) if text else EMPTY
        self.enqueue(response_content(message_id, TIMEOUT, data, False))

    # -- requests that nobody answers --

    def time_out(self, key: bytes) -> None:
        """End a request that this party was asked with the reply that means nobody answered."""
        requester, asked, _deadline, opened = self.serving.pop(key)
        status = Status.GONE if self.closed else Status.TIMED_OUT
        if isinstance(asked, Call):
            self.room.router.fail(asked, status)
            return
        self.note_end(opened, requester, 0, status)
        if requester is not None:
            requester.asked.pop(key, None)
            requester.send_timeout(asked)

    def give_up(self) -> Iterator[None]:
        """Forget what this party asked for, whose answers will be refused, and end what it was asked; one each step."""
        for key in tuple(self.asked):
            owner = self.asked.pop(key, None)
            if owner is not None:
                opened = owner.serving.pop(key)[3]
                self.note_end(opened, self, 0, Status.GONE, "the caller gave up")
            yield
        for key in tuple(self.serving):
            if key in self.serving:
                self.time_out(key)
            yield

    def note_end(
        self,
        opened: Opened | None,
        requester: T2Party | None,
        size: int,
        status: Status = Status.OK,
        error: str = "",
    ) -> None:
        """A request between T2 clients has ended: write its row."""
        journal = self.room.router.journal
        if opened is not None and journal is not None:
            started, asked, topic = opened
            who = "" if requester is None else requester.identity.text
            sizes = (asked, size)
            journal.call(started, journal.new_id(), (WIRE, WIRE), topic, who, sizes, status, error)

    def time_out_due(self, now: float) -> None:
        """End the requests whose time is over."""
        due = list(itertools.takewhile(lambda key: self.serving[key][2] <= now, self.serving))
        for key in due:
            self.time_out(key)

    # -- Endpoint --

    def deliver_call(self, call: Call) -> None:
        """A call from another wire becomes a request with an id of ours."""
        room = self.room
        topic = from_shared(call.name)
        content = payload_content("Req", topic or "", encode_data(call.payload), False)
        if topic is None or len(content) > MAX_TAIL:
            room.router.fail(call, Status.TOO_LARGE, b"the payload is larger than a T2 frame")
            return
        head = frame_head(room.free_id(self.serving), len(content))
        room.take_id()
        if not self.offer(head + content, call.caller):
            room.router.fail(call, Status.STALLED, b"the service does not take its requests")
        elif call.wants_reply:
            call.forget_payload()
            call.key = head[8:]
            until = room.clock() + room.options.request_timeout
            self.serving[call.key] = (None, call, until, None)

    def cancel_call(self, call: Call) -> None:
        # This wire cannot say "cancel"; without the entry the late answer gets InvalidRequestId.
        self.serving.pop(call.key, None)

    def deliver_reply(self, reply: Reply) -> None:
        """The answer to a request that another wire served; parts are joined, failures are the wire's Timeout."""
        asked: Asked = reply.call.token
        if reply.status is not Status.OK:
            self._fail(reply, b"" if reply.status is Status.TIMED_OUT else reply.payload)
        else:
            asked.parts.append(reply.payload)
            asked.size += len(asked.parts[-1])
            if asked.size > MAX_BODY:
                self._fail(reply, TOO_LARGE)
            elif reply.final:
                data = encode_data(b"".join(asked.parts))
                content = response_content(asked.message_id, OK, data, False)
                if len(content) <= MAX_TAIL:
                    self.enqueue(content)
                else:
                    self._fail(reply, TOO_LARGE)
        self.room.flush()

    def _fail(self, reply: Reply, text: bytes) -> None:
        # Whatever else would come must not: the real client panics at a second response.
        self.room.router.cancel(reply.call)
        self.send_timeout(reply.call.token.message_id, text)

    def deliver_publication(self, publication: Publication) -> bool:
        if publication.wire == WIRE:
            content = publication.frame
        else:
            topic = from_shared(publication.name)
            if topic is None:
                return False
            content = payload_content("Pub", topic, encode_data(publication.payload), False)
        if len(content) > MAX_TAIL:
            self.traffic.dropped += 1
            return False
        frame = frame_head(self.room.take_id(), len(content)) + content
        return self.offer_publication(frame, publication.publisher)

    def hold_input(self, held: bool) -> None:
        self.outbox.throttle(held)

    def close(self, reason: str) -> None:
        self.stopped = True
        self.room.flush()
        self.outbox.close(reason)


def payload_of(content: bytes) -> bytes:
    """The plain payload in the content of a frame, for readers of other wires.

    What is marked as compressed and cannot be unpacked is passed on as it is: the T2 server never looks inside.
    """
    message = parse_message(b"\xa2bid\x00" + content, CLIENT_KINDS)
    try:
        return message.payload()
    except PolybusError:
        return decode_data(message.data)
