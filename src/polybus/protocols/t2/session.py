"""The server's side of one T2 connection: what it reads it routes.

Invariants: every message gets exactly one Ack, queued after whatever the message caused; bad input closes the
connection without a reply; any split of the input gives the same result.
"""

from __future__ import annotations

from typing import Final

from polybus.core.endpoint import ANONYMOUS, Identity
from polybus.core.toll import Toll
from polybus.errors import (
    Draining,
    LimitExceeded,
    NameTaken,
    NoSuchService,
    NotAuthorized,
    PolybusError,
)
from polybus.model.message import Call, Publication, Reply, Status
from polybus.protocols.t2.names import to_shared
from polybus.protocols.t2.party import Asked, T2Party, payload_of
from polybus.protocols.t2.relay import MAX_TAIL, NO_COUNT, Route, publish, relay, request, send_ack
from polybus.protocols.t2.room import WIRE, T2Room
from polybus.protocols.t2.topics import is_topic, is_word_topic
from polybus.protocols.t2.wire import (
    CLIENT_KINDS,
    OK,
    BusError,
    Message,
    encode_error,
    encode_uint,
    frame_length,
    invalid_topic,
    parse_message,
    payload_content,
    response_content,
)
from polybus.transports.outbox import Outbox, Pause
from polybus.transports.pieces import Pieces

# Bytes that gzip brings forth at the cost of one visit; a small frame can hold very many
UNPACKED_PER_VISIT: Final = 512

_NO_WILDCARDS: Final = BusError("ClaimWildcardNotSupported")
_TAKEN: Final = BusError("TopicAlreadyClaimed")
_BAD_REQUEST: Final = BusError("InvalidRequestId")
_STOP_REFUSED: Final = BusError("RequestFailed", ("this client may not stop the bus",))
_TOO_MANY: Final = BusError("RequestFailed", ("too many requests wait for their answers",))
_TOO_LARGE: Final = "the message is larger than a frame"


def sniff(head: bytes) -> bool | None:
    """Whether a connection that begins like this speaks T2; None while it cannot be told."""
    if head[:1] != b"\0":
        return False
    if len(head) < 5:
        return None
    # A length of up to 1 MiB, then the map of a message, perhaps tagged.
    return head[1] <= 0x10 and 0xA0 <= head[4] < 0xE0


class T2Session(T2Party):
    """Session and endpoint in one."""

    __slots__ = ("_alive", "_last_seen", "_pieces", "_toll", "resting")

    def __init__(self, room: T2Room, identity: Identity = ANONYMOUS, peer: str = "") -> None:
        super().__init__(room, identity, peer)
        self._pieces = Pieces()
        self._alive = False
        self._last_seen = 0.0
        self._toll = Toll()
        self.resting = False
        """Whether its input waits because its topics were too costly to match."""

    # -- Session --

    def connection_made(self, outbox: Outbox) -> None:
        self.outbox = outbox
        outbox.input = self._pieces
        self._last_seen = self.room.clock()
        self.room.parties.add(self)
        try:
            self.room.router.attach(self)
        except LimitExceeded:
            self.close("too many connections")
        if self.room.stopping:
            self.close("the bus was stopped")

    def data_received(self, data: bytes) -> None:
        if self.stopped:
            return
        self.traffic.bytes_in += len(data)
        whole = self._pieces.add(data)
        if whole is None:
            return
        if self.resting:
            self._keep(whole, 0)  # what was on its way when reading was paused
            return
        room = self.room
        room.begin_batch()
        try:
            pos = relay(self, whole)
            if pos:
                self._alive = True
            if pos < len(whole) and not self.stopped:
                self._keep(whole, pos)
        finally:
            room.flush()

    def _keep(self, data: bytes, pos: int) -> None:
        self._pieces.keep(data[pos:], 0 if self.resting else frame_length(data, pos))

    def eof_received(self) -> None:
        """A half-closed connection is a closed one: the real server does not write to it."""

    def connection_lost(self, exc: Exception | None) -> None:
        self.stopped = True
        room = self.room
        room.parties.discard(self)
        room.router.detach(self)
        room.router.chores.add(self.give_up(), room.flush)

    def tick(self, now: float) -> None:
        room = self.room
        if self._alive:
            # Only whole messages count, not parts of one (protocol page §8).
            self._alive = False
            self._last_seen = now
        elif now - self._last_seen >= room.options.idle_timeout:
            self.close("silent for too long")
        if self.serving:
            self.time_out_due(now)
        room.flush()
        if self._toll.pay() and self.resting:
            self.resting = False
            self.outbox.resume_reading(Pause.DEBT)
            self.data_received(b"")

    # -- messages, the full way --

    def take(self, body: bytes) -> None:
        """Handle the body of one frame by parsing it."""
        message = parse_message(body, CLIENT_KINDS)
        number = encode_uint(message.id)
        match message.kind:
            case "KeepAlive":
                send_ack(self, number, NO_COUNT)
            case "Pub":
                self._publish(message, number)
            case "Req":
                self._request(message, number)
            case "Rsp":
                self._acknowledge(number, self._respond(message))
            case "Sub":
                self._acknowledge(number, self._subscribe(message.topic))
            case "Unsub":
                self._acknowledge(number, self._unsubscribe(message.topic))
            case "Srv":
                self._acknowledge(number, self._serve(message.topic))
            case "Unsrv":
                self._acknowledge(number, self._unserve(message.topic))
            case _:
                self._stop(number)
        self.room.refresh()

    def _acknowledge(self, number: bytes, error: BusError | None = None) -> None:
        if error is None:
            send_ack(self, number, NO_COUNT)
        else:
            send_ack(self, number, b"cerr" + encode_error(error) + b"nnum_recipients\xf6")

    def count_of(self, recipients: int) -> bytes:
        """The rest of an Ack that names many recipients."""
        return b"cerr\xf6nnum_recipients" + encode_uint(recipients)

    def _stop(self, number: bytes) -> None:
        room = self.room
        if room.may_stop(self.identity, self.peer):
            send_ack(self, number, NO_COUNT)
            room.stop()
        else:
            self._acknowledge(number, _STOP_REFUSED)

    # -- publications --

    def _subscribe(self, topic: str) -> BusError | None:
        if not is_topic(topic):
            return invalid_topic(topic)
        try:
            self.room.router.subscribe(self, topic, to_shared(topic))
        except (NotAuthorized, LimitExceeded) as exc:
            return _refusal(exc)
        return None

    def _unsubscribe(self, topic: str) -> BusError | None:
        if not is_topic(topic):
            return invalid_topic(topic)
        self.room.router.unsubscribe(self, topic, to_shared(topic))
        return None

    def publish_route(self, topic: bytes) -> Route | None:
        """Who gets publications to a topic; None if it is refused."""
        name = topic.decode("latin-1")
        if not is_topic(name):
            return None
        shared = to_shared(name)
        router = self.room.router
        if not router.policy.may(self.identity, "publish", shared or name):
            return None
        before = router.visited
        found = router.recipients(WIRE, name, shared)
        if self._toll.charge_walk(router.visited - before):
            self._rest()
        targets = tuple(e for e in found if isinstance(e, T2Party))
        others = tuple(e for e in found if not isinstance(e, T2Party))
        return Route(name, targets, others)

    def _rest(self) -> None:
        """Be read no further until all is paid off, well before a client's 5 s for an Ack."""
        self.resting = True
        self.outbox.pause_reading(Pause.DEBT)

    def _unpack(self, content: bytes) -> bytes:
        """The payload for another wire."""
        payload = payload_of(content)
        gained = len(payload) - len(content)
        if gained > 0 and self._toll.charge(gained // UNPACKED_PER_VISIT):
            self._rest()
        return payload

    def _publish(self, message: Message, number: bytes) -> None:
        route = self.publish_route(message.topic.encode())
        if route is None:
            error = invalid_topic(message.topic)
            if is_topic(message.topic):
                error = _refusal(NotAuthorized(str(self.identity), "publish", message.topic))
            self._acknowledge(number, error)
        else:
            publish(self, route, _content(message), number)

    def note_publication(self, topic: str, size: int, recipients: int) -> None:
        """Write the row of a publication."""
        journal = self.room.journal
        assert journal is not None
        journal.note("publish", WIRE, topic, self.identity.text, (size, size * recipients))

    def publish_abroad(self, route: Route, content: bytes) -> int:
        """Deliver to subscribers of other wires; how many took it."""
        publication = Publication(
            self,
            route.topic,
            to_shared(route.topic),
            None,
            wire=WIRE,
            frame=content,
            decode=self._unpack,
        )
        return sum(endpoint.deliver_publication(publication) for endpoint in route.others)

    def publish_oversized(self, route: Route, content: bytes, number: bytes) -> None:
        """A frame so close to the limit that a longer id makes it too large for the real client, which would stop."""
        if route.targets:
            error = BusError("DeliveryFailed", (route.targets[0].number, _TOO_LARGE))
            self._acknowledge(number, error)
        else:
            count = self.publish_abroad(route, content) if route.others else 0
            send_ack(self, number, self.count_of(count))

    # -- requests --

    def _serve(self, topic: str) -> BusError | None:
        if not is_topic(topic):
            return invalid_topic(topic)
        if not is_word_topic(topic):
            return _NO_WILDCARDS
        router = self.room.router
        try:
            router.register(self, topic, to_shared(topic))
        except NameTaken:
            owner = router.services.owner(WIRE, topic)
            return None if owner is not None and owner.endpoint is self else _TAKEN
        except (NotAuthorized, LimitExceeded, Draining) as exc:
            return _refusal(exc)
        return None

    def _unserve(self, topic: str) -> BusError | None:
        if not is_topic(topic):
            return invalid_topic(topic)
        if not is_word_topic(topic):
            return _NO_WILDCARDS
        self.room.router.unregister(self, topic)
        return None

    def request_route(self, topic: bytes) -> Route | None:
        """Which T2 client answers requests for a topic; None if it is refused, unknown, or served elsewhere."""
        name = topic.decode("latin-1")
        router = self.room.router
        if router.draining or not is_word_topic(name):
            return None
        try:
            found = router.route(self, name, to_shared(name))
        except (NoSuchService, NotAuthorized):
            return None
        owner = found.endpoint
        if not isinstance(owner, T2Party) or router.captures_call(to_shared(name), self.identity):
            return None
        return Route(name, owner=owner, traffic=found.traffic)

    def _request(self, message: Message, number: bytes) -> None:
        route = self.request_route(message.topic.encode())
        if route is None:
            self._bridge(message, number)
        else:
            request(self, route, _content(message), number)

    def request_oversized(self, number: bytes) -> None:
        """As `publish_oversized`: the real owner would stop at it."""
        self._acknowledge(number, BusError("DeliveryFailed", (self.number, _TOO_LARGE)))

    def request_refused(self, number: bytes) -> None:
        """One more than a client may wait for."""
        self._acknowledge(number, _TOO_MANY)

    def _bridge(self, message: Message, number: bytes) -> None:
        """A request that no T2 client serves: it is refused, or a service of another wire answers it."""
        topic = message.topic
        router = self.room.router
        if not is_topic(topic):
            self._acknowledge(number, invalid_topic(topic))
            return
        not_found = BusError("ServiceNotFound", (topic,))
        shared = to_shared(topic)
        if shared is None or not is_word_topic(topic):
            self._acknowledge(number, not_found)
            return
        try:
            if router.draining:
                raise Draining("the node is stopping")
            router.route(self, topic, shared)
            router.quotas.admit_call(self.identity)
        except NoSuchService:
            self._note_refused(message, Status.NOT_FOUND, "")
            self._acknowledge(number, not_found)
        except NotAuthorized as exc:
            self._note_refused(message, Status.REFUSED, exc.text)
            self._acknowledge(number, not_found)
        except (LimitExceeded, Draining) as exc:
            self._note_refused(message, Status.REFUSED, exc.text)
            self._acknowledge(number, _refusal(exc))
        else:
            # The Ack first: a service in this process may answer within the call.
            self._acknowledge(number)
            deadline = self.room.clock() + self.room.options.request_timeout
            content = _content(message)
            router.call(
                Call(
                    self,
                    shared,
                    None,
                    token=Asked(number),
                    deadline=deadline,
                    wire=WIRE,
                    frame=content,
                    decode=self._unpack,
                ),
                topic,
            )

    def _note_refused(self, message: Message, status: Status, error: str) -> None:
        opened = (self.room.now, len(message.data), message.topic)
        self.note_end(opened, self, 0, status, error)

    def _respond(self, message: Message) -> BusError | None:
        key = encode_uint(message.req_id)
        requester, asked, _deadline, opened = self.serving.get(key, (None, b"", 0.0, None))
        if isinstance(asked, Call):
            del self.serving[key]
            self._answer_call(asked, message)
            return None
        if requester is None:
            return _BAD_REQUEST
        content = response_content(asked, message.status, message.data, message.compressed)
        if len(content) > MAX_TAIL:
            self.time_out(key)
            return BusError("DeliveryFailed", (self.number, _TOO_LARGE))
        del self.serving[key]
        del requester.asked[key]
        status = Status.OK if message.status == OK else Status.TIMED_OUT
        self.note_end(opened, requester, len(content), status)
        requester.enqueue(content)
        return None

    def _answer_call(self, call: Call, message: Message) -> None:
        router = self.room.router
        content = response_content(b"\x00", OK, message.data, message.compressed)
        reply = Reply(call, None, wire=WIRE, frame=content, decode=self._unpack)
        if message.status == OK:
            router.reply(reply)
        elif reply.payload:
            router.fail(call, Status.FAILED, reply.payload)  # a service that could say why
        else:
            router.fail(call, Status.TIMED_OUT)


def _content(message: Message) -> bytes:
    return payload_content(message.kind, message.topic, message.data, message.compressed)


def _refusal(exc: PolybusError) -> BusError:
    """What no variant of the bus says in so many words; the real client shows the text and goes on."""
    variant = "InvalidTopicString" if isinstance(exc, NotAuthorized) else "RequestFailed"
    return BusError(variant, (exc.text,))
