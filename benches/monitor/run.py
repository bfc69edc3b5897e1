"""What the monitor costs: pages over a large bus, how long they hold the event loop, and the CPU of ten viewers.

A node in a process of its own, with 1,000 topics and 10,000 open GSB connections, is asked for pages; while it
answers, it watches its own loop every half a millisecond. How long the loop is held is CPU time of its thread between
two of these looks: on a machine with neighbours the time on the wall tells about them. Before that it collects its
garbage once, as it does from time to time while so many connections come: that holds the loop, and is not the page's
doing. Then it is left alone, and then
ten viewers with the page's own habits (the live stream, and a list every two seconds) look at it; the difference in
CPU time is theirs.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

import uvloop

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "src"))

from polybus.protocols.gsb.wire import CURRENT, Kind, encode_hello
from polybus.server import Config, Node

PAGES = {
    "topics, 50 of 1,000": "/api/v1/topics?sort=bytes&order=desc",
    "topics, all 1,000": "/api/v1/topics?limit=1000",
    "groups, 50 of 1,000": "/api/v1/groups?sort=lag&order=desc",
    "connections, 50 of 10,000 by peer": "/api/v1/connections?sort=peer",
    "connections, search": "/api/v1/connections?q=127.0.0.1:4",
    "connections, all 10,000": "/api/v1/connections?limit=10000",
    "overview with history": "/api/v1/overview?history=120",
    "/metrics": "/metrics",
}
# The goals: a page answers so quickly, holds the loop no longer, and ten viewers cost no more.
ANSWER_MS = 200
HELD_MS = 10
VIEWERS_PERCENT = 2


class LoopWatch:
    """The longest time that the loop did not come round."""

    def __init__(self) -> None:
        self.worst = 0.0

    async def run(self) -> None:
        last = time.thread_time()
        while True:
            await asyncio.sleep(0.0005)
            now = time.thread_time()
            self.worst = max(self.worst, now - last)
            last = now


async def serve(topics: int) -> None:
    """The node; tells its port, then answers lines on stdin."""
    with tempfile.TemporaryDirectory() as folder:
        config = Config(listen=("tcp://127.0.0.1:0",), data=Path(folder))
        async with Node(config) as node:
            assert node.topics is not None
            for number in range(topics):
                await node.topics.declare(f"bench/topic-{number:04}")
                await node.topics.groups.declare(f"bench/topic-{number:04}", "readers")
            watch = LoopWatch()
            watching: asyncio.Task[None] | None = None
            print(node.addresses[0].port, flush=True)
            while line := await asyncio.to_thread(sys.stdin.readline):
                if line == "watch\n":
                    watching = asyncio.create_task(watch.run())
                elif line == "rest\n" and watching is not None:
                    watching.cancel()
                elif line == "settle\n":
                    gc.collect()
                elif line == "worst\n":
                    print(watch.worst * 1000, flush=True)
                    watch.worst = 0.0
                    continue
                print(time.process_time(), flush=True)


async def ask(port: int, path: str) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n".encode())
    raw = await reader.read()
    writer.close()
    assert raw.startswith(b"HTTP/1.1 200"), raw[:300]
    return raw


async def view(port: int, ends: float, index: int) -> None:
    """One person at the page: the stream, and the list of the view every two seconds."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /api/v1/stream HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
    drain = asyncio.create_task(_drain(reader))
    paths = ("/api/v1/topics", "/api/v1/groups", "/api/v1/services", "/api/v1/me")
    while time.monotonic() < ends:
        await ask(port, paths[index % len(paths)])
        await asyncio.sleep(2)
    drain.cancel()
    writer.close()


async def _drain(reader: asyncio.StreamReader) -> None:
    while await reader.read(65536):
        pass


class Remote:
    """The node's process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def line(self, question: str = "") -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if question:
            self._process.stdin.write(question.encode() + b"\n")
        return float(await self._process.stdout.readline())


async def measure_page(node: Remote, port: int, name: str, rounds: int) -> str:
    """One row: a page asked for several times, one after the other."""
    times, size = [], 0
    await node.line("worst")
    before = await node.line("cpu")
    for _ in range(rounds):
        started = time.perf_counter()
        size = len(await ask(port, PAGES[name]))
        times.append((time.perf_counter() - started) * 1000)
    spent = (await node.line("cpu") - before) / rounds * 1000
    held = await node.line("worst")
    figures = f"{statistics.median(times):.0f} | {max(times):.0f} | < {ANSWER_MS}"
    return f"| {name} | {figures} | {held:.1f} | < {HELD_MS} | {spent:.1f} | {size // 1024} |"


async def measure(arguments: argparse.Namespace) -> None:
    program = [sys.executable, __file__, "--serve", "--topics", str(arguments.topics)]
    process = await asyncio.create_subprocess_exec(
        *program, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    node = Remote(process)
    port = int(await node.line())
    idle = []
    for number in range(arguments.connections):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        hello = encode_hello(f"client-{number}", "1", number.to_bytes(16, "big"))
        writer.write(CURRENT.encode(Kind.HELLO, hello))
        idle.append((reader, writer))
    await asyncio.sleep(2)
    await node.line("settle")
    await node.line("watch")
    await asyncio.sleep(5)
    idle_held = await node.line("worst")
    rows = [await measure_page(node, port, name, arguments.rounds) for name in PAGES]
    await node.line("rest")
    await asyncio.sleep(2)
    used = []
    for viewers in (0, arguments.viewers):
        before = await node.line("cpu")
        ends = time.monotonic() + arguments.seconds
        await asyncio.gather(*(view(port, ends, n) for n in range(viewers)))
        await asyncio.sleep(max(0.0, ends - time.monotonic()))
        used.append((await node.line("cpu") - before) / arguments.seconds * 100)
    size = f"{arguments.topics:,} topics and groups, {arguments.connections:,} connections"
    print(f"| {size} | median ms | worst ms | goal | loop held ms | goal | CPU ms | KiB |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    print("\n".join(rows))
    print(f"| nobody looks | | | | {idle_held:.1f} | < {HELD_MS} | | |")
    print()
    print("| the node's CPU | % of a core | goal |")
    print("|---|---:|---:|")
    print(f"| nobody looks | {used[0]:.2f} | |")
    added = used[1] - used[0]
    print(f"| what {arguments.viewers} viewers add | {added:.2f} | < {VIEWERS_PERCENT} |")
    for _, writer in idle:
        writer.close()
    assert process.stdin is not None
    process.stdin.close()
    await process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=1000)
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--viewers", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(limit, 65536), limit))
    if not arguments.serve:
        os.nice(5)
    uvloop.run(serve(arguments.topics) if arguments.serve else measure(arguments))


if __name__ == "__main__":
    main()
