"""A connection to Redis on which everything is pipelined by itself.

Invariant: commands are answered in the order in which they were sent; what was sent before the connection was lost is
reported as lost exactly once, and whoever sent it decides whether to send it again. All commands of one turn of the
event loop leave in one write.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast
from urllib.parse import parse_qs, unquote, urlsplit

import hiredis

from polybus.errors import ConfigError, PeerUnavailable

Command = tuple[str | bytes | int, ...]
_pack: Final = cast("Callable[[Command], bytes]", hiredis.pack_command)
Answered = Callable[["list[Any] | None"], None]
"""Told the replies, errors among them as `hiredis.HiredisError` values; None when the connection was lost."""

DEFAULT_PORT: Final = 6379
CONNECT_TIMEOUT: Final = 3.0
# A server whose machine has gone says nothing: the system asks after 10 seconds, and gives up after 20.
KEEP_ALIVE: Final = (
    ((socket.SOL_SOCKET, socket.SO_KEEPALIVE), 1),
    ((socket.IPPROTO_TCP, socket.TCP_KEEPIDLE), 10),
    ((socket.IPPROTO_TCP, socket.TCP_KEEPINTVL), 5),
    ((socket.IPPROTO_TCP, socket.TCP_KEEPCNT), 2),
    ((socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT), 20_000),
)
# What a server says that will serve later: it loads its data, lacks memory or disk, or is being replaced.
TRANSIENT: Final = ("LOADING", "OOM", "MISCONF", "READONLY", "BUSY", "NOREPLICAS", "MASTERDOWN")


class RedisLost(PeerUnavailable):
    """Redis is not there, or went away before it answered."""

    hint = "Check that the Redis server of this twin runs; polybus connects again by itself."


@dataclass(frozen=True, slots=True)
class RedisUrl:
    """Where a Redis server is."""

    host: str = ""
    port: int = DEFAULT_PORT
    path: str = ""
    username: str = ""
    password: str = ""
    db: int = 0
    tls: bool = False

    def __str__(self) -> str:
        if self.path:
            return f"unix://{self.path}"
        return f"redis{'s' if self.tls else ''}://{self.host}:{self.port}"


def parse_redis_url(text: str) -> RedisUrl:
    """`redis://[[user]:password@]host[:port][/db]`, the same with `rediss`, or `unix:///path[?db=n]`.

    Raises:
        ConfigError.
    """
    try:
        parts = urlsplit(text)
        port = parts.port or DEFAULT_PORT
    except ValueError as exc:
        raise ConfigError(f"bad Redis address {text!r}: {exc}") from exc
    query = parse_qs(parts.query)
    number = query.get("db", [""])[0] if parts.scheme == "unix" else parts.path.strip("/")
    if number and not (number.isascii() and number.isdigit()):
        raise ConfigError(f"bad Redis address {text!r}: {number!r} is no database")
    account = (unquote(parts.username or ""), unquote(parts.password or ""))
    db = int(number or 0)
    if parts.scheme == "unix" and parts.path.startswith("/"):
        return RedisUrl(path=parts.path, username=account[0], password=account[1], db=db)
    if parts.scheme in ("redis", "rediss") and parts.hostname:
        tls = parts.scheme == "rediss"
        return RedisUrl(parts.hostname, port, "", account[0], account[1], db, tls)
    raise ConfigError(
        f"bad Redis address {text!r}: write redis://host:port, unix:///path or embedded"
    )


class RedisConnection(asyncio.Protocol):
    """One connection; made by `connect`, useless once `lost`."""

    def __init__(self) -> None:
        self._reader = hiredis.Reader(notEnoughData=Ellipsis)
        self._waiting: deque[tuple[int, Answered]] = deque()
        self._replies: list[Any] = []
        self._out: list[bytes] = []
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self.closed = self._loop.create_future()
        """Done when the connection has gone."""

    # -- Protocol --

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        reader, replies, waiting = self._reader, self._replies, self._waiting
        reader.feed(data)
        try:
            while (reply := reader.gets()) is not Ellipsis:
                replies.append(reply)
                if len(replies) == waiting[0][0]:
                    answered = waiting.popleft()[1]
                    self._replies = []
                    done, replies = replies, self._replies
                    answered(done)
        except (hiredis.ProtocolError, IndexError):
            self.close()  # not Redis, or out of step: nothing after this can be understood

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)
        waiting, self._waiting = self._waiting, deque()
        for _count, answered in waiting:
            answered(None)

    # -- use --

    @property
    def lost(self) -> bool:
        return bool(self.closed.done())

    def send(self, commands: Sequence[Command], answered: Answered) -> None:
        """Send commands; `answered` gets all their replies at once, or None."""
        if self.closed.done():
            self._loop.call_soon(answered, None)
            return
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out += map(_pack, commands)
        self._waiting.append((len(commands), answered))

    async def run(self, *commands: Command) -> list[Any]:
        """Send commands and wait for their replies.

        Raises:
            RedisLost.
        """
        future: asyncio.Future[list[Any] | None] = self._loop.create_future()

        def answered(replies: list[Any] | None) -> None:
            if not future.done():
                future.set_result(replies)

        self.send(commands, answered)
        replies = await future
        if replies is None:
            raise RedisLost("the connection to Redis was lost")
        return replies

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _flush(self) -> None:
        data = b"".join(self._out)
        self._out.clear()
        if self._transport is not None:
            self._transport.write(data)


async def connect(url: RedisUrl, name: str = "") -> RedisConnection:
    """Open a connection, log in, choose the database and give it a name.

    Raises:
        RedisLost: nobody answers there, or it refuses us; no connection is left open.
    """
    made = None
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT):
            made = await _open(url)
            await _introduce(made, url, name)
            return made
    except BaseException as exc:
        if made is not None:
            made.close()
        if isinstance(exc, OSError | TimeoutError):
            reason = getattr(exc, "strerror", None) or str(exc) or "timed out"
            raise RedisLost(f"cannot reach Redis at {url}: {reason}") from exc
        raise


async def _open(url: RedisUrl) -> RedisConnection:
    loop = asyncio.get_running_loop()
    if url.path:
        _, made = await loop.create_unix_connection(RedisConnection, url.path)
        return made
    context = ssl.create_default_context() if url.tls else None
    transport, made = await loop.create_connection(RedisConnection, url.host, url.port, ssl=context)
    for option, value in KEEP_ALIVE:
        transport.get_extra_info("socket").setsockopt(*option, value)
    return made


async def _introduce(made: RedisConnection, url: RedisUrl, name: str) -> None:
    setup: list[Command] = []
    if url.password:
        account = (url.username, url.password) if url.username else (url.password,)
        setup.append(("AUTH", *account))
    if url.db:
        setup.append(("SELECT", url.db))
    setup.append(("CLIENT", "SETNAME", name) if name else ("PING",))
    for reply in await made.run(*setup):
        if isinstance(reply, Exception):
            raise RedisLost(f"Redis at {url} refuses us: {reply}")


def is_transient(reply: object) -> bool:
    """Whether a reply is an error that passes by itself."""
    return isinstance(reply, Exception) and str(reply).startswith(TRANSIENT)
