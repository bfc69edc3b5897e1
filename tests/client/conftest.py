"""A whole node on every transport, and both faces of the SDK to reach it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import trustme

import polybus
from polybus.server.config import Config
from polybus.server.node import Node
from tests.client.faces import AsyncFace, SyncFace

Face = Callable[[], AsyncFace | SyncFace]

TRANSPORTS = ("memory", "unix", "tcp", "tls")
# Not memory: a sync bus has an event loop of its own, and a memory connection does not leave its node's.
SYNC = (("sync", "unix"), ("sync", "tcp"), ("sync", "tls"))


def write_certificates(folder: Path) -> tuple[Path, Path, Path]:
    """Authority, certificate chain and key for 127.0.0.1."""
    ca = trustme.CA()
    issued = ca.issue_cert("127.0.0.1")
    paths = folder / "ca.pem", folder / "cert.pem", folder / "key.pem"
    ca.cert_pem.write_to_path(paths[0])
    issued.cert_chain_pems[0].write_to_path(paths[1])
    issued.private_key_pem.write_to_path(paths[2])
    return paths


class Bench:
    """A running node, and its URL on a transport."""

    def __init__(self, node: Node, url: str) -> None:
        self.node = node
        self.url = url

    def connect(self, **options: Any) -> polybus.client.Bus:
        return polybus.connect(self.url, **options)


async def start_node(transport: str, folder: Path, **options: Any) -> Bench:
    """A node that listens on one transport only."""
    query = ""
    match transport:
        case "tcp":
            listen: tuple[str, ...] = ("tcp://127.0.0.1:0",)
        case "unix":
            listen = (f"unix://{folder}/bus.sock",)
        case "tls":
            ca, cert, key = write_certificates(folder)
            listen = (f"tls://127.0.0.1:0?cert={cert}&key={key}",)
            query = f"?ca={ca}"
        case _:
            listen = ()
    node = Node(Config(listen=listen, data=folder / "data"), name=str(folder), **options)
    await node.start()
    url = f"memory:{folder}"
    if listen:
        url = str(node.addresses[0]).replace("tcp://", "polybus://") + query
        url = url.replace("tls://", "polybus+tls://").replace("unix://", "polybus+unix://")
    return Bench(node, url)


@pytest.fixture
async def memory(tmp_path: Path) -> AsyncIterator[Bench]:
    """A node in memory, for what does not depend on the transport."""
    started = await start_node("memory", tmp_path)
    yield started
    await started.node.stop()


@pytest.fixture(params=[*(("async", name) for name in TRANSPORTS), *SYNC], ids="-".join)
async def face(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Face]:
    """Makes clients of one face, of a node on one transport."""
    kind, transport = request.param
    bench = await start_node(transport, tmp_path)
    if kind == "async":
        yield lambda: AsyncFace(polybus.connect(bench.url))
    else:
        yield lambda: SyncFace(polybus.connect_sync(bench.url))
    await bench.node.stop()
