from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trustme

from polybus.errors import (
    AckTimeout,
    CallTimeout,
    ConfigError,
    Conflict,
    ConnectionLost,
    InvalidName,
    LimitExceeded,
    LocalProtocolError,
    NameTaken,
    NoSuchService,
    PeerUnavailable,
    Refused,
    RemoteProtocolError,
)
from polybus.protocols.t2 import peer as peer_module
from polybus.protocols.t2.client import Client, Connector, split_host
from polybus.protocols.t2.room import T2Options
from polybus.protocols.t2.server import ServerBuilder
from polybus.protocols.t2.typed import PublishProtocol, RequestProtocol, decode, encode
from polybus.protocols.t2.wire import ack_content, encode_frame


class Price(msgspec.Struct):
    bid: float
    ask: float
    seq: int


class Mood(Enum):
    GOOD = "Good"
    BAD = "Bad"


@dataclass
class Tagged:
    name: str
    mood: Mood | None = None


CHAT = PublishProtocol("chat", str)
PRICES = PublishProtocol("price", Price)
ECHO = RequestProtocol("echo", str, str)


@pytest.fixture(params=["memory", "unix", "tcp", "tls"])
async def way(request, tmp_path) -> AsyncIterator[Connector]:
    """A running bus and how to reach it, over every transport."""
    builder = ServerBuilder()
    if request.param == "memory":
        stopper, memory = await builder.serve_memory().build()
        assert memory is not None
        connector = memory
    elif request.param == "unix":
        stopper, _ = await builder.serve_unix_socket(tmp_path / "bus").build()
        connector = Connector.unix(tmp_path / "bus")
    elif request.param == "tcp":
        stopper, _ = await builder.serve_tcp("127.0.0.1:0").build()
        connector = Connector.tcp(f"127.0.0.1:{stopper.addresses[0].port}")
    else:
        files = certificates(tmp_path)
        stopper, _ = await builder.serve_tls("127.0.0.1:0", **files["server"]).build()
        address = f"127.0.0.1:{stopper.addresses[0].port}"
        connector = Connector.tls(address, **files["client"])
    async with stopper:
        yield connector


def certificates(folder: Path) -> dict[str, dict[str, Any]]:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    found: dict[str, dict[str, Any]] = {}
    for name in ("server", "client"):
        issued = authority.issue_cert("127.0.0.1", common_name=name)
        issued.private_key_pem.write_to_path(folder / f"{name}.key")
        with (folder / f"{name}.pem").open("wb") as file:
            for part in issued.cert_chain_pems:
                file.write(part.bytes())
        found[name] = {
            "cert": str(folder / f"{name}.pem"),
            "key": str(folder / f"{name}.key"),
            "ca": str(folder / "ca.pem"),
        }
    return found


@pytest.fixture
async def clients() -> AsyncIterator[tuple[Client, Client]]:
    """Two clients of one bus in memory."""
    stopper, connector = await ServerBuilder().serve_memory().build()
    assert connector is not None
    async with stopper, await connector.connect() as one, await connector.connect() as two:
        yield one, two


async def test_publish_subscribe_and_requests_work_over_every_transport(way):
    async with await way.connect() as one, await way.connect() as two:
        async with await one.subscribe(CHAT, "lobby/*") as messages:
            assert await two.publish(CHAT, "lobby/alice", "hello") == 1
            assert await messages.recv() == ("chat/lobby/alice", "hello")
        async with await one.serve(ECHO, "") as requests:

            async def answer() -> None:
                topic, request_id, request = await requests.recv()
                assert topic == "echo"
                await one.respond(ECHO, request_id, request.upper())

            answering = asyncio.create_task(answer())
            assert await two.request(ECHO, "", "ping") == "PING"
            await answering


async def test_large_payloads_are_compressed_and_come_whole(clients):
    one, two = clients
    subscription = await one.subscribe_bytes("raw/**")
    for payload in (b"", bytes(5000), bytes(5001), b"text " * 200_000, bytes(range(256)) * 2000):
        assert await two.publish_bytes("raw/x", payload) == 1
        assert await subscription.recv() == ("raw/x", payload)


async def test_a_payload_that_does_not_fit_a_frame_is_an_error_and_the_client_goes_on(clients):
    one, _two = clients
    noise = random.Random(1).randbytes(1_200_000)
    with pytest.raises(LimitExceeded):
        await one.publish_bytes("a", noise)
    assert await one.publish_bytes("a", b"x") == 0


async def test_typed_messages_are_structs_enums_and_options(clients):
    one, two = clients
    prices = await one.subscribe(PRICES, "**")
    price = Price(1.5, 1.1, 70_000)
    await two.publish(PRICES, "eth/eur", price)
    assert await prices.recv() == ("price/eth/eur", price)
    for value in (Tagged("a", Mood.GOOD), Tagged("b")):
        assert decode(encode(value), Tagged, "x") == value


async def test_a_message_of_another_type_is_an_error_and_the_next_one_comes(clients):
    one, two = clients
    prices = await one.subscribe(PRICES, "a")
    await two.publish_bytes("price/a", b"\x61x")
    await two.publish_bytes("price/a", b"\xff")
    await two.publish(PRICES, "a", Price(1, 2, 3))
    for _ in range(2):
        with pytest.raises(RemoteProtocolError, match="price"):
            await prices.recv()
    assert (await prices.recv())[1] == Price(1, 2, 3)


async def test_iteration_ends_when_the_subscription_is_closed(clients):
    one, two = clients
    subscription = await one.subscribe(CHAT, "a")
    for n in range(3):
        await two.publish(CHAT, "a", str(n))
    got = []
    async for _topic, message in subscription:
        got.append(message)
        if len(got) == 3:
            subscription.close()
    assert got == ["0", "1", "2"]
    with pytest.raises(LocalProtocolError):
        await subscription.recv()
    assert await two.publish(CHAT, "a", "x") == 0
    subscription.close()


async def test_each_subscription_gets_its_own_copy_and_ends_alone(clients):
    one, two = clients
    first = await one.subscribe(CHAT, "a")
    second = await one.subscribe(CHAT, "a")
    wild = await one.subscribe(CHAT, "*")
    assert await two.publish(CHAT, "a", "1") == 1
    for subscription in (first, second, wild):
        assert await subscription.recv() == ("chat/a", "1")
    # The original forgets both; here the last one tells the bus.
    first.close()
    assert await two.publish(CHAT, "a", "2") == 1
    assert await second.recv() == ("chat/a", "2")
    second.close()
    wild.close()
    assert await two.publish(CHAT, "a", "3") == 0


async def test_a_dropped_subscription_or_claim_ends_by_itself(clients):
    one, two = clients
    subscription = await one.subscribe(CHAT, "a")
    claim = await one.serve(ECHO, "a")
    assert (subscription.topic, claim.topic) == ("chat/a", "echo/a")
    assert await two.publish(CHAT, "a", "x") == 1
    del subscription, claim
    gc.collect()
    await asyncio.sleep(0)
    await one.publish(CHAT, "b", "what was sent before is done")
    assert await two.publish(CHAT, "a", "x") == 0
    async with await two.serve(ECHO, "a"):
        pass


async def test_a_dropped_client_is_closed(monkeypatch):
    monkeypatch.setattr("polybus.protocols.t2.client.KEEP_ALIVE", 0.01)
    stopper, connector = await ServerBuilder().serve_memory().build()
    assert connector is not None
    async with stopper:
        client = await connector.connect()
        ended = client._peer.ended
        del client
        gc.collect()
        async with asyncio.timeout(5):
            await ended.wait()


async def test_mistakes_in_topics_do_not_end_the_client(clients):
    one, _two = clients
    for attempt in (
        lambda: one.publish(CHAT, "Bad Topic", "x"),
        lambda: one.subscribe(CHAT, "Bad Topic"),
        lambda: one.serve(ECHO, "a/*"),
        lambda: one.request(ECHO, "a//b", "x"),
    ):
        with pytest.raises(InvalidName):
            await attempt()
    assert await one.publish(CHAT, "a", "x") == 0
    for prefix in ("", "A", "a/*"):
        with pytest.raises(InvalidName):
            PublishProtocol(prefix, str)


async def test_claims_are_exclusive(clients):
    one, two = clients
    claim = await one.serve(ECHO, "a")
    for client in (one, two):
        with pytest.raises(NameTaken):
            await client.serve(ECHO, "a")
    claim.close()
    async with await two.serve_bytes("echo/a"):
        pass


async def test_requests_fail_in_their_own_words(clients, monkeypatch):
    one, two = clients
    with pytest.raises(NoSuchService, match="Service not found: echo/nobody"):
        await one.request(ECHO, "nobody", "x")
    with pytest.raises(Conflict):
        await one.respond(ECHO, 12345, "x")
    async with await one.serve(ECHO, "a") as requests:
        with pytest.raises(CallTimeout):
            await two.request(ECHO, "a", "x", timeout=0.01)
        _topic, request_id, _request = await requests.recv()
        await one.respond(ECHO, request_id, "too late, and ignored")
        asking = asyncio.create_task(two.request(ECHO, "a", "y"))
        await requests.recv()
        await one.close()
        with pytest.raises(CallTimeout):
            await asking


async def test_the_end_of_the_connection_is_told_to_all_who_wait(clients):
    one, two = clients
    subscription = await one.subscribe(CHAT, "a")
    claim = await one.serve(ECHO, "a")
    await two.publish(CHAT, "a", "last")
    asking = asyncio.create_task(one.request(ECHO, "a", "x"))
    await claim.recv()
    await one.close()
    await one.wait_closed()
    assert not one.connected
    assert await subscription.recv() == ("chat/a", "last")
    for waiting in (subscription.recv(), claim.recv(), asking, one.publish(CHAT, "a", "x")):
        with pytest.raises(ConnectionLost):
            await waiting
    subscription.close()
    claim.close()
    await one.close()


async def test_what_nobody_takes_is_dropped_and_counted(clients, monkeypatch):
    monkeypatch.setattr(peer_module, "MAX_WAITING_BYTES", 3 * peer_module.MESSAGE_COST + 12)
    one, two = clients
    subscription = await one.subscribe(CHAT, "a")
    for n in range(5):
        await two.publish(CHAT, "a", str(n))
    assert subscription.dropped == 2
    assert await subscription.recv() == ("chat/a", "0")
    await two.publish(CHAT, "a", "5")
    assert subscription.dropped == 2


async def test_the_documented_rules_can_be_chosen():
    stopper, connector = await ServerBuilder(T2Options("documented")).serve_memory().build()
    assert connector is not None
    async with stopper, await connector.connect() as client:
        subscription = await client.subscribe_bytes("**")
        assert await client.publish_bytes("*/alice", b"x") == 1
        assert await subscription.recv() == ("*/alice", b"x")


# -- the server --


async def test_stop_leaving_and_dropping_end_the_server(tmp_path):
    path = tmp_path / "bus"
    for end in ("stop", "leave", "drop", "client"):
        stopper, connector = await ServerBuilder().serve_unix_socket(path).serve_memory().build()
        assert connector is not None
        client = await Connector.unix(path).connect()
        near = await connector.connect()
        if end == "stop":
            stopper.stop()
            stopper.stop()
            await stopper.join()
        elif end == "leave":
            async with stopper:
                assert await client.publish_bytes("a", b"") == 0
        elif end == "drop":
            server = stopper._server
            del stopper
            gc.collect()
            await server.join()
        else:
            await client.stop_bus()
            await stopper.join()
        async with asyncio.timeout(5):
            await client.wait_closed()
            await near.wait_closed()
        assert not path.exists()
        await client.close()
        await near.close()


async def test_a_bus_may_refuse_to_be_stopped():
    stopper, connector = await ServerBuilder(T2Options(stop="never")).serve_memory().build()
    assert connector is not None
    async with stopper, await connector.connect() as client:
        with pytest.raises(Refused, match="may not stop"):
            await client.stop_bus()
        assert await client.publish_bytes("a", b"") == 0


async def test_memory_is_only_there_when_asked_for(tmp_path):
    stopper, connector = await ServerBuilder().serve_tcp("127.0.0.1:0").build()
    async with stopper:
        assert connector is None


async def test_a_plain_file_is_never_deleted_and_a_failed_build_leaves_nothing(tmp_path):
    plain = tmp_path / "file"
    plain.write_text("precious")
    other = tmp_path / "bus"
    with pytest.raises(ConfigError):
        await ServerBuilder().serve_unix_socket(other).serve_unix_socket(plain).build()
    assert plain.read_text() == "precious"
    assert not other.exists()
    with pytest.raises(PeerUnavailable):
        await Connector.unix(other).connect()


async def test_a_failed_handshake_does_not_harm_the_listener(tmp_path):
    files = certificates(tmp_path)
    stopper, _ = await ServerBuilder().serve_tls("127.0.0.1:0", **files["server"]).build()
    async with stopper:
        port = stopper.addresses[0].port
        _reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"plain text")
        _reader2, writer2 = await asyncio.open_connection("127.0.0.1", port)
        writer2.close()
        stranger = await Connector.tls(f"127.0.0.1:{port}", ca=files["client"]["ca"]).connect()
        async with asyncio.timeout(5):
            await stranger.wait_closed()
        async with await Connector.tls(f"127.0.0.1:{port}", **files["client"]).connect() as client:
            assert await client.publish_bytes("a", b"x") == 0
        writer.close()
        await stranger.close()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1", ("127.0.0.1", 4242)),
        ("localhost:8000", ("localhost", 8000)),
        ("[::1]:8000", ("::1", 8000)),
        ("[::1]", ("::1", 4242)),
        ("::1", ("::1", 4242)),
    ],
)
def test_the_port_may_be_left_out(text, expected):
    assert split_host(text) == expected


@pytest.mark.parametrize("text", ["", ":80", "host:port"])
def test_an_address_has_a_host_and_a_number(text):
    with pytest.raises(LocalProtocolError):
        split_host(text)


@asynccontextmanager
async def fake_bus(path: Path, answer: bytes) -> AsyncIterator[Client]:
    """A client of somebody who sends these bytes, in pieces, and nothing else."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for piece in (answer[:3], answer[3:20], answer[20:]):
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        while await reader.read(1000):
            pass
        writer.close()
        gone.set()

    gone = asyncio.Event()
    async with await asyncio.start_unix_server(serve, path):
        client = await Connector.unix(path).connect()
        yield client
        await client.close()
        async with asyncio.timeout(5):
            await gone.wait()


async def test_frames_come_in_any_pieces_and_a_bad_one_ends_the_connection(tmp_path):
    ack = encode_frame(0, ack_content(b"\x02", None, 7))
    async with fake_bus(tmp_path / "bus", ack + b"\x00\x10\x00\x01") as client:
        async with asyncio.timeout(5):
            await client.wait_closed()
        with pytest.raises(ConnectionLost):
            await client.publish_bytes("a", b"")


async def test_the_time_of_a_request_covers_the_wait_for_its_ack(tmp_path):
    ack_of_nothing = encode_frame(0, ack_content(b"\x18\x63", None, None))
    async with fake_bus(tmp_path / "bus", ack_of_nothing) as client:
        with pytest.raises(CallTimeout, match=r"within 0\.05 s"):
            await client.request_bytes("a", b"", timeout=0.05)


async def test_a_bus_that_does_not_acknowledge_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(peer_module, "ACK_TIMEOUT", 0.01)
    ack_of_nothing = encode_frame(0, ack_content(b"\x18\x63", None, None))
    async with fake_bus(tmp_path / "bus", ack_of_nothing) as client:
        with pytest.raises(AckTimeout):
            await client.publish_bytes("a", b"")
