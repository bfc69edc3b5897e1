"""The seam between the SDK and the wires: what a wire's client offers to the bus.

Invariant: a verb that a wire does not have raises `LocalProtocolError` that names both; it is never half done.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from polybus.client.consumption import Consumer
from polybus.client.handlers import LinkHandler
from polybus.core.group_options import BEGINNING, Start
from polybus.errors import LocalProtocolError
from polybus.model.message import NO_HEADERS
from polybus.model.record import NewRecord

Sink = Callable[[str, bytes, Mapping[str, str]], None]
"""Takes publications: name, payload, headers."""


class Fetched(Protocol):
    """Encoded chunks of a topic; `next` is where to go on."""

    @property
    def next(self) -> int: ...
    @property
    def chunks(self) -> Sequence[bytes]: ...


class Link(Protocol):
    """A wire's client. It keeps itself connected, and registers and subscribes again by itself.

    A client that has all the verbs fits as it is; an adapter for one that has not inherits from this class and gets the
    refusals below.
    """

    wire: str

    async def open(self) -> None:
        """Connect; raises PeerUnavailable when there is nobody."""

    async def close(self) -> None:
        """Disconnect at once; may be called twice."""

    async def drain(self) -> None:
        """Take nothing new, finish what is under way, then disconnect."""

    @property
    def connected(self) -> bool:
        """Whether there is a connection at this moment."""
        return False

    async def call(
        self,
        name: str,
        payload: bytes,
        *,
        timeout: float | None = None,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> bytes:
        """The whole reply of a service."""
        raise absent(self.wire, "call")

    def call_streaming(
        self,
        name: str,
        payload: bytes,
        *,
        timeout: float | None = None,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> AsyncGenerator[bytes, None]:
        """The reply of a service, part by part."""
        raise absent(self.wire, "streaming call")

    async def push(
        self, name: str, payload: bytes, *, headers: Mapping[str, str] = NO_HEADERS
    ) -> None:
        """A call whose answer nobody wants."""
        raise absent(self.wire, "push")

    async def serve(self, name: str, handler: LinkHandler) -> None:
        """Answer a name."""
        raise absent(self.wire, "serve")

    async def unserve(self, name: str) -> None:
        """Give a name up."""
        raise absent(self.wire, "serve")

    async def services(self) -> list[dict[str, Any]]:
        """All names that are answered."""
        raise absent(self.wire, "listing of services")

    async def publish(
        self, name: str, payload: bytes, *, headers: Mapping[str, str] = NO_HEADERS
    ) -> int | None:
        """Publish and learn how many took it, where the wire can tell."""
        raise absent(self.wire, "publish")

    async def publish_nowait(
        self, name: str, payload: bytes, *, headers: Mapping[str, str] = NO_HEADERS
    ) -> None:
        """Publish without waiting for a confirmation."""
        raise absent(self.wire, "publish")

    async def subscribe(self, pattern: str, sink: Sink) -> None:
        """Pass publications to a sink."""
        raise absent(self.wire, "subscribe")

    async def unsubscribe(self, pattern: str, sink: Sink) -> None:
        """Stop passing publications to a sink."""
        raise absent(self.wire, "subscribe")

    def produce(self, topic: str, record: NewRecord, *, create: bool = False) -> Awaitable[int]:
        """Store a record; its offset."""
        raise absent(self.wire, "produce")

    async def produce_many(
        self, topic: str, records: Sequence[NewRecord], *, create: bool = False
    ) -> int:
        """Store records, all or none; the first offset."""
        raise absent(self.wire, "produce")

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
        """Join a group."""
        raise absent(self.wire, "consume")

    async def fetch(self, topic: str, start: int, end: int | None, max_bytes: int) -> Fetched:
        """Encoded chunks of a topic."""
        raise absent(self.wire, "fetch")

    async def ask(
        self,
        question: str,
        arguments: Mapping[str, object] | None = None,
        payload: bytes = b"",
    ) -> dict[str, Any]:
        """Administration, by the name of the question."""
        raise absent(self.wire, f"question {question}")


def absent(wire: str, verb: str) -> LocalProtocolError:
    """The error of a verb that a wire has no word for."""
    return LocalProtocolError(f"the wire {wire} has no {verb}")
