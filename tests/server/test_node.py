"""The node as a whole, over real sockets and in memory, with GSB clients made of plain bytes."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme

import polybus
from polybus.core.chores import SLICE
from polybus.core.endpoint import Identity
from polybus.core.policy import Verb
from polybus.errors import ConfigError, FolderInUse, PeerUnavailable
from polybus.model.clock import SystemClock
from polybus.model.record import NewRecord
from polybus.protocols.gsb.wire import (
    BAD_REQUEST,
    CURRENT,
    OK,
    SERVICE_FAILURE,
    CallReply,
    CallRequest,
    Kind,
    encode_call,
    encode_name,
    encode_reply,
    parse_call,
    parse_code,
    parse_reply,
)
from polybus.protocols.t2.wire import encode_frame, unit_content
from polybus.server import Config, Limits, Node
from polybus.transports.connection import Connection, Connections
from polybus.transports.outbox import Outbox

ANY_PORT = "tcp://127.0.0.1:0"


class Client:
    """A GSB client reduced to frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, kind: Kind, body: bytes) -> None:
        self.writer.write(CURRENT.encode(kind, body))

    async def read(self, wanted: Kind) -> bytes:
        """The body of the next frame of a kind; others are passed over."""
        while True:
            head = await self.reader.readexactly(4)
            frame = head + await self.reader.readexactly(int.from_bytes(head, "big"))
            kind, body = CURRENT.parse(frame)
            if kind is wanted:
                return body

    async def register(self, name: str) -> int:
        self.send(Kind.REGISTER_REQUEST, encode_name(name))
        return parse_code(await self.read(Kind.REGISTER_REPLY))[0]

    async def call(self, name: str, data: bytes = b"") -> CallReply:
        self.send(Kind.CALL_REQUEST, encode_call(CallRequest("me", name, "1", data)))
        return parse_reply(await self.read(Kind.CALL_REPLY))

    async def answer(self, data: bytes) -> None:
        request = parse_call(await self.read(Kind.CALL_REQUEST))
        self.send(Kind.CALL_REPLY, encode_reply(request.request_id, OK, data))


@pytest.fixture
async def connect() -> AsyncIterator[Callable[..., Awaitable[Client]]]:
    opened: list[asyncio.StreamWriter] = []

    async def connect(node: Node, index: int = 0, tls: ssl.SSLContext | None = None) -> Client:
        address = node.addresses[index]
        if address.scheme == "unix":
            streams = await asyncio.open_unix_connection(address.path)
        else:
            streams = await asyncio.open_connection(
                address.host, address.port, ssl=tls, server_hostname="localhost" if tls else None
            )
        opened.append(streams[1])
        return Client(*streams)

    yield connect
    for writer in opened:
        writer.transport.abort()


@asynccontextmanager
async def running(
    *listen: str, drain: float = 10, data: Path | None = None, **options: object
) -> AsyncIterator[Node]:
    config = Config(listen=listen or (ANY_PORT,), data=data, limits=Limits(drain=drain))
    async with Node(config, **options) as node:  # type: ignore[arg-type]
        yield node


@pytest.mark.parametrize("pin", ["", "gsb+"])
@pytest.mark.parametrize("scheme", ["tcp", "unix"])
async def test_a_call_goes_from_one_client_to_another_and_back(scheme, pin, connect, tmp_path):
    url = ANY_PORT if scheme == "tcp" else f"unix:{tmp_path / 'node.sock'}"
    async with running(pin + url) as node:
        service, caller = await connect(node), await connect(node)
        assert await service.register("/echo") == OK
        reply = asyncio.create_task(caller.call("/echo/any", b"question"))
        await service.answer(b"answer")
        assert (await reply).data == b"answer"


async def test_clients_of_different_listeners_share_one_bus(connect, tmp_path):
    async with running(ANY_PORT, f"unix:{tmp_path / 'node.sock'}") as node:
        service, caller = await connect(node, 0), await connect(node, 1)
        await service.register("/echo")
        reply = asyncio.create_task(caller.call("/echo"))
        await service.answer(b"answer")
        assert (await reply).data == b"answer"


async def test_bytes_of_no_protocol_end_that_connection_only(connect):
    async with running() as node:
        good, bad = await connect(node), await connect(node)
        assert await good.register("/a") == OK
        bad.writer.write(b"\xff" * 16)
        assert await bad.reader.read() == b""
        assert await good.register("/b") == OK
        assert node.connections.ended["protocol error"] == 1


async def test_stop_waits_for_the_call_in_flight_and_refuses_new_connections(connect):
    async with running() as node:
        service, caller = await connect(node), await connect(node)
        await service.register("/slow")
        reply = asyncio.create_task(caller.call("/slow"))
        request = parse_call(await service.read(Kind.CALL_REQUEST))
        assert node.pending_calls == 1
        stopping = asyncio.create_task(node.stop())
        await asyncio.sleep(0)
        assert node.health().state == "draining"
        assert not node.health().ready
        with pytest.raises(ConnectionRefusedError):
            await connect(node)
        service.send(Kind.CALL_REPLY, encode_reply(request.request_id, OK, b"done"))
        assert (await reply).data == b"done"
        await stopping
        assert await caller.reader.read() == b""


async def test_a_drain_ends_when_its_time_is_over(connect, caplog):
    async with running(drain=0.01) as node:
        service, caller = await connect(node), await connect(node)
        await service.register("/never")
        caller.send(Kind.CALL_REQUEST, encode_call(CallRequest("me", "/never", "1", b"")))
        await service.read(Kind.CALL_REQUEST)
        await node.stop()
    assert "1 calls were given up" in caplog.text


async def test_a_drain_may_be_cut_short(connect, caplog):
    caplog.set_level("INFO", "polybus.node")
    async with running(drain=60) as node:
        service, caller = await connect(node), await connect(node)
        await service.register("/never")
        caller.send(Kind.CALL_REQUEST, encode_call(CallRequest("me", "/never", "1", b"")))
        await service.read(Kind.CALL_REQUEST)
        stopping = asyncio.create_task(node.stop())
        await asyncio.sleep(0.1)
        assert "waiting up to 54 s for 1 calls in flight" in caplog.text
        assert not stopping.done()
        node.hurry()
        await stopping
    assert "1 calls were given up" in caplog.text


async def test_stopping_twice_and_stopping_a_node_that_never_ran_do_nothing():
    node = Node(Config(listen=(ANY_PORT,), data=None))
    await node.stop()
    async with running() as other:
        await other.stop()
        await other.stop()
    assert other.health().state == "stopped"


async def test_a_listener_that_cannot_bind_leaves_nothing_open(tmp_path):
    path = tmp_path / "node.sock"
    async with running() as first:
        taken = str(first.addresses[0])
        node = Node(Config(listen=(f"unix:{path}", taken), data=tmp_path / "data"))
        with pytest.raises(ConfigError, match="Address already in use"):
            await node.start()
    assert not path.exists()


@pytest.mark.parametrize("url", ["nowhere", "zzz+tcp://127.0.0.1:0", "tls://127.0.0.1:0"])
def test_a_bad_address_is_refused_before_anything_starts(url):
    with pytest.raises(ConfigError):
        Node(Config(listen=(url,), data=None))


class Recorder:
    """The client's side of a memory connection: keeps what comes."""

    def __init__(self, connection: Connection) -> None:
        self.received = b""
        self.got_some = asyncio.Event()

    def connection_made(self, outbox: Outbox) -> None: ...

    def data_received(self, data: bytes) -> None:
        self.received += data
        self.got_some.set()

    def eof_received(self) -> None: ...

    def connection_lost(self, exc: Exception | None) -> None: ...

    def tick(self, now: float) -> None: ...


@pytest.mark.parametrize("pin", ["", "gsb"])
async def test_a_program_around_the_node_connects_in_memory(pin):
    async with running() as node:
        connection = node.connect_memory(Connections(SystemClock()), Recorder, pin)
        connection.outbox.write(CURRENT.encode(Kind.REGISTER_REQUEST, encode_name("/inside")))
        session = connection.session
        assert isinstance(session, Recorder)
        await session.got_some.wait()
        (registration,) = node.router.services
        assert registration.endpoint.identity == Identity("local")


async def test_the_sdk_reaches_a_running_node_of_its_process_by_name():
    async with running(name="here"), polybus.connect("memory:here") as bus:
        await bus.serve("twice", lambda body: body * 2)
        assert await bus.call("twice", b"ab") == b"abab"
    with pytest.raises(PeerUnavailable):
        await polybus.connect("memory:here")


async def test_a_native_client_calls_a_gsb_service_through_one_port(connect):
    async with running() as node:
        service = await connect(node)
        await service.register("/echo")
        async with polybus.connect(str(node.addresses[0])) as bus:
            reply = asyncio.create_task(bus.call("echo", b"question"))
            await service.answer(b"answer")
            assert await reply == b"answer"


@pytest.mark.parametrize("pin", ["", "t2+"])
async def test_a_t2_client_on_this_machine_may_stop_the_node(pin, connect):
    async with running(pin + ANY_PORT) as node:
        client = await connect(node)
        client.writer.write(encode_frame(0, unit_content("Stop")))
        await node.wait()
        assert await client.reader.read()


class OnlyThisUser:
    """Lets nobody register but who comes over a Unix socket."""

    epoch = 0

    def may(self, identity: Identity, verb: Verb, name: str) -> bool:
        return verb != "register" or identity.kind == "uid"


async def test_the_policy_is_asked_with_the_identity_that_the_transport_proves(connect, tmp_path):
    path = tmp_path / "node.sock"
    async with running(ANY_PORT, f"gsb+unix:{path}", policy=OnlyThisUser()) as node:
        stranger, user = await connect(node, 0), await connect(node, 1)
        assert await stranger.register("/a") == BAD_REQUEST
        assert await user.register("/a") == OK


@pytest.fixture
def authority(tmp_path: Path) -> trustme.CA:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    server = authority.issue_cert("localhost", "127.0.0.1")
    server.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    server.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    return authority


def client_tls(authority: trustme.CA, name: str = "") -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    if name:
        authority.issue_cert("client.example", common_name=name).configure_cert(context)
    return context


async def test_one_port_serves_tls_and_plain_clients(connect, authority, tmp_path):
    options = f"cert={tmp_path / 'cert.pem'}&key={tmp_path / 'key.pem'}"
    async with running(f"{ANY_PORT}?{options}") as node:
        service = await connect(node, tls=client_tls(authority))
        caller = await connect(node)
        await service.register("/echo")
        reply = asyncio.create_task(caller.call("/echo"))
        await service.answer(b"answer")
        assert (await reply).data == b"answer"


async def test_a_verified_client_certificate_is_an_identity(connect, authority, tmp_path):
    options = "&".join(f"{key}={tmp_path / key}.pem" for key in ("cert", "key", "ca"))
    async with running(f"tls://127.0.0.1:0?{options}") as node:
        client = await connect(node, tls=client_tls(authority, "alice"))
        assert await client.register("/a") == OK
        (registration,) = node.router.services
        assert registration.endpoint.identity == Identity("certificate", "alice")
        with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
            await (await connect(node, tls=client_tls(authority))).register("/b")
        assert await client.register("/c") == OK


async def test_what_ends_a_node_from_within_is_raised_to_who_waits_for_it():
    async with running() as node:

        def broken(now: float) -> None:
            raise RuntimeError("a bug")

        node.router.tick = broken  # type: ignore[method-assign]
        with pytest.raises(RuntimeError, match="a bug"):
            await node.wait()


async def test_health_tells_state_connections_and_calls(connect):
    node = Node(Config(listen=(ANY_PORT,), data=None))
    assert node.health().state == "new"
    async with node:
        client = await connect(node)
        await client.register("/a")
        health = node.health()
        assert (health.ready, health.connections, health.pending_calls) == (True, 1, 0)


async def test_durable_topics_outlive_the_node(tmp_path):
    async with running(data=tmp_path / "data") as node:
        assert node.topics is not None
        await node.topics.declare("prices")
        stored: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        node.topics.produce("prices", [NewRecord(b"12")], lambda at, _: stored.set_result(at))
        assert await stored == 0
    async with running(data=tmp_path / "data") as node:
        assert node.topics is not None
        (record,) = await node.topics.engine.read("prices", 0, 10, 1 << 20)
        assert record.payload == b"12"


async def test_a_second_node_on_the_same_folder_refuses_and_leaves_the_first_alone(tmp_path):
    async with running(data=tmp_path / "data") as first:
        assert first.topics is not None
        path = tmp_path / "node.sock"
        second = Node(Config(listen=(f"unix:{path}",), data=tmp_path / "data"))
        with pytest.raises(FolderInUse):
            await second.start()
        assert not path.exists()
        await first.topics.declare("prices")


async def test_a_call_that_comes_while_the_node_drains_is_refused(connect):
    async with running() as node:
        service, caller = await connect(node), await connect(node)
        await service.register("/slow")
        caller.send(Kind.CALL_REQUEST, encode_call(CallRequest("me", "/slow", "1", b"")))
        first = parse_call(await service.read(Kind.CALL_REQUEST))
        stopping = asyncio.create_task(node.stop())
        await asyncio.sleep(0)
        caller.send(Kind.CALL_REQUEST, encode_call(CallRequest("me", "/slow", "2", b"")))
        refusal = parse_reply(await caller.read(Kind.CALL_REPLY))
        assert (refusal.request_id, refusal.code) == ("2", SERVICE_FAILURE)
        service.send(Kind.CALL_REPLY, encode_reply(first.request_id, OK, b"done"))
        assert parse_reply(await caller.read(Kind.CALL_REPLY)).data == b"done"
        await stopping


async def test_a_client_that_leaves_with_many_names_is_cleared_away_between_the_turns_of_others(
    connect,
):
    async with running() as node:
        client = await connect(node)
        count = 8 * SLICE
        for number in range(count):
            client.send(Kind.REGISTER_REQUEST, encode_name(f"/many/{number}"))
        for _ in range(count):
            await client.read(Kind.REGISTER_REPLY)
        client.writer.transport.abort()
        seen = set()
        while left := len(node.router.services):
            seen.add(left)
            await asyncio.sleep(0)
        assert len(seen) > 4
        client = await connect(node)
        for number in range(count):
            client.send(Kind.REGISTER_REQUEST, encode_name(f"/many/{number}"))
        for _ in range(count):
            await client.read(Kind.REGISTER_REPLY)
    assert len(node.router.services) == 0
