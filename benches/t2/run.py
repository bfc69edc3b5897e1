"""T2 side by side: the real server and polybus, pure and compiled, under one load generator.

    python benches/t2/run.py [--quick] [--targets real,pure,compiled]

The invariant: all figures of a table come from one run. The servers take turns in short rounds, each
alone on one processor with the generator on another, and a ratio is the median of ratios within a
round, so that a slow minute of the machine weighs on all of them alike.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

CACHE = Path(os.environ.get("POLYBUS_CACHE") or Path.home() / ".cache" / "polybus")
POLYBUS = Path(sys.executable).with_name("polybus")
TARGETS = {"real": "t2 0.2.0", "pure": "polybus, pure Python", "compiled": "polybus, compiled"}
NOTES = """\
In flight: publications without an Ack, or requests without a reply. CPU: the server's own time on its
processor per message (fan-out: per delivery), the figure that carries over best. p50 and p99: from
sending to the last of Ack, deliveries and reply. × compares with the real server: rates above 1 and
CPU below 1 are in our favour.

The real server leaves Nagle's algorithm on, so its TCP requests stall for about 45 ms each; their
rates say that and nothing about its speed. It also ends itself 30 s after its first answered request,
so it is started anew for every measurement; polybus for every round.
"""


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    mode: str
    in_flight: int
    receivers: int
    payload: bytes

    @property
    def is_compressed(self) -> bool:
        # The threshold of the real client (protocol page §10).
        return len(self.payload) > 5000


@dataclass(frozen=True, slots=True)
class Server:
    pid: int
    addresses: dict[str, str]


@dataclass(frozen=True, slots=True)
class Figure:
    per_second: float
    cpu_us: float
    p50_us: float
    p99_us: float
    lost: int
    sent: int
    generator_load: float


def prose(length: int) -> bytes:
    words = [
        "the",
        "a",
        "of",
        "to",
        "in",
        "bus",
        "topic",
        "message",
        "price",
        "reply",
        "subscriber",
    ]
    generator = random.Random(4)
    return " ".join(generator.choices(words, k=length)).encode()[:length]


CASES = [
    Case("publish 128 B, 1 in flight", "publish", 1, 1, prose(128)),
    Case("publish 128 B, 256 in flight", "publish", 256, 1, prose(128)),
    Case("publish 16 KiB text, 16 in flight", "publish", 16, 1, prose(16384)),
    Case("publish 16 KiB noise, 16 in flight", "publish", 16, 1, random.Random(4).randbytes(16384)),
    Case("fan-out to 8, 128 B, 64 in flight", "publish", 64, 8, prose(128)),
    Case("request 128 B, 1 in flight", "request", 1, 1, prose(128)),
    Case("request 128 B, 64 in flight", "request", 64, 1, prose(128)),
]


def built_generator() -> Path:
    source, program = Path(__file__).with_name("load.c"), CACHE / "bench" / "t2-load"
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        program.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cc", "-O2", "-o", program, source], check=True)
    return program


def real_program() -> Path:
    program = CACHE / "t2" / "bin" / "t2"
    if not program.exists():
        folders = ["--root", f"{CACHE}/t2", "--target-dir", f"{CACHE}/t2-target"]
        subprocess.run(["cargo", "install", "t2_bus@0.2.0", *folders], check=True)
    return program


@contextmanager
def running(command: list[str], processor: int, **env: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        ["taskset", "-c", str(processor), *command],
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=15)


@contextmanager
def real_server(processor: int) -> Iterator[Server]:
    with ExitStack() as stack:
        place = stack.enter_context(tempfile.TemporaryDirectory(prefix="t2-"))
        with closing(socket.create_server(("127.0.0.1", 0))) as listener:
            port = listener.getsockname()[1]
        addresses = {"unix": f"unix:{place}/bus", "tcp": f"tcp:127.0.0.1:{port}"}
        command = [str(real_program()), "serve", *addresses.values()]
        process = stack.enter_context(running(command, processor))
        for _ in range(500):
            with closing(socket.socket()) as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.01)
        yield Server(process.pid, addresses)


@contextmanager
def polybus_server(processor: int, pure: bool) -> Iterator[Server]:
    with ExitStack() as stack:
        place = stack.enter_context(tempfile.TemporaryDirectory(prefix="t2-"))
        listen = ["--listen", f"unix://{place}/bus", "--listen", "tcp://127.0.0.1:0"]
        command = [str(POLYBUS), "serve", *listen, "--data", f"{place}/data"]
        process = stack.enter_context(running(command, processor, POLYBUS_PURE=str(int(pure))))
        addresses = {}
        assert process.stdout is not None
        for line in process.stdout:
            match line.split():
                case ["listening", url]:
                    kind, _, where = url.partition("://")
                    addresses[kind] = f"{kind}:{where}"
                case ["ready"]:
                    break
        yield Server(process.pid, addresses)


def measure(server: Server, case: Case, transport: str, seconds: float) -> Figure:
    payload = gzip.compress(case.payload, 6, mtime=0) if case.is_compressed else case.payload
    command = [
        *(built_generator(), server.addresses[transport], case.mode),
        *(str(case.in_flight), str(case.receivers), "gzip" if case.is_compressed else "plain"),
        *(str(seconds), str(server.pid)),
    ]
    done = subprocess.run(command, input=payload, stdout=subprocess.PIPE, check=True)
    result = json.loads(done.stdout)
    units = max(1, result["messages"]) * case.receivers
    return Figure(
        per_second=units / result["seconds"],
        cpu_us=result["server_cpu_s"] * 1e6 / units,
        p50_us=result["p50_us"],
        p99_us=result["p99_us"],
        lost=result["lost"],
        sent=result["sent"],
        generator_load=result["own_cpu_s"] / result["seconds"],
    )


Key = tuple[str, str, str]  # case, transport, target


def run(targets: list[str], rounds: int, seconds: float) -> dict[Key, list[Figure]]:
    own, servers = sorted(os.sched_getaffinity(0))[:2]
    # What is started from here inherits it; the servers are moved to the other one.
    os.sched_setaffinity(0, {own})
    figures: dict[Key, list[Figure]] = defaultdict(list)
    for number in range(rounds):
        with ExitStack() as stack:
            kept = {
                target: stack.enter_context(polybus_server(servers, target == "pure"))
                for target in targets
                if target != "real"
            }
            for case in CASES:
                for transport in ("unix", "tcp"):
                    for target in targets:
                        with ExitStack() as once:
                            server = kept.get(target) or once.enter_context(real_server(servers))
                            figure = measure(server, case, transport, seconds)
                        figures[case.name, transport, target].append(figure)
                print(f"round {number + 1} of {rounds}: {case.name}", file=sys.stderr)
    return figures


def ratio(ours: list[Figure], theirs: list[Figure], field: str) -> str:
    pairs = zip(ours, theirs, strict=True)
    return f"{statistics.median(getattr(a, field) / getattr(b, field) for a, b in pairs):.2f}"


def table(figures: dict[Key, list[Figure]]) -> Iterator[str]:
    yield "| case | over | server | per second | × | CPU µs | × | p50 µs | p99 µs | lost |"
    yield "|---|---|---|--:|--:|--:|--:|--:|--:|--:|"
    for (case, transport, target), rows in figures.items():
        theirs = [] if target == "real" else figures.get((case, transport, "real"), [])
        rate, cpu, p50, p99 = (
            statistics.median(getattr(row, field) for row in rows)
            for field in ("per_second", "cpu_us", "p50_us", "p99_us")
        )
        cells = [
            *(case, transport, TARGETS[target]),
            f"{rate:,.0f}",
            ratio(rows, theirs, "per_second") if theirs else "",
            f"{cpu:.1f}",
            ratio(rows, theirs, "cpu_us") if theirs else "",
            *(f"{p50:,.0f}", f"{p99:,.0f}"),
            f"{sum(row.lost for row in rows) / sum(row.sent for row in rows):.2%}",
        ]
        yield f"| {' | '.join(cells)} |"


def chosen_targets(text: str) -> list[str]:
    targets = text.split(",")
    if unknown := set(targets) - set(TARGETS):
        raise argparse.ArgumentTypeError(f"no such target: {', '.join(sorted(unknown))}")
    return [target for target in TARGETS if target in targets]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="one short round, to see that it works"
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--targets", type=chosen_targets, default=list(TARGETS), metavar="A,B")
    arguments = parser.parse_args()
    if shutil.which("taskset") is None or len(os.sched_getaffinity(0)) < 2:
        parser.error("needs taskset and two processors")
    version = subprocess.run([POLYBUS, "version"], capture_output=True, text=True, check=True)
    if "compiled" in arguments.targets and "polybus.protocols.t2." not in version.stdout:
        arguments.targets.remove("compiled")
        print("its T2 room is not compiled here: that target is left out", file=sys.stderr)
    rounds, seconds = (1, 0.25) if arguments.quick else (arguments.rounds, 1.0)
    figures = run(arguments.targets, rounds, seconds)
    busiest = max(row.generator_load for rows in figures.values() for row in rows)
    print(
        f"Median of {rounds} rounds of {seconds:g} s; {platform.platform()}; {version.stdout.strip()};"
    )
    print(f"the generator was at most {busiest:.0%} busy.\n")
    print("\n".join(table(figures)))
    print(f"\n{NOTES}", end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
