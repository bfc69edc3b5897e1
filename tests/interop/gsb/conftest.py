"""The real parts as fixtures: the Rust client (`peer`), the real router (`real_router`), a polybus node (`node`).

Everything listens on loopback or in a fresh folder, and ends with its fixture.
"""

from __future__ import annotations

import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
import trustme

from tests.interop.gsb.build import NoCargo, build_peer, build_router
from tests.interop.gsb.parts import PolybusNode, RealRouter

# A cold build of both programs takes five minutes on two cores, and the first test that needs them pays for it.
BUILD_S: Final = 900


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.timeout(BUILD_S))


@pytest.fixture(scope="session")
def peer() -> Path:
    """The interop program on the published Rust client."""
    try:
        return build_peer()
    except NoCargo as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def real_router_program() -> Path:
    try:
        return build_router()
    except NoCargo as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def short_folder() -> Iterator[Path]:
    """A folder whose path leaves room for a socket name: pytest's own may pass the 107 bytes of a Unix address."""
    folder = Path(tempfile.mkdtemp(prefix="gsb"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def free_address(short_folder: Path) -> Callable[[str], str]:
    """Give an address of the scheme `tcp` or `unix` that nobody listens on, and that can be listened on again."""

    def address(scheme: str) -> str:
        if scheme == "unix":
            return f"unix://{short_folder}/free.sock"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return f"tcp://127.0.0.1:{probe.getsockname()[1]}"

    return address


@pytest.fixture(params=["tcp", "unix"])
def real_router(
    request: pytest.FixtureRequest,
    real_router_program: Path,
    tmp_path: Path,
    free_address: Callable[[str], str],
) -> Iterator[RealRouter]:
    """A fresh ya-sb-router (`.url`, `.restart()`), once over TCP and once over a Unix socket."""
    router = RealRouter(real_router_program, free_address(request.param), tmp_path / "router.log")
    router.start()
    yield router
    router.stop()


@pytest.fixture(scope="session")
def certificate(short_folder: Path) -> tuple[Path, Path]:
    """A server certificate and its key: the Rust client accepts no signature but ECDSA on P-256."""
    kind = trustme.KeyType.ECDSA
    issued = trustme.CA(key_type=kind).issue_cert("127.0.0.1", key_type=kind)
    cert, key = short_folder / "cert.pem", short_folder / "key.pem"
    issued.cert_chain_pems[0].write_to_path(str(cert))
    issued.private_key_pem.write_to_path(str(key))
    return cert, key


@pytest.fixture
def start_node(
    certificate: tuple[Path, Path], tmp_path: Path
) -> Iterator[Callable[[str], PolybusNode]]:
    """Start nodes of one's own; each must end with exit code 0."""
    nodes: list[PolybusNode] = []

    def start(listener: str) -> PolybusNode:
        node = PolybusNode(tmp_path, [listener], certificate[0])
        node.start()
        nodes.append(node)
        return node

    yield start
    for node in nodes:
        assert node.stop() == 0, node.output()


@pytest.fixture(scope="session")
def node(certificate: tuple[Path, Path], short_folder: Path) -> Iterator[PolybusNode]:
    """One polybus for all scenarios, on TCP, a Unix socket and TLS."""
    cert, key = certificate
    tls = f"tls://127.0.0.1:0?cert={cert}&key={key}"
    unix = f"unix://{short_folder}/node.sock"
    node = PolybusNode(short_folder, ["tcp://127.0.0.1:0", unix, tls], cert)
    node.start()
    yield node
    assert node.stop() == 0, node.output()
