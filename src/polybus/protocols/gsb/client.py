"""A client of the Golem Service Bus that stays connected.

Invariant: what was bound or subscribed stands again on every new connection, under the same instance id; what was under
way when a connection ended fails with `ConnectionLost` and is never sent twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import secrets
import ssl
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Final, Self
from urllib.parse import parse_qs, urlsplit

from polybus._version import __version__
from polybus.errors import (
    CallTimeout,
    ConnectionLost,
    NameTaken,
    NoSuchService,
    PeerUnavailable,
    PolybusError,
    Refused,
    ServiceFailed,
)
from polybus.model.clock import SystemClock
from polybus.protocols.gsb.link import Link, Replies
from polybus.protocols.gsb.local import Handler, LocalRouter, Request, answer
from polybus.protocols.gsb.wire import (
    BAD_REQUEST,
    CONFLICT,
    NOT_FOUND,
    OK,
    SERVICE_FAILURE,
    CallReply,
    CallRequest,
    Kind,
    encode_broadcast,
    encode_hello,
    encode_name,
)
from polybus.transports.connection import Connection, Connections
from polybus.transports.dial import dial, hang_up
from polybus.transports.keeper import Keeper
from polybus.transports.outbox import Bounds, MiB
from polybus.transports.tls import pinned_context
from polybus.transports.url import Address, parse_address

log = logging.getLogger("polybus.gsb")

DEFAULT_PORT: Final = 7464
DEFAULT_URL: Final = "unix:/tmp/yagna.sock"  # what the original's programs agree on
CONNECT_TIMEOUT: Final = 3.0  # as the original client
REQUEST_TIMEOUT: Final = 30.0
FINISH_TIMEOUT: Final = 10.0  # for calls that are being served, as a node's own drain
MAX_FRAME: Final = 64 * MiB
UNKNOWN: Final = "endpoint address not found"

# A client never stops reading to slow itself down: a router that waits for it to read would wait for ever.
CLIENT_BOUNDS: Final = Bounds(pending_bytes=1024 * MiB, share_bytes=1024 * MiB)

Subscriber = Callable[[str, str, bytes], None]
"""Takes a broadcast: caller, topic, data."""


class GsbClient:
    """One connection to one router: `async with GsbClient("tcp://127.0.0.1:7464") as bus`."""

    def __init__(
        self,
        url: str | None = None,
        *,
        name: str = "polybus",
        local: LocalRouter | None = None,
        max_frame: int = MAX_FRAME,
    ) -> None:
        """Take the address: `tcp://host[:port]`, `unix:/path`, `tls://host:port?hash=SHA224`, or `host:port`.

        Args:
            url: the router; the variable GSB_URL when it is left out.
            local: handlers of this process, asked before the router is.
        """
        self._address, self._hash = parse_url(url or os.environ.get("GSB_URL") or DEFAULT_URL)
        self._name = name
        self._instance_id = uuid.uuid4().bytes
        self.local = local or LocalRouter()
        self._max_frame = max_frame
        self._connections = Connections(SystemClock(), CLIENT_BOUNDS)
        self._link: Link | None = None
        self._subscribers: dict[str, list[Subscriber]] = {}
        self._unregistered: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._keeper = Keeper(self._connect, self._tick)
        self._closed = False

    # -- life --

    async def open(self) -> None:
        """Connect, and stay connected from now on.

        Raises:
            PeerUnavailable: nobody answers there.
        """
        await self._keeper.start()

    async def close(self) -> None:
        """Close; what is under way fails. May be called twice."""
        self._closed = True
        await self._keeper.stop()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._link is not None:
            await hang_up(self._link.outbox, self._link.ended)

    async def drain(self) -> None:
        """Give the names up, finish the calls that are being served, then close."""
        for address in self.local.addresses:
            if self._link is None:
                break  # the names went with the connection
            with contextlib.suppress(ConnectionLost, CallTimeout):
                await self.unbind(address)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=FINISH_TIMEOUT)
        await self.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def connected(self) -> bool:
        """Whether there is a connection at this moment."""
        return self._link is not None

    async def ready(self, timeout: float | None = None) -> None:
        """Return once the connection, and all that was bound and subscribed, stands again.

        Raises:
            PeerUnavailable: it did not within `timeout` seconds.
        """
        await self._keeper.ready(timeout)

    async def _connect(self) -> None:
        links: list[Link] = []

        def session(connection: Connection) -> Link:
            links.append(Link(self, self._max_frame))
            return links[0]

        tls = pinned_context() if self._hash else None
        connection = await dial(self._address, self._connections, session, tls, CONNECT_TIMEOUT)
        if self._hash:
            _check_hash(connection, self._hash)
        link = links[0]
        # Hello and all names at once, as the original does: nothing is waited for in between.
        link.send(Kind.HELLO, encode_hello(self._name, __version__, self._instance_id))
        restored = [
            *(link.request(Kind.REGISTER_REQUEST, encode_name(a)) for a in self.local.addresses),
            *(link.request(Kind.SUBSCRIBE_REQUEST, encode_name(t)) for t in self._subscribers),
        ]
        self._link = link
        try:
            await self._restored(restored)
        except BaseException:
            link.outbox.abort("could not be restored")
            raise

    async def _restored(self, restored: list[asyncio.Future[tuple[int, str]]]) -> None:
        names = self.local.addresses
        for name, pending in zip(names, restored, strict=False):
            code, _message = await _answered(pending)
            if code != OK:
                # Still held by a dead connection of somebody: tried again at every tick.
                self._unregistered.add(name)
                log.warning("the name %s is taken; trying again", name)
        for pending in restored[len(names) :]:
            await _answered(pending)

    async def _tick(self) -> None:
        for name in tuple(self._unregistered):
            code, _message = await self._ask(Kind.REGISTER_REQUEST, encode_name(name))
            if code == OK:
                self._unregistered.discard(name)

    async def _ready(self, timeout: float | None) -> Link:
        """The present connection, waiting for it, and for room in it, if need be.

        Raises:
            PeerUnavailable, CallTimeout: there was none within `timeout`.
            ConnectionLost: the client was closed.
        """
        until = None if timeout is None else asyncio.get_running_loop().time() + timeout
        while self._link is None:
            if self._closed:
                raise ConnectionLost("the client is closed")
            await self._keeper.ready(timeout)
        link = self._link
        if link.outbox.congested:
            try:
                async with asyncio.timeout_at(until):
                    await link.room()
            except TimeoutError as exc:
                raise CallTimeout(f"the router took no data for {timeout:g} s") from exc
        return link

    async def _ask(self, kind: Kind, body: bytes) -> tuple[int, str]:
        link = await self._ready(REQUEST_TIMEOUT)
        return await _answered(link.request(kind, body))

    # -- services --

    async def bind(self, address: str, handler: Handler) -> None:
        """Answer an address, and what lies below it, from now on and over reconnects too.

        Raises:
            NameTaken, Refused.
        """
        # Only then is it among the names that a new connection registers by itself.
        link = await self._ready(REQUEST_TIMEOUT)
        self.local.bind(address, handler)
        try:
            request = link.request(Kind.REGISTER_REQUEST, encode_name(address))
            code, message = await _answered(request)
        except BaseException:
            self.local.unbind(address)
            _take_back(link, Kind.UNREGISTER_REQUEST, address)
            raise
        if code != OK:
            self.local.unbind(address)
            raise NameTaken(address) if code == CONFLICT else Refused(message or f"code {code}")

    async def unbind(self, address: str) -> bool:
        """Stop answering an address; calls under way are finished. False if it was not registered."""
        self.local.unbind(address)
        self._unregistered.discard(address)
        code, _message = await self._ask(Kind.UNREGISTER_REQUEST, encode_name(address))
        return code != NOT_FOUND

    # -- calls --

    async def call(
        self, address: str, data: bytes, *, caller: str = "local", timeout: float | None = None
    ) -> bytes:
        """Call a service and wait for its reply.

        Raises:
            NoSuchService, Refused (the service says bad request), ServiceFailed (also when it answers with a
            stream), CallTimeout, ConnectionLost, PeerUnavailable, LimitExceeded.
        """
        parts: list[bytes] = []
        async for part in self.call_streaming(address, data, caller=caller, timeout=timeout):
            parts.append(part)
            if len(parts) > 1:
                raise ServiceFailed(f"{address} answers with a stream: use call_streaming")
        return parts[0]

    async def call_streaming(
        self, address: str, data: bytes, *, caller: str = "local", timeout: float | None = None
    ) -> AsyncIterator[bytes]:
        """Call a service and read its reply part by part; `timeout` is for the whole of it.

        Raises as `call`, and SlowConsumer when too many parts wait to be read.
        """
        until = None if timeout is None else asyncio.get_running_loop().time() + timeout
        handler = self.local.find(address)
        if handler is not None:
            parts_here = answer(handler, Request(caller, address, data))
            while (part := await _next_here(parts_here, until, address)) is not None:
                yield part
            return
        link = await self._ready(timeout)
        replies = link.call(CallRequest(caller, address, str(secrets.randbits(53)), data))
        try:
            parts = 0
            while True:
                reply = await _next(replies, until, address)
                parts += reply.partial
                # A stream may end with an empty last reply, which is then no part of it (protocol page §7).
                if reply.data or reply.partial or not parts:
                    yield reply.data
                if not reply.partial:
                    return
        finally:
            link.forget(replies)

    async def push(self, address: str, data: bytes, *, caller: str = "local") -> None:
        """Call a service whose answer nobody wants; whether anybody took it is not known."""
        handler = self.local.find(address)
        if handler is not None:
            self._spawn(_run(handler, Request(caller, address, data, no_reply=True)))
            return
        link = await self._ready(REQUEST_TIMEOUT)
        request = CallRequest(caller, address, str(secrets.randbits(53)), data, no_reply=True)
        link.push(request)

    # -- broadcasts --

    async def subscribe(self, topic: str, subscriber: Subscriber) -> None:
        """Pass broadcasts on a topic to `subscriber` from now on, over reconnects too.

        Raises:
            Refused.
        """
        subscribers = self._subscribers.setdefault(topic, [])
        subscribers.append(subscriber)
        if len(subscribers) == 1:
            try:
                code, message = await self._ask(Kind.SUBSCRIBE_REQUEST, encode_name(topic))
                if code != OK:
                    raise Refused(message or f"code {code}")
            except BaseException:
                # Nobody was told that it stands, so it must not come back with the next connection.
                del self._subscribers[topic]
                if self._link is not None:
                    _take_back(self._link, Kind.UNSUBSCRIBE_REQUEST, topic)
                raise

    async def unsubscribe(self, topic: str, subscriber: Subscriber) -> None:
        """Stop passing broadcasts to `subscriber`."""
        subscribers = self._subscribers.get(topic, [])
        if subscriber in subscribers:
            subscribers.remove(subscriber)
            if not subscribers:
                del self._subscribers[topic]
                await self._ask(Kind.UNSUBSCRIBE_REQUEST, encode_name(topic))

    async def broadcast(self, topic: str, data: bytes, *, caller: str = "local") -> None:
        """Send to everybody subscribed at this moment; returns when the router has taken it.

        Raises:
            Refused.
        """
        body = encode_broadcast(caller, topic, data)
        code, message = await self._ask(Kind.BROADCAST_REQUEST, body)
        if code != OK:
            raise Refused(message or f"code {code}")

    # -- what the connection tells --

    def request_came(self, link: Link, request: CallRequest) -> None:
        handler = self.local.find(request.address)
        if handler is None:
            if not request.no_reply:
                link.reply(request.request_id, BAD_REQUEST, UNKNOWN.encode())
            return
        self._spawn(_serve(link, handler, request))

    def broadcast_came(self, caller: str, topic: str, data: bytes) -> None:
        for subscriber in tuple(self._subscribers.get(topic, ())):
            try:
                subscriber(caller, topic, data)
            except Exception:
                # A mistake of the program's own must not end the connection and all that waits on it.
                log.exception("a subscriber of %s raised", topic)

    def link_ended(self, link: Link) -> None:
        if link is self._link:
            self._link = None
            self._unregistered.clear()
            self._keeper.lost()

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def parse_url(url: str) -> tuple[Address, str]:
    """The address, and the certificate hash if one is given.

    Raises:
        ConfigError: no address.
    """
    if "://" not in url and not url.startswith("unix:"):
        url = f"tcp://{url}"
    pinned = ""
    if url.startswith("tls://"):
        pinned = parse_qs(urlsplit(url).query).get("hash", [""])[0].lower()
        if pinned:
            url = url.partition("?")[0]
    return parse_address(url, DEFAULT_PORT), pinned


def _check_hash(connection: Connection, expected: str) -> None:
    session: ssl.SSLObject = connection.outbox.get_extra_info("ssl_object")
    der = session.getpeercert(binary_form=True) or b""
    if hashlib.sha224(der).hexdigest() != expected:
        connection.outbox.abort("wrong certificate")
        raise PeerUnavailable(f"{connection.address} shows another certificate")


async def _answered(pending: asyncio.Future[tuple[int, str]]) -> tuple[int, str]:
    try:
        async with asyncio.timeout(REQUEST_TIMEOUT):
            return await pending
    except TimeoutError as exc:
        raise CallTimeout(f"the router did not answer within {REQUEST_TIMEOUT:g} s") from exc


def _take_back(link: Link, kind: Kind, name: str) -> None:
    """Undo what may have come through though nobody waits for its answer any more."""
    request = link.request(kind, encode_name(name))
    request.add_done_callback(lambda done: done.cancelled() or done.exception())


async def _next(replies: Replies, until: float | None, address: str) -> CallReply:
    try:
        async with asyncio.timeout_at(until):
            reply = await replies.next()
    except TimeoutError as exc:
        raise CallTimeout(f"{address} did not answer in time") from exc
    if reply.code != OK:
        raise _failure(address, reply)
    return reply


async def _next_here(
    parts: AsyncIterator[tuple[bytes, bool]], until: float | None, address: str
) -> bytes | None:
    """The next part of a handler's answer in this process; it fails as it would over the wire."""
    try:
        async with asyncio.timeout_at(until) as limit:
            part, _last = await anext(parts)
    except StopAsyncIteration:
        return None
    except PolybusError:
        raise
    except Exception as exc:
        if limit.expired():
            raise CallTimeout(f"{address} did not answer in time") from exc
        raise ServiceFailed(_text(exc)) from exc
    return part


def _text(exc: Exception) -> str:
    return str(exc) or type(exc).__name__


def _failure(address: str, reply: CallReply) -> PolybusError:
    text = reply.data.decode("utf-8", "replace")
    if reply.code == BAD_REQUEST:
        return NoSuchService(address, text) if text == UNKNOWN else Refused(text)
    return ServiceFailed(text, reply.data)


async def _serve(link: Link, handler: Handler, request: CallRequest) -> None:
    asked = Request(request.caller, request.address, request.data, request.no_reply)
    try:
        async for part, last in answer(handler, asked):
            if not request.no_reply:
                link.reply(request.request_id, OK, part, not last)
    except Refused as exc:
        _tell(link, request, BAD_REQUEST, str(exc))
    except Exception as exc:
        # Whatever a handler raises is the caller's answer; the text of a PolybusError says it best.
        log.info("the handler of %s failed: %r", request.address, exc)
        _tell(link, request, SERVICE_FAILURE, _text(exc))


def _tell(link: Link, request: CallRequest, code: int, text: str) -> None:
    if not request.no_reply:
        link.reply(request.request_id, code, text.encode())


async def _run(handler: Handler, request: Request) -> None:
    try:
        async for _part, _last in answer(handler, request):
            pass
    except Exception as exc:
        log.info("the handler of %s failed: %r", request.address, exc)
