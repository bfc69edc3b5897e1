"""Starting the real `t2` program and polybus, and ending them again.

The invariant: whatever was started here is ended here, by its own process, and polybus ends with
code 0 and without a traceback.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

POLYBUS = Path(sys.executable).with_name("polybus")
PATIENCE_S = 30 * float(os.environ.get("POLYBUS_TEST_SLOWNESS", "1"))


@dataclass(frozen=True, slots=True)
class Server:
    """A running server and where it listens, in the address form of the `t2` program."""

    process: subprocess.Popen[bytes]
    log: Path
    addresses: dict[str, str]


def wait_until(done: Callable[[], bool], what: str, seconds: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not after {seconds:g} s")
        time.sleep(0.02)


def wait_ready(process: subprocess.Popen[bytes], ready: Callable[[], bool]) -> None:
    wait_until(lambda: process.poll() is not None or ready(), f"{process.args!r} ready")
    assert process.poll() is None, f"{process.args!r} ended at once"


def is_listening(address: str) -> bool:
    kind, _, place = address.partition(":")
    family = socket.AF_UNIX if kind == "unix" else socket.AF_INET
    host, _, port = place.rpartition(":")
    with closing(socket.socket(family)) as probe:
        return probe.connect_ex(place if kind == "unix" else (host, int(port))) == 0


def free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def started(command: Sequence[str | Path], log: Path) -> Generator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield process
    except BaseException as exc:
        exc.add_note(f"{command[0]} wrote:\n{log.read_text(errors='replace')[-4000:]}")
        raise
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def folder() -> Iterator[Path]:
    # Not pytest's own folders: a path of theirs may exceed the 107 bytes of a socket address.
    path = Path(tempfile.mkdtemp(prefix="t2-"))
    try:
        yield path
    finally:
        shutil.rmtree(path)


@contextmanager
def real_server(program: Path) -> Iterator[Server]:
    """The real server. It ends itself 30 s after its first answered request (protocol page §7)."""
    with folder() as place:
        addresses = {"tcp": f"tcp:127.0.0.1:{free_port()}", "unix": f"unix:{place}/bus"}
        log = place / "log"
        with started([program, "serve", *addresses.values()], log) as process:
            wait_ready(process, lambda: all(map(is_listening, addresses.values())))
            yield Server(process, log, addresses)


@contextmanager
def polybus_server() -> Iterator[Server]:
    """Polybus with shared listeners and with listeners pinned to T2."""
    with folder() as place:
        urls = {
            "tcp": "tcp://127.0.0.1:0",
            "unix": f"unix://{place}/shared",
            "t2+tcp": "t2+tcp://127.0.0.1:0",
            "t2+unix": f"t2+unix://{place}/pinned",
        }
        listen = [word for url in urls.values() for word in ("--listen", url)]
        log = place / "log"
        command = [str(POLYBUS), "serve", *listen, "--data", f"{place}/data"]
        with started(command, log) as process:
            wait_ready(process, lambda: "ready" in log.read_text().split())
            lines = log.read_text().splitlines()
            listening = [line.split()[1] for line in lines if line.startswith("listening ")]
            addresses = {
                name: f"{name.removeprefix('t2+')}:{url.partition('://')[2]}"
                for name, url in zip(urls, listening, strict=True)
            }
            yield Server(process, log, addresses)
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0
            assert "Traceback" not in log.read_text()
