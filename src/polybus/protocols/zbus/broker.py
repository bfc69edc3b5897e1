"""A broker: the servers of a cluster as one thing, found through trackers or given by hand.

Invariant: a server is used only while it is in the route table and can be reached; one that cannot be is left out
until a tracker tells of it again, or for static ones until it answers again.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from polybus.errors import CallTimeout, ConnectionLost, NotReachable, PeerUnavailable
from polybus.protocols.zbus.client import MqClient
from polybus.protocols.zbus.connection import SSL_PREFIX
from polybus.protocols.zbus.info import address_key
from polybus.protocols.zbus.route_table import SHARE, BrokerRouteTable
from polybus.protocols.zbus.wire import Message

RETRY: Final = 3.0  # seconds between tries to reach a tracker, as the original clients
MAX_IDLE: Final = 32  # connections kept per server

Selector = Callable[[BrokerRouteTable, str], list[str]]
"""Picks the addresses of the servers to use for a topic, best first."""


def first_with_topic(table: BrokerRouteTable, topic: str) -> list[str]:
    """For consumers: every server that has the topic, else any."""
    having = [address_key(info["serverAddress"]) for info in table.topic_table.get(topic, ())]
    return having or list(table.server_table)


def most_consumers(table: BrokerRouteTable, topic: str) -> list[str]:
    """For producers and callers: servers where the topic has consumers first."""
    found = sorted(
        table.topic_table.get(topic, ()), key=lambda info: -int(info.get("consumerCount", 0))
    )
    return [address_key(info["serverAddress"]) for info in found] or list(table.server_table)


class Pool:
    """Connections to one server."""

    def __init__(
        self, address: str, token: str, tls: ssl.SSLContext | None, timeout: float
    ) -> None:
        self.address = address
        self._token = token
        self._tls = tls
        self._timeout = timeout
        self._idle: deque[MqClient] = deque()

    async def take(self) -> MqClient:
        """An open connection of this pool; give it back."""
        while self._idle:
            client = self._idle.pop()
            if not client.closed:
                return client
        tls = self._tls if self.address.startswith(SSL_PREFIX) else None
        return await MqClient.connect(
            self.address, token=self._token, tls=tls, timeout=self._timeout
        )

    async def give_back(self, client: MqClient) -> None:
        """Keep a connection for the next one who needs it."""
        if client.closed or len(self._idle) >= MAX_IDLE:
            await client.close()
        else:
            self._idle.append(client)

    async def close(self) -> None:
        """Close what is idle."""
        while self._idle:
            await self._idle.pop().close()


class Broker:
    """`async with Broker("tracker1:15555;tracker2:15555") as broker`.

    Args:
        trackers: addresses, as a list or joined by `;`.
        share: of the trackers that have to list a server for it to be used.
    """

    def __init__(
        self,
        trackers: str | list[str] = "",
        *,
        token: str = "",
        tls: ssl.SSLContext | None = None,
        timeout: float = 10.0,
        share: float = SHARE,
    ) -> None:
        split = trackers.replace(",", ";").split(";") if isinstance(trackers, str) else trackers
        self._trackers = [tracker.strip() for tracker in split if tracker.strip()]
        self._token = token
        self._tls = tls
        self._timeout = timeout
        self.route_table = BrokerRouteTable(share)
        self.pools: dict[str, Pool] = {}
        self.on_join: list[Callable[[str], None]] = []
        """Told of servers that come into use."""
        self.on_leave: list[Callable[[str], None]] = []
        """Told of servers that go out of use."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._ready = asyncio.Event()

    async def __aenter__(self) -> Self:
        for tracker in self._trackers:
            self.spawn(self._follow(tracker))
        if self._trackers:
            try:
                async with asyncio.timeout(self._timeout):
                    await self._ready.wait()
            except TimeoutError as exc:
                await self.close()
                known = ", ".join(self._trackers)
                raise PeerUnavailable(f"no tracker of {known} has answered") from exc
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop following the trackers and close all connections."""
        tasks, self._tasks = self._tasks, set()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for pool in self.pools.values():
            await pool.close()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something until the broker is closed."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # -- servers ----------------------------------------------------------------------------------------------

    async def add_server(self, address: str) -> None:
        """Use a server by hand, without a tracker.

        Raises:
            PeerUnavailable.
        """
        pool = self._pool(address)
        client = await pool.take()
        info = await client.query()
        await pool.give_back(client)
        # The address given is the one that works from here, whatever the server calls itself.
        bare = address.removeprefix(SSL_PREFIX)
        info["serverAddress"] = {"address": bare, "sslEnabled": address.startswith(SSL_PREFIX)}
        for topic in (info.get("topicTable") or {}).values():
            topic["serverAddress"] = info["serverAddress"]
        self.route_table.add_server(info)
        self._joined(address)

    async def remove_server(self, address: str) -> None:
        """Use a server no longer."""
        self.route_table.remove_server(address)
        await self._left(address)

    def select(self, topic: str, selector: Selector) -> list[str]:
        """The servers to use for a topic.

        Raises:
            NotReachable: there is none.
        """
        found = [server for server in selector(self.route_table, topic) if server in self.pools]
        if not found:
            raise NotReachable(f"no Zbus server for topic {topic}")
        return found

    @asynccontextmanager
    async def client(self, topic: str, selector: Selector) -> AsyncIterator[MqClient]:
        """A connection to the first of the selected servers that can be reached.

        Raises:
            NotReachable.
        """
        client, pool = await self._reach(topic, selector)
        try:
            yield client
        except (ConnectionLost, CallTimeout):
            await client.close()
            raise
        finally:
            await pool.give_back(client)

    async def _reach(self, topic: str, selector: Selector) -> tuple[MqClient, Pool]:
        last: PeerUnavailable | None = None
        for server in self.select(topic, selector):
            pool = self.pools[server]
            try:
                return await pool.take(), pool
            except PeerUnavailable as exc:
                last = exc
        raise NotReachable(f"no server for topic {topic} can be reached") from last

    def _pool(self, address: str) -> Pool:
        if address not in self.pools:
            self.pools[address] = Pool(address, self._token, self._tls, self._timeout)
        return self.pools[address]

    def _joined(self, address: str) -> None:
        self._pool(address)
        for told in self.on_join:
            told(address)

    async def _left(self, address: str) -> None:
        pool = self.pools.pop(address, None)
        if pool is not None:
            await pool.close()
            for told in self.on_leave:
                told(address)

    # -- trackers ---------------------------------------------------------------------------------------------

    async def _follow(self, tracker: str) -> None:
        """Listen to one tracker for as long as the broker lives."""
        while True:
            try:
                tls = self._tls if tracker.startswith(SSL_PREFIX) else None
                client = await MqClient.connect(tracker, token=self._token, tls=tls)
            except PeerUnavailable:
                await asyncio.sleep(RETRY)
                continue
            names: set[str] = set()
            try:
                client.subscribe_tracker(partial(self._heard, names))
                await client.connection.closed.wait()
            finally:
                client.connection.abort()
            for name in names:
                await self._drop(self.route_table.remove_tracker(name))
            await asyncio.sleep(RETRY)

    def _heard(self, names: set[str], message: Message) -> None:
        if message.status != 200 or message.get("cmd") != "track_pub":
            return
        info = msgspec.json.decode(message.body)
        names.add(address_key(info["serverAddress"]))
        before = set(self.route_table.server_table)
        removed = self.route_table.update_votes(info)
        for server in self.route_table.server_table:
            if server not in before or server not in self.pools:
                self._joined(server)
        if removed:
            self.spawn(self._drop(removed))
        self._ready.set()

    async def _drop(self, servers: list[str]) -> None:
        for server in servers:
            await self._left(server)
