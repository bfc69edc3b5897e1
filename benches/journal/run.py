"""What a row of the journal costs the node: `python benches/journal/run.py [--quick]` prints a markdown table.

Nodes with and without a journal are up at once on one core and take turns under the load of `benches/gsb` on another;
the difference of their CPU per call, all threads included, is what one row costs from the hot loop to the disk.
"""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1] / "gsb"))
from run import Case, Sample, compiled, measure, polybus

CASES = (
    Case("call 128 B, 64 in flight", "calls", 128, 64, 1),
    Case("call 128 B, 1024 in flight", "calls", 128, 1024, 1),
    # Fewer calls that are alike end together.
    Case("call 128 B, 64, to 8 services", "calls", 128, 64, 8),
)
BUILDS = (("pure Python", True, 2.0), ("compiled", False, 0.7))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round, to see that it runs")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    rounds, seconds = (1, 0.5) if options.quick else (options.rounds, 1.5)
    cores = sorted(os.sched_getaffinity(0))
    load = compiled("load.c")
    samples: dict[tuple[bool, bool, Case], list[Sample]] = {}
    with ExitStack() as stack:
        nodes = {
            (pure, journal): stack.enter_context(
                contextmanager(polybus)(cores[1], pure=pure, journal=journal)
            )
            for _, pure, _ in BUILDS
            for journal in (False, True)
        }
        for number in range(rounds):
            print(f"round {number + 1}/{rounds}", file=sys.stderr)
            for case in CASES:
                for (pure, journal), node in nodes.items():
                    sample = measure(load, node, case, seconds, cores[0])
                    samples.setdefault((pure, journal, case), []).append(sample)
    print("| case | build | CPU µs per call, without | with a journal | µs per row | goal |")
    print("|---|---|---:|---:|---:|---:|")
    for case in CASES:
        for name, pure, goal in BUILDS:
            without, kept = (
                [2 * sample.cpu_us for sample in samples[pure, journal, case]]
                for journal in (False, True)
            )
            row = median(b - a for a, b in zip(without, kept, strict=True))
            figures = f"{median(without):.2f} | {median(kept):.2f} | {row:.2f} | ≤ {goal}"
            print(f"| {case.name} | {name} | {figures} |")


if __name__ == "__main__":
    main()
