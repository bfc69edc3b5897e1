"""The SDK over the Reliable Message Bus: a twin's Redis, with the bus's verbs.

Invariant: a name and its command differ by `/` and `.` only; `twin/12/a/b` asks twin 12 for `a.b`, any other name the
twin whose Redis this is.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import AsyncIterator, Mapping
from typing import Final

from polybus.client.handlers import LinkHandler, Outcome
from polybus.client.link import Link
from polybus.errors import CallTimeout, LocalProtocolError, PolybusError, ServiceFailed
from polybus.model.ids import random_id
from polybus.model.message import NO_HEADERS
from polybus.protocols.rmb.answers import decode_dat, encode_dat
from polybus.protocols.rmb.client import answer_to
from polybus.protocols.rmb.failures import is_timeout
from polybus.protocols.rmb.message import (
    DEFAULT_EXP,
    Message,
    Unreadable,
    encode,
    parse_lenient,
)
from polybus.protocols.rmb.names import to_twin
from polybus.protocols.rmb.queues import LOCAL, OWN, REPLY, handler_queue
from polybus.protocols.rmb.resp import Command, RedisConnection, RedisLost, RedisUrl, connect

log = logging.getLogger("polybus.client")

WAIT: Final = 5  # seconds of one blocking question to Redis
GRACE: Final = 2.0  # seconds for the bus's own error to come after the deadline
RECONNECT: Final = 0.5
MAX_IDLE: Final = 32  # connections kept for the next calls


class RmbLink(Link):
    """What that wire has of the bus: calls and handlers."""

    wire = "rmb"

    def __init__(self, url: RedisUrl) -> None:
        self._url = url
        self._connection: RedisConnection | None = None
        self._idle: list[RedisConnection] = []
        self._own: int | None = None
        self._serving: dict[str, asyncio.Task[None]] = {}
        self._handling: set[asyncio.Task[None]] = set()

    # -- life --

    async def open(self) -> None:
        self._connection = await connect(self._url)
        (own,) = await self._connection.run(("GET", OWN))
        self._own = int(own) if own is not None else None

    async def close(self) -> None:
        tasks = [*self._serving.values(), *self._handling]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._serving.clear()
        for connection in (self._connection, *self._idle):
            if connection is not None:
                connection.close()
        self._connection = None

    async def drain(self) -> None:
        for task in self._serving.values():
            task.cancel()
        await asyncio.gather(*self._handling, return_exceptions=True)
        await self.close()

    @property
    def connected(self) -> bool:
        return self._connection is not None and not self._connection.lost

    async def _run(self, *commands: Command) -> None:
        if not self.connected:
            self._connection = await connect(self._url)
        assert self._connection is not None
        for reply in await self._connection.run(*commands):
            if isinstance(reply, Exception):
                raise RedisLost(f"Redis at {self._url} refuses: {reply}")

    # -- calls --

    async def call(
        self,
        name: str,
        payload: bytes,
        *,
        timeout: float | None = None,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> bytes:
        message = self._request(name, payload, timeout, headers)
        await self._run(("LPUSH", LOCAL, encode(message, "rs")))
        reply = await self._wait(message, timeout)
        if is_timeout(reply.err or ""):
            raise CallTimeout(reply.err or "")
        if reply.failed:
            raise ServiceFailed(reply.err or "")
        return decode_dat(reply.dat)

    def _request(
        self, name: str, payload: bytes, timeout: float | None, headers: Mapping[str, str]
    ) -> Message:
        if headers:
            raise LocalProtocolError("the wire rmb has no headers")
        found = to_twin(name)
        dst, cmd = found if found is not None else (self._own, name.replace("/", "."))
        if dst is None:
            raise LocalProtocolError("this Redis does not say whose it is: call with twin=…")
        return Message(
            cmd=cmd,
            dst=[dst],
            exp=DEFAULT_EXP if timeout is None else max(1, round(timeout)),
            tries=2,
            dat=encode_dat(payload),
            ret=f"polybus.sdk.{random_id()}",
            now=int(time.time()),
            err="",
        )

    async def _wait(self, message: Message, timeout: float | None) -> Message:
        connection = self._idle.pop() if self._idle else await connect(self._url)
        try:
            async with asyncio.timeout(None if timeout is None else timeout + GRACE):
                while True:
                    (found,) = await connection.run(("BLPOP", message.ret, WAIT))
                    if isinstance(found, Exception):
                        raise RedisLost(f"Redis at {self._url} refuses: {found}")
                    if found is not None:
                        break
        except TimeoutError:
            connection.close()
            raise CallTimeout(f"no reply from {message.cmd} within {timeout} s") from None
        except BaseException:
            connection.close()
            raise
        if len(self._idle) < MAX_IDLE:
            self._idle.append(connection)
        else:
            connection.close()
        return parse_lenient(found[1])

    async def push(
        self, name: str, payload: bytes, *, headers: Mapping[str, str] = NO_HEADERS
    ) -> None:
        message = self._request(name, payload, None, headers)
        # Every request is answered; so the queue nobody reads goes by itself.
        await self._run(
            ("LPUSH", message.ret, b""),
            ("EXPIRE", message.ret, DEFAULT_EXP * 2),
            ("LPUSH", LOCAL, encode(message, "rs")),
        )

    # -- handlers --

    async def serve(self, name: str, handler: LinkHandler) -> None:
        queue = handler_queue(name.replace("/", "."))
        await self.unserve(name)
        self._serving[name] = asyncio.create_task(self._take(name, queue, handler))

    async def unserve(self, name: str) -> None:
        task = self._serving.pop(name, None)
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _take(self, name: str, queue: str, handler: LinkHandler) -> None:
        while True:
            try:
                connection = await connect(self._url)
                try:
                    await self._take_from(connection, name, queue, handler)
                finally:
                    connection.close()
            except RedisLost as exc:
                log.warning("%s; trying again", exc.text)
                await asyncio.sleep(RECONNECT)

    async def _take_from(
        self, connection: RedisConnection, name: str, queue: str, handler: LinkHandler
    ) -> None:
        while True:
            (found,) = await connection.run(("BLPOP", queue, WAIT))
            if isinstance(found, Exception):
                raise RedisLost(str(found))
            if found is None:
                continue
            try:
                message = parse_lenient(found[1])
            except Unreadable as exc:
                log.warning("dropped an unreadable request to %s: %s", name, exc.text)
                continue
            task = asyncio.create_task(self._handle(name, message, handler))
            self._handling.add(task)
            task.add_done_callback(self._handling.discard)

    async def _handle(self, name: str, message: Message, handler: LinkHandler) -> None:
        try:
            payload = await _whole(handler(name, decode_dat(message.dat), NO_HEADERS))
            reply = answer_to(message, payload, "")
        except Exception as exc:
            text = exc.text if isinstance(exc, PolybusError) else str(exc)
            reply = answer_to(message, b"", text or type(exc).__name__)
        until = (message.now or time.time()) + (message.exp or DEFAULT_EXP)
        while True:
            try:
                return await self._run(("LPUSH", REPLY, encode(reply, "rs")))
            except RedisLost as exc:
                if time.time() > until:
                    log.warning("an answer of %s is lost: %s", name, exc.text)
                    return None
                await asyncio.sleep(RECONNECT)


async def _whole(outcome: Outcome) -> bytes:
    """This wire has no parts: a streamed reply is joined."""
    if isinstance(outcome, bytes):
        return outcome
    if isinstance(outcome, AsyncIterator):
        return b"".join([part async for part in outcome])
    assert inspect.isawaitable(outcome)
    return await outcome
