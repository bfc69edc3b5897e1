"""Consuming as the program reads it: records that are acknowledged by going on.

Invariant: a record whose loop body was not finished is never acknowledged by the SDK itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Mapping
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from polybus.client.message import decode_payload
from polybus.model.record import Record

T = TypeVar("T")


class Delivered(Protocol):
    """A record with the number of its delivery."""

    @property
    def record(self) -> Record: ...
    @property
    def attempt(self) -> int: ...


class Consumer(Protocol):
    """A wire's membership of a group."""

    async def next(self) -> Delivered: ...
    def ack(self, offset: int) -> None: ...
    def nack(self, offset: int, delay: float = 0.0, reason: str = "") -> None: ...
    async def leave(self) -> None: ...


class Received:
    """A record as a group's member gets it; `attempt` is 1 at the first delivery."""

    __slots__ = ("_consumer", "attempt", "record", "settled", "topic")

    def __init__(self, consumer: Consumer, topic: str, delivered: Delivered) -> None:
        self._consumer = consumer
        self.topic = topic
        self.record = delivered.record
        self.attempt = delivered.attempt
        self.settled = False
        """Whether it was acknowledged or given back."""

    def __repr__(self) -> str:
        return f"<Received {self.topic} offset={self.offset} attempt={self.attempt}>"

    @property
    def offset(self) -> int:
        return self.record.offset

    @property
    def time_ms(self) -> int:
        return self.record.time_ms

    @property
    def payload(self) -> bytes:
        return self.record.payload

    @property
    def key(self) -> bytes:
        return self.record.key

    @property
    def tag(self) -> str:
        return self.record.tag

    @property
    def headers(self) -> Mapping[str, str]:
        return self.record.headers

    @property
    def id(self) -> str:
        return self.record.id

    def decode(self, type: type[T]) -> T:
        """The JSON payload as a value of `type`.

        Raises:
            RemoteProtocolError: it is none.
        """
        return decode_payload(self.record.payload, type, self.topic)

    def ack(self) -> None:
        """Confirm it; told to the node at the end of this turn of the event loop. Only the first ack or nack counts."""
        if not self.settled:
            self.settled = True
            self._consumer.ack(self.record.offset)

    def nack(self, delay: float = 0.0, reason: str = "") -> None:
        """Give it back, to be delivered again after `delay` seconds, to whichever member."""
        if not self.settled:
            self.settled = True
            self._consumer.nack(self.record.offset, delay, reason)


class Consumption:
    """`async for record in bus.consume(topic, group)`.

    Going on to the next record acknowledges the one before, unless it was acked or nacked by hand. A body that raises
    does not go on: its record is given back when the context or the object ends. One task reads it.
    """

    def __init__(self, topic: str, join: Callable[[], Awaitable[Consumer]]) -> None:
        self.topic = topic
        self.join = join
        """How the group is joined when it is first looked at."""
        self._consumer: Consumer | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._current: Received | None = None
        self._closed = False

    async def start(self) -> Self:
        """Join the group, unless that has happened.

        Raises:
            NoSuchTopic, InvalidName, NotAuthorized, Conflict, OutOfRange, ConnectionLost.
        """
        if self._consumer is None and not self._closed:
            self._consumer = await self.join()
            self._loop = asyncio.get_running_loop()
        return self

    async def close(self) -> None:
        """Leave the group; what was not acknowledged goes to others. May be called twice."""
        consumer, self._consumer, self._closed = self._consumer, None, True
        if consumer is not None:
            await consumer.leave()

    def __await__(self) -> Generator[Any, None, Self]:
        return self.start().__await__()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        current, self._current = self._current, None
        if current is not None:
            if isinstance(error, Exception):
                current.nack(reason=f"{type(error).__name__}: {error}")
            elif error is None:
                current.ack()
        await self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Received:
        current, self._current = self._current, None
        if current is not None:
            current.ack()
        if self._consumer is None:
            await self.start()
        if self._consumer is None:
            raise StopAsyncIteration
        delivered = await self._consumer.next()
        self._current = Received(self._consumer, self.topic, delivered)
        return self._current

    def __del__(self) -> None:
        loop, consumer = getattr(self, "_loop", None), getattr(self, "_consumer", None)
        if loop is not None and consumer is not None and not loop.is_closed():
            loop.call_soon_threadsafe(_leave, consumer)


def _leave(consumer: Consumer) -> None:
    """Leave for an object that is gone: a `break` or a raise in an `async for` leaves nobody to do it."""
    task = asyncio.get_running_loop().create_task(consumer.leave())
    _leaving.add(task)
    task.add_done_callback(_leaving.discard)


_leaving: set[asyncio.Task[None]] = set()
