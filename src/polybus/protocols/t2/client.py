"""A client of the T2 Bus with the verbs its users know: publish, subscribe, request, serve, respond.

    async with await Connector.unix("my_bus").connect() as client:
        async with await client.subscribe(HELLO, "alice") as messages:
            await client.publish(HELLO, "alice", "Hello Alice")
            topic, message = await messages.recv()

Invariant: a subscription or claim ends when it is closed, left or garbage collected, and the bus is told; no mistake in
a topic ends the client (the original stops itself).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Final, Generic, Literal, Self, TypeVar

from polybus.errors import ConnectionLost, LocalProtocolError
from polybus.model.clock import SystemClock
from polybus.protocols.t2.peer import Inbox, ServerPeer
from polybus.protocols.t2.typed import M, PublishProtocol, Q, R, RequestProtocol, decode, encode
from polybus.protocols.t2.wire import (
    OK,
    Message,
    encode_uint,
    pack,
    payload_content,
    response_content,
    unit_content,
)
from polybus.transports.connection import Connection, Connections, SessionFactory
from polybus.transports.dial import dial, hang_up
from polybus.transports.outbox import Bounds, MiB
from polybus.transports.url import Address

DEFAULT_PORT: Final = 4242  # in the original's source, where nothing uses it
KEEP_ALIVE: Final = 30.0  # seconds (protocol page §8)
# The bus answers after 30 s at the latest; the original's may stay silent
REQUEST_TIMEOUT: Final = 35.0

# A client never stops reading to slow itself down: a bus that waits for it to read would wait for ever.
CLIENT_BOUNDS: Final = Bounds(pending_bytes=1024 * MiB, share_bytes=1024 * MiB)

Matching = Literal["upstream", "documented"]
Dial = Callable[[Connections, SessionFactory], Awaitable[Connection]]
"""Opens a connection whose session the factory makes."""

T = TypeVar("T")


class Connector:
    """Where a bus is; `connect` as often as wanted."""

    def __init__(self, dial: Dial, matching: Matching = "upstream") -> None:
        """Take a way to open connections; usually one of the functions below is meant.

        Args:
            matching: by which rules deliveries are sorted to this client's subscriptions; as the bus's own setting.
        """
        self._dial = dial
        self._matching: Matching = matching

    @classmethod
    def unix(cls, path: str | os.PathLike[str], matching: Matching = "upstream") -> Connector:
        """A Unix socket."""
        return cls(_dialling(Address("unix", path=os.path.abspath(path))), matching)

    @classmethod
    def tcp(cls, address: str, matching: Matching = "upstream") -> Connector:
        """`host` or `host:port`."""
        host, port = split_host(address)
        return cls(_dialling(Address("tcp", host, port)), matching)

    @classmethod
    def tls(
        cls,
        address: str,
        *,
        ca: str,
        cert: str = "",
        key: str = "",
        matching: Matching = "upstream",
    ) -> Connector:
        """`host` or `host:port`; the three are PEM files, and the bus wants a client certificate."""
        host, port = split_host(address)
        options = {
            name: value for name, value in (("ca", ca), ("cert", cert), ("key", key)) if value
        }
        return cls(_dialling(Address("tls", host, port, options=options)), matching)

    async def connect(self) -> Client:
        """Connect.

        Raises:
            PeerUnavailable: nobody answers there.
        """
        peer = ServerPeer(self._matching)
        await self._dial(Connections(SystemClock(), CLIENT_BOUNDS), lambda _connection: peer)
        return Client(peer)


def split_host(address: str) -> tuple[str, int]:
    """Host and port of `host`, `host:port`, `[v6]` or `[v6]:port`."""
    if address.startswith("["):
        host, _, rest = address[1:].partition("]")
        port = rest.removeprefix(":")
    elif address.count(":") > 1:
        host, port = address, ""
    else:
        host, _, port = address.partition(":")
    if not host or (port and not port.isdecimal()):
        raise LocalProtocolError(f"bad address {address!r}: host or host:port is wanted")
    return host, int(port) if port else DEFAULT_PORT


def _dialling(address: Address) -> Dial:
    async def open_connection(connections: Connections, factory: SessionFactory) -> Connection:
        return await dial(address, connections, factory)

    return open_connection


class Subscription(Generic[T]):
    """What came for one topic, in order: `await recv()`, or `async for`."""

    def __init__(
        self, inbox: Inbox, read: Callable[[Message], T], give_up: Callable[[Inbox], None]
    ) -> None:
        self._inbox = inbox
        self._read = read
        # Collected from any thread, at any time: the bus is told on the loop, if there still is one.
        self._release = weakref.finalize(
            self, _release_later, asyncio.get_running_loop(), give_up, inbox
        )
        self._release.atexit = False
        self._give_up = give_up

    @property
    def topic(self) -> str:
        """The topic on the wire, prefix included."""
        return self._inbox.topic

    @property
    def dropped(self) -> int:
        """How many messages were lost here because nobody took them."""
        return self._inbox.dropped

    async def recv(self) -> T:
        """The next message.

        Raises:
            ConnectionLost: the connection has ended and everything that came before was taken.
            LocalProtocolError: it was closed.
            RemoteProtocolError: this message is not of the protocol's type; the next one may be.
        """
        return self._read(await self._inbox.get())

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        try:
            return await self.recv()
        except LocalProtocolError:
            raise StopAsyncIteration from None

    def close(self) -> None:
        """End it; the bus is told at once. May be called twice."""
        if self._release.detach() is not None:
            self._inbox.end(LocalProtocolError("the subscription is closed"))
            self._give_up(self._inbox)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _release_later(
    loop: asyncio.AbstractEventLoop, give_up: Callable[[Inbox], None], inbox: Inbox
) -> None:
    # The loop may be closed already, and its connection with it.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(give_up, inbox)


class Client:
    """One connection to a bus. Made by `Connector.connect`."""

    def __init__(self, peer: ServerPeer) -> None:
        self._peer = peer
        peer.keep_alive()
        self._keeping = asyncio.get_running_loop().create_task(
            _keep_alive(weakref.ref(self), peer), name="t2 keep-alive"
        )

    async def close(self) -> None:
        """Disconnect. May be called twice."""
        await hang_up(self._peer.outbox, self._peer.ended)
        self._keeping.cancel()
        await asyncio.gather(self._keeping, return_exceptions=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def connected(self) -> bool:
        return not self._peer.ended.is_set()

    async def wait_closed(self) -> None:
        """Return when the connection has ended."""
        await self._peer.ended.wait()

    async def stop_bus(self) -> None:
        """Stop the bus itself.

        Raises:
            Refused: the bus does not let this client do so.
        """
        await self._peer.ask(unit_content("Stop"))

    # -- publish and subscribe --

    async def publish(self, protocol: PublishProtocol[M], topic: str, message: M) -> int:
        """Publish a message; how many connections get it.

        Raises:
            InvalidName: the topic is none.
        """
        return await self.publish_bytes(protocol.topic(topic), encode(message))

    async def publish_bytes(self, topic: str, payload: bytes) -> int:
        """Publish bytes to a topic with its prefix."""
        ack = await self._peer.ask(payload_content("Pub", topic, *pack(payload)), topic)
        return ack.recipients or 0

    async def subscribe(
        self, protocol: PublishProtocol[M], topic: str
    ) -> Subscription[tuple[str, M]]:
        """Get all messages published to a topic, with the topic on the wire."""
        wanted, prefix = protocol.message, protocol.prefix

        def read(message: Message) -> tuple[str, M]:
            return message.topic, decode(message.payload(), wanted, prefix)

        peer = self._peer
        return Subscription(await peer.subscribe(protocol.topic(topic)), read, peer.unsubscribe)

    async def subscribe_bytes(self, topic: str) -> Subscription[tuple[str, bytes]]:
        """Get all bytes published to a topic with its prefix."""
        peer = self._peer
        return Subscription(await peer.subscribe(topic), _read_bytes, peer.unsubscribe)

    # -- serve, request and respond --

    async def serve(
        self, protocol: RequestProtocol[Q, R], topic: str
    ) -> Subscription[tuple[str, int, Q]]:
        """Claim a topic; requests come as topic, request id and request.

        Raises:
            NameTaken: another client serves it.
            InvalidName: it holds a wildcard.
        """
        wanted, prefix = protocol.request, protocol.prefix

        def read(message: Message) -> tuple[str, int, Q]:
            return message.topic, message.id, decode(message.payload(), wanted, prefix)

        peer = self._peer
        return Subscription(await peer.claim(protocol.topic(topic)), read, peer.release)

    async def serve_bytes(self, topic: str) -> Subscription[tuple[str, int, bytes]]:
        """Claim a topic with its prefix; requests come as topic, request id and bytes."""
        peer = self._peer
        return Subscription(await peer.claim(topic), _read_request, peer.release)

    async def request(
        self,
        protocol: RequestProtocol[Q, R],
        topic: str,
        request: Q,
        timeout: float | None = REQUEST_TIMEOUT,
    ) -> R:
        """Ask whoever serves a topic.

        Raises:
            NoSuchService: nobody does.
            CallTimeout: no answer within 30 s (the bus's limit) or `timeout`.
            ServiceFailed: a service of another wire failed.
        """
        payload = await self.request_bytes(protocol.topic(topic), encode(request), timeout)
        return decode(payload, protocol.response, protocol.prefix)

    async def request_bytes(
        self, topic: str, payload: bytes, timeout: float | None = REQUEST_TIMEOUT
    ) -> bytes:
        """Ask with bytes whoever serves a topic with its prefix."""
        content = payload_content("Req", topic, *pack(payload))
        return await self._peer.request(content, topic, timeout)

    async def respond(self, protocol: RequestProtocol[Q, R], request_id: int, response: R) -> None:
        """Answer a request.

        Raises:
            Conflict: it was answered already, or whoever asked has gone.
        """
        await self.respond_bytes(request_id, encode(response))

    async def respond_bytes(self, request_id: int, payload: bytes) -> None:
        """Answer a request with bytes."""
        await self._peer.ask(response_content(encode_uint(request_id), OK, *pack(payload)))


def _read_bytes(message: Message) -> tuple[str, bytes]:
    return message.topic, message.payload()


def _read_request(message: Message) -> tuple[str, int, bytes]:
    return message.topic, message.id, message.payload()


async def _keep_alive(client: weakref.ref[Client], peer: ServerPeer) -> None:
    """Tell the bus every 30 s that we live; a client that nobody holds any more is closed."""
    while not peer.ended.is_set():
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(KEEP_ALIVE):
                await peer.ended.wait()
        if client() is None:
            peer.outbox.close("nobody holds the client")
        elif not peer.ended.is_set():
            with contextlib.suppress(ConnectionLost):
                peer.keep_alive()
