"""The SDK over the Golem Service Bus: its client, with the bus's verbs.

Invariant: a name and its address differ by the one leading slash that the shared namespace drops.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Mapping

from polybus.client.handlers import LinkHandler
from polybus.client.link import Link, Sink, absent
from polybus.errors import LocalProtocolError
from polybus.model.message import NO_HEADERS
from polybus.model.pattern import has_wildcard
from polybus.protocols.gsb.client import GsbClient
from polybus.protocols.gsb.local import Request


class GsbLink(Link):
    """What that wire has of the bus: calls, streams, pushes, and broadcasts on exact topics."""

    wire = "gsb"

    def __init__(self, client: GsbClient) -> None:
        self._client = client
        self._sinks: dict[tuple[str, Sink], Subscriber] = {}

    async def open(self) -> None:
        await self._client.open()

    async def close(self) -> None:
        await self._client.close()

    async def drain(self) -> None:
        await self._client.drain()

    @property
    def connected(self) -> bool:
        return self._client.connected

    async def call(
        self,
        name: str,
        payload: bytes,
        *,
        timeout: float | None = None,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> bytes:
        parts = self.call_streaming(name, payload, timeout=timeout, headers=headers)
        return b"".join([part async for part in parts])

    async def call_streaming(
        self,
        name: str,
        payload: bytes,
        *,
        timeout: float | None = None,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> AsyncGenerator[bytes, None]:
        _refuse_headers(headers)
        parts = self._client.call_streaming(to_address(name), payload, timeout=timeout)
        async for part in parts:
            yield part

    async def push(
        self, name: str, payload: bytes, *, headers: Mapping[str, str] = NO_HEADERS
    ) -> None:
        _refuse_headers(headers)
        await self._client.push(to_address(name), payload)

    async def serve(self, name: str, handler: LinkHandler) -> None:
        def handle(request: Request) -> Awaitable[bytes] | AsyncIterator[bytes]:
            outcome = handler(to_name(request.address), request.data, NO_HEADERS)
            return _later(outcome) if isinstance(outcome, bytes) else outcome

        await self._client.bind(to_address(name), handle)

    async def unserve(self, name: str) -> None:
        await self._client.unbind(to_address(name))

    async def publish(
        self, name: str, payload: bytes, *, headers: Mapping[str, str] = NO_HEADERS
    ) -> int | None:
        _refuse_headers(headers)
        _refuse_pattern(name)
        await self._client.broadcast(to_address(name), payload)
        return None

    async def publish_nowait(
        self, name: str, payload: bytes, *, headers: Mapping[str, str] = NO_HEADERS
    ) -> None:
        await self.publish(name, payload, headers=headers)

    async def subscribe(self, pattern: str, sink: Sink) -> None:
        _refuse_pattern(pattern)
        subscriber = Subscriber(sink)
        self._sinks[pattern, sink] = subscriber
        try:
            await self._client.subscribe(to_address(pattern), subscriber)
        except BaseException:
            self._sinks.pop((pattern, sink), None)
            raise

    async def unsubscribe(self, pattern: str, sink: Sink) -> None:
        subscriber = self._sinks.pop((pattern, sink), None)
        if subscriber is not None:
            await self._client.unsubscribe(to_address(pattern), subscriber)


class Subscriber:
    """A sink as that wire's client calls it."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def __call__(self, caller: str, topic: str, data: bytes) -> None:
        self._sink(to_name(topic), data, NO_HEADERS)


def to_address(name: str) -> str:
    """The wire's spelling of a shared name; one that is spelt so already stays."""
    return name if name.startswith("/") else f"/{name}"


def to_name(address: str) -> str:
    """The shared name of an address."""
    return address.removeprefix("/")


def _refuse_headers(headers: Mapping[str, str]) -> None:
    if headers:
        raise LocalProtocolError("the wire gsb has no headers")


def _refuse_pattern(name: str) -> None:
    if has_wildcard(name):
        raise absent("gsb", f"pattern {name!r}: its topics match exactly")


async def _later(payload: bytes) -> bytes:
    return payload
