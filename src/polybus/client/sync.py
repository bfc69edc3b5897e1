"""The bus for programs without an event loop: the same verbs, each of which waits.

Invariant: everything that happens, happens on the async bus in one background thread; this file only waits for it, so
the two can never differ in what they do.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import inspect
import threading
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import CancelledError, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Final, Self, TypeVar, overload

from polybus.client.bus import CALL_TIMEOUT, Bus
from polybus.client.consumption import Consumer, Consumption, Delivered, Received
from polybus.client.handlers import wrap
from polybus.client.message import Message
from polybus.client.subscription import Subscription
from polybus.client.topics import FETCH_BYTES, WINDOW
from polybus.core.engine import TopicInfo
from polybus.core.group_options import BEGINNING, GroupInfo, Start
from polybus.errors import ConnectionLost
from polybus.model.message import NO_HEADERS
from polybus.model.record import NewRecord, Record

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

LAST_WORDS: Final = 1.0  # seconds that what waited for the bus has for hearing of its end
HANDLER_THREADS: Final = 64  # handlers may block, and may call the bus themselves
_END: Final = object()


class Background:
    """An event loop in a thread of its own, and threads for handlers that block."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="polybus", daemon=True)
        self._pool = ThreadPoolExecutor(HANDLER_THREADS, "polybus handler")
        self._submitting = threading.Lock()
        self._stopped = False

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        with self._submitting:
            self._stopped = True
        # Every thread that waits must hear of the end: nothing would ever wake it once the loop stands still.
        asyncio.run_coroutine_threadsafe(_finish(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something on the loop and wait for its end; an interrupt (Ctrl-C) ends it too.

        Raises:
            ConnectionLost: the loop has stopped, or it stopped meanwhile.
        """
        with self._submitting:  # or it might come behind the last that the loop does
            if self._stopped:
                work.close()
                raise ConnectionLost("the client is closed")
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except CancelledError:
            if not self._stopped:
                raise
            raise ConnectionLost("the client is closed") from None
        except BaseException:
            future.cancel()
            raise

    def next(self, parts: AsyncIterator[T]) -> T:
        """The next element of something that is read on the loop; raises StopIteration at its end."""
        part = self.wait(_next(parts))
        if part is _END:
            raise StopIteration
        return part  # type: ignore[return-value]

    def to_async(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A handler that runs in a thread; one that is async already stays on the loop."""
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            return function

        async def run(*args: Any) -> Any:
            return await self._in_thread(function, *args)

        async def run_parts(*args: Any) -> AsyncIterator[Any]:
            parts = iter(await run(*args))
            while (part := await self._in_thread(next, parts, _END)) is not _END:
                yield part

        # The annotations decide how a body is decoded, so they must be those of the function.
        return functools.wraps(function)(
            run_parts if inspect.isgeneratorfunction(function) else run
        )

    async def _in_thread(self, function: Callable[..., Any], *args: Any) -> Any:
        # The context goes along, so that what a handler does belongs to the span of its call.
        context = contextvars.copy_context()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, context.run, function, *args)


async def _next(parts: AsyncIterator[T]) -> T | object:
    # StopAsyncIteration cannot cross a future.
    async for part in parts:
        return part
    return _END


async def _finish() -> None:
    """Let what is under way come to its end, and cancel what does not."""
    waiting = asyncio.all_tasks() - {asyncio.current_task()}
    if waiting:
        _, waiting = await asyncio.wait(waiting, timeout=LAST_WORDS)
    for task in waiting:
        task.cancel()
    if waiting:
        await asyncio.wait(waiting, timeout=LAST_WORDS)


class SyncSubscription:
    """`for message in bus.subscribe(pattern)`; see `Subscription`."""

    def __init__(self, background: Background, inner: Subscription) -> None:
        self._background = background
        self._inner = inner

    @property
    def dropped(self) -> int:
        """Messages lost because they were not read in time."""
        return self._inner.dropped

    def start(self) -> Self:
        """Begin, unless it has begun."""
        self._background.wait(self._inner.start())
        return self

    def close(self) -> None:
        """End it; what was received can still be read."""
        with contextlib.suppress(ConnectionLost):  # it has ended with its bus
            self._background.wait(self._inner.close())

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        try:
            return self._background.next(self._inner)
        except ConnectionLost:
            if not self._inner.ended:
                raise
        # The loop has gone with the bus; what was received can still be read.
        message = self._inner.unread()
        if message is None:
            raise StopIteration
        return message


class GuardedConsumer:
    """A member of a group whose records are settled from other threads."""

    def __init__(self, inner: Consumer, loop: asyncio.AbstractEventLoop) -> None:
        self._inner = inner
        self._loop = loop

    async def next(self) -> Delivered:
        return await self._inner.next()

    def ack(self, offset: int) -> None:
        # Without the loop, which has gone with the bus, nobody is there to tell.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._inner.ack, offset)

    def nack(self, offset: int, delay: float = 0.0, reason: str = "") -> None:
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._inner.nack, offset, delay, reason)

    async def leave(self) -> None:
        await asyncio.sleep(0)  # after what was settled before
        await self._inner.leave()


class SyncConsumption:
    """`for record in bus.consume(topic, group)`; see `Consumption`. Any thread may `ack` and `nack` its records."""

    def __init__(self, background: Background, inner: Consumption) -> None:
        self._background = background
        self._inner = inner
        join = inner.join

        async def guarded() -> Consumer:
            return GuardedConsumer(await join(), asyncio.get_running_loop())

        inner.join = guarded

    def start(self) -> Self:
        """Join the group, unless that has happened."""
        self._background.wait(self._inner.start())
        return self

    def close(self) -> None:
        """Leave the group; what was not acknowledged goes to others."""
        with contextlib.suppress(ConnectionLost):  # it was left with the bus
            self._background.wait(self._inner.close())

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(ConnectionLost):
            self._background.wait(self._inner.__aexit__(kind, error, trace))

    def __iter__(self) -> Iterator[Received]:
        return self

    def __next__(self) -> Received:
        return self._background.next(self._inner)


class SyncBus:
    """`with polybus.connect_sync(url) as bus`: the verbs of `Bus`, waiting instead of awaited.

    It may be used from several threads. Handlers run in threads of their own and may call the bus; a generator function
    answers in parts.
    """

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._background: Background | None = None
        self._handlers: dict[str, Callable[..., Any]] = {}

    def __repr__(self) -> str:
        return f"<Sync{repr(self._bus)[1:]}"

    # -- life ----------------------------------------------------------------------------------------------------------

    def open(self) -> Self:
        """See `Bus.open`."""
        self._background = Background()
        self._background.start()
        try:
            self._wait(self._open())
        except BaseException:
            self._end()
            raise
        return self

    async def _open(self) -> None:
        assert self._background is not None
        for name, function in self._handlers.items():
            self._bus.serve(name)(self._background.to_async(function))
        await self._bus.open()

    def close(self) -> None:
        """See `Bus.close`."""
        if self._background is not None:
            self._wait(self._bus.close())
            self._end()

    def drain(self) -> None:
        """See `Bus.drain`."""
        if self._background is not None:
            self._wait(self._bus.drain())
            self._end()

    def wait(self) -> None:
        """See `Bus.wait`."""
        self._wait(self._bus.wait())

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def connected(self) -> bool:
        """See `Bus.connected`."""
        return self._bus.connected

    @property
    def url(self) -> str:
        """Where it leads."""
        return self._bus.url

    def _end(self) -> None:
        background, self._background = self._background, None
        if background is not None:
            background.stop()

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return self._ready(work).wait(work)

    def _ready(self, unused: Coroutine[Any, Any, Any] | None = None) -> Background:
        if self._background is None:
            if unused is not None:
                unused.close()
            raise ConnectionLost(f"the bus {self._bus.url} is not open")
        return self._background

    # -- services ------------------------------------------------------------------------------------------------------

    @overload
    def serve(self, name: str) -> Callable[[F], F]: ...
    @overload
    def serve(self, name: str, function: Callable[..., Any]) -> None: ...
    def serve(
        self, name: str, function: Callable[..., Any] | None = None
    ) -> Callable[[F], F] | None:
        """See `Bus.serve`; both forms have registered the name when they return."""
        if function is None:
            return functools.partial(self._decorate, name)
        self._decorate(name, function)
        return None

    def _decorate(self, name: str, function: F) -> F:
        wrap(function)  # refuses what cannot be called, where the mistake is
        if self._background is None:
            self._handlers[name] = function
        else:
            self._wait(self._bus.serve(name, self._background.to_async(function)))
        return function

    def unserve(self, name: str) -> None:
        """See `Bus.unserve`."""
        self._wait(self._bus.unserve(name))

    def services(self) -> list[dict[str, Any]]:
        """See `Bus.services`."""
        return self._wait(self._bus.services())

    # -- calls ---------------------------------------------------------------------------------------------------------

    @overload
    def call(
        self,
        name: str,
        payload: object = b"",
        *,
        timeout: float | None = CALL_TIMEOUT,
        headers: Mapping[str, str] = NO_HEADERS,
        twin: int | None = None,
    ) -> bytes: ...
    @overload
    def call(
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
    def call(
        self,
        name: str,
        payload: object = b"",
        *,
        type: type[Any] | None = None,
        timeout: float | None = CALL_TIMEOUT,
        headers: Mapping[str, str] = NO_HEADERS,
        twin: Sequence[int],
    ) -> list[Any]: ...
    def call(
        self,
        name: str,
        payload: object = b"",
        *,
        type: type[T] | None = None,
        timeout: float | None = CALL_TIMEOUT,
        headers: Mapping[str, str] = NO_HEADERS,
        twin: int | Sequence[int] | None = None,
    ) -> T | bytes | list[Any]:
        """See `Bus.call`."""
        kind: Any = type
        which: Any = twin
        work = self._bus.call(
            name, payload, type=kind, timeout=timeout, headers=headers, twin=which
        )
        reply: T | bytes | list[Any] = self._wait(work)
        return reply

    def call_streaming(
        self,
        name: str,
        payload: object = b"",
        *,
        type: type[T] | None = None,
        timeout: float | None = CALL_TIMEOUT,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> Iterator[Any]:
        """See `Bus.call_streaming`."""
        parts = self._bus.call_streaming(name, payload, type=type, timeout=timeout, headers=headers)
        background = self._ready()
        try:
            while True:
                try:
                    yield background.next(parts)
                except StopIteration:
                    return
        finally:
            with contextlib.suppress(ConnectionLost):  # it ended with the bus
                background.wait(parts.aclose())

    def push(
        self, name: str, payload: object = b"", *, headers: Mapping[str, str] = NO_HEADERS
    ) -> None:
        """See `Bus.push`."""
        self._wait(self._bus.push(name, payload, headers=headers))

    # -- publications --------------------------------------------------------------------------------------------------

    def publish(
        self, name: str, payload: object = b"", *, headers: Mapping[str, str] = NO_HEADERS
    ) -> int | None:
        """See `Bus.publish`."""
        return self._wait(self._bus.publish(name, payload, headers=headers))

    def publish_nowait(
        self, name: str, payload: object = b"", *, headers: Mapping[str, str] = NO_HEADERS
    ) -> None:
        """See `Bus.publish_nowait`."""
        self._wait(self._bus.publish_nowait(name, payload, headers=headers))

    def subscribe(self, pattern: str) -> SyncSubscription:
        """See `Bus.subscribe`."""
        return SyncSubscription(self._ready(), self._bus.subscribe(pattern))

    # -- records -------------------------------------------------------------------------------------------------------

    def produce(
        self,
        topic: str,
        payload: object = b"",
        *,
        key: bytes = b"",
        tag: str = "",
        headers: Mapping[str, str] = NO_HEADERS,
        id: str = "",
        create: bool = False,
    ) -> int:
        """See `Bus.produce`."""
        return self._wait(
            self._bus.produce(
                topic, payload, key=key, tag=tag, headers=headers, id=id, create=create
            )
        )

    def produce_many(
        self, topic: str, records: Iterable[NewRecord | object], *, create: bool = False
    ) -> int:
        """See `Bus.produce_many`."""
        return self._wait(self._bus.produce_many(topic, records, create=create))

    def consume(
        self,
        topic: str,
        group: str,
        *,
        window: int = WINDOW,
        start: Start | str | int = BEGINNING,
        create: bool = False,
        **options: Any,
    ) -> SyncConsumption:
        """See `Bus.consume`."""
        inner = self._bus.consume(
            topic, group, window=window, start=start, create=create, **options
        )
        return SyncConsumption(self._ready(), inner)

    def fetch(
        self, topic: str, start: int = 0, *, end: int | None = None, max_bytes: int = FETCH_BYTES
    ) -> list[Record]:
        """See `Bus.fetch`."""
        return self._wait(self._bus.fetch(topic, start, end=end, max_bytes=max_bytes))

    def fetch_chunks(
        self, topic: str, start: int, end: int | None = None, *, max_bytes: int = FETCH_BYTES
    ) -> tuple[int, Sequence[bytes]]:
        """See `Bus.fetch_chunks`."""
        return self._wait(self._bus.fetch_chunks(topic, start, end, max_bytes=max_bytes))

    # -- topics and groups ---------------------------------------------------------------------------------------------

    def topics(self) -> list[TopicInfo]:
        """See `Bus.topics`."""
        return self._wait(self._bus.topics())

    def topic(self, topic: str) -> TopicInfo:
        """See `Bus.topic`."""
        return self._wait(self._bus.topic(topic))

    def declare_topic(self, topic: str, **options: Any) -> TopicInfo:
        """See `Bus.declare_topic`."""
        return self._wait(self._bus.declare_topic(topic, **options))

    def edit_topic(self, topic: str, **options: Any) -> TopicInfo:
        """See `Bus.edit_topic`."""
        return self._wait(self._bus.edit_topic(topic, **options))

    def remove_topic(self, topic: str) -> None:
        """See `Bus.remove_topic`."""
        self._wait(self._bus.remove_topic(topic))

    def empty_topic(self, topic: str) -> None:
        """See `Bus.empty_topic`."""
        self._wait(self._bus.empty_topic(topic))

    def offset_at(self, topic: str, time_ms: int) -> int:
        """See `Bus.offset_at`."""
        return self._wait(self._bus.offset_at(topic, time_ms))

    def stage(self, topic: str, chunk: bytes) -> str:
        """See `Bus.stage`."""
        return self._wait(self._bus.stage(topic, chunk))

    def publish_staged(self, topic: str, sink: str, batch: int, tickets: Sequence[str]) -> int:
        """See `Bus.publish_staged`."""
        return self._wait(self._bus.publish_staged(topic, sink, batch, tickets))

    def groups(self, topic: str) -> list[GroupInfo]:
        """See `Bus.groups`."""
        return self._wait(self._bus.groups(topic))

    def group(self, topic: str, group: str) -> GroupInfo:
        """See `Bus.group`."""
        return self._wait(self._bus.group(topic, group))

    def declare_group(
        self, topic: str, group: str, *, start: Start | str | int = BEGINNING, **options: Any
    ) -> GroupInfo:
        """See `Bus.declare_group`."""
        return self._wait(self._bus.declare_group(topic, group, start=start, **options))

    def reset_group(self, topic: str, group: str, start: Start | str | int) -> GroupInfo:
        """See `Bus.reset_group`."""
        return self._wait(self._bus.reset_group(topic, group, start))

    def remove_group(self, topic: str, group: str) -> None:
        """See `Bus.remove_group`."""
        self._wait(self._bus.remove_group(topic, group))
