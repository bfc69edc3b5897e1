"""Measure what an idle Golem Service Bus connection costs: `python benches/gsb/idle.py` prints a markdown table.

Connections say Hello, get the router's and stay silent. Resident memory is read before the first and after the
last one; then every connection must still answer a ping, or the run fails.
"""

from __future__ import annotations

import argparse
import os
import resource
import socket
import sys
import time
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Final

from run import TARGETS, Router

PING: Final = bytes.fromhex("000000027200")
# Listeners and standard streams, of the router as well as of this program.
SPARE_FILES: Final = 100
SETTLE_S: Final = 1.0


def hello() -> bytes:
    message = b"\x0a\x04idle\x1a\x10" + os.urandom(16)
    packet = b"\x0a" + bytes([len(message)]) + message
    return len(packet).to_bytes(4, "big") + packet


def receive(connection: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        chunk = connection.recv(size - len(received))
        if not chunk:
            sys.exit("the router closed an idle connection")
        received += chunk
    return received


def greeted(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=30)
    connection.sendall(hello())
    length = int.from_bytes(receive(connection, 4), "big")
    if receive(connection, length)[0] != 0x0A:
        sys.exit("the router did not answer with its Hello")
    return connection


def resident_kib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))


def measure(router: Router, count: int) -> tuple[int, int]:
    """Return the router's resident KiB without and with `count` idle connections."""
    # The first one also pays for what the router loads and allocates once.
    greeted(router.port).close()
    time.sleep(SETTLE_S)
    before = resident_kib(router.pid)
    with ExitStack() as stack:
        connections = [stack.enter_context(closing(greeted(router.port))) for _ in range(count)]
        time.sleep(SETTLE_S)
        after = resident_kib(router.pid)
        for connection in connections:
            connection.sendall(PING)
        if any(receive(connection, len(PING)) != PING for connection in connections):
            sys.exit("an idle connection did not answer a ping")
    return before, after


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--targets", default="rust,pure,compiled", help="of " + ",".join(TARGETS))
    parser.add_argument("--connections", type=int, default=10_000)
    options = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = options.connections + SPARE_FILES
    if most != resource.RLIM_INFINITY and most < wanted:
        sys.exit(f"{wanted} open files are needed, {most} allowed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
    core = max(os.sched_getaffinity(0))
    print("| router | idle connections | RSS before, KiB | RSS after, KiB | KiB per connection |")
    print("|---|---:|---:|---:|---:|")
    for name in options.targets.split(","):
        label, start = TARGETS[name]
        with contextmanager(start)(core) as router:
            before, after = measure(router, options.connections)
        each = (after - before) / options.connections
        print(f"| {label} | {options.connections:,} | {before:,} | {after:,} | {each:.1f} |")


if __name__ == "__main__":
    main()
