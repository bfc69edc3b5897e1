"""The two faces of the SDK under one hand: scenarios are written once, awaited, and run on both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Self

from polybus.client import Bus, SyncBus

_END = object()


class AsyncFace:
    """The async bus as it is."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bus, name)

    async def __aenter__(self) -> Self:
        await self._bus.open()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._bus.__aexit__(*error)


class SyncReader:
    """A sync iterator, read in threads."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._items: Iterator[Any] = iter(inner)

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self._inner.__enter__)
        return self

    async def __aexit__(self, *error: Any) -> None:
        await asyncio.to_thread(self._inner.__exit__, *error)

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        item = await asyncio.to_thread(next, self._items, _END)
        if item is _END:
            raise StopAsyncIteration
        return item


class SyncFace:
    """The sync bus, every verb in a thread, so that it can be awaited."""

    READERS = ("subscribe", "consume", "call_streaming")

    def __init__(self, bus: SyncBus) -> None:
        self._bus = bus

    def __getattr__(self, name: str) -> Callable[..., Any]:
        verb = getattr(self._bus, name)
        if name in self.READERS:
            return lambda *args, **options: SyncReader(verb(*args, **options))
        return lambda *args, **options: asyncio.to_thread(verb, *args, **options)

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self._bus.open)
        return self

    async def __aexit__(self, *error: Any) -> None:
        await asyncio.to_thread(self._bus.close)
