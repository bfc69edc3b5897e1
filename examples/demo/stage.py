"""Where the demo is played: two `polybus serve` on loopback, which are twins, each with a Redis of its own.

Invariant: whatever is started here is ended here; the data folder keeps settings, journal and captures.
"""

from __future__ import annotations

import hashlib
import json
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from polybus.protocols.rmb.keys import parse_secret
from polybus.protocols.rmb.signature import Signer

PATIENCE_S: Final = 30
# Only for this demo, which is reached from this machine alone: real tokens are nowhere but with their bearers.
TOKENS: Final = {"shop": "the shop's secret", "stock": "the stock's secret"}
RECORDING: Final = """
[journal]
enabled = true

[[capture]]
pattern = "**"
topic = "publications"

[[capture]]
pattern = "**"
topic = "calls"
kind = "call"
"""


class DidNotStart(Exception):
    """A node ended before it was ready."""


class NodeProcess:
    """`polybus serve` with a file of settings."""

    def __init__(self, settings: Path, *flags: str) -> None:
        self._log = settings.with_suffix(".log")
        program = Path(sys.executable).with_name("polybus")
        with self._log.open("ab") as log:
            # In a session of its own: Ctrl-C is for the demo, which ends its nodes last.
            self._process = subprocess.Popen(
                [str(program), "serve", "--config", str(settings), *flags],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self.said: list[str] = []
        try:
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise

    def _wait_until_ready(self) -> None:
        assert self._process.stdout is not None
        while (line := self._process.stdout.readline().strip()) != "ready":
            if not line:
                raise DidNotStart(f"a node did not start; its log is {self._log}")
            self.said.append(line)

    def value(self, word: str) -> str:
        """The first line that begins with a word, without it."""
        return next(line.split()[1] for line in self.said if line.split()[0] == word)

    def stop(self) -> None:
        """Let it finish what is in flight and end."""
        self._process.terminate()
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


@dataclass(frozen=True, slots=True)
class Twin:
    """A node as the programs reach it."""

    node: NodeProcess
    address: str
    redis_port: int


class Stage:
    """Both twins: `with Stage(folder) as stage`; nearly all programs are at the first one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.twins: dict[int, Twin] = {}
        # Not in the data folder: the path of a socket may be no longer than 107 bytes.
        self._sockets = tempfile.TemporaryDirectory(prefix="demo-")

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        ports = {1: free_port(), 2: free_port()}
        self._write_directory(ports)
        try:
            for number, port in ports.items():
                node = NodeProcess(self._write_settings(number, port))
                address = node.value("listening").partition("://")[2]
                redis_port = int(node.value("redis").rpartition(":")[2])
                self.twins[number] = Twin(node, address, redis_port)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for twin in self.twins.values():
            twin.node.stop()
        self._sockets.cleanup()

    @property
    def address(self) -> str:
        """`host:port` of the node that has the services."""
        return self.twins[1].address

    @property
    def socket(self) -> Path:
        """Its Unix socket, over which the node knows the user of a program."""
        return Path(self._sockets.name) / "bus"

    def _write_directory(self, ports: dict[int, int]) -> None:
        entries = []
        for number, port in ports.items():
            secret = "0x" + f"{number:02x}" * 32
            key = Signer("sr25519", parse_secret(secret)).public_key.hex()
            (self.folder / f"twin-{number}.key").write_text(secret)
            entries.append({"id": number, "address": f"127.0.0.1:{port}", "public_key": key})
        (self.folder / "twins.json").write_text(json.dumps(entries, indent=1))

    def _write_settings(self, number: int, port: int) -> Path:
        listen = ["tcp://127.0.0.1:0", f"rmb+tcp://127.0.0.1:{port}"]
        tokens = []
        if number == 1:
            listen.append(f"unix://{self.socket}")
            tokens = [
                f"{name} sha256:{hashlib.sha256(token.encode()).hexdigest()}"
                for name, token in TOKENS.items()
            ]
        lines = [
            f"listen = {json.dumps(listen)}",
            f"data = {json.dumps(str(self.folder / f'node-{number}'))}",
            "[policy]",
            f"tokens = {json.dumps(tokens)}",
            "[rmb]",
            f"twin = {number}",
            f"key_file = {json.dumps(str(self.folder / f'twin-{number}.key'))}",
            f"twins = {json.dumps(str(self.folder / 'twins.json'))}",
            'services = ["demo.echo"]  # of the real Node.js program, which does not declare its own',
            RECORDING if number == 1 else "",
        ]
        file = self.folder / f"node-{number}.toml"
        file.write_text("\n".join(lines))
        return file


def free_port() -> int:
    """A port that nobody has at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
