"""The room's Redis: found again whenever it goes away, and nothing that was handed over is lost meanwhile.

Invariant: what `write` took is sent until Redis has confirmed it, in order; so a command whose confirmation was lost
with the connection may be carried out twice, never not at all.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

from polybus.errors import ConfigError
from polybus.protocols.rmb.resp import (
    Answered,
    Command,
    RedisConnection,
    RedisLost,
    RedisUrl,
    connect,
    is_transient,
)

log = logging.getLogger("polybus.rmb")

FIRST_PAUSE: Final = 0.05
LAST_PAUSE: Final = 2.0
NAME: Final = "polybus-rmb"
PROBE: Final = b'{"polybus": "is another bus here?"}'  # the originals log it and drop it
CLAIM_PAUSES: Final = (0.05, 0.1, 0.2, 0.4, 0.8)
Written = Callable[["Sequence[Any]"], None]
"""Told the replies of commands that Redis has confirmed or refused for good."""


class Redis:
    """Keeps a connection to one server."""

    def __init__(self, url: RedisUrl, name: str = "") -> None:
        self.url = url
        self.name = name
        self._connection: RedisConnection | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._up = asyncio.Event()
        self._closing = False
        self._again: list[tuple[list[Command], Written | None]] = []
        self.reconnects = 0

    # -- life --

    async def open(self) -> None:
        """Connect.

        Raises:
            RedisLost: nobody is there; a connection that is lost later is mended.
        """
        self._connection = await connect(self.url, self.name)
        self._up.set()
        self._keeping = asyncio.create_task(self._keep(), name="polybus redis")

    async def close(self) -> None:
        """Disconnect."""
        self._closing = True
        if self._again:
            log.warning("Redis did not come back: %d writes are lost", len(self._again))
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
        if self._connection is not None:
            self._connection.close()
            await self._connection.closed

    @property
    def connected(self) -> bool:
        return self._up.is_set()

    async def _keep(self) -> None:
        while True:
            assert self._connection is not None
            await asyncio.shield(self._connection.closed)
            self._up.clear()
            log.warning("lost Redis at %s; connecting again", self.url)
            pause = FIRST_PAUSE
            while True:
                try:
                    self._connection = await connect(self.url, self.name)
                    if not is_transient((await self._connection.run(("LLEN", NAME)))[0]):
                        break
                    self._connection.close()
                except RedisLost as exc:
                    log.debug("%s", exc.text)
                await asyncio.sleep(pause)
                pause = min(pause * 2, LAST_PAUSE)
            self.reconnects += 1
            log.info("Redis at %s is back", self.url)
            self._up.set()
            again, self._again = self._again, []
            for commands, written in again:
                self.write(commands, written)

    # -- use --

    def send(self, commands: Sequence[Command], answered: Answered) -> None:
        """Send once; None for an answer when Redis was not there or went away."""
        if self._connection is None or not self._up.is_set():
            asyncio.get_running_loop().call_soon(answered, None)
        else:
            self._connection.send(commands, answered)

    def write(self, commands: list[Command], written: Written | None = None) -> None:
        """Send until it is confirmed; an error that will not pass is given to `written` among the replies."""
        if not commands or self._closing:
            return
        if self._connection is None or not self._up.is_set():
            self._again.append((commands, written))
            return

        def answered(replies: list[Any] | None) -> None:
            if replies is None:
                if not self._closing:
                    self._retry(commands, written)
                return
            for reply in replies:
                if isinstance(reply, Exception):
                    self._report(commands, replies)
                    break
            if written is not None:
                written(replies)

        self._connection.send(commands, answered)

    def _retry(self, commands: list[Command], written: Written | None) -> None:
        if self._up.is_set() and self._connection is not None and not self._connection.lost:
            self.write(commands, written)
        else:
            self._again.append((commands, written))

    def _report(self, commands: list[Command], replies: Sequence[Any]) -> None:
        """Errors among replies: those that pass are sent again a little later, the others are said."""
        later = []
        for command, reply in zip(commands, replies, strict=True):
            if is_transient(reply):
                later.append(command)
            elif isinstance(reply, Exception):
                log.warning("Redis refused %s %s: %s", command[0], command[1], reply)
        if later:
            log.warning("Redis does not take %d commands now, trying again", len(later))
            asyncio.get_running_loop().call_later(LAST_PAUSE, self.write, later)

    async def run(self, *commands: Command) -> list[Any]:
        """Send and wait for the replies, once Redis is there, and again when it goes away meanwhile."""
        while True:
            await self._up.wait()
            assert self._connection is not None
            try:
                return await self._connection.run(*commands)
            except RedisLost:
                self._up.clear()

    async def flushed(self) -> None:
        """Wait until everything written before has been confirmed, if Redis is there."""
        if self._up.is_set():
            await self.run(("PING",))


async def claim(redis: Redis, own: str, describe: str, queue: str) -> None:
    """Make sure that no other bus owns this Redis: two of them would take each other's messages.

    Every node names its connection; of two that come at once the one that connected later gives way. A node that
    crashed owns nothing, since its connection went with it. The original daemons have no names: one of them is known
    by what it takes from `queue` while nobody else may.

    Raises:
        ConfigError: there is another one.
    """
    for pause in CLAIM_PAUSES:
        other = await _other_owner(redis, own) or await _other_reader(redis, queue)
        if other is None:
            return
        await asyncio.sleep(pause)  # a node that has just stopped is still listed for a moment
    raise ConfigError(
        f"{describe} belongs to another bus ({other}); every twin needs a Redis server of its own"
    )


async def _other_reader(redis: Redis, queue: str) -> str | None:
    # Two commands and no transaction: who blocks on the queue is given the text before it can be taken back.
    _pushed, taken_back = await redis.run(("LPUSH", queue, PROBE), ("LREM", queue, 0, PROBE))
    return f"a program that takes from {queue}" if taken_back == 0 else None


async def _other_owner(redis: Redis, own: str) -> str | None:
    mine, listed = await redis.run(("CLIENT", "ID"), ("CLIENT", "LIST"))
    if isinstance(listed, Exception):
        return None  # not allowed to look
    for line in listed.decode("utf-8", "replace").splitlines():
        fields = dict(part.split("=", 1) for part in line.split(" ") if "=" in part)
        name = fields.get("name", "")
        if name.startswith(NAME) and name != own and int(fields["id"]) < mine:
            return f"{name.removeprefix(NAME + '-')} from {fields.get('addr', 'elsewhere')}"
    return None
