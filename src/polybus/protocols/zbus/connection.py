"""The client's end of one connection to a Zbus server.

Invariant: every request that waits for an answer gets it, or an error when its time or the connection is over; what
nobody waits for is handed to `on_message`.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from typing import Final

from polybus.errors import CallTimeout, ConnectionLost, ServiceFailed
from polybus.model.clock import SystemClock
from polybus.protocols.zbus.wire import Message, MessageReader, encode_request, new_id
from polybus.transports.connection import Connection, Connections
from polybus.transports.dial import dial
from polybus.transports.outbox import Outbox
from polybus.transports.tls import client_context
from polybus.transports.url import Address, parse_address

HEARTBEAT: Final = 60.0  # seconds; servers close who is silent for 180 or more (protocol page §1)
SSL_PREFIX: Final = "[SSL]"

OnMessage = Callable[[Message], None]


class MqError(ServiceFailed):
    """The server refused or failed; `status` and the text are its own."""

    def __init__(self, message: Message) -> None:
        super().__init__(message.text or f"status {message.status}", message.body)
        self.status = message.status


class ZbusConnection:
    """A session (see `transports.session`) with requests matched by id."""

    def __init__(self) -> None:
        self.on_message: OnMessage | None = None
        self.on_lost: Callable[[], None] | None = None
        self.closed = asyncio.Event()
        self._reader = MessageReader()
        self._pending: dict[str, asyncio.Future[Message]] = {}
        self._outbox: Outbox | None = None
        self._beat: asyncio.TimerHandle | None = None

    # -- Session --

    def connection_made(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._beat = asyncio.get_running_loop().call_later(HEARTBEAT, self._heartbeat)

    def data_received(self, data: bytes) -> None:
        for message in self._reader.feed(data):
            waiting = self._pending.pop(message.id, None) if message.id else None
            if waiting is not None:
                if not waiting.done():
                    waiting.set_result(message)
            elif self.on_message is not None:
                self.on_message(message)

    def eof_received(self) -> None:
        """The server has gone; `connection_lost` follows."""

    def connection_lost(self, exc: Exception | None) -> None:
        if self._beat is not None:
            self._beat.cancel()
        pending, self._pending = self._pending, {}
        for waiting in pending.values():
            if not waiting.done():
                waiting.set_exception(ConnectionLost("the connection to the Zbus server ended"))
                waiting.exception()  # somebody who gave up waiting is not warned about
        self.closed.set()
        if self.on_lost is not None:
            self.on_lost()

    def tick(self, now: float) -> None:
        """Heartbeats have a timer of their own."""

    # -- requests --

    def send(self, headers: Mapping[str, str], body: bytes = b"") -> None:
        """Send a request that nobody waits for.

        Raises:
            ConnectionLost.
        """
        if self._outbox is None or self.closed.is_set():
            raise ConnectionLost("the connection to the Zbus server is closed")
        self._outbox.write(encode_request(headers, body))

    def ask(self, headers: Mapping[str, str], body: bytes = b"") -> asyncio.Future[Message]:
        """Send a request; the future is its answer."""
        headers = {"id": new_id(), **headers}
        waiting: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self.send(headers, body)
        self._pending[headers["id"]] = waiting
        return waiting

    async def invoke(
        self, headers: Mapping[str, str], body: bytes = b"", timeout: float | None = 10.0
    ) -> Message:
        """Send a request and wait for its answer, whatever its status.

        Raises:
            CallTimeout, ConnectionLost.
        """
        waiting = self.ask(headers, body)
        try:
            async with asyncio.timeout(timeout):
                return await waiting
        except TimeoutError as exc:
            raise CallTimeout(f"no answer to {headers.get('cmd')} within {timeout} s") from exc

    async def close(self) -> None:
        """Close and wait until it is."""
        if self._outbox is not None:
            self._outbox.close("closed by us")
            await self.closed.wait()

    def abort(self) -> None:
        """Close without waiting."""
        if self._outbox is not None:
            self._outbox.abort("closed by us")

    def _heartbeat(self) -> None:
        if not self.closed.is_set():
            self.send({"cmd": "heartbeat"})
            self._beat = asyncio.get_running_loop().call_later(HEARTBEAT, self._heartbeat)


async def open_connection(
    address: str, tls: ssl.SSLContext | None = None, timeout: float = 3.0
) -> ZbusConnection:
    """Connect to `host:port`, or to `[SSL]host:port` over TLS.

    Raises:
        PeerUnavailable.
    """
    sessions: list[ZbusConnection] = []

    def session(connection: Connection) -> ZbusConnection:
        sessions.append(ZbusConnection())
        return sessions[-1]

    where = to_address(address, secure=tls is not None)
    if where.scheme == "tls" and tls is None:
        tls = client_context()
    await dial(where, Connections(SystemClock()), session, tls, timeout)
    return sessions[-1]


def to_address(address: str, *, secure: bool = False) -> Address:
    """An address as Zbus spells it, as one of ours."""
    secure = secure or address.startswith(SSL_PREFIX)
    bare = address.removeprefix(SSL_PREFIX)
    return parse_address(f"{'tls' if secure else 'tcp'}://{bare}")
