"""Producing and consuming through a broker, on whichever servers have the topic.

Invariant: a message is handled before the next consume confirms it; a handler that fails leaves it unconfirmed on a
closed connection, so that it is delivered again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Final, Self

from polybus.errors import CallTimeout, ConnectionLost, PeerUnavailable
from polybus.protocols.zbus.broker import Broker, Selector, first_with_topic, most_consumers
from polybus.protocols.zbus.client import MqClient
from polybus.protocols.zbus.connection import MqError
from polybus.protocols.zbus.wire import Message

log = logging.getLogger("polybus.zbus.client")

RETRY: Final = 1.0  # seconds before a server that failed is tried again
Handler = Callable[[Message, MqClient], Awaitable[None] | None]


class Producer:
    """Sends messages to the servers that have the topic; the next one is tried when one cannot be reached."""

    def __init__(self, broker: Broker, selector: Selector = most_consumers) -> None:
        self._broker = broker
        self._selector = selector

    async def declare(
        self, topic: str, group: str = "", **policy: str | int | None
    ) -> list[dict[str, Any]]:
        """Declare on all servers."""
        found = []
        for server in self._broker.select(topic, lambda table, _: list(table.server_table)):
            pool = self._broker.pools[server]
            client = await pool.take()
            found.append(await client.declare(topic, group, **policy))
            await pool.give_back(client)
        return found

    async def publish(self, topic: str, body: bytes | str = b"", **options: Any) -> Message | None:
        """Send one message (see `MqClient.produce`); the answer says that it is safe."""
        async with self._broker.client(topic, self._selector) as client:
            return await client.produce(topic, body, **options)


class Consumer:
    """Hands the messages of a topic to a handler, from every server that has it, one connection each.

    Args:
        window: how many consumes wait at a server at once; more than one keeps it busy while the handler works.
    """

    def __init__(
        self,
        broker: Broker,
        topic: str,
        handler: Handler,
        *,
        group: str = "",
        window: int = 1,
        connections: int = 1,
        selector: Selector = first_with_topic,
        **policy: str | int | None,
    ) -> None:
        self._broker = broker
        self.topic = topic
        self._handler = handler
        self.group = group or topic
        self._window = window
        self._connections = connections
        self._selector = selector
        self._policy = policy
        self._running: dict[str, list[asyncio.Task[None]]] = {}
        self._ready = asyncio.Event()

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def start(self) -> None:
        """Consume from all servers, those that come later included."""
        self._broker.on_join.append(self._join)
        self._broker.on_leave.append(self._leave)
        for server in self._broker.select(self.topic, self._selector):
            self._join(server)

    async def ready(self) -> None:
        """Wait until messages are taken from at least one server."""
        await self._ready.wait()

    async def close(self) -> None:
        """Stop; what was delivered and not handled goes to others."""
        self._broker.on_join.remove(self._join)
        self._broker.on_leave.remove(self._leave)
        tasks = [task for running in self._running.values() for task in running]
        self._running.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _join(self, server: str) -> None:
        if server not in self._running:
            self._running[server] = [
                self._broker.spawn(self._run(server)) for _ in range(self._connections)
            ]

    def _leave(self, server: str) -> None:
        for task in self._running.pop(server, ()):
            task.cancel()

    async def _run(self, server: str) -> None:
        while server in self._broker.pools:
            try:
                client = await self._broker.pools[server].take()
            except PeerUnavailable:
                await asyncio.sleep(RETRY)
                continue
            try:
                await self._consume(client)
            except (ConnectionLost, CallTimeout, MqError) as exc:
                log.info("consuming %s from %s is tried again: %s", self.topic, server, exc)
                await asyncio.sleep(RETRY)
            except Exception:
                # A handler's own failure must not end the consumer: the message comes again.
                log.exception("the handler of %s failed", self.topic)
                await asyncio.sleep(RETRY)
            finally:
                # Not given back: an unconfirmed message must not be confirmed by somebody else's consume.
                client.connection.abort()

    async def _consume(self, client: MqClient) -> None:
        await client.declare(self.topic, self.group, **self._policy)
        several = self._window > 1

        def ask() -> asyncio.Future[Message]:
            asked = client.consume(self.topic, self.group, window=self._window, several=several)
            return asyncio.ensure_future(asked)

        waiting = [ask() for _ in range(self._window)]
        try:
            if not self._ready.is_set():
                # Let the consumes be sent; requests of a connection are taken in order, so an answer, whatever
                # it is, comes after them.
                await asyncio.sleep(0)
                await client.connection.invoke({"cmd": "ping"}, timeout=client.timeout)
                self._ready.set()
            while True:
                message = await waiting.pop(0)
                handled = self._handler(message, client)
                if handled is not None:
                    await handled
                waiting.append(ask())
        finally:
            for each in waiting:
                each.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
