"""The other side of the native wire: one client that stays connected and offers the wire's live verbs.

Invariant: what was registered or subscribed stands again on every new connection; what was under way when a connection
ended fails with `ConnectionLost`, and is never sent twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, Final, NamedTuple

from polybus.core.group_options import BEGINNING, Start
from polybus.core.subscriptions import Subscriptions
from polybus.errors import (
    CallTimeout,
    ConnectionLost,
    NameTaken,
    PeerUnavailable,
    Refused,
)
from polybus.model.clock import SystemClock
from polybus.model.message import NO_HEADERS
from polybus.model.record import NewRecord
from polybus.protocols.native import wire
from polybus.protocols.native.consuming import Consumer, Consumers
from polybus.protocols.native.metas import Chunks, Fetch
from polybus.protocols.native.names import WIRE, check_sendable, to_pattern, to_service
from polybus.protocols.native.peer import Peer
from polybus.protocols.native.producing import Producer
from polybus.protocols.native.replies import StreamedReply, WholeReply
from polybus.protocols.native.serving import Handler, Serving
from polybus.protocols.native.wire import MAX_FRAME, Frame
from polybus.transports.connection import Connection, Connections, SessionFactory
from polybus.transports.dial import hang_up
from polybus.transports.keeper import Keeper
from polybus.transports.outbox import Bounds, MiB

log = logging.getLogger("polybus.client")

Dial = Callable[[Connections, SessionFactory], Awaitable[Connection]]
"""Opens a connection whose session the factory makes."""

Sink = Callable[[str, bytes, Mapping[str, str]], None]
"""Takes the publications of a subscription: name, payload, headers."""

GREETING_TIMEOUT: Final = 3.0
REQUEST_TIMEOUT: Final = 30.0

# A client never stops reading to slow itself down: a node that waits for it to read would wait for ever.
CLIENT_BOUNDS: Final = Bounds(pending_bytes=1024 * MiB, share_bytes=1024 * MiB)


class Fetched(NamedTuple):
    """Raw chunks of a topic; `next` is where to go on."""

    first: int
    next: int
    chunks: Sequence[bytes]


class NativeClient:
    """One client of one node."""

    wire = WIRE

    def __init__(self, dial: Dial, *, token: str = "", max_frame: int = MAX_FRAME) -> None:
        self._dial = dial
        self._token = token
        self._max_frame = max_frame
        self._connections = Connections(SystemClock(), CLIENT_BOUNDS)
        self._serving = Serving()
        self._unregistered: set[str] = set()
        self._unsubscribed: set[str] = set()
        self._sinks: Subscriptions[Sink] = Subscriptions()
        self._patterns: dict[str, int] = {}
        self._producer = Producer()
        self._consumers = Consumers()
        self._peer: Peer | None = None
        self._keeper = Keeper(self._connect, self._tick)
        self._closed = False
        self._loop = asyncio.get_running_loop()

    # -- life ----------------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connect, and stay connected from now on.

        Raises:
            PeerUnavailable, NotAuthorized, RemoteProtocolError: there is nothing to close then.
        """
        await self._keeper.start()

    async def drain(self) -> None:
        """Take no new calls, finish those that are under way, then close."""
        peer = self._peer
        if peer is not None:
            with contextlib.suppress(ConnectionLost, TimeoutError):
                await peer.request(wire.GOODBYE, timeout=REQUEST_TIMEOUT)
        await self._serving.finish()
        await self.close()

    async def close(self) -> None:
        """Close at once; what is under way fails. May be called twice."""
        self._closed = True
        await self._keeper.stop()
        self._serving.stop()
        self._consumers.fail(ConnectionLost("the client is closed"))
        peer = self._peer
        if peer is not None:
            peer.flush()
            await hang_up(peer.outbox, peer.ended)

    @property
    def connected(self) -> bool:
        """Whether there is a connection at this moment."""
        return self._peer is not None

    async def _connect(self) -> None:
        peers: list[Peer] = []

        def session(connection: Connection) -> Peer:
            peers.append(Peer(connection, self, self._token, self._max_frame))
            return peers[0]

        await self._dial(self._connections, session)
        peer = peers[0]
        try:
            await peer.greet(GREETING_TIMEOUT)
            await self._restore(peer)
        except (TimeoutError, ConnectionLost) as exc:
            peer.outbox.abort("no greeting")
            raise PeerUnavailable(f"no greeting: {str(exc) or 'timed out'}") from exc
        except BaseException:
            peer.outbox.abort("greeting failed")
            raise
        if peer.lost:
            raise PeerUnavailable("the connection ended as soon as it stood")
        self._peer = peer

    async def _restore(self, peer: Peer) -> None:
        """Register and subscribe again. What is refused is tried again: a name may still be held by our own dead
        connection, and rules may change."""
        self._unsubscribed.clear()
        for name in self._serving.names:
            try:
                await peer.request(wire.REGISTER, name, timeout=REQUEST_TIMEOUT)
            except Refused as exc:
                self._unregistered.add(name)
                log.warning("%s is not served, trying again: %s", name, exc.text)
        for pattern in tuple(self._patterns):
            try:
                await peer.request(wire.SUBSCRIBE, pattern, timeout=REQUEST_TIMEOUT)
            except Refused as exc:
                self._unsubscribed.add(pattern)
                log.warning("%s is not subscribed, trying again: %s", pattern, exc.text)
        await self._consumers.rejoin(peer)

    async def _tick(self) -> None:
        self._connections.tick(self._connections.clock.monotonic())
        for name in tuple(self._unregistered):
            peer = self._peer
            if peer is None:
                return
            with contextlib.suppress(Refused, ConnectionLost, TimeoutError):
                await peer.request(wire.REGISTER, name, timeout=REQUEST_TIMEOUT)
                self._unregistered.discard(name)
        for pattern in self._unsubscribed & self._patterns.keys():
            peer = self._peer
            if peer is None:
                return
            with contextlib.suppress(Refused, ConnectionLost, TimeoutError):
                await peer.request(wire.SUBSCRIBE, pattern, timeout=REQUEST_TIMEOUT)
                self._unsubscribed.discard(pattern)

    async def _ready(self, timeout: float | None) -> Peer:
        """The present connection, waiting for one if need be.

        Raises:
            PeerUnavailable: there was none within `timeout`.
            ConnectionLost: the client was closed.
        """
        while self._peer is None:
            if self._closed:
                raise ConnectionLost("the client is closed")
            await self._keeper.ready(timeout)
        return self._peer

    async def _request(self, kind: int, name: str = "", **rest: Any) -> Frame:
        return await _asked(self._peer or await self._ready(REQUEST_TIMEOUT), kind, name, **rest)

    async def _ready_to_call(self, timeout: float | None) -> tuple[Peer, float | None]:
        """A connection that takes data, waited for if need be, and what is then left of the time.

        Raises:
            PeerUnavailable, CallTimeout: there was none within `timeout`.
        """
        until = None if timeout is None else self._loop.time() + timeout
        peer = await self._ready(timeout)
        try:
            async with asyncio.timeout_at(until):
                await peer.room()
        except TimeoutError as exc:
            raise CallTimeout(f"the node took no data for {timeout:g} s") from exc
        return peer, None if until is None else max(until - self._loop.time(), 0.0)

    # -- calls ---------------------------------------------------------------------------------------------------------

    async def call(
        self,
        name: str,
        payload: bytes,
        *,
        timeout: float | None = None,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> bytes:
        """Call a service and wait for its whole reply.

        Raises:
            NoSuchService, ServiceFailed, CallTimeout, ConnectionLost, PeerUnavailable, Refused, LimitExceeded.
        """
        peer = self._peer
        if peer is None or peer.outbox.congested:
            peer, timeout = await self._ready_to_call(timeout)
        future: asyncio.Future[bytes] = self._loop.create_future()
        waiting = WholeReply(future, name)
        ident = self._send_call(peer, waiting, name, payload, timeout, headers)
        timer = None
        if timeout is not None:
            timer = self._loop.call_later(timeout, _time_out, waiting, name, timeout)
        try:
            return await future
        finally:
            if timer is not None:
                timer.cancel()
            if peer.pending.pop(ident, None) is not None:
                peer.send(wire.encode(wire.CANCEL, ident))

    async def call_streaming(
        self,
        name: str,
        payload: bytes,
        *,
        timeout: float | None = None,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> AsyncGenerator[bytes, None]:
        """Call a service and read its reply part by part; `timeout` is for the whole of it. Raises as `call`."""
        peer, timeout = await self._ready_to_call(timeout)
        waiting = StreamedReply(name)
        ident = self._send_call(peer, waiting, name, payload, timeout, headers)
        timer = None
        if timeout is not None:
            timer = self._loop.call_later(timeout, _time_out, waiting, name, timeout)
        try:
            while (part := await waiting.next()) is not None:
                yield part
        finally:
            if timer is not None:
                timer.cancel()
            if peer.pending.pop(ident, None) is not None:
                peer.send(wire.encode(wire.CANCEL, ident))

    async def push(
        self, name: str, payload: bytes, *, headers: Mapping[str, str] = NO_HEADERS
    ) -> None:
        """Call a service whose answer nobody wants; whether anybody took it is not known."""
        check_sendable(name)
        peer = self._peer or await self._ready(REQUEST_TIMEOUT)
        peer.check_size(len(name) + len(payload))
        if peer.outbox.congested:
            await peer.room()
        meta = wire.encode_headers(headers)
        peer.send(
            wire.encode(wire.CALL, peer.take_id(), name, payload, flags=wire.NO_REPLY, meta=meta)
        )

    def _send_call(
        self,
        peer: Peer,
        waiting: WholeReply | StreamedReply,
        name: str,
        payload: bytes,
        timeout: float | None,
        headers: Mapping[str, str],
    ) -> int:
        check_sendable(name)
        peer.check_size(len(name) + len(payload))
        ident = peer.take_id()
        arg = 0 if timeout is None else min(max(int(timeout * 1000), 1), wire.MAX_TIMEOUT_MS)
        meta = wire.encode_headers(headers)
        frame = wire.encode(wire.CALL, ident, name, payload, arg=arg, meta=meta)
        peer.wait(ident, waiting)
        peer.send(frame)
        return ident

    # -- services ------------------------------------------------------------------------------------------------------

    async def serve(self, name: str, handler: Handler) -> None:
        """Answer a name from now on, over reconnects too.

        Raises:
            NameTaken, NotAuthorized, InvalidName, Draining.
        """
        # Only then is it among the names that a new connection registers by itself.
        peer = self._peer or await self._ready(REQUEST_TIMEOUT)
        if name in self._serving.names:
            raise NameTaken(name)
        self._serving.add(to_service(name), handler)
        try:
            await _asked(peer, wire.REGISTER, name)
        except BaseException:
            self._serving.remove(name)
            # Whoever gave up waiting does not know whether it came through.
            peer.send(wire.encode(wire.UNREGISTER, 0, name))
            raise

    async def unserve(self, name: str) -> None:
        """Give a name up; calls under way are finished."""
        self._serving.remove(name)
        self._unregistered.discard(name)
        await self._request(wire.UNREGISTER, name)

    async def services(self) -> list[dict[str, Any]]:
        """Every name that is answered on the node, of all wires."""
        return list((await self.ask("services"))["services"])

    async def ask(
        self,
        question: str,
        arguments: Mapping[str, object] | None = None,
        payload: bytes = b"",
    ) -> dict[str, Any]:
        """One of the node's administrative requests."""
        meta = wire.encode_meta(arguments) if arguments else b""
        answer = await self._request(wire.ASK, question, meta=meta, payload=payload)
        return wire.parse_meta(answer.meta, dict[str, Any])

    # -- publications --------------------------------------------------------------------------------------------------

    async def publish(
        self, name: str, payload: bytes, *, headers: Mapping[str, str] = NO_HEADERS
    ) -> int:
        """Publish, and return how many endpoints the node passed it to.

        Raises:
            InvalidName, NotAuthorized, LimitExceeded, ConnectionLost, PeerUnavailable.
        """
        meta = wire.encode_headers(headers)
        answer = await self._request(wire.PUBLISH, name, payload=payload, meta=meta)
        return int(wire.parse_meta(answer.meta, dict[str, int]).get("receivers", 0))

    async def publish_nowait(
        self, name: str, payload: bytes, *, headers: Mapping[str, str] = NO_HEADERS
    ) -> None:
        """Publish without waiting for the node to confirm; waits only while the connection is congested."""
        check_sendable(name)
        peer = self._peer or await self._ready(REQUEST_TIMEOUT)
        peer.check_size(len(name) + len(payload))
        if peer.outbox.congested:
            await peer.room()
        peer.send(wire.encode(wire.PUBLISH, 0, name, payload, meta=wire.encode_headers(headers)))

    async def subscribe(self, pattern: str, sink: Sink) -> None:
        """Pass publications that match to `sink` from now on, over reconnects too.

        Raises:
            InvalidName, NotAuthorized.
        """
        self._sinks.add(to_pattern(pattern), sink)
        count = self._patterns.get(pattern, 0)
        self._patterns[pattern] = count + 1
        if count:
            return
        try:
            await self._request(wire.SUBSCRIBE, pattern)
        except BaseException:
            if self._forget(pattern, sink) and self._peer is not None:
                self._peer.send(wire.encode(wire.UNSUBSCRIBE, 0, pattern))
            raise

    async def unsubscribe(self, pattern: str, sink: Sink) -> None:
        """Stop passing publications to `sink`."""
        if self._forget(pattern, sink) and self._peer is not None:
            await self._request(wire.UNSUBSCRIBE, pattern)

    def _forget(self, pattern: str, sink: Sink) -> bool:
        """Take a sink away; True when it was the pattern's last."""
        if not self._sinks.remove(pattern, sink):
            return False
        self._patterns[pattern] -= 1
        if self._patterns[pattern]:
            return False
        del self._patterns[pattern]
        return True

    # -- topics --------------------------------------------------------------------------------------------------------

    def produce(self, topic: str, record: NewRecord, *, create: bool = False) -> Awaitable[int]:
        """Store a record, and return its offset once it is durable.

        Raises:
            NoSuchTopic, InvalidName, NotAuthorized, LimitExceeded, StorageFull: it is not stored.
            ConnectionLost: whether it is stored is not known; with an id it can be produced again.
        """
        check_sendable(topic)
        peer = self._peer
        if peer is None or peer.outbox.congested:
            return self._produce_later(topic, record, create)
        return self._producer.add(peer, topic, record, create)

    async def _produce_later(self, topic: str, record: NewRecord, create: bool) -> int:
        peer = await self._ready(REQUEST_TIMEOUT)
        await peer.room()
        return await self._producer.add(peer, topic, record, create)

    async def produce_many(
        self, topic: str, records: Sequence[NewRecord], *, create: bool = False
    ) -> int:
        """Store records in order, all or none, and return the offset of the first. Raises as `produce`."""
        check_sendable(topic)
        peer = self._peer or await self._ready(REQUEST_TIMEOUT)
        if peer.outbox.congested:
            await peer.room()
        return await self._producer.add_many(peer, topic, records, create)

    async def consume(
        self,
        topic: str,
        group: str,
        window: int,
        *,
        start: Start = BEGINNING,
        options: dict[str, Any] | None = None,
        create: bool = False,
    ) -> Consumer:
        """Join a group, over reconnects too.

        Raises:
            NoSuchTopic, InvalidName, NotAuthorized, Conflict, OutOfRange.
        """
        consumer = Consumer(
            topic,
            group,
            window,
            start=start,
            options=options,
            create=create,
            forget=self._consumers.forget,
        )
        await self._consumers.add(self._peer or await self._ready(REQUEST_TIMEOUT), consumer)
        return consumer

    async def fetch(self, topic: str, start: int, end: int | None, max_bytes: int) -> Fetched:
        """Encoded chunks from `start` on; a chunk may begin before it.

        Raises:
            NoSuchTopic, OutOfRange, CorruptRecord, NotAuthorized.
        """
        meta = wire.encode_meta(Fetch(start, end, max_bytes))
        answer = await self._request(wire.FETCH, topic, meta=meta)
        found = wire.parse_meta(answer.meta, Chunks)
        ends = list(accumulate(found.sizes, initial=0))
        chunks = [answer.payload[a:b] for a, b in pairwise(ends)]
        return Fetched(found.first, found.next, chunks)

    # -- what the connection tells -------------------------------------------------------------------------------------

    def call_came(self, peer: Peer, frame: Frame) -> None:
        self._serving.take(peer, frame)

    def cancel_came(self, ident: int) -> None:
        self._serving.cancel(ident)

    def publication_came(self, name: str, payload: bytes, headers: Mapping[str, str]) -> None:
        for sink in self._sinks.matching(name):
            sink(name, payload, headers)

    def delivery_came(self, frame: Frame) -> None:
        self._consumers.take(frame)

    def error_came(self, frame: Frame) -> None:
        self._consumers.end(frame)

    def goodbye_came(self, reason: str) -> None:
        log.info("the node says goodbye: %s", reason)

    def connection_ended(self, peer: Peer) -> None:
        if peer is not self._peer:
            return
        self._peer = None
        self._unregistered.clear()
        self._serving.stop()
        self._keeper.lost()


async def _asked(peer: Peer, kind: int, name: str, **rest: Any) -> Frame:
    try:
        return await peer.request(kind, name, timeout=REQUEST_TIMEOUT, **rest)
    except TimeoutError as exc:
        raise CallTimeout(f"the node did not answer within {REQUEST_TIMEOUT:g} s") from exc


def _time_out(waiting: WholeReply | StreamedReply, name: str, timeout: float) -> None:
    waiting.fail(CallTimeout(f"{name}: no reply within {timeout:g} s"))
