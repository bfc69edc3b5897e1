"""The SDK over the T2 Bus: calls, exclusive services and patterns on a wire that mends itself.

Invariant: what was served or subscribed stands again on every new connection, or is asked for until it does; what was
under way when a connection ended fails with `ConnectionLost` and is never sent twice. A pattern means what it means
everywhere in the SDK.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Final

from polybus.client.handlers import LinkHandler, Outcome
from polybus.client.link import Link, Sink, absent
from polybus.core.subscriptions import PATTERNS, Subscriptions
from polybus.errors import (
    AckTimeout,
    ConnectionLost,
    InvalidName,
    LocalProtocolError,
    NameTaken,
    PeerUnavailable,
    PolybusError,
)
from polybus.model.clock import SystemClock
from polybus.model.message import NO_HEADERS
from polybus.model.pattern import ANY, ONE
from polybus.protocols.native.replies import failure_of
from polybus.protocols.t2.client import CLIENT_BOUNDS, KEEP_ALIVE, Dial
from polybus.protocols.t2.peer import ServerPeer
from polybus.protocols.t2.topics import is_topic
from polybus.protocols.t2.wire import (
    OK,
    TIMEOUT,
    Message,
    encode_data,
    encode_uint,
    pack,
    payload_content,
    response_content,
    topic_content,
)
from polybus.transports.connection import Connections
from polybus.transports.dial import hang_up
from polybus.transports.keeper import Keeper

log = logging.getLogger("polybus.client")

REQUEST_TIMEOUT: Final = 30.0
FINISH_TIMEOUT: Final = 10.0  # as the node's own drain
MAX_SPELLINGS: Final = 16  # subscriptions that one pattern may need on the wire


class LinkPeer(ServerPeer):
    """The bus as the link sees it: what comes is handed over at once."""

    def __init__(self, link: T2Link) -> None:
        super().__init__()
        self._link = link

    def take(self, message: Message) -> None:
        if message.kind == "Pub":
            self._link.publication_came(message)
        elif message.kind == "Req":
            self._link.request_came(self, message)
        else:
            super().take(message)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._link.connection_ended(self)


class T2Link(Link):
    """What that wire has of the bus: calls without streams or headers, services, publications with patterns."""

    wire = "t2"

    def __init__(self, dial: Dial) -> None:
        self._dial = dial
        self._connections = Connections(SystemClock(), CLIENT_BOUNDS)
        self._peer: LinkPeer | None = None
        self._keeper = Keeper(self._connect, self._tick)
        self._said_at = 0.0
        self._handlers: dict[str, LinkHandler] = {}
        self._owed: set[tuple[str, str]] = set()
        """What the bus does not give us at present: kind of message and topic; every tick asks again."""
        self._running: set[asyncio.Task[None]] = set()
        self._sinks: Subscriptions[Sink] = Subscriptions(PATTERNS)
        self._spellings: dict[str, int] = {}
        self._closed = False

    # -- life --

    async def open(self) -> None:
        await self._keeper.start()

    async def close(self) -> None:
        self._closed = True
        await self._keeper.stop()
        for task in tuple(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        if self._peer is not None:
            await hang_up(self._peer.outbox, self._peer.ended)

    async def drain(self) -> None:
        peer = self._peer
        with contextlib.suppress(PolybusError):
            for name in tuple(self._handlers):
                if peer is not None:
                    await peer.ask(topic_content("Unsrv", name), name)
        self._handlers.clear()
        if self._running:
            await asyncio.wait(self._running, timeout=FINISH_TIMEOUT)
        await self.close()

    @property
    def connected(self) -> bool:
        return self._peer is not None

    async def _connect(self) -> None:
        peer = LinkPeer(self)
        await self._dial(self._connections, lambda _connection: peer)
        try:
            peer.keep_alive()
            self._owed = {("Sub", topic) for topic in self._spellings}
            self._owed |= {("Srv", name) for name in self._handlers}
            await self._ask_again(peer)
        except ConnectionLost as exc:
            raise PeerUnavailable("the connection ended as soon as it stood") from exc
        except BaseException:
            peer.outbox.abort("could not be restored")
            raise
        self._said_at = asyncio.get_running_loop().time()
        self._peer = peer

    async def _ask_again(self, peer: LinkPeer) -> None:
        for kind, topic in tuple(self._owed):
            try:
                await peer.ask(topic_content(kind, topic), topic)
            except (ConnectionLost, AckTimeout):
                raise
            except PolybusError as exc:
                # Our own claim of the lost connection may still stand, or the rules have changed: one refused topic
                # must not keep the others away.
                log.info("%s is not ours for now: %s", topic, exc.text)
            else:
                self._owed.discard((kind, topic))

    async def _tick(self) -> None:
        peer = self._peer
        if peer is None:
            return
        now = asyncio.get_running_loop().time()
        if now - self._said_at >= KEEP_ALIVE:
            self._said_at = now
            peer.keep_alive()
        await self._ask_again(peer)

    def connection_ended(self, peer: LinkPeer) -> None:
        """The connection is gone; the next one is on its way."""
        if peer is self._peer:
            self._peer = None
            if not self._closed:
                self._keeper.lost()

    async def _ready(self, timeout: float | None = REQUEST_TIMEOUT) -> LinkPeer:
        await self._keeper.ready(timeout)
        if self._peer is None:
            raise ConnectionLost("the client is closed" if self._closed else "the connection ended")
        return self._peer

    # -- calls --

    async def call(
        self,
        name: str,
        payload: bytes,
        *,
        timeout: float | None = None,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> bytes:
        _refuse_headers(headers)
        peer = await self._ready(timeout)
        content = payload_content("Req", name, *pack(payload))
        return await peer.request(content, name, timeout)

    async def call_streaming(
        self,
        name: str,
        payload: bytes,
        *,
        timeout: float | None = None,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> AsyncGenerator[bytes, None]:
        # The wire has no parts: the whole reply is the one part.
        yield await self.call(name, payload, timeout=timeout, headers=headers)

    # -- services --

    async def serve(self, name: str, handler: LinkHandler) -> None:
        if name in self._handlers:
            raise NameTaken(name)
        peer = await self._ready()
        self._handlers[name] = handler
        try:
            await peer.ask(topic_content("Srv", name), name)
        except PolybusError:
            del self._handlers[name]
            raise

    async def unserve(self, name: str) -> None:
        self._owed.discard(("Srv", name))
        if self._handlers.pop(name, None) is not None:
            await (await self._ready()).ask(topic_content("Unsrv", name), name)

    def request_came(self, peer: LinkPeer, message: Message) -> None:
        """A request for one of our services."""
        handler = self._handlers.get(message.topic)
        if handler is not None:
            task = asyncio.get_running_loop().create_task(_answer(peer, message, handler))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    # -- publications --

    async def publish(
        self, name: str, payload: bytes, *, headers: Mapping[str, str] = NO_HEADERS
    ) -> int:
        _refuse_headers(headers)
        peer = await self._ready()
        ack = await peer.ask(payload_content("Pub", name, *pack(payload)), name)
        return ack.recipients or 0

    async def publish_nowait(
        self, name: str, payload: bytes, *, headers: Mapping[str, str] = NO_HEADERS
    ) -> None:
        _refuse_headers(headers)
        peer = await self._ready()
        if not is_topic(name):
            raise InvalidName(name, "T2 cannot spell it")
        peer.send(payload_content("Pub", name, *pack(payload)))

    async def subscribe(self, pattern: str, sink: Sink) -> None:
        topics = spellings(pattern)
        peer = await self._ready()
        if not self._sinks.add(pattern, sink):
            return
        fresh = [topic for topic in topics if topic not in self._spellings]
        for topic in topics:
            self._spellings[topic] = self._spellings.get(topic, 0) + 1
        try:
            for topic in fresh:
                await peer.ask(topic_content("Sub", topic), topic)
        except BaseException:
            # Left behind it would be asked for, and refused, on every new connection.
            with contextlib.suppress(PolybusError):
                await self.unsubscribe(pattern, sink)
            raise

    async def unsubscribe(self, pattern: str, sink: Sink) -> None:
        if not self._sinks.remove(pattern, sink):
            return
        gone = []
        for topic in spellings(pattern):
            self._spellings[topic] -= 1
            if not self._spellings[topic]:
                del self._spellings[topic]
                self._owed.discard(("Sub", topic))
                gone.append(topic)
        for topic in gone:
            if self._peer is not None:
                await self._peer.ask(topic_content("Unsub", topic), topic)

    def publication_came(self, message: Message) -> None:
        """A publication for some of our sinks."""
        sinks = self._sinks.matching(message.topic)
        if not sinks:
            return
        try:
            payload = message.payload()
        except PolybusError as exc:
            # Some publisher's mistake, which the bus passes on unseen: no reason to end this connection.
            log.warning("a publication to %s was dropped: %s", message.topic, exc.text)
            return
        for sink in sinks:
            sink(message.topic, payload, NO_HEADERS)


def spellings(pattern: str) -> list[str]:
    """The subscriptions that together give a pattern its documented meaning on a bus with the original's matcher.

    There a `**` takes one segment at least, and a wildcard right behind it matches no word (protocol page §5). So each
    run of wildcards is written with its `*` first, and each `**` is subscribed once with and once without.

    Raises:
        InvalidName: T2 cannot spell it.
        LocalProtocolError: it would take too many subscriptions.
    """
    if not is_topic(pattern):
        raise InvalidName(pattern, "T2 cannot spell it")
    choices: list[tuple[str | None, ...]] = []
    for wild, run in itertools.groupby(pattern.split("/"), lambda s: s in (ONE, ANY)):
        segments = list(run)
        if wild:
            choices += [(ONE,)] * segments.count(ONE) + [(ANY, None)] * (ANY in segments)
        else:
            choices += [(segment,) for segment in segments]
    if 2 ** sum(len(choice) > 1 for choice in choices) > MAX_SPELLINGS:
        raise LocalProtocolError(f"too many ** in {pattern!r} for the wire t2")
    found = ("/".join(s for s in chosen if s) for chosen in itertools.product(*choices))
    return [topic for topic in found if topic]


async def _answer(peer: LinkPeer, message: Message, handler: LinkHandler) -> None:
    try:
        payload = await _whole(handler(message.topic, message.payload(), NO_HEADERS))
        content = response_content(encode_uint(message.id), OK, *pack(payload))
    except Exception as exc:
        # The wire has no word for a failed service; its Timeout is what the caller understands.
        log.exception("the service %s failed", message.topic)
        _status, text = failure_of(exc)
        content = response_content(encode_uint(message.id), TIMEOUT, encode_data(text), False)
    # Whoever asked may have gone meanwhile, and so may the connection.
    with contextlib.suppress(PolybusError):
        await peer.ask(content, message.topic)


async def _whole(outcome: Outcome) -> bytes:
    if isinstance(outcome, AsyncIterator):
        return b"".join([part async for part in outcome])
    return await outcome if inspect.isawaitable(outcome) else outcome


def _refuse_headers(headers: Mapping[str, str]) -> None:
    if headers:
        raise absent("t2", "headers")
