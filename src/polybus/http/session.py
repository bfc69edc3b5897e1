"""One HTTP connection: Zbus clients, browsers and everything else that begins with a method (DESIGN 8).

Invariant: any split of the input gives the same requests; answers to clients that match them by id go out at once,
all others in the order of their requests; what cannot be understood is answered with its status and ends this
connection only.

Requests of one client differ mostly in their id and body. So the head without its id is the key under which the
parsed head is kept, and only a head that was not seen before is parsed. One that was is told by its bytes up to the
id, and what the application made of it (`Shortcut`) takes the request at once: for every input the two ways give the
same result.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from polybus.errors import PolybusError
from polybus.http.chunked import ChunkedBody
from polybus.http.head import BadHead, Head, parse_head
from polybus.http.origin import foreign
from polybus.http.request import Request
from polybus.http.response import encode_response
from polybus.http.site import Party, Site
from polybus.http.turn import Gathering, Turn
from polybus.http.websocket import WebSocket
from polybus.transports.outbox import Outbox, Pause

_ID: Final = b"\r\nid: "
CLOSE: Final = {"connection": "close"}
MAX_HEADS: Final = 256  # kept per connection; a client with more kinds of requests gains nothing
MAX_ID: Final = 64  # bytes; a longer one is looked for in the whole head, which is bounded
# Of programs that send one kind of request; browsers' heads are larger and vary
SMALL_HEAD: Final = 512
# Without its id; those that are kept cost three times their size, which no budget counts
LARGE_HEAD: Final = 8 * 1024
PLAIN: Final = bytes(range(0x21, 0x7F))
COMPILED: Final = not __file__.endswith(".py")


class HttpSession(Gathering):
    """The session. Handlers reach it as `request.connection`."""

    __slots__ = (
        "_alive",
        "_begun",
        "_chunks",
        "_ended",
        "_expected",
        "_have",
        "_head",
        "_heads",
        "_id",
        "_last",
        "_last_seen",
        "_linked",
        "_need",
        "_order",
        "_out",
        "_parts",
        "_party",
        "_since",
        "_skip",
        "_socket",
        "gathering",
        "identity",
        "outbox",
        "peer",
        "received",
        "site",
        "turn",
    )
    outbox: Outbox

    def __init__(self, site: Site, identity: Any = None, peer: str = "") -> None:
        self.site = site
        self.identity = identity
        """Who the peer is, for the application; nothing here looks at it."""
        self.peer = peer
        self.received = 0
        """Bytes of the peer, for the application."""
        # Input that is no whole request yet
        self._parts: list[bytes] = []
        self._have = 0
        self._need = 0
        self._head: Head | None = None
        self._id = ""
        self._chunks: ChunkedBody | None = None
        self._skip = 0
        self._heads: dict[tuple[bytes, bytes], Head] = {}
        # Those that have come again, by what stands before their id; the latest, and the one that should come next
        self._begun: dict[bytes, Head] = {}
        self._linked: list[Head] = []
        self._last: Head | None = None
        self._expected: Head | None = None
        # Output that has to wait for its turn
        self._order: deque[Request] = deque()
        self._out: list[bytes] | None = None
        self.turn: Turn | None = None
        """Set by an application that answers many requests at a time: its answers are gathered, and written once."""
        self.gathering = False
        """Set by an application that wants its `flush` once this input has been taken."""
        self._party: Party | None = None
        self._socket: WebSocket | None = None
        # Life
        self._alive = True
        self._ended = False
        self._last_seen = 0.0
        self._since: float | None = None

    @property
    def framed(self) -> bool:
        """Whether every message has to be sent by itself (WebSocket)."""
        return self._socket is not None

    @property
    def party(self) -> Party | None:
        """The application's side, once it has been asked for anything."""
        return self._party

    @property
    def held_bytes(self) -> int:
        """Input that makes no whole request yet, and answers that wait for the one before them."""
        if self._socket is not None:
            return self._socket.held_bytes
        chunks = self._chunks.have if self._chunks is not None else 0
        return self._have + chunks + sum(len(each.answer or b"") for each in self._order)

    def keep_open(self) -> None:
        """An answer that goes on (server-sent events) is a sign of life: the peer has nothing to send."""
        self._alive = True

    # -- Session --

    def connection_made(self, outbox: Outbox) -> None:
        self.outbox = outbox
        outbox.input = HeldInput(self)
        outbox.on_closing = self.write_out

    def send(self, raw: bytes) -> None:
        """Send one whole message, now or when this turn ends."""
        if self._socket is not None:
            self._socket.send(raw)
        elif self._out is not None:
            self._out.append(raw)
        elif self.turn is None:
            self.outbox.write(raw)
        else:
            self._out = [raw]
            self.turn.add(self)

    def send_pieces(self, pieces: list[bytes], patient: bool = False) -> None:
        """Send one whole message, given away in pieces; a `patient` one may wait for others to its client."""
        if self._socket is not None or self.turn is None:
            self.send(b"".join(pieces))
            return
        if self._out is not None:
            self._out += pieces
        else:
            self._out = pieces
            self.turn.add(self, patient)

    def send_now(self, raw: bytes) -> None:
        """Send one whole message of which there will be no second one in this turn."""
        if self._out is not None or self._socket is not None:
            self.send(raw)
        else:
            self.outbox.write(raw)

    def write_out(self) -> None:
        """Write what was gathered."""
        out = self._out
        if out is not None:
            self._out = None
            self.outbox.write(out[0] if len(out) == 1 else b"".join(out))

    def data_received(self, data: bytes) -> None:
        self._alive = True
        self.received += len(data)
        if self._ended:
            return
        try:
            if self._socket is not None:
                self._socket.feed(data)
            else:
                self._read(data)
        except BadHead as exc:
            self._reject(exc)
        finally:
            if self.gathering and self._party is not None:
                self.gathering = False
                self._party.flush()

    def eof_received(self) -> None:
        """The peer sends no more: the connection closes, as the original servers do."""

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended = True
        self._order.clear()
        self._out = None
        self._unlink()
        self._heads.clear()
        if self._party is not None:
            self._party.lost(exc)

    def tick(self, now: float) -> None:
        settings = self.site.settings
        if self._alive:
            self._alive = False
            self._last_seen = now
            if self._socket is not None:
                self._socket.pinged = False
        silent = now - self._last_seen
        if self._is_partial():
            # Bytes of a body count as progress, bytes of a head do not: a head is small.
            if self._since is None or (self._head is not None and silent == 0.0):
                self._since = now
            elif now - self._since > settings.request_timeout:
                self._reject(BadHead("the request did not come in time", 408))
                return
        else:
            self._since = None
        if silent > settings.idle_timeout:
            self._close_idle()
        elif (
            self._socket is not None
            and not self._socket.pinged
            and 2 * silent > settings.idle_timeout
        ):
            self._socket.ping()
        if self._party is not None:
            self._party.tick(now)

    # -- input --

    def _is_partial(self) -> bool:
        return bool(self._have or self._skip or self._head is not None)

    def _read(self, data: bytes) -> None:
        """Take all whole requests out of the input and keep the rest."""
        if self._have:
            # A large body comes in many pieces: they are joined once, when it is whole.
            self._parts.append(data)
            self._have += len(data)
            if self._have < self._need:
                return
            data = b"".join(self._parts)
            self._parts.clear()
            self._have = 0
        pos = 0
        size = len(data)
        while pos < size and not self._ended:
            if self._head is not None or self._skip:
                after = self._continue(data, pos)
            else:
                after = self._repeat(data, pos)
                if after < 0:
                    after = self._next(data, pos)
            if after < 0:
                break
            pos = after
            if self._socket is not None:
                if pos < size:
                    self._socket.feed(data[pos:])
                return
        if pos:
            self._since = None
        if pos < size and not self._ended:
            self._parts.append(data[pos:])
            self._have = size - pos

    def _repeat(self, data: bytes, pos: int) -> int:
        """Take the request at `pos` if it differs from one before in its id and body only; -1 if it does not, or if
        anything about it has to be looked at."""
        head = self._expected
        if head is None:
            return -1
        view = data
        start = pos + len(head.before)
        if start > len(data):
            return -1
        if not data.startswith(head.before, pos):
            found = self._begun.get(view[pos:start])
            if found is None:
                return -1
            head = found
        stop = start + head.id_size
        if not data.startswith(head.after, stop):
            stop = data.find(b"\r\n", start, start + MAX_ID)
            if stop < 0 or not data.startswith(head.after, stop):
                return -1
            head.id_size = stop - start
        body_at = stop + len(head.after)
        end = body_at + head.length
        if end > len(data) or not is_plain(data, start, stop):
            return -1
        ident = view[start:stop]
        body = view[body_at:end]
        self._came(head)
        if head.shortcut is None or not head.shortcut.take(ident, body):
            self.take(Request(self, head, ident.decode(), body))
        return end

    def _came(self, head: Head) -> None:
        """Requests of one client follow a pattern, such as the answer to a call behind the wish for the next."""
        last = self._last
        if last is not head or head.follower is None:
            if last is not None:
                last.follower = head
            self._last = head
        self._expected = head if head.follower is None else head.follower

    def _next(self, data: bytes, pos: int) -> int:
        """Take the request that begins at `pos`; the position after it, or -1 when it is not whole."""
        settings = self.site.settings
        end = data.find(b"\r\n\r\n", pos)
        if end < 0 or end - pos > settings.max_head:
            if len(data) - pos > settings.max_head:
                raise BadHead("the head of a request is too long", 431)
            self._need = 0
            return -1
        if data[pos] == 13 and data[pos : pos + 2] == b"\r\n":
            return pos + 2  # an empty line before a request, as some old clients send
        cut = data.find(_ID, pos, end)
        ident = ""
        if cut < 0:
            raw = data[pos:end]
            head = self._heads.get((raw, b"")) or self._parse(raw)
            ident = head.headers.pop("id", "")
            if head.ordered and len(raw) <= SMALL_HEAD:
                self._keep((raw, b""), head)
        else:
            after_id = data.find(b"\r\n", cut + 6)
            key = (data[pos:cut], data[after_id:end])
            known = self._heads.get(key)
            head = known if known is not None else self._learn(key)
            # A second id in the same head replaces the first: last one wins.
            ident = head.headers.pop("id", "") or _decode_id(data[cut + 6 : after_id])
            if known is not None and not head.special and end - pos + MAX_ID <= settings.max_head:
                self._begin_with(head, data[pos : cut + 6], data[after_id : end + 4])
        body = end + 4
        stop = body + head.length
        if stop > len(data) or head.special:
            if head.upgrade:
                self._upgrade(head, data[pos:body])
                return body
            return self._begin(head, ident, data, body)
        self.take(Request(self, head, ident, data[body:stop]))
        return stop

    def _begin_with(self, head: Head, before: bytes, after: bytes) -> None:
        """Know a head by its beginning from now on; of several that begin alike the latest."""
        if not head.before:
            if len(self._linked) >= MAX_HEADS:
                self._unlink()
            self._linked.append(head)
        head.before = before
        head.after = after
        self._begun[before] = head
        self._came(head)

    def _unlink(self) -> None:
        """Forget which head follows which: one that a waiting request keeps must not keep all that came behind it."""
        for head in self._linked:
            head.before = b""
            head.follower = None
        self._linked.clear()
        self._begun.clear()
        self._last = self._expected = None

    def _learn(self, key: tuple[bytes, bytes]) -> Head:
        head = self._parse(key[0] + key[1])
        if "id" not in head.headers:
            head.ordered = False
            if len(key[0]) + len(key[1]) <= LARGE_HEAD:
                self._keep(key, head)
        return head

    def _keep(self, key: tuple[bytes, bytes], head: Head) -> None:
        if len(self._heads) >= MAX_HEADS:
            self._heads.clear()
        self._heads[key] = head

    def _parse(self, raw: bytes) -> Head:
        settings = self.site.settings
        head = parse_head(raw, settings.max_headers)
        head.foreign = foreign(head, settings)
        head.special = head.chunked or head.upgrade or head.length > settings.max_body
        return head

    def _begin(self, head: Head, ident: str, data: bytes, pos: int) -> int:
        """The head is there, its body is not: wait for it."""
        expects = head.headers.get("expect", "").lower() == "100-continue"
        if head.length > self.site.settings.max_body:
            if expects and head.ordered:
                # It may spare itself the body after this answer: then nobody could tell where the next request begins.
                head.keep_alive = False
            # Its bytes are passed over, so that requests behind it are still understood.
            request = Request(self, head, ident, b"")
            if head.ordered:
                self._order.append(request)
            request.send(encode_response(413, {} if head.keep_alive or not head.ordered else CLOSE))
            if self._party is not None:
                self._party.passed_over(request)
            self._skip = head.length
            return pos
        self._head = head
        self._id = ident
        if head.chunked:
            self._chunks = ChunkedBody(self.site.settings.max_body)
        if expects and pos == len(data):
            self.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._need = head.length
        return pos

    def _continue(self, data: bytes, pos: int) -> int:
        """More of a body; the position after it, or -1 when more is needed."""
        if self._skip:
            passed = min(self._skip, len(data) - pos)
            self._skip -= passed
            return pos + passed
        head = self._head
        assert head is not None
        if self._chunks is not None:
            pos = self._chunks.feed(data, pos)
            if self._chunks.done:
                body = self._chunks.take()
                self._chunks = self._head = None
                self.take(Request(self, head, self._id, body))
            return pos
        if len(data) - pos < head.length:
            return -1
        self._head = None
        self.take(Request(self, head, self._id, data[pos : pos + head.length]))
        return pos + head.length

    # -- requests --

    def take(self, request: Request) -> None:
        """Pass a whole request to whoever serves it."""
        head = request.head
        if head.ordered:
            self._order.append(request)
            if len(self._order) > self.site.settings.max_pipelined:
                self.outbox.pause_reading(Pause.ORDER)
            if head.method == "OPTIONS":
                self._answer_options(request)
                return
        if "cmd" not in head.headers:
            found = self.site.find(head)
            if found is not None:
                self.site.handle(request, found)
                return
        party = self._party
        if party is None:
            if self.site.application is None:
                request.respond(404, {}, b"Not Found")
                return
            try:
                party = self._party = self.site.application(self)
            except PolybusError as exc:
                request.respond(429, {}, f"429: {exc.text}".encode())
                self._end("too many connections")
                return
        party.take(request)

    def answer(self, request: Request, raw: bytes) -> None:
        """Put the answer of an ordered request where HTTP wants it."""
        if request.answer is not None:
            return
        request.answer = raw
        order = self._order
        while order and order[0].answer is not None and not self._ended:
            first = order.popleft()
            assert first.answer is not None
            if first.head.method == "HEAD":
                self.send(first.answer.partition(b"\r\n\r\n")[0] + b"\r\n\r\n")
            else:
                self.send(first.answer)
            if not first.head.keep_alive:
                self._end("asked to close")
        if self.outbox.paused and len(order) <= self.site.settings.max_pipelined // 2:
            self.outbox.resume_reading(Pause.ORDER)

    def _answer_options(self, request: Request) -> None:
        headers = {"allow": "GET, HEAD, POST, PUT, DELETE, OPTIONS"}
        asked = request.head.headers
        if "origin" in asked and not request.head.foreign:
            headers["access-control-allow-origin"] = asked["origin"]
            headers["access-control-allow-methods"] = headers["allow"]
            headers["access-control-allow-headers"] = asked.get(
                "access-control-request-headers", "*"
            )
        request.respond(204, headers)

    def _upgrade(self, head: Head, raw: bytes) -> None:
        """Become a WebSocket, whatever the path (protocol page Zbus §2)."""
        if head.foreign:
            self.send(encode_response(403, CLOSE, f"403: {head.foreign}".encode()))
            self._end("foreign websocket")
            return
        self.write_out()
        socket = WebSocket(self, self.site.settings.max_body)
        if socket.accept(raw):
            self._socket = socket
        else:
            self._end("bad websocket handshake")

    # -- the end --

    def _reject(self, exc: BadHead) -> None:
        """Tell the peer what was wrong; what follows cannot be understood, so the connection ends."""
        body = b""
        if exc.status != 413:
            # Spelled as the original servers do, which take it for a command (protocol page Zbus §1).
            body = b"Bad format: command(bad-request) not support" if exc.status == 400 else b""
        self.write_out()
        self.outbox.write(encode_response(exc.status, CLOSE, body))
        self._end(f"bad request: {exc.status}")

    def _close_idle(self) -> None:
        self._ended = True
        if self._socket is not None:
            self._socket.close("silent for too long")
        else:
            self.outbox.close("silent for too long")

    def _end(self, reason: str) -> None:
        self._ended = True
        self._parts.clear()
        self._have = 0
        self.outbox.close(reason)


class HeldInput:
    """What a session holds, counted when the node looks (`Outbox.input`)."""

    __slots__ = ("_session",)

    def __init__(self, session: HttpSession) -> None:
        self._session = session

    def __len__(self) -> int:
        return self._session.held_bytes


def is_plain(data: bytes, start: int, stop: int) -> bool:
    """Whether an id is there and printable ASCII without blanks, so that it can be passed on as it is."""
    if not COMPILED:
        ident = data[start:stop]
        return ident != b"" and not ident.translate(None, PLAIN)
    view = data
    for at in range(start, stop):
        if view[at] <= 0x20 or view[at] >= 0x7F:
            return False
    return stop > start


def _decode_id(raw: bytes) -> str:
    try:
        ident = raw.decode().strip(" \t")
    except UnicodeDecodeError:
        ident = raw.decode("latin-1").strip(" \t")
    if not ident.isprintable():
        raise BadHead("a control character in header 'id'")
    return ident
