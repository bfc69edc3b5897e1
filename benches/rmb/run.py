"""Signed round trips through two nodes and two Redis servers, beside their floor.

    python benches/rmb/run.py [--seconds 5] [--rounds 3] [--in-flight 1,64,256] [--key-type sr25519]

A client of twin 1 asks twin 2, whose handler echoes. The floor does the same Redis commands and signatures and nothing
else, in as many processes as there are processors. The invariant: both take turns within each round, and a ratio is the
median of the ratios within rounds, so that a slow minute of the machine weighs on both alike.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from polybus.protocols.rmb.embedded import find_server
from polybus.protocols.rmb.signature import Signer

HERE = Path(__file__).parent
POLYBUS = Path(sys.executable).with_name("polybus")
TICKS = os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def process(*arguments: str, ready: str = "") -> Iterator[subprocess.Popen[str]]:
    """A process that has said that it is ready, and ends with the block."""
    started = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
    try:
        assert started.stdout is not None
        while ready:
            line = started.stdout.readline()
            if not line:
                raise SystemExit(f"{arguments[0]} did not start")
            if ready in line:
                break
        yield started
    finally:
        started.terminate()
        started.communicate()


def cpu_of(pid: int) -> float:
    """Seconds of processor time that a process has had."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


@dataclass
class Place:
    """Everything that is measured: two Redis servers and two nodes."""

    redis: list[int]
    nodes: list[int]
    pids: list[int]


@contextmanager
def place(folder: Path, key_type: str) -> Iterator[Place]:
    redis, http = [free_port(), free_port()], [free_port(), free_port()]
    kind = "ed25519" if key_type == "ed25519" else "sr25519"
    twins = []
    for number in (1, 2):
        (folder / f"{number}.key").write_text("0x" + f"{number:02x}" * 32)
        key = Signer(kind, bytes([number]) * 32).public_key.hex()
        twins.append({"id": number, "address": f"127.0.0.1:{http[number - 1]}", "public_key": key})
    (folder / "twins.json").write_text(json.dumps(twins))
    with ExitStack() as stack:
        pids = []
        for port in redis:
            server = [find_server(), "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
            pids.append(stack.enter_context(process(*server, ready="Ready to accept")).pid)
        for i in (0, 1):
            node = [str(POLYBUS), "serve", "--listen", f"rmb+tcp://127.0.0.1:{http[i]}"]
            node += ["--data", "", "--twin", str(i + 1), "--key-type", key_type]
            node += ["--key-file", str(folder / f"{i + 1}.key")]
            node += ["--twins", str(folder / "twins.json")]
            node += ["--redis", f"redis://127.0.0.1:{redis[i]}"]
            pids.append(stack.enter_context(process(*node, ready="ready")).pid)
        yield Place(redis, http, pids)


def run_bus(where: Place, in_flight: int, seconds: float) -> dict[str, float]:
    before = [cpu_of(pid) for pid in where.pids]
    ports = map(str, (*where.redis, 2, in_flight, seconds))
    out = subprocess.run(
        [sys.executable, str(HERE / "load.py"), *ports], stdout=subprocess.PIPE, check=True
    )
    spent = [cpu_of(pid) - was for pid, was in zip(where.pids, before, strict=True)]
    found = json.loads(out.stdout)
    total = found["count"] * (1 + min(1.0, seconds / 4) / found["seconds"])
    found["rate"] = found["count"] / found["seconds"]
    found["redis_us"] = 1e6 * sum(spent[:2]) / total
    found["nodes_us"] = 1e6 * sum(spent[2:]) / total
    return dict(found)


def run_floor(where: Place, in_flight: int, seconds: float, key_type: str) -> float:
    workers = min(in_flight, len(os.sched_getaffinity(0)))
    share = [str(p) for p in (*where.redis, in_flight // workers, seconds, key_type)]
    started = [
        subprocess.Popen([sys.executable, str(HERE / "floor.py"), *share], stdout=subprocess.PIPE)
        for _ in range(workers)
    ]
    results = [json.loads(worker.communicate()[0]) for worker in started]
    return float(sum(r["count"] / r["seconds"] for r in results))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--in-flight", default="1,64,256")
    parser.add_argument("--key-type", default="sr25519", choices=["sr25519", "ed25519"])
    options = parser.parse_args()
    print(f"{platform.platform()}, Python {platform.python_version()}, {options.key_type}")
    load = os.getloadavg()[0]
    print(f"{len(os.sched_getaffinity(0))} processors, load {load:.1f} before the run\n")
    head = "in flight  round trips/s  p50 ms  p99 ms  nodes µs  Redis µs  floor/s  of the floor"
    print(head)
    with tempfile.TemporaryDirectory() as folder, place(Path(folder), options.key_type) as where:
        for in_flight in map(int, options.in_flight.split(",")):
            rounds = []
            for _ in range(options.rounds):
                bus = run_bus(where, in_flight, options.seconds)
                floor = run_floor(where, in_flight, options.seconds / 2, options.key_type)
                rounds.append(bus | {"floor": floor, "ratio": bus["rate"] / floor})
            middle = {k: statistics.median(r[k] for r in rounds) for k in rounds[0]}
            print(
                f"{in_flight:9}  {middle['rate']:13.0f}  {middle['p50_ms']:6.2f}  "
                f"{middle['p99_ms']:6.2f}  {middle['nodes_us']:8.0f}  {middle['redis_us']:8.0f}  "
                f"{middle['floor']:7.0f}  {middle['ratio']:12.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
