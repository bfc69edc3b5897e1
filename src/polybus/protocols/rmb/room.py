"""What all of the Reliable Message Bus on one node shares, and its life: start, run, drain, stop.

Invariant: after `stop` nothing of the room is left but what Redis keeps; what was taken from a queue and not finished
stands there again.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

from polybus.core.endpoint import Identity
from polybus.core.router import Router
from polybus.core.subscriptions import EXACT
from polybus.core.watch import Watched
from polybus.errors import ConfigError, NotAuthorized
from polybus.model.ids import random_id
from polybus.protocols.rmb.answers import Answers, decode_dat
from polybus.protocols.rmb.bulk import Bulk
from polybus.protocols.rmb.embedded import EmbeddedRedis
from polybus.protocols.rmb.forward import Forward
from polybus.protocols.rmb.intake import Intake
from polybus.protocols.rmb.keys import encode_account
from polybus.protocols.rmb.local import Local
from polybus.protocols.rmb.message import Message, Unreadable, encode
from polybus.protocols.rmb.names import WIRE, to_shared
from polybus.protocols.rmb.options import RmbOptions
from polybus.protocols.rmb.party import TWINS, RmbParty
from polybus.protocols.rmb.peers import Peers
from polybus.protocols.rmb.pending import Pending, restore
from polybus.protocols.rmb.proxy import Proxy
from polybus.protocols.rmb.queues import (
    FORWARD,
    LOCAL,
    OWN,
    PENDING,
    REMOTE,
    REPLY,
    SERVICES,
    Layout,
)
from polybus.protocols.rmb.redis import NAME, Redis, claim
from polybus.protocols.rmb.remote import Remote
from polybus.protocols.rmb.resp import Command, RedisLost, RedisUrl
from polybus.protocols.rmb.serving import Serving
from polybus.protocols.rmb.signature import Signer
from polybus.protocols.rmb.taken import Taken
from polybus.protocols.rmb.twins import Directory, Twin, open_directory
from polybus.protocols.rmb.uploads import Uploads

log = logging.getLogger("polybus.rmb")

TICK: Final = 0.2  # seconds; how late a deadline may be noticed
STOP_POLL: Final = 0.02
STOP_GRACE: Final = 3.0  # seconds for messages that are being sent when the node stops


@dataclass(slots=True)
class Stats:
    """Counters, read by the monitor and the metrics."""

    local: int = 0
    refused: int = 0
    forwarded: int = 0
    retries: int = 0
    answered: int = 0
    failed: int = 0
    expired: int = 0
    remote: int = 0
    remote_refused: int = 0
    overflowed: int = 0
    replies_sent: int = 0
    replies_dropped: int = 0


class RmbRoom:
    """Shared state."""

    def __init__(
        self,
        router: Router,
        options: RmbOptions,
        signer: Signer,
        twins: str,
        redis: RedisUrl | EmbeddedRedis,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Join a node; nothing is started yet.

        Args:
            twins: where the directory is (see `twins.open_directory`).
            tls: how `https://` addresses of twins are verified; the system's authorities by default.
        """
        self.router = router
        self.options = options
        self.own = options.twin
        self.generation = options.generation
        self.signer = signer
        self.layout = Layout(options.generation, options.push_side)
        self.pending = Pending()
        self.taken = Taken()
        self.stats = Stats()
        self.local = Local(self)
        self.answers = Answers(self)
        self.serving = Serving(self)
        self.uploads = Uploads(self)
        self.proxy = Proxy(self)
        self.remote = Remote(self)
        self.party = RmbParty(self)
        self._embedded = redis if isinstance(redis, EmbeddedRedis) else None
        self._url = redis if isinstance(redis, RedisUrl) else RedisUrl()
        self._twins = twins
        self._tls = tls
        self._name = f"{NAME}-twin-{self.own}-{random_id()[:8]}"
        self._tasks: set[asyncio.Task[Any]] = set()
        self._running: list[asyncio.Task[None]] = []
        self._ticks = 0
        self.redis: Redis
        self.peers: Peers
        self.bulk: Bulk
        self.forward: Forward
        self.directory: Directory
        router.add_wire(WIRE, EXACT)

    # -- life ----------------------------------------------------------------------------------------------------

    async def start(self, failed: Callable[[], None]) -> None:
        """Start Redis if it is ours, connect, take up what waits there, and begin to serve.

        Args:
            failed: called when a part of the room ended that never should; the node must not go on without it.

        Raises:
            ConfigError: no Redis, one that another bus owns, a directory that cannot be read, or the wrong key.
        """
        self.peers = Peers(self.options.post_timeout, self.options.connections, self._tls)
        self.bulk = Bulk()
        self.forward = Forward(self)
        try:
            self.directory = open_directory(
                self._twins, self.peers.fetch, self.router.clock.monotonic, self.options.cache
            )
            self._check_key()
            if self._embedded is not None:
                await self._embedded.start()
                self._url = self._embedded.url
            self.redis = Redis(self._url, self._name)
            await self._connect()
        except BaseException:
            await self._release()
            raise
        self.router.attach(self.party)
        self.party.register(self.options.services)
        self._running = [self._watch(task, failed) for task in self._loops()]

    async def _connect(self) -> None:
        try:
            await self.redis.open()
        except RedisLost as exc:
            raise ConfigError(exc.text) from exc
        await claim(self.redis, self._name, f"Redis at {self._url}", LOCAL)
        (probe,) = await self.redis.run((self.layout.pop, f"{PENDING}.probe", 1))
        if isinstance(probe, Exception):
            raise ConfigError(f"Redis at {self._url} cannot serve: {probe}; 6.2 or newer is needed")
        await self._restore()
        self.redis.write([("SET", OWN, self.own)])

    def _check_key(self) -> None:
        own = self.directory.get(self.own)
        if own is not None and own.public_key not in (None, self.signer.public_key):
            account = encode_account(self.signer.public_key)
            raise ConfigError(
                f"the key file is not the key of twin {self.own}: it holds the secret of "
                f"{account}; look at --key-type as well"
            )

    async def _restore(self) -> None:
        """Take up the requests that were accepted before a restart."""
        cursor: bytes | int = 0
        while True:
            ((cursor, found),) = await self.redis.run(("HSCAN", PENDING, cursor, "COUNT", 1000))
            for field, value in zip(found[::2], found[1::2], strict=True):
                try:
                    entry = restore(field, value)
                except (Unreadable, ValueError):
                    log.warning("a field of %s is none of ours", PENDING)
                    continue
                if entry.key not in self.pending:
                    self.pending.add(entry)
            if int(cursor) == 0:
                break
        if len(self.pending):
            log.info("%d requests of before the restart wait for answers", len(self.pending))

    def _loops(self) -> list[Coroutine[Any, Any, None]]:
        def intake(queues: dict[str, Any], capacity: Any = None) -> Coroutine[Any, Any, None]:
            return Intake(self._url, self._name, self.layout, queues, capacity).run()

        incoming = {LOCAL: self.local.take, REMOTE: self.remote.take_queue}
        replies = {REPLY: self.answers.take}
        return [
            intake(incoming, self.local.capacity),
            intake(replies, self.forward.capacity),
            intake({FORWARD: self.forward.take}, self.forward.capacity),
            self._tick_for_ever(),
        ]

    def _watch(
        self, work: Coroutine[Any, Any, None], failed: Callable[[], None]
    ) -> asyncio.Task[None]:
        def ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled():
                log.critical("a part of the message bus has ended", exc_info=task.exception())
                failed()

        task = asyncio.create_task(work, name="polybus rmb")
        task.add_done_callback(ended)
        return task

    async def stop(self) -> None:
        """Take nothing more, finish what is being sent, and leave the rest in Redis."""
        running, self._running = self._running, []
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        if running:
            self.router.detach(self.party)
            loop = asyncio.get_running_loop()
            until = loop.time() + STOP_GRACE
            while (self.forward.in_progress or self._tasks) and loop.time() < until:  # noqa: ASYNC110
                await asyncio.sleep(STOP_POLL)
            await self._give_back()
        await self._release()

    async def _give_back(self) -> None:
        """Queue again what could not be sent before the end."""
        commands: list[Command] = []
        for waiting in self.pending:
            if waiting.busy and waiting.answer is None:
                commands += self.layout.forward(waiting.uid, [waiting.dst])
        for m, dst in self.forward.held_replies():
            commands.append((self.layout.push, REPLY, encode(m.copy(dst=[dst]), "rs")))
        self.redis.write(commands)
        try:
            async with asyncio.timeout(STOP_GRACE):
                await self.redis.flushed()
        except TimeoutError:
            log.warning("stopping while Redis does not answer")

    async def _release(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if hasattr(self, "peers"):
            await self.peers.close()
            await self.bulk.close()
        if hasattr(self, "redis"):
            await self.redis.close()
        if self._embedded is not None:
            await self._embedded.stop()

    # -- time ----------------------------------------------------------------------------------------------------

    def wall_ms(self) -> int:
        """The node's clock."""
        return self.router.clock.wall_ms()

    async def _tick_for_ever(self) -> None:
        while True:
            await asyncio.sleep(TICK)
            self.tick()

    def tick(self) -> None:
        """End what is past its deadline."""
        self.answers.expire()
        self._ticks += 1
        if self._ticks % 5 == 0:
            self.peers.tick()
        if self._ticks % 5 == 0 and not self.router.draining:
            bounds = (self.wall_ms(), "+inf")
            self.redis.send([("ZRANGEBYSCORE", SERVICES, *bounds)], self._declared)
        if self._ticks % 50 == 0:
            self.taken.expire(self.wall_ms())

    def _declared(self, replies: list[Any] | None) -> None:
        """What our handler library says that it answers (DESIGN 3)."""
        if replies is not None and isinstance(replies[0], list) and self.running:
            self.party.declare({cmd.decode("utf-8", "replace") for cmd in replies[0]})

    def later(self, seconds: float, work: Callable[[], None]) -> None:
        """Do something after a pause, unless the room ends before."""

        async def wait() -> None:
            await asyncio.sleep(seconds)
            work()

        self.spawn(wait())

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something beside the queues; the room owns it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a message could not be handled", exc_info=task.exception())

    def watch_request(self, m: Message, dst: int, caller: str) -> Watched | None:
        """Note a request that the core does not see for the journal and captures."""
        watch = self.router.calls.watch
        if watch is None:
            return None
        name = to_shared(m.cmd) or m.cmd
        if dst != self.own:
            name = f"{TWINS}/{dst}/{name}"
        watched = watch.begin(WIRE, name, caller, len(m.dat))
        if watched is not None and watched.into:
            watched.keep_request(decode_dat(m.dat))
        return watched

    # -- twins ---------------------------------------------------------------------------------------------------

    async def look_up(self, twin: int) -> Twin | None:
        """The entry of a twin, asked for if need be and kept where the real daemon keeps it."""
        if self.directory.knows(twin):
            return self.directory.get(twin)
        found = await self.directory.fetch(twin)
        if found is not None:
            text = (
                f'{{"version":1,"id":{found.id},"account":"{found.account}",'
                f'"address":"{found.place.authority}","entities":[]}}'
            )
            ttl = max(1, int(self.options.cache))
            self.redis.write([("SET", f"twin.{twin}", text, "EX", ttl)])
        return found

    def denied(self, src: int, dst: int, cmd: str) -> str:
        """Why the policy does not let one twin call another; empty when it may."""
        name = to_shared(cmd) or cmd
        if dst != self.own:
            name = f"{TWINS}/{dst}/{name}"
        who = self.party.identity if src == self.own else Identity("twin", str(src))
        if self.router.policy.may(who, "call", name):
            return ""
        return NotAuthorized(str(who), "call", name).text

    def signs_for(self, twin: Twin) -> bool:
        """Whether messages to a twin are signed: the first generation has no place for a signature."""
        return (twin.generation or self.generation) in ("rs", "documented")

    @property
    def running(self) -> bool:
        """Whether the room serves: started, and not stopping."""
        return bool(self._running)

    @property
    def redis_address(self) -> str:
        """Where clients and handlers find the queues."""
        return str(self._url)
