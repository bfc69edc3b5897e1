"""What our own code costs per message, without sockets: `python benches/zbus/fed.py` prints microseconds of CPU.

The same clients as those of `load.c` (whose bytes they send), but their input is handed to the connections and their
output is taken from them, so that neither the system's network nor a neighbour's work is measured. Durable topics are
on a real engine in a temporary folder. The figure is the least of several rounds: what disturbs only adds.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import pstats
import re
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import uvloop

sys.path.insert(0, str(Path(__file__).parents[2]))

from polybus.core.router import Router
from polybus.core.topics import Topics
from polybus.http.session import HttpSession
from polybus.http.site import Site
from polybus.model.clock import SystemClock
from polybus.protocols.zbus.room import ZbusRoom
from polybus.storage.engine import EmbeddedEngine
from polybus.transports.connection import Connection, Connections

PEERS: Final = 8
STORED: Final = 20_000
HEAD: Final = b"GET / HTTP/1.1\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: "
END: Final = b"connection: Keep-Alive\r\ncmd: %s\r\nid: 00000000-0000-0000-0000-%012d\r\nversion: 0.9.0\r\n\r\n"
CALL: Final = b'{"@type":"io.zbus.rpc.Request","method":"plus","module":"","params":[1,2]}'
ASKED: Final = re.compile(rb"\r\nsender: ([^\r]+)\r\n.*?\r\norigin_id: ([^\r]+)\r\n", re.DOTALL)


def produce(topic: bytes, ident: int, body: bytes, ack: bytes = b"") -> bytes:
    return (
        HEAD + b"%d\r\n%stopic: %s\r\n" % (len(body), ack, topic) + END % (b"produce", ident) + body
    )


def consume(topic: bytes, ident: int) -> bytes:
    return (
        HEAD
        + b"0\r\nconsume_group: %s\r\ntopic: %s\r\n" % (topic, topic)
        + END % (b"consume", ident)
    )


def route(topic: bytes, sender: bytes, origin: bytes) -> bytes:
    return (
        HEAD
        + b"13\r\nrecver: %s\r\nack: 0\r\ntopic: %s\r\nconnection: Keep-Alive\r\nid: %s\r\n"
        % (sender, topic, origin)
        + b'cmd: route\r\nversion: 0.9.0\r\norigin_status: 200\r\n\r\n{"result": 3}'
    )


class Tap:
    """The transport of a peer."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []
        self.write = self.taken.append

    def close(self) -> None: ...
    def abort(self) -> None: ...
    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 40000) if name == "peername" else default


class Bench:
    def __init__(self, profile: cProfile.Profile | None) -> None:
        self.profile = profile
        self.spent = 0.0
        self.number = 0

    async def start(self, folder: str) -> None:
        clock = SystemClock()
        self.engine = EmbeddedEngine(Path(folder), clock)
        await self.engine.start()
        self.topics = Topics(self.engine, clock)
        await self.topics.start()
        self.site = Site()
        self.room = ZbusRoom(Router(clock), self.topics)
        self.site.application = self.room.connect
        self.connections = Connections(clock)

    def peer(self) -> tuple[Callable[[bytes], None], list[bytes]]:
        """Where a peer's input goes, and its output."""
        tap = Tap()
        made = Connection(
            self.connections, lambda c: HttpSession(self.site, None, c.peer), "", "tcp"
        )
        made.connection_made(tap)
        return made.data_received, tap.taken

    async def turn(self, inputs: list[tuple[Callable[[bytes], None], bytes]]) -> None:
        """Hand over input as one turn of the loop, and let all end that follows from it."""
        profile, clock = self.profile, time.thread_time
        if profile is not None:
            profile.enable()
        began = clock()
        for give, data in inputs:
            give(data)
        await asyncio.sleep(0)
        self.spent += clock() - began
        if profile is not None:
            profile.disable()

    def next(self) -> int:
        self.number += 1
        return self.number

    async def declare(self, topic: bytes, mask: int) -> None:
        give, taken = self.peer()
        give(
            b"GET / HTTP/1.1\r\ncmd: declare\r\ntopic: %s\r\ntopic_mask: %d\r\nid: 1\r\n\r\n"
            % (topic, mask)
        )
        while not taken:  # noqa: ASYNC110
            await asyncio.sleep(0.001)

    async def rpc(self, rounds: int) -> float:
        """PEERS callers with PEERS calls each; as many services, one call at a time."""
        topic = b"Rpc"
        await self.declare(topic, 2)
        services, callers = ([self.peer() for _ in range(PEERS)] for _ in range(2))
        await self.turn([(give, consume(topic, self.next())) for give, _ in services])
        new = lambda: produce(topic, self.next(), CALL, b"ack: 0\r\n")  # noqa: E731
        inputs = [(give, b"".join(new() for _ in range(PEERS))) for give, _ in callers]
        self.spent, done = 0.0, 0
        while done < rounds:
            await self.turn(inputs)
            inputs = []
            for give, taken in callers:
                count = b"".join(taken).count(b"HTTP/1.1 200 OK")
                taken.clear()
                done += count
                if count:
                    inputs.append((give, b"".join(new() for _ in range(count))))
            for give, taken in services:
                asked = ASKED.findall(b"".join(taken))
                taken.clear()
                for sender, origin in asked:
                    inputs.append(
                        (give, consume(topic, self.next()) + route(topic, sender, origin))
                    )
        assert inputs
        return self.spent / done * 1e6

    async def consumed(self, peers: int) -> float:
        """Each peer takes one message at a time."""
        topic = b"Stored%d" % self.next()
        await self.declare(topic, 0)
        give, taken = self.peer()
        body, got = b"x" * 1024, 0
        for _ in range(STORED // 100):
            give(b"".join(produce(topic, self.next(), body) for _ in range(100)))
            await asyncio.sleep(0)
        while got < STORED:
            await asyncio.sleep(0.01)
            got += sum(part.count(b"HTTP/1.1 200 OK") for part in taken)
            taken.clear()
        consumers = [self.peer() for _ in range(peers)]
        self.spent, done = 0.0, 0
        inputs = [(give, consume(topic, self.next())) for give, _ in consumers]
        while done < STORED:
            await self.turn(inputs)
            inputs = []
            for give, taken in consumers:
                if taken:
                    done += len(taken)
                    taken.clear()
                    inputs.append((give, consume(topic, self.next())))
            if not inputs:
                await asyncio.sleep(0)
        return self.spent / done * 1e6


async def main(options: argparse.Namespace) -> None:
    profile = cProfile.Profile() if options.profile else None
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(profile)
        await bench.start(folder)
        cases: dict[str, Callable[[], Any]] = {
            "rpc, 64 in flight": lambda: bench.rpc(40_000),
            "consume, 8 consumers": lambda: bench.consumed(8),
            "consume, 1 consumer": lambda: bench.consumed(1),
        }
        for name, run in cases.items():
            if options.cases in name:
                found = [await run() for _ in range(options.rounds)]
                print(f"{name}: {min(found):.2f} µs ({', '.join(f'{each:.2f}' for each in found)})")
        await bench.topics.stop()
        await bench.engine.stop()
    if profile is not None:
        pstats.Stats(profile).sort_stats("tottime").print_stats(45)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cases", default="", help="only those whose name contains this")
    parser.add_argument("--profile", action="store_true")
    uvloop.run(main(parser.parse_args()))
