"""The programs of the interop tests as objects that start, are waited for, and end."""

from __future__ import annotations

import os
import selectors
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

STARTUP_S = 60.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Program:
    """One process, whose stdout is waited for line by line."""

    def __init__(self, command: list[str], log: Path) -> None:
        self.log = log
        self._said = ""
        self._stderr = log.open("ab")
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr
        )

    def wait_for(self, line: str, timeout_s: float = STARTUP_S) -> None:
        """Read stdout until a line comes."""
        assert self.process.stdout is not None
        number = self.process.stdout.fileno()
        until = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(number, selectors.EVENT_READ)
            while line not in self._said.splitlines():
                ready = selector.select(max(0.0, until - time.monotonic()))
                more = os.read(number, 65536).decode() if ready else ""
                assert more, f"{line!r} did not come: {self._said} {self.log.read_text()[-2000:]}"
                self._said += more

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        """End it the hard way."""
        self.process.kill()
        self.process.wait(10)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()
        for stream in (self.process.stdin, self.process.stdout, self._stderr):
            if stream is not None:
                stream.close()


class Server(Program):
    """A Zbus server of either kind at an address."""

    def __init__(self, address: str, command: list[str], folder: Path) -> None:
        self.address = address
        self.folder = folder
        super().__init__(command, folder.with_suffix(".log"))
        try:
            self.wait_for("ready")
            self._wait_until_it_accepts()
        except BaseException:
            self.stop()
            raise

    def _wait_until_it_accepts(self) -> None:
        # The real server's start returns before it has bound its port.
        host, _, port = self.address.partition(":")
        until = time.monotonic() + STARTUP_S
        while True:
            try:
                socket.create_connection((host, int(port)), 1).close()
                return
            except OSError:
                assert time.monotonic() < until, f"nobody listens at {self.address}"
                time.sleep(0.05)


def start_polybus(folder: Path, *flags: str, port: int = 0) -> Server:
    address = f"127.0.0.1:{port or free_port()}"
    command = [sys.executable, "-m", "polybus.cli.main", "serve"]
    script = shutil.which("polybus", path=os.path.dirname(sys.executable))
    if script:
        command = [script, "serve"]
    listen = ["--listen", f"tcp://{address}", "--data", str(folder)]
    return Server(address, [*command, *listen, *flags], folder)


def start_real(peer: list[str], folder: Path, *trackers: str) -> Server:
    address = f"127.0.0.1:{free_port()}"
    return Server(address, [*peer, "server", address, str(folder), *trackers], folder)


def run_peer(peer: list[str], *arguments: str, timeout_s: float = 150.0) -> str:
    """Run a scenario to its end; fails when it does."""
    done = subprocess.run(
        [*peer, *arguments], capture_output=True, text=True, timeout=timeout_s, check=False
    )
    said = [line for line in done.stderr.splitlines() if line.startswith("failed")]
    assert done.returncode == 0, said or done.stderr[-3000:]
    return done.stdout
