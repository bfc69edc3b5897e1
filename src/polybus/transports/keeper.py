"""Staying connected: tries again with growing, jittered pauses until the connection is back.

Invariant: a client is back within a second of its peer, and a thousand clients do not come back in the same instant.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Final

from polybus.errors import PeerUnavailable, PolybusError

log = logging.getLogger("polybus.client")

FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 0.6
TICK: Final = 1.0


class Keeper:
    """Keeps one connection up: `connect` opens it, `tick` is called about once a second while it stands."""

    def __init__(
        self, connect: Callable[[], Awaitable[None]], tick: Callable[[], Awaitable[None]]
    ) -> None:
        self._connect = connect
        self._tick = tick
        self._up = asyncio.Event()
        self._down = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Connect for the first time; raises what `connect` raises, and then nothing is left running."""
        await self._connect()
        if not self._down.is_set():
            self._up.set()
        self._task = asyncio.create_task(self._keep(), name="polybus client")

    def lost(self) -> None:
        """The connection has ended."""
        self._up.clear()
        self._down.set()

    async def stop(self) -> None:
        """Keep nothing up any more; who waits in `ready` is told."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._up.set()

    async def ready(self, timeout: float | None) -> None:
        """Return once the connection is up.

        Raises:
            PeerUnavailable: it was not within `timeout` seconds.
        """
        if self._up.is_set():
            return
        try:
            async with asyncio.timeout(timeout):
                await self._up.wait()
        except TimeoutError as exc:
            raise PeerUnavailable(f"not connected for {timeout:g} s") from exc

    async def _keep(self) -> None:
        pause = FIRST_PAUSE
        while True:
            if self._up.is_set():
                pause = FIRST_PAUSE
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(TICK):
                        await self._down.wait()
                if self._up.is_set():
                    # The connection may end within the tick, which must not end the keeping.
                    with contextlib.suppress(PolybusError):
                        await self._tick()
                continue
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, LONGEST_PAUSE)
            self._down.clear()
            try:
                await self._connect()
            except PolybusError as exc:
                log.debug("cannot connect again: %s", exc.text)
                continue
            # It may have ended again before this task got its turn.
            if not self._down.is_set():
                self._up.set()
                log.info("connected again")
