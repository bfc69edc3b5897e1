"""Emptying queues of Redis in batches: one blocking connection per group of queues.

Invariant: at most one batch is taken beyond what there is room for; a connection that is lost is made again, and
whatever Redis kept meanwhile is taken then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from polybus.protocols.rmb.queues import Layout
from polybus.protocols.rmb.redis import FIRST_PAUSE, LAST_PAUSE
from polybus.protocols.rmb.resp import Command, RedisConnection, RedisLost, RedisUrl, connect

log = logging.getLogger("polybus.rmb")

BATCH: Final = 256
WAIT: Final = 5  # seconds; then the same question again, so that a dead connection is noticed

Take = Callable[[list[bytes]], None]


class Intake:
    """Takes from some queues, the first ones first."""

    def __init__(
        self,
        url: RedisUrl,
        name: str,
        layout: Layout,
        queues: dict[str, Take],
        capacity: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._url = url
        self._name = name
        self._queues = queues
        self._capacity = capacity
        names = tuple(queues)
        # Both leave in one write: the second is carried out as soon as the first has found something.
        self._commands: list[Command] = [(layout.blocking_pop, *names, WAIT)]
        self._commands += [(layout.pop, name, BATCH) for name in names]

    async def run(self) -> None:
        """Take for ever; ends only by being cancelled."""
        pause = FIRST_PAUSE
        while True:
            try:
                connection = await connect(self._url, self._name)
            except RedisLost as exc:
                log.debug("%s", exc.text)
            else:
                try:
                    if await self._take(connection):
                        pause = FIRST_PAUSE
                finally:
                    connection.close()
            await asyncio.sleep(pause)
            pause = min(pause * 2, LAST_PAUSE)

    async def _take(self, connection: RedisConnection) -> bool:
        """Take until the connection ends; whether it served at all."""
        served = False
        while True:
            if self._capacity is not None:
                await self._capacity()
            try:
                first, *rest = await connection.run(*self._commands)
            except RedisLost:
                return served
            refused = isinstance(first, Exception)
            # Who is refused the first may still be given the others: what left the queue must not be lost.
            self._hand_out(None if refused else first, rest)
            if refused:
                log.warning("Redis does not give out messages: %s", first)
                return served
            served = True

    def _hand_out(self, first: Any, rest: list[Any]) -> None:
        for (queue, take), found in zip(self._queues.items(), rest, strict=True):
            texts = found if isinstance(found, list) else []
            if first is not None and first[0] == queue.encode():
                texts = [first[1], *texts]
            if texts:
                take(texts)
