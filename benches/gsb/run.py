"""Compare Golem Service Bus routers side by side: `python benches/gsb/run.py [--quick]` prints a markdown table.

All routers of a run are up at once, each pinned to one core, and take turns under the load generator on another
core; every round visits every case and every router, so that whatever else the machine does falls on all of them.
Figures are medians over the rounds; a ratio is the median of the ratios within each round.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parent.parent
CACHE: Final = Path(os.environ.get("POLYBUS_CACHE") or Path.home() / ".cache" / "polybus")
START_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    mode: str
    size: int
    window: int
    peers: int

    @property
    def messages(self) -> int:
        """Messages that the router passes on per unit of work: a call is a request and a reply."""
        return 2 if self.mode == "calls" else 1


CASES: Final = (
    Case("call 128 B, 1 in flight", "calls", 128, 1, 1),
    Case("call 128 B, 64", "calls", 128, 64, 1),
    Case("call 128 B, 1024", "calls", 128, 1024, 1),
    Case("call 16 KiB, 64", "calls", 16384, 64, 1),
    Case("call 128 B, 64, to 8 services", "calls", 128, 64, 8),
    Case("broadcast 128 B to 8, 1 in flight", "broadcast", 128, 1, 8),
    Case("broadcast 128 B to 8, 64", "broadcast", 128, 64, 8),
)


@dataclass(frozen=True, slots=True)
class Router:
    port: int
    pid: int


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of the generator: work done per second, router CPU per message, latencies, loss, and who was busy."""

    rate: float
    cpu_us: float
    p50_us: float
    p99_us: float
    issued: int
    lost: int
    router_share: float
    load_share: float


def compiled(source: str) -> Path:
    program = CACHE / "bench-gsb" / Path(source).stem
    program.parent.mkdir(parents=True, exist_ok=True)
    compiler = os.environ.get("CC", "cc")
    options = ["-O2", "-Wall", "-Wextra", "-o", str(program)]
    subprocess.run([compiler, *options, str(HERE / source)], check=True)
    return program


def listening_port(log: Path) -> int | None:
    """The port of a router that announces itself, once it says that it is ready."""
    lines = log.read_text().splitlines()
    if "ready" not in lines:
        return None
    return next(int(line.rsplit(":", 1)[1]) for line in lines if line.startswith("listening tcp:"))


def accepting(port: int) -> int | None:
    with socket.socket() as probe:
        return port if probe.connect_ex(("127.0.0.1", port)) == 0 else None


@contextmanager
def started(
    command: list[str], environment: dict[str, str], ready: Callable[[Path], int | None], core: int
) -> Iterator[Router]:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("w") as output:
            process = subprocess.Popen(
                ["taskset", "-c", str(core), *command],
                cwd=folder,
                env=os.environ | environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            deadline = time.monotonic() + START_S
            while (port := ready(log)) is None:
                if process.poll() is not None or time.monotonic() > deadline:
                    sys.exit(f"{command[0]} did not start:\n{log.read_text()}")
                time.sleep(0.02)
            yield Router(port, process.pid)
        finally:
            process.terminate()
            process.wait()


def rust(core: int) -> Iterator[Router]:
    build = [sys.executable, str(ROOT / "tests/interop/gsb/build.py"), "router"]
    program = subprocess.run(build, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    command = [program, "-l", f"tcp://127.0.0.1:{port}"]
    with started(command, {}, lambda _: accepting(port), core) as router:
        yield router


def polybus(core: int, *, pure: bool, journal: bool = False) -> Iterator[Router]:
    program = str(Path(sys.executable).parent / "polybus")
    environment = {"POLYBUS_PURE": "1" if pure else "0"}
    environment["POLYBUS_JOURNAL_ENABLED"] = str(journal).lower()
    version = [program, "version"]
    said = subprocess.check_output(version, env=os.environ | environment, text=True)
    if ("pure Python" in said) != pure:
        sys.exit(f"the wrong polybus would be measured (is it built?): {said}")
    command = [program, "serve", "--listen", "tcp://127.0.0.1:0", "--data", "data"]
    with started(command, environment, listening_port, core) as router:
        yield router


def floor(core: int) -> Iterator[Router]:
    with started([str(compiled("forwarder.c"))], {}, listening_port, core) as router:
        yield router


TARGETS: Final[dict[str, tuple[str, Callable[[int], Iterator[Router]]]]] = {
    "rust": ("ya-sb-router", rust),
    "pure": ("polybus, pure Python", lambda core: polybus(core, pure=True)),
    "compiled": ("polybus, compiled", lambda core: polybus(core, pure=False)),
    "floor": ("C floor", floor),
}


def measure(load: Path, router: Router, case: Case, seconds: float, core: int) -> Sample:
    numbers = (case.size, case.window, case.peers, seconds)
    command = ["taskset", "-c", str(core), str(load), str(router.port), str(router.pid), case.mode]
    command += map(str, numbers)
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 60)
    if done.returncode:
        sys.exit(f"{case.name}: {done.stderr.strip()}")
    result = json.loads(done.stdout)
    if not result["done"]:
        sys.exit(f"{case.name}: nothing came through")
    return Sample(
        rate=result["done"] / result["seconds"],
        cpu_us=result["router_cpu_s"] * 1e6 / (result["done"] * case.messages),
        p50_us=result["p50_us"],
        p99_us=result["p99_us"],
        issued=result["issued"],
        lost=result["lost"] + result["failed"],
        router_share=result["router_cpu_s"] / result["seconds"],
        load_share=result["load_cpu_s"] / result["seconds"],
    )


Samples = dict[str, list[Sample]]


def ratio(samples: Samples, target: str, base: str, figure: Callable[[Sample], float]) -> str:
    if base not in samples:
        return "–"
    pairs = zip(samples[target], samples[base], strict=True)
    return f"{median(figure(mine) / figure(other) for mine, other in pairs):.2f}"


def row(case: Case, target: str, samples: Samples) -> str:
    def middle(figure: Callable[[Sample], float]) -> float:
        return median(map(figure, samples[target]))

    # Not a median: one lost message in any round is a loss.
    lost = sum(sample.lost for sample in samples[target])
    cells = [
        case.name,
        TARGETS[target][0],
        f"{middle(lambda s: s.rate):,.0f}",
        f"{middle(lambda s: s.cpu_us):.2f}",
        f"{middle(lambda s: s.p50_us):,.0f}",
        f"{middle(lambda s: s.p99_us):,.0f}",
        f"{lost:,} ({lost / sum(s.issued for s in samples[target]):.3%})" if lost else "0",
        ratio(samples, target, "rust", lambda s: s.cpu_us),
        ratio(samples, target, "rust", lambda s: s.rate),
        ratio(samples, target, "floor", lambda s: s.cpu_us),
        ratio(samples, target, "floor", lambda s: s.p50_us),
        f"{middle(lambda s: s.router_share):.0%} / {middle(lambda s: s.load_share):.0%}",
    ]
    return f"| {' | '.join(cells)} |"


HEADINGS: Final = (
    *("case", "router", "per second", "CPU µs per message", "p50 µs", "p99 µs", "lost"),
    *("CPU ÷ Rust", "rate ÷ Rust", "CPU ÷ floor", "p50 ÷ floor", "busy router / load"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round, to see that it runs")
    parser.add_argument("--targets", default=",".join(TARGETS), help="of %(default)s")
    parser.add_argument("--cases", default="", help="only cases whose name contains this text")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="per case, router and round")
    options = parser.parse_args()
    rounds, seconds = (1, 0.3) if options.quick else (options.rounds, options.seconds)
    targets = options.targets.split(",")
    if unknown := set(targets) - set(TARGETS):
        parser.error(f"unknown targets {', '.join(unknown)}; known: {', '.join(TARGETS)}")
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        sys.exit("two cores are needed: one for the router, one for the load")
    load = compiled("load.c")
    cases = [case for case in CASES if options.cases in case.name]
    samples: dict[Case, Samples] = {case: {name: [] for name in targets} for case in cases}
    with ExitStack() as stack:
        routers = {
            name: stack.enter_context(contextmanager(TARGETS[name][1])(cores[1]))
            for name in targets
        }
        for number in range(rounds):
            # Another one goes first in each round, so that none always follows the same neighbour.
            order = targets[number % len(targets) :] + targets[: number % len(targets)]
            for case in cases:
                print(f"round {number + 1}/{rounds}: {case.name}", file=sys.stderr)
                for name in order:
                    sample = measure(load, routers[name], case, seconds, cores[0])
                    samples[case][name].append(sample)
    print(f"| {' | '.join(HEADINGS)} |\n|{'---|' * 2}{'---:|' * (len(HEADINGS) - 2)}")
    for case in cases:
        for name in targets:
            print(row(case, name, samples[case]))


if __name__ == "__main__":
    main()
