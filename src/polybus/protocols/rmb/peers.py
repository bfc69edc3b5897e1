"""Posting to other twins over HTTP/1.1: kept connections, one request at a time on each.

Invariant: every request ends once, with a status or with the reason why there is none; what a peer answers is never
kept beyond a bound. It is this small since RMB needs one verb and one header; a general client would cost ten times
the time of the message (docs/dependencies.md).
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from polybus.errors import ConfigError

DEFAULT_PORT: Final = 8051  # protocol page §1.4
MAX_HEAD: Final = 16 * 1024
IDLE: Final = (
    20.0  # seconds; shorter than what servers allow, so that a kept connection is rarely dead
)
CONNECT_TIMEOUT: Final = 5.0


@dataclass(frozen=True, slots=True)
class Place:
    """Where a twin listens."""

    host: str
    port: int = DEFAULT_PORT
    tls: bool = False

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"http{'s' if self.tls else ''}://{self.authority}"


def parse_place(text: str) -> Place:
    """A host, `host:port`, an IPv6 address with or without brackets, or a URL.

    Raises:
        ConfigError.
    """
    rest, tls, default = text, False, DEFAULT_PORT
    for scheme, secure, port in (("http://", False, 80), ("https://", True, 443)):
        if text.startswith(scheme):
            rest, tls, default = text[len(scheme) :].rstrip("/"), secure, port
    if rest.count(":") > 1 and not rest.startswith("["):
        rest = f"[{rest}]"
    try:
        parts = urlsplit(f"//{rest}")
        found = parts.port
    except ValueError as exc:
        raise ConfigError(f"bad address {text!r} of a twin: {exc}") from exc
    if not parts.hostname or parts.path or parts.query or parts.username:
        raise ConfigError(f"bad address {text!r} of a twin: write host, host:port or a URL")
    return Place(parts.hostname, default if found is None else found, tls)


@dataclass(frozen=True, slots=True)
class Answer:
    """How a request ended: a status and the beginning of a body, or status 0 and the reason."""

    status: int
    body: bytes = b""
    reason: str = ""

    @property
    def phrase(self) -> str:
        return f"{self.status} {self.reason}".strip()


Answered = Callable[[Answer], None]


class _Request:
    __slots__ = ("answered", "fresh", "max_body", "raw", "until")

    def __init__(self, raw: bytes, answered: Answered, until: float, max_body: int) -> None:
        self.raw = raw
        self.answered = answered
        self.until = until
        self.max_body = max_body
        self.fresh = False
        """Whether it was sent on a new connection: a kept one may have been closed by the peer meanwhile."""


class _Connection(asyncio.Protocol):
    """One connection to a peer."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._request: _Request | None = None
        self._buffer = b""
        self._used = False
        self.transport: asyncio.Transport
        self.since = 0.0
        """Since when it is idle."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def send(self, request: _Request) -> None:
        self._request = request
        request.fresh = not self._used
        self._used = True
        self.transport.write(request.raw)

    def data_received(self, data: bytes) -> None:
        request = self._request
        if request is None:
            self.transport.abort()  # an answer that nobody asked for
            return
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > MAX_HEAD:
                self._finish(Answer(0, reason="the answer's head is too large"), keep=False)
            return
        status, reason, length, keep = _parse_head(self._buffer[:end])
        if not status:
            self._finish(Answer(0, reason="the answer is not HTTP"), keep=False)
            return
        body = self._buffer[end + 4 :]
        if length is None:
            # Chunks, or until the end. The status is what counts, and a body that is asked for comes with a length.
            self._finish(Answer(status, body[: request.max_body], reason), keep=False)
        elif length > request.max_body:
            self._finish(Answer(status, body[: request.max_body], reason), keep=False)
        elif len(body) >= length:
            self._finish(Answer(status, body[:length], reason), keep=keep and len(body) == length)

    def connection_lost(self, exc: Exception | None) -> None:
        request, self._request = self._request, None
        self._peer.lost(self, request, str(exc) if exc else "connection closed before an answer")

    def time_out(self, now: float) -> None:
        """Give up a request that takes too long, or a connection that nobody uses."""
        if self._request is None:
            if now - self.since > IDLE:
                self.transport.close()
        elif now > self._request.until:
            self._finish(Answer(0, reason="no answer in time"), keep=False)

    def _finish(self, answer: Answer, *, keep: bool) -> None:
        request, self._request = self._request, None
        self._buffer = b""
        if not keep:
            self.transport.close()
        if request is not None:
            self._peer.finished(self, keep)
            request.answered(answer)


def _parse_head(head: bytes) -> tuple[int, str, int | None, bool]:
    """Status, reason phrase, body length where it is said, and whether the connection is kept."""
    lines = head.decode("latin-1").split("\r\n")
    parts = lines[0].split(" ", 2)
    if len(parts) < 2 or not parts[0].startswith("HTTP/1.") or not parts[1].isdigit():
        return 0, "", None, False
    length: int | None = None
    keep = parts[0] != "HTTP/1.0"
    for line in lines[1:]:
        name, _, value = line.partition(":")
        name, value = name.strip().lower(), value.strip().lower()
        if name == "content-length" and value.isdigit() and len(value) < 12:
            length = int(value)
        elif name == "connection":
            keep = value == "keep-alive" if value in ("keep-alive", "close") else keep
    status = int(parts[1])
    if status == 204:
        length = 0
    return status, parts[2] if len(parts) > 2 else "", length, keep


class Peer:
    """All connections to one place."""

    def __init__(self, place: Place, max_connections: int, tls: ssl.SSLContext | None) -> None:
        self.place = place
        self._tls = tls
        self._max = max_connections
        self._idle: list[_Connection] = []
        self._all: set[_Connection] = set()
        self._opening = 0
        self._queue: deque[_Request] = deque()
        self._loop = asyncio.get_running_loop()
        self._dialling: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def in_use(self) -> bool:
        return bool(self._all or self._opening or self._queue)

    def send(self, request: _Request) -> None:
        """Send now or as soon as a connection is free."""
        while self._idle:
            connection = self._idle.pop()
            if not connection.transport.is_closing():
                connection.send(request)
                return
        self._queue.append(request)
        self._open()

    def _open(self) -> None:
        """Open as many connections as there are requests without one, within the bound."""
        while len(self._all) + self._opening < self._max and self._opening < len(self._queue):
            self._opening += 1
            task = self._loop.create_task(self._dial())
            self._dialling.add(task)
            task.add_done_callback(self._dialling.discard)

    async def _dial(self) -> None:
        place = self.place
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                _, connection = await self._loop.create_connection(
                    lambda: _Connection(self), place.host, place.port, ssl=self._tls
                )
        except (OSError, ssl.SSLError, TimeoutError) as exc:
            self._opening -= 1
            self._refuse(f"cannot connect to {place}: {str(exc) or 'timed out'}")
            return
        self._opening -= 1
        if self._closed:
            connection.transport.abort()
            return
        self._all.add(connection)
        self._next(connection)

    def _refuse(self, reason: str) -> None:
        """No connection could be made: what waits for one ends, unless another is there to take it."""
        if self._all or self._opening:
            return
        waiting, self._queue = self._queue, deque()
        for request in waiting:
            request.answered(Answer(0, reason=reason))

    def _next(self, connection: _Connection) -> None:
        if self._queue:
            connection.send(self._queue.popleft())
        else:
            connection.since = self._loop.time()
            self._idle.append(connection)

    def finished(self, connection: _Connection, keep: bool) -> None:
        """A connection is free again, or has ended."""
        if keep and not self._closed:
            self._next(connection)

    def lost(self, connection: _Connection, request: _Request | None, reason: str) -> None:
        """A connection has gone."""
        self._all.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        if request is not None:
            if request.fresh or self._closed:
                request.answered(Answer(0, reason=reason))
            else:
                # The peer closed a kept connection as we used it: it never saw the request.
                self._queue.append(request)
        if self._queue and not self._closed:
            self._open()

    def tick(self, now: float) -> None:
        """Time out what takes too long."""
        for connection in tuple(self._all):
            connection.time_out(now)
        while self._queue and now > self._queue[0].until:
            self._queue.popleft().answered(Answer(0, reason="no connection in time"))

    async def close(self) -> None:
        self._closed = True
        for task in self._dialling:
            task.cancel()
        await asyncio.gather(*self._dialling, return_exceptions=True)
        for connection in tuple(self._all):
            connection.transport.abort()
        waiting, self._queue = self._queue, deque()
        for request in waiting:
            request.answered(Answer(0, reason="the node is stopping"))


class Peers:
    """Every place this node posts to."""

    def __init__(
        self, timeout: float, max_connections: int, tls: ssl.SSLContext | None = None
    ) -> None:
        self._timeout = timeout
        self._max = max_connections
        self._tls = tls
        self._peers: dict[Place, Peer] = {}
        self._loop = asyncio.get_running_loop()

    def post(
        self,
        place: Place,
        path: str,
        body: bytes,
        answered: Answered,
        *,
        headers: str = "content-type: application/json\r\n",
    ) -> None:
        """Post a body; `answered` is told the end of it."""
        head = (
            f"POST {path} HTTP/1.1\r\nhost: {place.authority}\r\n{headers}"
            f"content-length: {len(body)}\r\n\r\n"
        )
        self._send(place, head.encode() + body, answered, 64 * 1024)

    async def fetch(self, url: str, body: bytes | None = None, max_body: int = 1 << 24) -> Answer:
        """GET a URL, or POST JSON to it."""
        parts = urlsplit(url)
        place = parse_place(f"{parts.scheme}://{parts.netloc}")
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        head = (
            f"{'GET' if body is None else 'POST'} {target} HTTP/1.1\r\nhost: {place.authority}\r\n"
        )
        head += "accept: application/json\r\nconnection: close\r\n"
        if body is not None:
            head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
        future: asyncio.Future[Answer] = self._loop.create_future()

        def answered(answer: Answer) -> None:
            if not future.done():
                future.set_result(answer)

        self._send(place, f"{head}\r\n".encode() + (body or b""), answered, max_body)
        return await future

    def _send(self, place: Place, raw: bytes, answered: Answered, max_body: int) -> None:
        peer = self._peers.get(place)
        if peer is None:
            tls = (self._tls or ssl.create_default_context()) if place.tls else None
            peer = self._peers[place] = Peer(place, self._max, tls)
        peer.send(_Request(raw, answered, self._loop.time() + self._timeout, max_body))

    def tick(self) -> None:
        """About once a second."""
        now = self._loop.time()
        for place, peer in tuple(self._peers.items()):
            peer.tick(now)
            if not peer.in_use:
                del self._peers[place]

    async def close(self) -> None:
        """Drop every connection; what waits is told so."""
        await asyncio.gather(*(peer.close() for peer in self._peers.values()))
