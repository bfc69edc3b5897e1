"""One client of the Golem Service Bus, seen from the router (protocol page GSB).

Invariant: exactly one reply per request, in the order of the requests of one kind, since the client keeps one
queue per kind and no ids.
"""

from __future__ import annotations

from typing import Final

from polybus.core.endpoint import ANONYMOUS, Identity
from polybus.core.journal import Journal, Opened
from polybus.errors import (
    Draining,
    LimitExceeded,
    NameTaken,
    NoSuchService,
    NotAuthorized,
    RemoteProtocolError,
)
from polybus.model.message import Call, Publication, Status
from polybus.protocols.gsb.names import to_shared
from polybus.protocols.gsb.party import GsbParty
from polybus.protocols.gsb.relay import (
    MAX_REQUEST_ID,
    CallTemplate,
    ReplyTemplate,
    Route,
    relay,
)
from polybus.protocols.gsb.room import WIRE, GsbRoom
from polybus.protocols.gsb.wire import (
    BAD_REQUEST,
    CONFLICT,
    CURRENT,
    NOT_FOUND,
    OK,
    SERVICE_FAILURE,
    CallRequest,
    Kind,
    encode_code,
    parse_broadcast,
    parse_call,
    parse_empty,
    parse_hello,
    parse_name,
    parse_reply,
    tell_framing,
)
from polybus.transports.outbox import Outbox
from polybus.transports.pieces import Pieces

MAX_ROUTES: Final = 1024  # cached addresses per connection
MAX_CACHED_LENGTH: Final = 1024  # bytes of an address or topic; the bound on what the caches hold

# Bytes; both real sides send 16, any length is taken (protocol page §4)
MAX_INSTANCE_ID: Final = 1024

UNKNOWN_ADDRESS: Final = b"endpoint address not found"
STOPPING: Final = b"router is stopping"

# Only these reach a router; a client that sends any other kind is closed (protocol page §11).
_CLIENT_KINDS: Final = frozenset(
    {
        Kind.HELLO,
        Kind.REGISTER_REQUEST,
        Kind.UNREGISTER_REQUEST,
        Kind.CALL_REQUEST,
        Kind.CALL_REPLY,
        Kind.SUBSCRIBE_REQUEST,
        Kind.UNSUBSCRIBE_REQUEST,
        Kind.BROADCAST_REQUEST,
        Kind.PING,
        Kind.PONG,
    }
)


class GsbSession(GsbParty):
    """Session and endpoint in one: what it reads it routes, what is routed to it it writes."""

    __slots__ = (
        "_alive",
        "_departures",
        "_last_seen",
        "_pieces",
        "_pinged",
        "_recipients",
        "_routes",
        "_routes_epoch",
        "_subscriptions_epoch",
        "call_cut",
        "call_templates",
        "reply_cut",
        "reply_templates",
    )

    def __init__(self, room: GsbRoom, identity: Identity = ANONYMOUS, peer: str = "") -> None:
        super().__init__(room, identity, peer)
        self._pieces = Pieces()
        # What was learnt of this client's traffic; valid while the epochs stand
        self.call_templates: dict[bytes, CallTemplate] = {}
        self.reply_templates: dict[bytes, ReplyTemplate] = {}
        self.call_cut = 0
        self.reply_cut = 0
        self._routes: dict[bytes, Route | None] = {}
        self._routes_epoch = (-1, -1)
        self._recipients: dict[bytes, tuple[GsbParty, ...] | None] = {}
        self._subscriptions_epoch = (-1, -1)
        # Life
        self._alive = True
        self._last_seen = 0.0
        self._pinged = False
        self._departures = room.departures

    # -- Session --

    def connection_made(self, outbox: Outbox) -> None:
        self.outbox = outbox
        outbox.input = self._pieces
        self._last_seen = self._router.clock.monotonic()
        try:
            self._router.attach(self)
        except LimitExceeded:
            self.stopped = True
            self.close("too many connections")

    def data_received(self, data: bytes) -> None:
        if self.stopped:
            return
        self._alive = True
        self.traffic.bytes_in += len(data)
        whole = self._pieces.add(data)
        if whole is None:
            return
        room = self._room
        room.sender = self
        try:
            if self.framing is None:
                self._begin(whole)
            if self.framing is CURRENT:
                self._refresh()
                pos = relay(self, whole)
            else:
                pos = self._take_all(whole)
            if not self.stopped:
                self._keep(whole, pos)
        finally:
            room.flush()
            room.sender = None

    def eof_received(self) -> None:
        """Half-close counts as full close (protocol page §11)."""

    def connection_lost(self, exc: Exception | None) -> None:
        self.stopped = True
        self.leave()
        self._room.flush()

    def tick(self, now: float) -> None:
        room = self._room
        if self._alive:
            self._alive = False
            self._pinged = False
            self._last_seen = now
        silent = now - self._last_seen
        if silent >= 2 * room.options.ping_timeout:
            self.outbox.close("silent for too long")
        elif silent >= room.options.ping_timeout and not self._pinged and self.framing is not None:
            self._pinged = True
            self.enqueue(self.framing.encode(Kind.PING, b""))
        if self._departures != room.departures:
            self._departures = room.departures
            self._router.chores.add(self._forget_departed())
        self._shed()
        if self._stalled:
            self._fail_stalled(now)
        room.flush()

    # -- input --

    def _begin(self, data: bytes) -> None:
        self.framing = tell_framing(data)
        if self.framing is CURRENT:
            # Held back until the first frame has told the framing: a legacy client must never see a Hello.
            self.enqueue(self._room.hello)

    def _keep(self, data: bytes, pos: int) -> None:
        """Keep the beginning of a frame that is not whole yet."""
        rest = len(data) - pos
        if not rest:
            return
        framing = self.framing
        need = 5 if framing is None else framing.header
        if framing is not None and rest >= need:
            need = framing.length(data, pos)
            if need == rest:  # nothing but a header
                raise RemoteProtocolError("a frame of length 0")
            if need > self.max_frame:
                raise RemoteProtocolError(f"a frame of {need} bytes is over {self.max_frame}")
        self._pieces.keep(data[pos:], need)

    def _take_all(self, data: bytes) -> int:
        """All whole frames, one by one: the way for the legacy framing."""
        framing = self.framing
        pos, size = 0, len(data)
        while framing is not None and size - pos >= framing.header and not self.stopped:
            length = framing.length(data, pos)
            if length > self.max_frame or pos + length > size:
                break
            self.take(data[pos : pos + length])
            pos += length
        return pos

    def take(self, frame: bytes) -> None:
        """Handle one whole frame by parsing it."""
        assert self.framing is not None
        self.traffic.messages_in += 1
        kind, body = self.framing.parse(frame)
        if kind not in _CLIENT_KINDS:
            raise RemoteProtocolError(f"a client may not send {kind.name}")
        match kind:
            case Kind.CALL_REQUEST:
                self._call(frame, body)
            case Kind.CALL_REPLY:
                self._reply(frame, body)
            case Kind.BROADCAST_REQUEST:
                self._broadcast(frame, body)
            case Kind.HELLO:
                self._hello(body)
            case Kind.REGISTER_REQUEST:
                self._answer(Kind.REGISTER_REPLY, *self._register(parse_name(body)))
            case Kind.UNREGISTER_REQUEST:
                name = parse_name(body)
                found = self._router.unregister(self, name)
                self._answer(Kind.UNREGISTER_REPLY, OK if found else NOT_FOUND)
            case Kind.SUBSCRIBE_REQUEST:
                self._answer(Kind.SUBSCRIBE_REPLY, *self._subscribe(parse_name(body)))
            case Kind.UNSUBSCRIBE_REQUEST:
                self._answer(Kind.UNSUBSCRIBE_REPLY, self._unsubscribe(parse_name(body)))
            case Kind.PING:
                # Answered with Ping: the real client takes a Pong for a fault (protocol page §8).
                parse_empty(body)
                self.enqueue(self.framing.encode(Kind.PING, b""))
            case Kind.PONG:
                parse_empty(body)
        self._refresh()

    def _answer(self, kind: Kind, code: int, message: str = "") -> None:
        assert self.framing is not None
        self.enqueue(self.framing.encode(kind, encode_code(code, message)))

    def _hello(self, body: bytes) -> None:
        hello = parse_hello(body)
        if self.instance_id is not None:
            raise RemoteProtocolError("a second Hello")
        if len(hello.instance_id) > MAX_INSTANCE_ID:
            raise RemoteProtocolError(f"an instance id of {len(hello.instance_id)} bytes")
        older = self._room.instances.get(hello.instance_id)
        if older is not None and older.identity != self.identity:
            raise RemoteProtocolError("the instance id of another client")
        self.instance_id = hello.instance_id
        self._room.instances[hello.instance_id] = self
        if older is not None:
            # A client that came back with its id: the half-dead old connection must not keep its names.
            older.stopped = True
            older.leave()
            older.outbox.close("taken over by a newer connection")

    def _register(self, name: str) -> tuple[int, str]:
        try:
            self._router.register(self, name, to_shared(name), prefix=True)
        except NameTaken:
            return CONFLICT, ""
        except (NotAuthorized, LimitExceeded, Draining) as exc:
            return BAD_REQUEST, exc.text
        return OK, ""

    def _subscribe(self, topic: str) -> tuple[int, str]:
        shared = to_shared(topic)
        try:
            self._router.subscribe(self, topic, shared)
        except (NotAuthorized, LimitExceeded) as exc:
            return BAD_REQUEST, exc.text
        if shared is not None:
            if self._topics is None:
                self._topics = {}
            spellings = self._topics.get(shared, ())
            if topic not in spellings:
                self._topics[shared] = (*spellings, topic)
        return OK, ""

    def _unsubscribe(self, topic: str) -> int:
        shared = to_shared(topic)
        topics = self._topics or {}
        # `a` and `/a` are two topics here and one name elsewhere: that stays while one of them does.
        others = tuple(t for t in topics.get(shared or "", ()) if t != topic)
        if not self._router.unsubscribe(self, topic, None if others else shared):
            return NOT_FOUND
        if shared is not None and others:
            topics[shared] = others
        else:
            topics.pop(shared or "", None)
        return OK

    # -- calls --

    def fast_route(self, caller: bytes, address: bytes) -> Route | None:
        """Where calls to an address go if that is a connection of the same framing; None sends them the long way."""
        routes = self._routes
        if len(caller) + len(address) > MAX_CACHED_LENGTH:
            return None
        if address in routes:
            route = routes[address]
        else:
            if len(routes) >= MAX_ROUTES:
                routes.clear()
            route = routes[address] = self._find_route(address)
        if route is not None and not caller.isascii():
            try:
                caller.decode()
            except UnicodeDecodeError:
                return None
        return route

    def _find_route(self, address: bytes) -> Route | None:
        try:
            name = address.decode()
            shared = to_shared(name)
            found = self._router.route(self, name, shared)
        except (UnicodeDecodeError, NoSuchService, NotAuthorized, Draining):
            return None
        target = found.endpoint
        if self._router.captures_call(shared, self.identity):
            return None
        if isinstance(target, GsbParty) and target.framing is CURRENT:
            return Route(target, found.traffic, shared or name)
        return None

    def _call(self, frame: bytes, body: bytes) -> None:
        request = parse_call(body)
        if len(request.request_id) > MAX_REQUEST_ID:
            raise RemoteProtocolError(f"a request id of {len(request.request_id)} characters")
        try:
            found = self._router.route(self, request.address, to_shared(request.address))
        except NoSuchService:
            self._fail(request, BAD_REQUEST, UNKNOWN_ADDRESS)
        except NotAuthorized as exc:
            self._fail(request, BAD_REQUEST, exc.text.encode())
        except Draining:
            self._fail(request, SERVICE_FAILURE, STOPPING)
        else:
            target = found.endpoint
            shared = to_shared(request.address)
            captured = self._router.captures_call(shared, self.identity)
            if isinstance(target, GsbParty) and not captured:
                found.traffic.calls += 1
                self._forward(request, frame, body, target)
            else:
                self._bridge(request, body)

    def _fail(self, request: CallRequest, code: int, text: bytes) -> None:
        self.traffic.failures += 1
        opened = self._opened(request)
        if opened is not None:
            status = Status.NOT_FOUND if text is UNKNOWN_ADDRESS else Status.REFUSED
            self.note_end(request.request_id, opened, self, 0, status, text.decode())
        if not request.no_reply:
            self.send_reply(request.request_id, code, text)

    def _forward(self, request: CallRequest, frame: bytes, body: bytes, target: GsbParty) -> None:
        """To another client of this wire: verbatim, unless the framings or the request ids are in the way."""
        assert target.framing is not None
        key = request.request_id.encode()
        opened = self._opened(request)
        if not request.no_reply:
            plain = self.framing is target.framing
            taken = target.pending(request.request_id)
            if taken is self and plain:
                pass  # the same client again with the same id: one answer, as upstream
            elif taken is None and plain:
                target.serving[key] = self
            else:
                target.rewrite(request, self, opened)
                return
            if opened is not None:
                target.opened[key] = opened
        elif opened is not None:
            self.note_end(request.request_id, opened, self, 0)
        if target.framing is not self.framing:
            frame = target.framing.encode(Kind.CALL_REQUEST, body)
        target.enqueue(frame)

    def _bridge(self, request: CallRequest, body: bytes) -> None:
        """Through the core: to a service of another wire, or to one whose calls are kept."""
        name = to_shared(request.address)
        assert name is not None
        call = Call(
            self,
            name,
            request.data,
            token=request.request_id,
            wants_reply=not request.no_reply,
            wire=WIRE,
            frame=body,
        )
        try:
            self._router.call(call, request.address)
        except (NoSuchService, NotAuthorized, LimitExceeded, Draining) as exc:
            self.traffic.failures += 1
            if not request.no_reply:
                code = BAD_REQUEST if isinstance(exc, LimitExceeded) else SERVICE_FAILURE
                self.send_reply(request.request_id, code, exc.text.encode())

    def _opened(self, request: CallRequest) -> Opened | None:
        """What the journal wants to know of a call when it has ended."""
        journal = self._router.journal
        if journal is None:
            return None
        # An address below a registered prefix may be of any length, and the call may stay open for hours.
        name = to_shared(request.address) or request.address[:MAX_CACHED_LENGTH]
        return journal.now(), len(request.data), name

    def _reply(self, frame: bytes, body: bytes) -> None:
        reply = parse_reply(body)
        key = reply.request_id.encode()
        caller = self.serving.get(key)
        if caller is None:
            self.answer_bridged(reply, body)
            return
        if not reply.partial:
            del self.serving[key]
            status = Status.OK if reply.code == OK else Status.FAILED
            self.forget_opened(key, caller, len(reply.data), status)
        caller.enqueue(frame)

    # -- broadcasts --

    def recipients(self, topic: bytes) -> tuple[GsbParty, ...] | None:
        """Who gets a broadcast if all of them speak the current framing; None sends it the long way."""
        cache = self._recipients
        if len(topic) > MAX_CACHED_LENGTH:
            return None
        if topic in cache:
            return cache[topic]
        if len(cache) >= MAX_ROUTES:
            cache.clear()
        found = cache[topic] = self._find_recipients(topic)
        return found

    def _find_recipients(self, topic: bytes) -> tuple[GsbParty, ...] | None:
        try:
            name = topic.decode()
        except UnicodeDecodeError:
            return None
        shared = to_shared(name)
        if not self._router.policy.may(self.identity, "publish", shared or name):
            return None
        found = tuple(self._router.recipients(WIRE, name, shared))
        fast = tuple(e for e in found if isinstance(e, GsbParty) and e.framing is CURRENT)
        return fast if len(fast) == len(found) else None

    # -- the journal, for the hot loop --

    @property
    def journal(self) -> Journal | None:
        """Where rows go; None when no journal is kept."""
        return self._router.journal

    def note_broadcast(self, topic: bytes, size: int, recipients: int) -> None:
        """A broadcast of `size` bytes has been passed on."""
        name = topic.decode()
        journal = self._router.journal
        assert journal is not None
        sizes = (size, size * recipients)
        journal.note("publish", WIRE, to_shared(name) or name, self.identity.text, sizes)

    def acknowledge_broadcasts(self, count: int) -> None:
        """One reply per broadcast."""
        self.enqueue(_BROADCAST_OK * count, count)

    def _broadcast(self, frame: bytes, body: bytes) -> None:
        request = parse_broadcast(body)
        publication = Publication(
            self, request.topic, to_shared(request.topic), request.data, wire=WIRE, frame=frame
        )
        try:
            self._router.publish(publication)
        except NotAuthorized as exc:
            self._answer(Kind.BROADCAST_REPLY, BAD_REQUEST, exc.text)
        else:
            self._answer(Kind.BROADCAST_REPLY, OK)

    def _refresh(self) -> None:
        """Drop what was learnt under an older epoch."""
        router = self._router
        epoch = (router.services.epoch, router.policy.epoch)
        if epoch != self._routes_epoch:
            self._routes_epoch = epoch
            self._routes.clear()
            self.call_templates.clear()
        epoch = (router.subscription_epoch, router.policy.epoch)
        if epoch != self._subscriptions_epoch:
            self._subscriptions_epoch = epoch
            self._recipients.clear()


_BROADCAST_OK: Final = CURRENT.encode(Kind.BROADCAST_REPLY, b"")
