"""Real listening sockets."""

from __future__ import annotations

import asyncio
import errno
import re
import shutil
import socket
import ssl
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme

from polybus.errors import ConfigError, PeerUnavailable
from polybus.model.clock import SystemClock
from polybus.transports import listener as listener_module
from polybus.transports.connection import Connection, Connections
from polybus.transports.dial import dial
from polybus.transports.listener import Listener
from polybus.transports.memory import connect_memory
from polybus.transports.outbox import Bounds, Outbox
from polybus.transports.tls import client_context, server_context
from polybus.transports.url import parse_address


class Echo:
    """Sends back what it gets."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.outbox: Outbox

    def connection_made(self, outbox: Outbox) -> None:
        self.outbox = outbox

    def data_received(self, data: bytes) -> None:
        self.outbox.write(data)

    def eof_received(self) -> None: ...
    def connection_lost(self, exc: Exception | None) -> None: ...
    def tick(self, now: float) -> None: ...


class Collect(Echo):
    """Keeps what it gets."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self.data = bytearray()
        self.changed = asyncio.Event()
        self.lost = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self.data += data
        self.changed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()

    async def until(self, size: int) -> bytes:
        async with asyncio.timeout(5):
            while len(self.data) < size:
                self.changed.clear()
                await self.changed.wait()
        return bytes(self.data)


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="pb"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def connections() -> Connections:
    return Connections(SystemClock())


@asynccontextmanager
async def listening(
    url: str, connections: Connections, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Listener]:
    listener = Listener(parse_address(url), connections, Echo, tls)
    await listener.start()
    try:
        yield listener
    finally:
        await listener.stop()
        for connection in tuple(connections.open):
            connection.outbox.abort("test over")
        await asyncio.sleep(0)


async def echoed(listener: Listener, data: bytes, tls: ssl.SSLContext | None = None) -> bytes:
    client = Connections(SystemClock())
    connection = await dial(listener.address, client, Collect, tls)
    session = connection.session
    assert isinstance(session, Collect)
    session.outbox.write(data)
    got = await session.until(len(data))
    session.outbox.close("done")
    await session.lost.wait()
    return got


@pytest.mark.parametrize("scheme", ["tcp", "unix"])
async def test_bytes_go_there_and_back(scheme, folder, connections):
    url = f"unix://{folder}/s" if scheme == "unix" else "tcp://127.0.0.1:0"
    async with listening(url, connections) as listener:
        data = bytes(range(256)) * 1000
        assert await echoed(listener, data) == data
        assert connections.accepted == 1


async def test_accepted_sockets_do_not_wait_for_more_bytes_to_send(connections):
    async with listening("tcp://127.0.0.1:0", connections) as listener:
        client = await dial(listener.address, Connections(SystemClock()), Collect)
        client.outbox.write(b"x")
        assert isinstance(client.session, Collect)
        await client.session.until(1)
        (connection,) = connections.open
        sock = connection.outbox.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        client.outbox.abort("done")


async def test_a_busy_port_is_one_clear_error(connections):
    async with listening("tcp://127.0.0.1:0", connections) as listener:
        with pytest.raises(
            ConfigError, match=f"cannot listen on {listener.address}: Address already in use"
        ):
            await Listener(listener.address, connections, Echo).start()


Places = Callable[..., None]


@pytest.fixture
def places(monkeypatch) -> Places:
    """Lets the name `twofold` stand for these addresses."""
    real = socket.getaddrinfo

    def stand_for(*hosts: str) -> None:
        def look_up(name: str, port: int, **more: int) -> list[object]:
            return [found for host in hosts for found in real(host, port, **more)]

        monkeypatch.setattr(socket, "getaddrinfo", look_up)

    return stand_for


def answers(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as client:
        return client.connect_ex((host, port)) == 0


async def test_a_name_with_two_addresses_is_listened_on_at_both_with_one_port(connections, places):
    places("127.0.0.1", "::1", "127.0.0.1")
    async with listening("tcp://twofold:0", connections) as listener:
        port = listener.address.port
        assert str(listener.address) == f"tcp://twofold:{port}"
        assert await echoed_at("127.0.0.1", listener) == b"x"
        assert await echoed_at("::1", listener) == b"x"
    assert not answers("127.0.0.1", port)
    assert not answers("::1", port)


@pytest.mark.parametrize("busy", ["127.0.0.1", "::1"])
async def test_one_busy_address_of_a_name_is_one_clear_error_and_nothing_is_left_open(
    connections, places, busy
):
    places("127.0.0.1", "::1")
    family = socket.AF_INET6 if ":" in busy else socket.AF_INET
    with socket.create_server((busy, 0), family=family) as taken:
        port = taken.getsockname()[1]
        text = f"cannot listen on tcp://twofold:{port}: [{busy}]: Address already in use"
        with pytest.raises(ConfigError, match=re.escape(text)):
            await Listener(parse_address(f"tcp://twofold:{port}"), connections, Echo).start()
        assert not answers("127.0.0.1" if busy == "::1" else "::1", port)


async def test_port_0_is_a_port_that_is_free_on_all_addresses(connections, places, monkeypatch):
    places("127.0.0.1", "::1")
    bind = listener_module._bind
    busy: list[int] = []

    def bind_taken(family: int, where: tuple[Any, ...], *, alone: bool) -> socket.socket:
        if family == socket.AF_INET6 and len(busy) < 2:
            busy.append(where[1])
            raise OSError(errno.EADDRINUSE, "Address already in use")
        return bind(family, where, alone=alone)

    monkeypatch.setattr(listener_module, "_bind", bind_taken)
    async with listening("tcp://twofold:0", connections) as listener:
        assert listener.address.port not in busy
        assert answers("::1", listener.address.port)
    assert len(busy) == 2


async def test_an_address_that_the_machine_does_not_have_is_left_out_if_another_is_there(
    connections, places
):
    places("2001:db8::1", "127.0.0.1")  # of the documents' own network
    async with listening("tcp://twofold:0", connections) as listener:
        assert await echoed_at("127.0.0.1", listener) == b"x"
    places("2001:db8::1")
    with pytest.raises(ConfigError, match="Cannot assign requested address"):
        await Listener(parse_address("tcp://twofold:0"), connections, Echo).start()


async def echoed_at(host: str, listener: Listener) -> bytes:
    reader, writer = await asyncio.open_connection(host, listener.address.port)
    writer.write(b"x")
    got = await reader.read(1)
    writer.close()
    return got


@pytest.mark.parametrize("url", ["tcp://a..b:0", "tcp://nobody.invalid:0"])
async def test_a_host_that_does_not_exist_is_one_clear_error(url, connections):
    with pytest.raises(ConfigError, match="cannot listen on tcp://"):
        await Listener(parse_address(url), connections, Echo).start()


async def test_a_path_below_a_file_is_one_clear_error(folder, connections):
    (folder / "file").write_text("")
    with pytest.raises(ConfigError, match="Not a directory"):
        await Listener(parse_address(f"unix:{folder}/file/x"), connections, Echo).start()


async def test_a_stale_socket_file_is_replaced_and_gone_afterwards(folder, connections):
    path = folder / "s"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    async with listening(f"unix://{path}", connections) as listener:
        assert await echoed(listener, b"x") == b"x"
    assert not path.exists()


async def test_a_live_socket_is_not_taken_away(folder, connections):
    async with listening(f"unix://{folder}/s", connections) as listener:
        with pytest.raises(ConfigError, match="already in use"):
            await Listener(listener.address, connections, Echo).start()
        assert await echoed(listener, b"x") == b"x"


async def test_a_plain_file_is_never_deleted(folder, connections):
    path = folder / "s"
    path.write_text("precious")
    with pytest.raises(ConfigError, match="no socket"):
        await Listener(parse_address(f"unix://{path}"), connections, Echo).start()
    assert path.read_text() == "precious"


@pytest.fixture
def authority(folder: Path) -> trustme.CA:
    ca = trustme.CA()
    ca.cert_pem.write_to_path(str(folder / "ca.pem"))
    for name in ("server", "client"):
        issued = ca.issue_cert("127.0.0.1" if name == "server" else "client@example.org")
        issued.cert_chain_pems[0].write_to_path(str(folder / f"{name}.pem"))
        issued.private_key_pem.write_to_path(str(folder / f"{name}.key"))
    return ca


async def test_one_port_serves_tls_and_plain_text(folder, connections, authority):
    tls = server_context(str(folder / "server.pem"), str(folder / "server.key"))
    async with listening("tcp://127.0.0.1:0", connections, tls) as listener:
        assert await echoed(listener, b"plain") == b"plain"
        secure = parse_address(str(listener.address).replace("tcp", "tls"))
        listener.address, plain = secure, listener.address
        assert (
            await echoed(listener, b"secret", client_context(str(folder / "ca.pem"))) == b"secret"
        )
        listener.address = plain


async def test_a_client_without_certificate_is_refused_and_the_listener_lives_on(
    folder, connections, authority
):
    files = [str(folder / name) for name in ("server.pem", "server.key", "ca.pem")]
    async with listening("tls://127.0.0.1:0", connections, server_context(*files)) as listener:
        ca = str(folder / "ca.pem")
        for _ in range(3):
            # Under TLS 1.3 the client's own handshake ends before the server has judged it.
            connection = await dial(
                listener.address, Connections(SystemClock()), Collect, client_context(ca)
            )
            connection.outbox.write(b"x")
            assert isinstance(connection.session, Collect)
            async with asyncio.timeout(5):
                await connection.session.lost.wait()
            assert connection.session.data == b""
        reader, writer = await asyncio.open_connection(listener.address.host, listener.address.port)
        writer.write(b"plain text on a TLS port")
        await reader.read()
        writer.close()
        proven = client_context(ca, str(folder / "client.pem"), str(folder / "client.key"))
        assert await echoed(listener, b"mutual", proven) == b"mutual"


def test_unusable_tls_files_are_one_clear_error(folder):
    with pytest.raises(ConfigError, match="not found"):
        server_context(str(folder / "none.pem"), str(folder / "none.pem"))
    with pytest.raises(ConfigError, match="needs cert"):
        server_context(str(folder / "none.pem"))
    (folder / "bad.pem").write_text("nonsense")
    with pytest.raises(ConfigError, match="cannot use TLS certificate"):
        server_context(str(folder / "bad.pem"), str(folder / "bad.pem"))
    with pytest.raises(ConfigError, match="cannot use TLS authority"):
        client_context(str(folder / "bad.pem"))
    with pytest.raises(ConfigError, match="not found"):
        client_context(str(folder / "none.pem"))


async def test_the_user_at_the_other_end_of_a_unix_socket_is_known(folder, connections):
    import os

    async with listening(f"unix://{folder}/s", connections) as listener:
        client = await dial(listener.address, Connections(SystemClock()), Collect)
        client.outbox.write(b"x")
        assert isinstance(client.session, Collect)
        await client.session.until(1)
        (connection,) = connections.open
        assert connection.peer_uid == os.getuid()
        client.outbox.abort("done")


async def test_nobody_listening_is_one_clear_error():
    with pytest.raises(PeerUnavailable, match=r"cannot connect to tcp://127\.0\.0\.1:1"):
        await dial(parse_address("tcp://127.0.0.1:1"), Connections(SystemClock()), Collect)


async def test_a_peer_that_hangs_up_within_the_handshake_is_not_called_slow():
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    address = parse_address(f"tls://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    with pytest.raises(PeerUnavailable, match=r"closed the connection; does it speak TLS\?"):
        await dial(address, Connections(SystemClock()), Collect)
    server.close()
    await server.wait_closed()


async def test_a_peer_that_says_nothing_within_the_handshake_has_timed_out():
    gone = asyncio.Event()

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await gone.wait()
        writer.close()

    server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    address = parse_address(f"tls://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    with pytest.raises(PeerUnavailable, match=r": timed out$"):
        await dial(address, Connections(SystemClock()), Collect, timeout=0.05)
    gone.set()
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize("url", ["tcp://a..b:1", "tls://" + "a" * 300 + ":1", "unix:///a\0b"])
async def test_a_name_that_no_host_and_no_file_can_have_is_one_clear_error(url):
    address = parse_address(url)
    with pytest.raises(PeerUnavailable, match="cannot connect to"):
        await dial(address, Connections(SystemClock()), Collect)
    with pytest.raises(ConfigError, match="cannot listen on"):
        await Listener(address, Connections(SystemClock()), Collect).start()


# -- memory --


async def test_two_sessions_in_one_process_exchange_bytes_in_order():
    server, client = Connections(SystemClock()), Connections(SystemClock())
    near, far = connect_memory(server, Echo, client, Collect)
    assert isinstance(near.session, Collect)
    for number in range(100):
        near.outbox.write(bytes((number,)))
    assert await near.session.until(100) == bytes(range(100))
    near.outbox.close("done")
    await near.session.lost.wait()
    await asyncio.sleep(0)
    assert (len(server.open), len(client.open)) == (0, 0)
    assert far.peer == "memory"


async def test_a_memory_peer_that_does_not_read_makes_the_other_side_congested():
    bounds = Bounds(high_water=1000)
    server, client = Connections(SystemClock(), bounds), Connections(SystemClock(), bounds)
    near, far = connect_memory(server, Collect, client, Collect)
    far.outbox.pause_reading()
    near.outbox.write(bytes(2000))
    await asyncio.sleep(0)
    assert (near.outbox.congested, near.outbox.pending_bytes) == (True, 2000)
    far.outbox.resume_reading()
    assert isinstance(far.session, Collect)
    await far.session.until(2000)
    await asyncio.sleep(0)
    assert (near.outbox.congested, near.outbox.pending_bytes) == (False, 0)
    near.outbox.abort("done")
    await far.session.lost.wait()
