"""A subscription as the program reads it.

Invariant: what is not read is bounded; beyond that the newest is dropped and counted, and others never wait.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Generator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self
from weakref import WeakSet

from polybus.client.message import Message
from polybus.errors import ConnectionLost, PolybusError

if TYPE_CHECKING:
    from polybus.client.link import Link

MAX_UNREAD_BYTES: Final = 64 * 1024 * 1024  # as the node keeps for one connection
MESSAGE_COST: Final = 200  # bytes that an empty message takes here


class Inbox:
    """What came and was not read yet; the wire's client fills it."""

    __slots__ = ("_bytes", "_messages", "_wake", "dropped", "ended")

    def __init__(self) -> None:
        self._messages: deque[Message] = deque()
        self._bytes = 0
        self._wake: asyncio.Future[None] | None = None
        self.dropped = 0
        self.ended = False

    def take(self, name: str, payload: bytes, headers: Mapping[str, str]) -> None:
        """Add a message, or drop it when too much is unread."""
        size = len(payload) + MESSAGE_COST
        if self._bytes + size > MAX_UNREAD_BYTES:
            self.dropped += 1
            return
        self._bytes += size
        self._messages.append(Message(name, payload, headers))
        self._wake_up()

    def end(self) -> None:
        """Nothing more will come."""
        self.ended = True
        self._wake_up()

    async def next(self) -> Message | None:
        """The oldest message, waiting for one; None after the end."""
        while not self._messages and not self.ended:
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake
        return self.pop()

    def pop(self) -> Message | None:
        """The oldest message that is here, if any."""
        if not self._messages:
            return None
        message = self._messages.popleft()
        self._bytes -= len(message.payload) + MESSAGE_COST
        return message

    def _wake_up(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)


class Subscription:
    """`async for message in bus.subscribe(pattern)`.

    It begins with the first look at it: `await` it, or enter it as a context, to be sure that it stands before
    something is published. It ends with its context, with `close`, with its bus, or when nobody refers to it any more.
    One task reads it.
    """

    def __init__(self, link: Callable[[], Link], pattern: str, live: WeakSet[Subscription]) -> None:
        self.pattern = pattern
        self._live = live  # those of the bus, which ends them when it is closed
        self._link = link
        # The wire's client holds the inbox, the bus this object weakly: dropping it ends the subscription.
        self._inbox = Inbox()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def dropped(self) -> int:
        """Messages lost because they were not read in time."""
        return self._inbox.dropped

    async def start(self) -> Self:
        """Begin, unless it has begun.

        Raises:
            InvalidName, NotAuthorized, ConnectionLost.
        """
        if self._loop is None and not self._inbox.ended:
            self._loop = asyncio.get_running_loop()
            self._live.add(self)
            try:
                await self._link().subscribe(self.pattern, self._inbox.take)
            except BaseException:
                self._loop = None
                raise
        return self

    async def close(self) -> None:
        """End it; what was received can still be read. May be called twice."""
        self._inbox.end()
        if self._loop is not None:
            self._loop = None
            # Where nothing is connected any more, nothing is subscribed.
            with contextlib.suppress(ConnectionLost):
                await self._link().unsubscribe(self.pattern, self._inbox.take)

    def end(self) -> None:
        """The bus is closed; one that has begun ends, and what it received can still be read."""
        if self._loop is not None:
            self._loop = None
            self._inbox.end()

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return self._inbox.ended

    def unread(self) -> Message | None:
        """The oldest message that was received and not read, without waiting for one."""
        return self._inbox.pop()

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
        await self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        if self._loop is None:
            await self.start()
        message = await self._inbox.next()
        if message is None:
            raise StopAsyncIteration
        return message

    def __del__(self) -> None:
        loop = getattr(self, "_loop", None)
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(_forget, self._link, self.pattern, self._inbox)


def _forget(link: Callable[[], Link], pattern: str, inbox: Inbox) -> None:
    """End the subscription of an object that is gone: `break` in an `async for` leaves nobody to do it."""
    task = asyncio.get_running_loop().create_task(_unsubscribe(link, pattern, inbox))
    _forgetting.add(task)
    task.add_done_callback(_forgetting.discard)


async def _unsubscribe(link: Callable[[], Link], pattern: str, inbox: Inbox) -> None:
    with contextlib.suppress(PolybusError):  # no connection any more is as good
        await link().unsubscribe(pattern, inbox.take)


_forgetting: set[asyncio.Task[None]] = set()
