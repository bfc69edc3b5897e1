"""Posting to other twins over HTTP/1.1 on connections that are kept.

Invariant: every request ends once, with a status or with the reason why there is none; what a peer answers is never
kept beyond a bound. It is this small since RMB needs one verb and one header; a general client would cost ten times
the time of the message (docs/dependencies.md).
"""

from __future__ import annotations

import asyncio
import os
import re
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final
from urllib.parse import urlsplit

from polybus.errors import ConfigError

DEFAULT_PORT: Final = 8051  # protocol page §1.4
MAX_HEAD: Final = 16 * 1024
# Seconds; shorter than what servers allow, so that a kept connection is rarely dead
IDLE: Final = 20.0
CONNECT_TIMEOUT: Final = 5.0
SERVER: Final = "polybus"  # how our own answers name their server
PIPELINED: Final = 64  # requests behind each other on a connection; half of what our server takes
PIPES: Final = 4  # connections to a peer that takes several
_STATUS: Final = re.compile("[1-9][0-9][0-9]")


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
    __slots__ = ("answered", "max_body", "raw", "until")

    def __init__(self, raw: bytes, answered: Answered, until: float, max_body: int) -> None:
        self.raw = raw
        self.answered = answered
        self.until = until
        self.max_body = max_body


class _Connection(asyncio.Protocol):
    """One connection to a peer; answers come in the order of the requests."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._buffer = b""
        self._out: list[bytes] = []
        self._answers = 0
        self.requests: deque[_Request] = deque()
        self.transport: asyncio.Transport
        self.since = 0.0
        """Since when it is idle."""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def send(self, request: _Request) -> None:
        """Send with everything else of this turn of the event loop; a write is a system call each."""
        self.requests.append(request)
        if not self._out:
            self._peer.soon(self._flush)
        self._out.append(request.raw)

    def _flush(self) -> None:
        out, self._out = self._out, []
        self.transport.write(out[0] if len(out) == 1 else b"".join(out))

    def data_received(self, data: bytes) -> None:
        if self._buffer:
            data = self._buffer + data
        position = 0
        while position < len(data) and not self.transport.is_closing():
            after = self._next(data, position)
            if after < 0:
                break
            position = after
        self._buffer = data[position:]
        self._peer.free(self)

    def _next(self, data: bytes, position: int) -> int:
        """Take one answer; the position after it, or -1 when more is needed or nothing more can be understood."""
        if not self.requests:
            self.transport.abort()  # an answer that nobody asked for
            return -1
        end = data.find(b"\r\n\r\n", position)
        if end < 0:
            if len(data) - position > MAX_HEAD:
                self._finish(Answer(0, reason="the answer's head is too large"), keep=False)
            return -1
        head = _parse_head(data[position:end])
        if not head.status:
            self._finish(Answer(0, reason="the answer is not HTTP"), keep=False)
            return -1
        self._peer.pipelines = head.pipelines
        end += 4
        limit = self.requests[0].max_body
        if head.length is None or head.length > limit:
            # Chunks, until the end, or too much: the status is what counts, and what is asked for has a length.
            body = data[end : end + limit]
            self._finish(Answer(head.status, body, head.reason), keep=False)
            return -1
        if len(data) < end + head.length:
            return -1
        body = data[end : end + head.length]
        self._finish(Answer(head.status, body, head.reason), keep=head.keep)
        return end + head.length

    def connection_lost(self, exc: Exception | None) -> None:
        self._peer.lost(self)
        reason = str(exc) if exc else "connection closed before message completed"
        # A kept connection that the peer closed as we used it: it never saw the only request on it.
        again = self._answers > 0 and len(self.requests) == 1
        while self.requests:
            request = self.requests.popleft()
            if again:
                self._peer.send(request)
            else:
                request.answered(Answer(0, reason=reason))

    def time_out(self, now: float) -> None:
        """Give up a request that takes too long, or a connection that nobody uses."""
        if not self.requests:
            if now - self.since > IDLE:
                self.transport.close()
        elif now > self.requests[0].until:
            self._finish(Answer(0, reason="no answer in time"), keep=False)

    def _finish(self, answer: Answer, *, keep: bool) -> None:
        request = self.requests.popleft()
        self._answers += 1
        if not keep:
            # What else was sent on it has not been refused, so it is not sent again
            self._answers = 0
            self.transport.close()
        request.answered(answer)


@dataclass(frozen=True, slots=True)
class _Head:
    status: int
    reason: str = ""
    length: int | None = None
    keep: bool = False
    pipelines: bool = False


@lru_cache(maxsize=256)
def _parse_head(head: bytes) -> _Head:
    """What an answer's head says; most answers of a peer have the same."""
    lines = head.decode("latin-1").split("\r\n")
    parts = lines[0].split(" ", 2)
    if len(parts) < 2 or not parts[0].startswith("HTTP/1.") or not _STATUS.fullmatch(parts[1]):
        return _Head(0)
    length: int | None = None
    keep = parts[0] != "HTTP/1.0"
    pipelines = False
    for line in lines[1:]:
        name, _, value = line.partition(":")
        name, value = name.strip().lower(), value.strip().lower()
        if name == "content-length" and value.isascii() and value.isdigit() and len(value) < 12:
            length = int(value)
        elif name == "connection" and value in ("keep-alive", "close"):
            keep = value == "keep-alive"
        elif name == "server":
            pipelines = value == SERVER
    status = int(parts[1])
    if status == 204:
        length = 0
    return _Head(status, parts[2] if len(parts) > 2 else "", length, keep, pipelines)


def _why(exc: Exception) -> str:
    """Why there is no connection, in the words of the real daemon (protocol page §3.3)."""
    # Errors of TLS have numbers too, but not those of the system.
    if isinstance(exc, OSError) and exc.errno and not isinstance(exc, ssl.SSLError):
        reason = f"{os.strerror(exc.errno)} (os error {exc.errno})"
    else:
        reason = str(exc) or "timed out"
    return f"error trying to connect: tcp connect error: {reason}"


class Peer:
    """All connections to one place.

    One request at a time on each, as the real daemons' own client does; a peer that says it is one of us takes several
    behind each other, which saves most of the system calls.
    """

    def __init__(self, place: Place, max_connections: int, tls: ssl.SSLContext | None) -> None:
        self.place = place
        self.pipelines = False
        self._tls = tls
        self._max = max_connections
        self._all: list[_Connection] = []
        self._opening = 0
        self._queue: deque[_Request] = deque()
        self._loop = asyncio.get_running_loop()
        self.soon = self._loop.call_soon
        self._dialling: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def in_use(self) -> bool:
        return bool(self._all or self._opening or self._queue)

    def send(self, request: _Request) -> None:
        """Send now or as soon as a connection is free."""
        if self._closed:
            request.answered(Answer(0, reason="the node is stopping"))
            return
        depth = PIPELINED if self.pipelines else 1
        for connection in self._all:
            if len(connection.requests) < depth and not connection.transport.is_closing():
                connection.send(request)
                return
        self._queue.append(request)
        self._open()

    def _open(self) -> None:
        """Open as many connections as there are requests without one, within the bound."""
        most = min(self._max, PIPES) if self.pipelines else self._max
        while len(self._all) + self._opening < most and self._opening < len(self._queue):
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
            self._refuse(_why(exc))
            return
        self._opening -= 1
        if self._closed:
            connection.transport.abort()
            return
        self._all.append(connection)
        self.free(connection)

    def _refuse(self, reason: str) -> None:
        """No connection could be made: what waits for one ends, unless another is there to take it."""
        if self._all or self._opening:
            return
        waiting, self._queue = self._queue, deque()
        for request in waiting:
            request.answered(Answer(0, reason=reason))

    def free(self, connection: _Connection) -> None:
        """A connection can take more."""
        depth = PIPELINED if self.pipelines else 1
        while self._queue and len(connection.requests) < depth:
            if connection.transport.is_closing():
                return
            connection.send(self._queue.popleft())
        if not connection.requests:
            connection.since = self._loop.time()

    def lost(self, connection: _Connection) -> None:
        """A connection has gone."""
        if connection in self._all:
            self._all.remove(connection)
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
