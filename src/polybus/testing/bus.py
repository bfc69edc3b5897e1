"""A bus with its own node behind it, for one test.

Invariant: it is the real node and the real wire; only the sockets are missing, and the topics live in a folder that
goes away with the bus.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Self

from polybus.client.bus import Bus
from polybus.core.policy import Policy
from polybus.model.clock import Clock
from polybus.model.ids import random_id
from polybus.protocols.native.client import NativeClient
from polybus.server.config import Config
from polybus.server.node import Node
from polybus.transports.connection import Connection, Connections, SessionFactory


class TestBus(Bus):
    """`async with TestBus() as bus`: a client of a node of its own; `bus.another()` is a second client of that node."""

    __test__ = False  # for pytest, which takes it for a test by its name

    def __init__(self, *, clock: Clock | None = None, policy: Policy | None = None) -> None:
        """Take what the node shall go by: a manual clock for deadlines, a policy for refusals."""
        # A name of its own: tests that run side by side must not meet behind `memory:`.
        self._name = f"test-{random_id()}"
        super().__init__(self._link, f"memory:{self._name}")
        self._clock = clock
        self._policy = policy
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._node: Node | None = None

    @property
    def node(self) -> Node:
        """The node behind the bus, while it is open."""
        assert self._node is not None, "the bus is not open"
        return self._node

    def another(self) -> Bus:
        """Another client of the same node, to be opened by itself."""
        return Bus(self._link, self.url)

    async def open(self) -> Self:
        """Start the node and connect to it."""
        self._folder = tempfile.TemporaryDirectory(prefix="polybus-test-")
        config = Config(listen=(), data=Path(self._folder.name))
        self._node = Node(config, clock=self._clock, policy=self._policy, name=self._name)
        await self._node.start()
        try:
            return await super().open()
        except BaseException:
            await self._stop()
            raise

    async def close(self) -> None:
        """Disconnect, stop the node and remove its folder."""
        await super().close()
        await self._stop()

    async def drain(self) -> None:
        """Finish what is under way, then as `close`."""
        await super().drain()
        await self._stop()

    async def _stop(self) -> None:
        node, self._node = self._node, None
        if node is not None:
            await node.stop()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _link(self) -> NativeClient:
        async def dial(connections: Connections, factory: SessionFactory) -> Connection:
            return self.node.connect_memory(connections, factory, "native")

        return NativeClient(dial)
