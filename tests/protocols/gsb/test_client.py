"""The Python client against a polybus node over real sockets, and routing within one process."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import trustme

from polybus.errors import (
    CallTimeout,
    ConfigError,
    ConnectionLost,
    LimitExceeded,
    PeerUnavailable,
    Refused,
    ServiceFailed,
    SlowConsumer,
)
from polybus.protocols.gsb import client as gsb_client
from polybus.protocols.gsb import link
from polybus.protocols.gsb.client import GsbClient, parse_url
from polybus.protocols.gsb.local import LocalRouter, Request
from polybus.protocols.gsb.wire import CallReply, CallRequest, encode_call
from polybus.server import Config, Node
from polybus.transports.tls import certificate_hash
from tests.protocols.gsb.scenarios import SCENARIOS, Scenario, echo


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short, since a Unix address has room for 107 bytes."""
    path = Path(tempfile.mkdtemp(prefix="gsb"))
    yield path
    shutil.rmtree(path)


@pytest.fixture(params=["tcp", "unix", "tls"])
async def url(request: pytest.FixtureRequest, folder: Path) -> AsyncIterator[str]:
    cert, key = folder / "cert.pem", folder / "key.pem"
    issued = trustme.CA().issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(str(cert))
    issued.private_key_pem.write_to_path(str(key))
    listen = {
        "tcp": "tcp://127.0.0.1:0",
        "unix": f"gsb+unix://{folder}/s",
        "tls": f"tls://127.0.0.1:0?cert={cert}&key={key}",
    }[request.param]
    async with Node(Config(listen=(listen,), data=folder / "data")) as node:
        address = str(node.addresses[0]).removeprefix("gsb+")
        yield f"{address}?hash={certificate_hash(cert)}" if request.param == "tls" else address


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_scenario(url: str, scenario: Scenario):
    async with GsbClient(url) as service, GsbClient(url) as caller:
        await scenario(service, caller)


async def test_a_certificate_with_another_hash_is_refused(folder):
    cert, key = folder / "cert.pem", folder / "key.pem"
    issued = trustme.CA().issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(str(cert))
    issued.private_key_pem.write_to_path(str(key))
    listen = f"tls://127.0.0.1:0?cert={cert}&key={key}"
    async with Node(Config(listen=(listen,), data=folder / "data")) as node:
        with pytest.raises(PeerUnavailable, match="another certificate"):
            await GsbClient(f"{node.addresses[0]}?hash={'0' * 56}").open()


async def test_a_client_is_back_with_its_names_within_a_second_of_the_node(folder, unit: float):
    config = Config(listen=(f"unix://{folder}/s",), data=folder / "data")
    came: asyncio.Queue[bytes] = asyncio.Queue()
    node = Node(config)
    await node.start()
    async with GsbClient(f"unix:{folder}/s") as service, GsbClient(f"unix:{folder}/s") as caller:
        await service.bind("/back", echo)
        await service.subscribe("news", lambda who, topic, data: came.put_nowait(data))
        await node.stop()
        assert [caller.connected, service.connected] == [False, False]
        async with Node(config), asyncio.timeout(unit):
            await asyncio.gather(service.ready(), caller.ready())
            assert await caller.call("/back", b"again") == b"again"
            await caller.broadcast("news", b"new")
            assert await came.get() == b"new"


async def test_calls_under_way_fail_when_the_connection_ends(folder):
    config = Config(listen=(f"unix://{folder}/s",), data=folder / "data")
    asked = asyncio.Event()

    async def never(request: Request) -> bytes:
        asked.set()
        await asyncio.Event().wait()
        return b""

    node = Node(config)
    await node.start()
    async with GsbClient(f"unix:{folder}/s") as service, GsbClient(f"unix:{folder}/s") as caller:
        await service.bind("/never", never)
        call = asyncio.create_task(caller.call("/never", b""))
        await asked.wait()
        for connection in tuple(node.connections.open):
            connection.outbox.abort("test")
        with pytest.raises((ConnectionLost, ServiceFailed)):
            await call
        await service.close()
        await caller.close()
    await node.stop()


async def test_what_no_frame_takes_is_refused_and_the_connection_stays(folder):
    config = Config(listen=(f"unix://{folder}/s",), data=folder / "data")

    async def large(request: Request) -> bytes:
        return bytes(5000)

    async with (
        Node(config),
        GsbClient(f"unix:{folder}/s", max_frame=4096) as service,
        GsbClient(f"unix:{folder}/s", max_frame=4096) as caller,
    ):
        await service.bind("/large", large)
        with pytest.raises(LimitExceeded) as refused:
            await caller.call("/large", bytes(4096))
        assert refused.value.limit == 4096
        with pytest.raises(LimitExceeded):
            await caller.push("/large", bytes(4096))
        with pytest.raises(Refused, match="bytes in one frame"):
            await caller.call("/large", b"")
        fits = 4096 - 4 - len(encode_call(CallRequest("local", "/large", "1" * 16, b""))) - 10
        with pytest.raises(Refused, match="bytes in one frame"):
            await caller.call("/large", bytes(fits))


async def test_a_refused_subscription_does_not_come_back_with_the_next_connection(folder):
    config = Config(listen=(f"unix://{folder}/s",), data=folder / "data")
    async with Node(config) as node, GsbClient(f"unix:{folder}/s") as client:
        with pytest.raises(Refused):
            await client.subscribe("t" * 5000, lambda who, topic, data: None)
        asked = asyncio.create_task(client.subscribe("lost", lambda who, topic, data: None))
        await asyncio.sleep(0)
        for connection in tuple(node.connections.open):
            connection.outbox.abort("test")
        with pytest.raises(ConnectionLost):
            await asked
        await client.ready(5)
        assert node.router.subscribed("gsb") == 0


async def test_a_subscriber_that_raises_harms_nobody_else(folder, caplog):
    config = Config(listen=(f"unix://{folder}/s",), data=folder / "data")
    came: asyncio.Queue[bytes] = asyncio.Queue()

    def broken(who: str, topic: str, data: bytes) -> None:
        raise ValueError("not this")

    async with Node(config), GsbClient(f"unix:{folder}/s") as client:
        await client.subscribe("news", broken)
        await client.subscribe("news", lambda who, topic, data: came.put_nowait(data))
        await client.broadcast("news", b"1")
        await client.broadcast("news", b"2")
        async with asyncio.timeout(5):
            assert [await came.get(), await came.get()] == [b"1", b"2"]
        assert client.connected
    assert "a subscriber of news raised" in caplog.text


async def test_a_stream_that_nobody_reads_ends_instead_of_filling_the_memory(monkeypatch):
    monkeypatch.setattr(link, "MAX_UNREAD_BYTES", 1000)
    replies = link.Replies("1")
    for number in range(5):
        replies.put(CallReply("1", 0, True, bytes([number]) * 400))
    assert [(await replies.next()).data[0] for _ in range(2)] == [0, 1]
    with pytest.raises(SlowConsumer) as ended:
        await replies.next()
    assert ended.value.pending_bytes == 1200


async def test_a_drain_ends_though_a_handler_does_not(folder, monkeypatch):
    monkeypatch.setattr(gsb_client, "FINISH_TIMEOUT", 0.05)
    config = Config(listen=(f"unix://{folder}/s",), data=folder / "data")
    asked = asyncio.Event()

    async def never(request: Request) -> bytes:
        asked.set()
        await asyncio.Event().wait()
        return b""

    async with Node(config), GsbClient(f"unix:{folder}/s") as caller:
        service = GsbClient(f"unix:{folder}/s")
        await service.open()
        await service.bind("/never", never)
        call = asyncio.create_task(caller.call("/never", b""))
        await asked.wait()
        async with asyncio.timeout(5):
            await service.drain()
        with pytest.raises(ServiceFailed):
            await call


async def test_a_drain_without_a_connection_waits_for_none(folder):
    node = Node(Config(listen=(f"unix://{folder}/s",), data=folder / "data"))
    await node.start()
    client = GsbClient(f"unix:{folder}/s")
    await client.open()
    await client.bind("/a", echo)
    await client.bind("/b", echo)
    await node.stop()
    async with asyncio.timeout(5):
        await client.drain()


async def test_nobody_there_is_one_clear_error():
    with pytest.raises(PeerUnavailable, match="cannot connect to unix:///nowhere"):
        await GsbClient("unix:/nowhere").open()


def test_addresses_are_read_as_the_original_reads_them(monkeypatch):
    assert str(parse_url("127.0.0.1:1234")[0]) == "tcp://127.0.0.1:1234"
    assert str(parse_url("tcp://127.0.0.1")[0]) == "tcp://127.0.0.1:7464"
    assert str(parse_url("unix:/a/b")[0]) == str(parse_url("unix:///a/b")[0]) == "unix:///a/b"
    assert parse_url("tls://h:1?hash=AB") == (parse_url("tls://h:1")[0], "ab")
    with pytest.raises(ConfigError):
        parse_url("http://x")


async def test_the_variable_names_the_router_when_no_address_is_given(folder, monkeypatch):
    async with Node(Config(listen=(f"unix://{folder}/s",), data=folder / "data")):
        monkeypatch.setenv("GSB_URL", f"unix:{folder}/s")
        async with GsbClient() as client:
            assert client.connected


async def test_a_service_in_the_same_process_fails_as_over_the_wire():
    async def broken(request: Request) -> bytes:
        raise ValueError("not today")

    async def endless(request: Request) -> bytes:
        await asyncio.Event().wait()
        return b""

    async def refusing(request: Request) -> bytes:
        raise Refused("not you")

    client = GsbClient("unix:/nowhere")
    for address, handler in (("/broken", broken), ("/endless", endless), ("/refusing", refusing)):
        client.local.bind(address, handler)
    with pytest.raises(ServiceFailed, match="not today"):
        await client.call("/broken", b"")
    with pytest.raises(CallTimeout):
        await client.call("/endless", b"", timeout=0)
    with pytest.raises(Refused, match="not you"):
        await client.call("/refusing", b"")


async def test_a_call_within_the_process_needs_no_socket():
    local = LocalRouter()
    local.bind("/here", echo)
    client = GsbClient("unix:/nowhere", local=local)
    assert await client.call("/here/below", b"x") == b"x"
