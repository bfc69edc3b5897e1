"""The servers of the GSB interop tests as values: the real router, and a polybus node.

A server that does not start or end in time fails the test with its own words.
"""

from __future__ import annotations

import hashlib
import signal
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pytest

# Generous: a busy two-core machine starts an interpreter in seconds, and only a failure waits so long.
PATIENCE_S: Final = 30.0


class Server:
    """A server process that can be started again at the same address."""

    def __init__(self, command: list[str], log: Path) -> None:
        self.command = command
        self.log = log
        self._process: subprocess.Popen[bytes] | None = None

    def is_ready(self) -> bool:
        raise NotImplementedError

    def start(self) -> None:
        with self.log.open("wb") as log:
            process = subprocess.Popen(self.command, stdout=log, stderr=subprocess.STDOUT)
        self._process = process
        deadline = time.monotonic() + PATIENCE_S
        while not self.is_ready():
            if process.poll() is not None or time.monotonic() > deadline:
                process.kill()
                process.wait()
                pytest.fail(f"{self.command} did not start:\n{self.output()}")
            time.sleep(0.02)

    def stop(self, by: signal.Signals = signal.SIGTERM) -> int:
        """End the process and return its exit code (negative: the signal that ended it)."""
        assert self._process is not None
        self._process.send_signal(by)
        try:
            return self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            pytest.fail(f"{self.command} did not end on {by.name}:\n{self.output()}")

    def restart(self, by: signal.Signals = signal.SIGTERM) -> None:
        self.stop(by)
        self.start()

    def output(self) -> str:
        return self.log.read_text(errors="replace")


class RealRouter(Server):
    """ya-sb-router, and the one address that it serves."""

    def __init__(self, program: Path, url: str, log: Path) -> None:
        super().__init__([str(program), "-l", url], log)
        self.url = url

    def is_ready(self) -> bool:
        url = urlsplit(self.url)
        with socket.socket(socket.AF_UNIX if url.scheme == "unix" else socket.AF_INET) as probe:
            return probe.connect_ex(url.path or (url.hostname, url.port)) == 0


class PolybusNode(Server):
    """`polybus serve`; `urls` has its addresses by scheme, in the form that the interop program takes."""

    def __init__(self, folder: Path, listeners: list[str], certificate: Path) -> None:
        polybus = Path(sys.executable).parent / "polybus"
        command = [str(polybus), "serve", "--data", str(folder / "data")]
        for listener in listeners:
            command += ["--listen", listener]
        super().__init__(command, folder / "node.log")
        self.urls: dict[str, str] = {}
        self._certificate = certificate

    def is_ready(self) -> bool:
        return "ready" in self.output().splitlines()

    def start(self) -> None:
        super().start()
        for line in self.output().splitlines():
            if line.startswith("listening "):
                url = urlsplit(line.split()[1])
                self.urls[url.scheme] = f"{url.scheme}://{url.netloc}{url.path}"
        if "tls" in self.urls:
            der = ssl.PEM_cert_to_DER_cert(self._certificate.read_text())
            self.urls["tls"] += f"#{hashlib.sha224(der).hexdigest()}"
