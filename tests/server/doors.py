"""A node with every kind of door, and clients that come through them as one identity or another."""

from __future__ import annotations

import asyncio
import hashlib
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import trustme

from polybus.server import Config, Node
from polybus.server.config import Limits, Policy
from polybus.transports.tls import certificate_hash
from polybus.transports.url import Address

Kind = Literal["loopback", "stranger", "uid", "certificate", "token"]

SECRET: Final = "correct-horse"
NAMES: Final[dict[Kind, str]] = {
    "loopback": "anonymous:loopback",
    "stranger": "anonymous",
    "uid": f"uid:{os.getuid()}",
    "certificate": "certificate:alice",
    "token": "token:bob",
}


@dataclass(frozen=True, slots=True)
class Door:
    """How one client reaches the node."""

    address: Address
    token: str = ""
    folder: Path = Path()

    @property
    def place(self) -> str:
        return f"{self.address.host}:{self.address.port}"

    @property
    def secure(self) -> bool:
        return self.address.scheme == "tls"

    def url(self, wire: str) -> str:
        """For an SDK client of that wire."""
        if self.address.scheme == "unix":
            return f"{wire}+unix://{self.address.path}"
        if not self.secure:
            return f"{wire}://{self.place}"
        if wire == "gsb":
            return f"gsb+tls://{self.place}?hash={certificate_hash(self.folder / 'cert.pem')}"
        files = "&".join(f"{name}={self.folder / file}" for name, file in CLIENT_FILES.items())
        return f"{wire}+tls://{self.place}?{files}"

    def tls(self) -> ssl.SSLContext | None:
        if not self.secure:
            return None
        context = ssl.create_default_context(cafile=str(self.folder / "ca.pem"))
        context.load_cert_chain(self.folder / "alice.pem", self.folder / "alice.key")
        return context


CLIENT_FILES: Final = {"ca": "ca.pem", "cert": "alice.pem", "key": "alice.key"}


def make_certificates(folder: Path) -> None:
    """An authority, the node's certificate and alice's."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    server = authority.issue_cert("localhost", "127.0.0.1")
    server.private_key_pem.write_to_path(str(folder / "key.pem"))
    server.cert_chain_pems[0].write_to_path(str(folder / "cert.pem"))
    alice = authority.issue_cert("alice@example.org", common_name="alice")
    alice.private_key_pem.write_to_path(str(folder / "alice.key"))
    alice.cert_chain_pems[0].write_to_path(str(folder / "alice.pem"))


@asynccontextmanager
async def guarded(
    folder: Path,
    kind: Kind,
    *rules: str,
    limits: tuple[str, ...] = (),
    names: int = 100_000,
    **sections: Any,
) -> AsyncIterator[tuple[Node, Door]]:
    """A node that goes by these rules, and the door that somebody of that kind comes through."""
    digest = hashlib.sha256(SECRET.encode()).hexdigest()
    options = ""
    if kind == "certificate":
        make_certificates(folder)
        files = {"cert": "cert.pem", "key": "key.pem", "ca": "ca.pem"}
        options = "&".join(f"{name}={folder / file}" for name, file in files.items())
    addresses = {
        "uid": f"unix:{folder / 'node.sock'}",
        "certificate": f"tls://127.0.0.1:0?{options}",
    }
    policy = Policy(rules=rules, tokens=(f"bob sha256:{digest}",), limits=limits)
    config = Config(
        listen=(addresses.get(kind, "tcp://127.0.0.1:0"),),
        data=folder / "data",
        policy=policy,
        limits=Limits(names=names),
        **sections,
    )
    async with Node(config, name=folder.name) as node:
        token = SECRET if kind == "token" else ""
        yield node, Door(node.addresses[0], token, folder)


async def http(
    door: Door, path: str, *, method: str = "GET", body: bytes = b"", **headers: str
) -> int:
    """The status that one request gets."""
    reader, writer = await _open(door)
    if door.token:
        headers["authorization"] = f"Bearer {door.token}"
    lines = {"host": "localhost", "connection": "close", "content-length": str(len(body))} | headers
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    writer.write(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body)
    raw = await reader.read()
    writer.close()
    return int(raw.split(b" ", 2)[1])


async def _open(door: Door) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if door.address.scheme == "unix":
        return await asyncio.open_unix_connection(door.address.path)
    return await asyncio.open_connection(door.address.host, door.address.port, ssl=door.tls())
