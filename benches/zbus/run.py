"""Zbus servers side by side: `python benches/zbus/run.py` prints a markdown table.

The real 0.9.0 server, which never syncs, and polybus, which syncs before every acknowledgement, run at once and take
turns under the same load, so that what else the machine does meets both. A short round goes before the others and is
not counted: the real server's code is compiled while it runs. Rates are medians over the rounds; the ratio is formed
within each round, where the two ran next to each other. Loops in C and in Python that only answer stand beside them
where they consume: what one thread, and what one event loop of ours, could reach at most.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))

from tests.interop.zbus.build import build_peer, cache  # noqa: E402
from tests.interop.zbus.parts import Server, free_port, start_polybus, start_real  # noqa: E402


@dataclass(frozen=True)
class Case:
    """One row: what the generator does, with how many connections and how much in flight on each."""

    name: str
    mode: str
    connections: int
    window: int
    goal: str = ""
    messages: int = 0
    """After how many it ends, if not by time: of consumers, as many are stored before."""


STORED: Final = 60_000
WARM_UP_S: Final = 1.5  # per case
FILL_S: Final = 60.0  # at most
CASES: Final = (
    Case("produce 1 KiB, 1 producer, sync", "produce", 1, 1),
    Case("produce 1 KiB, 8 producers, sync", "produce", 8, 1),
    Case("produce 1 KiB, pipelined 1 x 256", "produce", 1, 256),
    Case("produce 1 KiB, pipelined 8 x 64", "produce", 8, 64, "1"),
    Case("consume 1 KiB, 1 consumer", "consume", 1, 1, "2", STORED),
    Case("consume 1 KiB, 8 consumers", "consume", 8, 1, "2", STORED),
    # Not for the real server, where the second consume of a connection takes the place of the first
    Case("consume 1 KiB, 8 consumers x 16", "consume", 8, 16, messages=5 * STORED),
    Case("RPC, 1 in flight", "rpc", 1, 1),
    Case("RPC, 64 in flight", "rpc", 8, 8, "3"),
)
PYTHON_FLOOR: Final = [sys.executable, str(HERE / "floor.py")]


@dataclass
class Run:
    """What one server did in one round."""

    rate: float
    p50_us: float
    p99_us: float
    cpu_us: float
    cpu_share: float
    load_share: float
    """Cores that the generator took: near one, it is the generator that is measured."""


@dataclass
class Target:
    """A server under load."""

    name: str
    server: Server
    runs: dict[str, list[Run]] = field(default_factory=dict)
    rss: int = 0
    stores: bool = True
    """Whether it has topics."""

    @property
    def pid(self) -> int:
        return self.server.process.pid

    def cpu_s(self) -> float:
        """Seconds of processor that all its threads have used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def note_memory(self) -> None:
        status = Path(f"/proc/{self.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
        self.rss = max(self.rss, int(line.split()[1]))


def build(name: str) -> Path:
    """A program in C of this folder."""
    program = cache() / f"zbus-{name}"
    program.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cc", "-O2", "-o", str(program), str(HERE / f"{name}.c")], check=True)
    return program


def start_floor(command: list[str], folder: Path) -> Server:
    address = f"127.0.0.1:{free_port()}"
    return Server(address, [*command, address.partition(":")[2]], folder)


def load(program: Path, target: Target, case: Case, seconds: float, topic: str) -> dict[str, float]:
    host, _, port = target.server.address.partition(":")
    command = [program, case.mode, host, port, seconds, case.connections, case.window, topic]
    if case.messages:
        command.append(case.messages)
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{target.name}, {case.name}: {done.stderr}")
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def measure(program: Path, target: Target, case: Case, seconds: float, topic: str) -> Run:
    if target.stores:
        declare(target, topic, rpc=case.mode == "rpc")
    if target.stores and case.mode == "consume":
        load(program, target, Case("", "fill", 4, 64, messages=case.messages), FILL_S, topic)
    before, start = target.cpu_s(), time.monotonic()
    figures = load(program, target, case, seconds, topic)
    used, wall = target.cpu_s() - before, time.monotonic() - start
    target.note_memory()
    messages = max(figures["messages"], 1)
    return Run(
        messages / figures["seconds"],
        figures["p50_us"],
        figures["p99_us"],
        used / messages * 1e6,
        used / wall,
        figures["load_s"] / wall,
    )


def declare(target: Target, topic: str, *, rpc: bool) -> None:
    """As the clients do it: the 0.9.0 server ignores a mask in a URL."""
    host, _, port = target.server.address.partition(":")
    with socket.create_connection((host, int(port)), 10) as connection:
        head = (
            f"cmd: declare\r\ntopic: {topic}\r\nconsume_group: {topic}\r\ntopic_mask: {2 * rpc}\r\n"
        )
        connection.sendall(f"GET / HTTP/1.1\r\n{head}id: 1\r\ncontent-length: 0\r\n\r\n".encode())
        connection.recv(65536)


def chosen(targets: list[Target], case: Case) -> list[Target]:
    """Who takes part: the bare loops where there is consumed, and the real server where it can."""
    real, own, *floors = targets
    if case.mode != "consume":
        return [real, own]
    return [own, *floors] if case.window > 1 else targets


def table(targets: list[Target], cases: list[Case]) -> str:
    """The figures as markdown; the last target is compared with the first."""
    lines = [
        "| case | server | per second | p50 | p99 | CPU µs per message | cores | generator | ratio |"
    ]
    lines.append("|---|---|---|---|---|---|---|---|---|")
    for case in cases:
        first = targets[0].runs.get(case.name)
        for target in targets:
            runs = target.runs.get(case.name)
            if runs is None:
                continue
            ratio = ""
            if first is not None and first is not runs:
                pairs = zip(runs, first, strict=True)
                ratio = f"{statistics.median(own.rate / real.rate for own, real in pairs):.2f}"
                if case.goal and target.stores:
                    ratio += f" (goal {case.goal})"
            middle = lambda name, of=runs: statistics.median(getattr(run, name) for run in of)  # noqa: E731
            lines.append(
                f"| {case.name} | {target.name} | {middle('rate'):,.0f} | {middle('p50_us'):,.0f} µs "
                f"| {middle('p99_us'):,.0f} µs | {middle('cpu_us'):.0f} | {middle('cpu_share'):.2f} "
                f"| {middle('load_share'):.2f} | {ratio} |"
            )
    for target in targets:
        if not target.stores:
            continue
        ratio = "" if target is targets[0] else f"{target.rss / targets[0].rss:.2f} (goal 0.5)"
        lines.append(
            f"| memory at most | {target.name} | {target.rss / 1024:.0f} MiB | | | | | | {ratio} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--cases", default="", help="only those whose name contains this")
    parser.add_argument("--quick", action="store_true", help="one short round")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds = 1, 0.5  # half a minute
    cases = [case for case in CASES if options.cases in case.name]
    program = build("load")
    folder = Path(tempfile.mkdtemp(prefix="zbus-bench"))
    real = Target("zbus 0.9.0", start_real(build_peer(), folder / "real"))
    own = Target("polybus", start_polybus(folder / "own"))
    floors = [
        Target("bare loop in C", start_floor([str(build("floor"))], folder / "c"), stores=False),
        Target("bare loop in Python", start_floor(PYTHON_FLOOR, folder / "python"), stores=False),
    ]
    targets = [real, own, *floors]
    try:
        for number in range(options.rounds + 1):
            seconds = options.seconds if number else min(options.seconds, WARM_UP_S)
            for at, case in enumerate(cases):
                for target in chosen(targets, case):
                    run = measure(program, target, case, seconds, f"Bench{number}x{at}")
                    if number:
                        target.runs.setdefault(case.name, []).append(run)
        print(table(targets, cases))
    finally:
        for target in targets:
            target.server.stop()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
