"""Nodes that are twins, each with a Redis server of its own, and a client that knows nothing of polybus."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import redis.asyncio as real_redis

from polybus.model.clock import Clock
from polybus.protocols.rmb.embedded import EmbeddedRedis
from polybus.protocols.rmb.keys import parse_secret
from polybus.protocols.rmb.room import RmbRoom
from polybus.protocols.rmb.signature import KeyType, Signer
from polybus.server.config import Config, Rmb
from polybus.server.node import Node


def secret_of(twin: int) -> str:
    """As the captures have it: twin 1 is 01 x 32."""
    return "0x" + f"{twin % 256:02x}" * 32


def key_type_of(twin: int) -> KeyType:
    return "ed25519" if twin == 3 else "sr25519"


def signer_of(twin: int, kind: KeyType | None = None) -> Signer:
    return Signer(kind or key_type_of(twin), parse_secret(secret_of(twin)))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Twin:
    """One node, its Redis and a client of that Redis."""

    def __init__(self, world: World, number: int, **settings: Any) -> None:
        self.world = world
        self.number = number
        self.port = free_port()
        self.redis_server = EmbeddedRedis(None, free_port())
        self.settings = settings
        self.listen = f"rmb+tcp://127.0.0.1:{self.port}"
        self.node: Node
        self.client: Any  # redis-py types every reply as all it can be

    @property
    def common_port(self) -> int:
        """Where everything is served."""
        return self.node.addresses[1].port

    @property
    def room(self) -> RmbRoom:
        from polybus.protocols.rmb.party import RmbParty

        found = next(e for e in self.node.router.endpoints if isinstance(e, RmbParty))
        return found.room

    async def start_redis(self) -> None:
        await self.redis_server.start()
        url = self.redis_server.url
        self.client = real_redis.Redis(host=url.host, port=url.port)

    async def start(self) -> None:
        key = self.world.folder / f"{self.number}.key"
        key.write_text(secret_of(self.number))
        settings = {"key_type": key_type_of(self.number)} | self.settings
        rmb = Rmb(
            twin=self.number,
            key_file=key,
            twins=str(self.world.directory),
            redis=str(self.redis_server.url),
            **settings,
        )
        config = Config(listen=(self.listen, "tcp://127.0.0.1:0"), data=None, rmb=rmb)
        self.node = Node(config, clock=self.world.clock)
        await self.node.start()

    async def stop(self) -> None:
        await self.node.stop()

    # -- a client, as the documents have it --

    async def push(self, **fields: Any) -> str:
        """Put a request into the local queue; returns its return queue."""
        message = {
            "ver": 1,
            "uid": "",
            "cmd": "cap.echo",
            "exp": 30,
            "try": 2,
            "dat": "aGVsbG8=",
            "src": 0,
            "dst": [2],
            "ret": f"ret-{id(fields)}-{time.time_ns()}",
            "shm": "",
            "now": self.world.now(),
            "err": "",
        } | fields
        present = {k: v for k, v in message.items() if v is not ...}
        await self.client.lpush("msgbus.system.local", json.dumps(present))
        return str(message["ret"])

    async def read(self, ret: str, timeout: float = 10) -> dict[str, Any]:
        """The next answer."""
        found = await self.client.blpop([ret], timeout=timeout)
        assert found is not None, "no answer came"
        answer: dict[str, Any] = json.loads(found[1])
        return answer

    async def nothing(self, ret: str) -> None:
        """There is no answer, and everything pushed before has been worked on."""
        assert await self.client.llen(ret) == 0

    async def request(self, cmd: str = "cap.echo", timeout: float = 10) -> dict[str, Any]:
        """What a handler of a command gets."""
        return await self.read(f"msgbus.{cmd}", timeout)

    async def reply(self, request: dict[str, Any], **fields: Any) -> None:
        """Answer as a well-behaved handler does."""
        answer = request | {"src": request["dst"][0], "dst": [request["src"]]} | fields
        await self.client.lpush("msgbus.system.reply", json.dumps(answer))

    def echo(self, cmd: str = "cap.echo") -> asyncio.Task[None]:
        """A handler that answers with what it got, until it is cancelled."""

        async def serve() -> None:
            while True:
                request = await self.request(cmd, timeout=0)
                await self.reply(request)

        return self.world.spawn(serve())


class World:
    """Some twins that know each other."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self.folder = folder
        self.clock = clock
        self.directory = folder / "twins.json"
        self.twins: dict[int, Twin] = {}
        self.extra: list[dict[str, Any]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def now(self) -> int:
        return self.clock.wall_ms() // 1000

    def write_directory(self, **changes: dict[str, Any]) -> None:
        """List every twin; `changes` are by `twinN`."""
        entries = []
        for number, twin in self.twins.items():
            entry = {
                "id": number,
                "address": f"127.0.0.1:{twin.port}",
                "public_key": signer_of(number).public_key.hex(),
            }
            entries.append(entry | changes.get(f"twin{number}", {}))
        self.directory.write_text(json.dumps(entries + self.extra))

    async def start(self, *numbers: int, **settings: Any) -> list[Twin]:
        """Start twins; `settings` are of all their nodes."""
        for number in numbers:
            self.twins[number] = Twin(self, number, **settings)
        self.write_directory()
        for number in numbers:
            await self.twins[number].start_redis()
            await self.twins[number].start()
        return [self.twins[number] for number in numbers]

    def spawn(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self._tasks.add(task)
        return task

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for twin in self.twins.values():
            if hasattr(twin, "node"):
                await twin.node.stop()
            if hasattr(twin, "client"):
                await twin.client.aclose()
            await twin.redis_server.stop()


async def until(condition: Callable[[], bool | Awaitable[bool]], within: float = 10) -> None:
    """Wait until something outside of this process has happened."""
    end = time.monotonic() + within
    while True:
        found = condition()
        if found if isinstance(found, bool) else await found:
            return
        assert time.monotonic() < end, "it did not happen"
        await asyncio.sleep(0.01)
