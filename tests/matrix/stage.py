"""Where the matrix is played: two nodes that are twins, each with a Redis server of its own, on loopback.

The invariant: both nodes tell the time by one clock whose seconds a test can skip, so that no cell waits for a
deadline that its wire fixes at half a minute.
"""

from __future__ import annotations

import itertools
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, Self

from polybus.model.clock import SystemClock
from polybus.protocols.rmb.embedded import EmbeddedRedis
from polybus.protocols.rmb.party import RmbParty
from polybus.server.config import Config, Http, Journal, Limits, Log, Rmb
from polybus.server.node import Node
from tests.protocols.rmb.twins import free_port, secret_of, signer_of

if TYPE_CHECKING:
    from tests.matrix.services import Service

Narrow = Literal["", "gsb", "zbus", "rmb"]
NARROW: Final = 256 * 1024  # what a narrow frame holds
NARROWED: Final[dict[str, Narrow]] = {
    "GSB": "gsb",
    "SDK": "gsb",
    "Zbus RPC": "zbus",
    "RMB": "rmb",
    "T2": "",
}
"""The stage on which a service has a small frame; one limit bounds GSB's and the SDK's."""
READY_MADE: Final = 40  # names of handlers that a node is told of when it starts
HERE: Final = 1  # the twin whose node the services are on
THERE: Final = 2  # the twin that asks from another node

_bases = itertools.count(1)


class SkippingClock(SystemClock):
    """The machine's clock, ahead by what was skipped; the wall only for a while, since clients have their own."""

    def __init__(self) -> None:
        self._skipped = 0.0
        self._wall_ahead_ms = 0

    def monotonic(self) -> float:
        return super().monotonic() + self._skipped

    def wall_ms(self) -> int:
        return super().wall_ms() + self._wall_ahead_ms

    def skip(self, seconds: float) -> None:
        self._skipped += seconds

    @contextmanager
    def wall_ahead(self, seconds: int) -> Iterator[None]:
        self._wall_ahead_ms = seconds * 1000
        yield
        self._wall_ahead_ms = 0


class Stage:
    """Two nodes: services and most callers are at `here`, a twin that asks from afar is at `there`."""

    def __init__(
        self, narrow: Narrow = "", commands: tuple[str, ...] = (), *, journal: bool = False
    ) -> None:
        """Make the nodes.

        Args:
            narrow: the wire whose frame is made small; T2's is by itself.
            commands: of handlers that cannot declare what they answer.
            journal: whether the nodes keep one.
        """
        self._journal = Journal(enabled=journal)
        self._ready_made = [f"handlers{number}" for number in range(READY_MADE)]
        self._commands = (*commands, *(f"{name}.**" for name in self._ready_made))
        self.clock = SkippingClock()
        self._folder = tempfile.TemporaryDirectory(prefix="matrix-")
        self._narrow = narrow
        self._redis = {twin: EmbeddedRedis(None, free_port()) for twin in (HERE, THERE)}
        self.nodes: dict[int, Node] = {}
        self._services: dict[type[Service], Service] = {}

    async def __aenter__(self) -> Self:
        folder = Path(self._folder.name)
        ports = {twin: free_port() for twin in self._redis}
        entries = [
            {
                "id": twin,
                "address": f"127.0.0.1:{port}",
                "public_key": signer_of(twin).public_key.hex(),
            }
            for twin, port in ports.items()
        ]
        (folder / "twins.json").write_text(json.dumps(entries))
        for twin, server in self._redis.items():
            await server.start()
            key = folder / f"{twin}.key"
            key.write_text(secret_of(twin))
            rmb = Rmb(
                twin=twin,
                key_file=key,
                twins=str(folder / "twins.json"),
                redis=str(server.url),
                services=self._commands if twin == HERE else (),
            )
            listen = ("tcp://127.0.0.1:0", f"rmb+tcp://127.0.0.1:{ports[twin]}")
            config = Config(
                listen=listen,
                data=folder / str(twin),
                rmb=rmb,
                log=Log(level="error"),
                journal=self._journal,
            )
            if twin == HERE:
                config = narrowed(config, self._narrow)
            self.nodes[twin] = Node(config, clock=self.clock)
            await self.nodes[twin].start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for service in self._services.values():
            await service.vanish()
        for node in self.nodes.values():
            await node.stop()
        for server in self._redis.values():
            await server.stop()
        self._folder.cleanup()

    @property
    def port(self) -> int:
        """The common port of the node that has the services."""
        return self.nodes[HERE].addresses[0].port

    @property
    def address(self) -> str:
        return self.address_of(HERE)

    def address_of(self, twin: int) -> str:
        return f"127.0.0.1:{self.nodes[twin].addresses[0].port}"

    async def service(self, kind: type[Service]) -> Service:
        """The service of a kind that stays for all cells that do not end it."""
        if kind not in self._services:
            made = kind(self, self.new_base())
            await made.start()
            self._services[kind] = made
        return self._services[kind]

    def waiting(self, twin: int) -> int:
        """How many requests of a twin's clients wait for their answers."""
        endpoints = self.nodes[twin].router.endpoints
        (party,) = [each for each in endpoints if isinstance(each, RmbParty)]
        return len(party.room.pending)

    def redis_port(self, twin: int) -> int:
        return self._redis[twin].url.port

    def new_handlers(self) -> str:
        """The same for handlers, whose names the node knows beforehand: it notices new ones only after a while."""
        return self._ready_made.pop() if self._ready_made else self.new_base()

    def new_base(self) -> str:
        """A first segment that every wire can spell and nobody else uses."""
        return f"m{os.getpid()}_{next(_bases)}"


def narrowed(config: Config, wire: Narrow) -> Config:
    match wire:
        case "gsb":
            return replace(config, limits=Limits(max_frame=NARROW))
        case "zbus":
            return replace(config, http=Http(max_body=NARROW))
        case "rmb":
            return replace(config, rmb=replace(config.rmb, max_body=NARROW))
        case _:
            return config
