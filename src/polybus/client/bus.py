"""The bus as a program sees it, whatever the wire.

Invariant: every verb ends with a value or an error of `polybus.errors`; bytes are never re-encoded.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import (
    AsyncGenerator,
    Callable,
    Coroutine,
    Generator,
    Mapping,
    Sequence,
)
from types import TracebackType
from typing import Any, Final, Self, TypeVar, overload
from weakref import WeakSet

from polybus.client.arguments import check_headers
from polybus.client.handlers import wrap
from polybus.client.link import Link
from polybus.client.message import decode_payload, encode_payload
from polybus.client.subscription import Subscription
from polybus.client.topics import TopicVerbs
from polybus.client.tracing import traced
from polybus.errors import ConnectionLost
from polybus.model.message import NO_HEADERS

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

CALL_TIMEOUT: Final = 30.0  # seconds, as T2's; a call without any limit is asked for with None


class Bus(TopicVerbs):
    """A connection to a bus that mends itself.

    `async with polybus.connect(url) as bus:` opens and closes it. Handlers may be given before that: they are
    registered when it opens.
    """

    def __init__(self, make_link: Callable[[], Link], url: str) -> None:
        self.url = url
        self._make_link = make_link
        self._open_link: Link | None = None
        self._handlers: dict[str, Callable[..., Any]] = {}
        self._registering: list[asyncio.Task[None]] = []
        self._subscriptions: WeakSet[Subscription] = WeakSet()
        self._closed = asyncio.Event()

    def __repr__(self) -> str:
        link = self._open_link
        state = "closed" if link is None else "connected" if link.connected else "reconnecting"
        return f"<Bus {self.url} {state}>"

    # -- life ----------------------------------------------------------------------------------------------------------

    async def open(self) -> Self:
        """Connect, and register the handlers that were given before.

        Raises:
            PeerUnavailable, NotAuthorized, NameTaken: nothing is left open.
        """
        link = traced(self._make_link())
        await link.open()
        try:
            for name, function in self._handlers.items():
                await link.serve(name, wrap(function))
        except BaseException:
            await link.close()
            raise
        self._open_link = link
        self._closed.clear()
        return self

    async def close(self) -> None:
        """Disconnect at once; calls under way fail with ConnectionLost, subscriptions end. May be called twice."""
        link, self._open_link = self._open_link, None
        try:
            if link is not None:
                await link.close()
        finally:
            self._end()

    async def drain(self) -> None:
        """Answer no new calls, finish those under way, then disconnect."""
        await self._settle()
        link, self._open_link = self._open_link, None
        try:
            if link is not None:
                await link.drain()
        finally:
            self._end()

    async def wait(self) -> None:
        """Return when the bus is closed; what a program that only serves ends with."""
        await self._settle()
        await self._closed.wait()

    def __await__(self) -> Generator[Any, None, Self]:
        return self.open().__await__()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                await self._settle()
        finally:
            for task in self._registering:
                task.cancel()
            await asyncio.gather(*self._registering, return_exceptions=True)
            await self.close()

    @property
    def connected(self) -> bool:
        """Whether there is a connection at this moment; without one, verbs wait for the next."""
        return self._open_link is not None and self._open_link.connected

    # -- services ------------------------------------------------------------------------------------------------------

    @overload
    def serve(self, name: str) -> Callable[[F], F]: ...
    @overload
    def serve(self, name: str, function: Callable[..., Any]) -> Coroutine[Any, Any, None]: ...
    def serve(
        self, name: str, function: Callable[..., Any] | None = None
    ) -> Callable[[F], F] | Coroutine[Any, Any, None]:
        """Answer calls to `name`: as a decorator, or `await bus.serve(name, function)`.

        The function may be sync or async, or an async generator for a reply in parts. Its one parameter is the body:
        untouched for `bytes`, a `Message` with headers, or any type that msgspec decodes from JSON; what it returns
        goes back the same way. An exception becomes `ServiceFailed` at the caller.

        A name that a decorator could not register raises at the next verb, or when the bus is left.

        Raises:
            NameTaken, NotAuthorized, InvalidName, LocalProtocolError: from the awaited form.
        """
        if function is not None:
            return self._register(name, function)

        def decorate(decorated: F) -> F:
            wrap(decorated)  # refuses what cannot be called, where the mistake is
            if self._open_link is None:
                self._handlers[name] = decorated
            else:
                task = asyncio.get_running_loop().create_task(self._register(name, decorated))
                self._registering.append(task)
            return decorated

        return decorate

    async def unserve(self, name: str) -> None:
        """Give a name up; calls under way are finished."""
        await self._ready().unserve(name)
        self._handlers.pop(name, None)

    async def services(self) -> list[dict[str, Any]]:
        """Every name that is answered on the node, with its wire and owner."""
        return await (await self._settled()).services()

    async def _register(self, name: str, function: Callable[..., Any]) -> None:
        await self._ready().serve(name, wrap(function))
        self._handlers[name] = function

    # -- calls ---------------------------------------------------------------------------------------------------------

    @overload
    async def call(
        self,
        name: str,
        payload: object = b"",
        *,
        timeout: float | None = CALL_TIMEOUT,
        headers: Mapping[str, str] = NO_HEADERS,
        twin: int | None = None,
    ) -> bytes: ...
    @overload
    async def call(
        self,
        name: str,
        payload: object = b"",
        *,
        type: type[T],
        timeout: float | None = CALL_TIMEOUT,
        headers: Mapping[str, str] = NO_HEADERS,
        twin: int | None = None,
    ) -> T: ...
    @overload
    async def call(
        self,
        name: str,
        payload: object = b"",
        *,
        type: type[Any] | None = None,
        timeout: float | None = CALL_TIMEOUT,
        headers: Mapping[str, str] = NO_HEADERS,
        twin: Sequence[int],
    ) -> list[Any]: ...
    async def call(
        self,
        name: str,
        payload: object = b"",
        *,
        type: type[T] | None = None,
        timeout: float | None = CALL_TIMEOUT,
        headers: Mapping[str, str] = NO_HEADERS,
        twin: int | Sequence[int] | None = None,
    ) -> T | bytes | list[Any]:
        """Call a service and wait for its reply.

        Args:
            payload: bytes are sent as they are, anything else as JSON.
            type: what to decode the reply's JSON to; without it the reply is bytes.
            timeout: seconds until CallTimeout, and the deadline that the service's side gets.
            twin: the number of the RMB twin that is asked for its command `name`; of several, all are asked at
                once and their replies come as a list in the same order.

        Raises:
            NoSuchService, ServiceFailed, CallTimeout, Refused: as the node or the service says.
            ConnectionLost: the connection ended; whether the service acted is not known.
            PeerUnavailable: there was no connection within `timeout`.
            LocalProtocolError: a header is no text.
        """
        if twin is not None:
            if not isinstance(twin, int):
                kind: Any = type
                names = [_of_twin(number, name) for number in twin]
                calls = [
                    self.call(each, payload, type=kind, timeout=timeout, headers=headers)
                    for each in names
                ]
                return list(await asyncio.gather(*calls))
            name = _of_twin(twin, name)
        if headers:
            check_headers(headers)
        link = self._at_hand() or await self._settled()
        reply = await link.call(name, encode_payload(payload), timeout=timeout, headers=headers)
        return reply if type is None else decode_payload(reply, type, name)

    async def call_streaming(
        self,
        name: str,
        payload: object = b"",
        *,
        type: type[T] | None = None,
        timeout: float | None = CALL_TIMEOUT,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> AsyncGenerator[Any, None]:
        """Call a service and read its reply part by part, as `bytes` or as `type`. Raises as `call`."""
        if headers:
            check_headers(headers)
        link = await self._settled()
        body = encode_payload(payload)
        parts = link.call_streaming(name, body, timeout=timeout, headers=headers)
        async with contextlib.aclosing(parts):
            async for part in parts:
                yield part if type is None else decode_payload(part, type, name)

    async def push(
        self, name: str, payload: object = b"", *, headers: Mapping[str, str] = NO_HEADERS
    ) -> None:
        """Call a service and want no answer; whether anybody took it is not known."""
        if headers:
            check_headers(headers)
        await (await self._settled()).push(name, encode_payload(payload), headers=headers)

    # -- publications --------------------------------------------------------------------------------------------------

    async def publish(
        self, name: str, payload: object = b"", *, headers: Mapping[str, str] = NO_HEADERS
    ) -> int | None:
        """Publish to everybody who has subscribed, at most once each.

        Returns:
            How many endpoints the node passed it to; None on a wire that does not tell.

        Raises:
            InvalidName, NotAuthorized, LimitExceeded, ConnectionLost, PeerUnavailable.
            LocalProtocolError: a header is no text.
        """
        if headers:
            check_headers(headers)
        return await (await self._settled()).publish(name, encode_payload(payload), headers=headers)

    async def publish_nowait(
        self, name: str, payload: object = b"", *, headers: Mapping[str, str] = NO_HEADERS
    ) -> None:
        """The same without waiting for the node: faster, and a refusal is not heard of."""
        if headers:
            check_headers(headers)
        await (await self._settled()).publish_nowait(name, encode_payload(payload), headers=headers)

    def subscribe(self, pattern: str) -> Subscription:
        """The publications whose names match `pattern` (`*` one segment, `**` any number)."""
        return Subscription(self._ready, pattern, self._subscriptions)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _ready(self) -> Link:
        if self._open_link is None:
            raise ConnectionLost(f"the bus {self.url} is not open")
        return self._open_link

    def _end(self) -> None:
        for subscription in tuple(self._subscriptions):
            subscription.end()
        self._closed.set()

    def _at_hand(self) -> Link | None:
        return None if self._registering else self._open_link

    async def _settled(self) -> Link:
        """The link, once the registrations that were begun before are through: verbs act in the order written."""
        if self._registering:
            await self._settle()
        return self._ready()

    async def _settle(self) -> None:
        registering, self._registering = self._registering, []
        for outcome in await asyncio.gather(*registering, return_exceptions=True):
            if outcome is not None:
                raise outcome


def _of_twin(twin: int, command: str) -> str:
    """The shared name of another twin's command (DESIGN 3)."""
    return f"twin/{twin}/{command.replace('.', '/')}"
