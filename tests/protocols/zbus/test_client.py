"""The Python client against a node: on a socket, since connecting is half of what it does."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path

import pytest
import trustme

from polybus.errors import CallTimeout, ConnectionLost, NotReachable, PeerUnavailable
from polybus.protocols.zbus.broker import Broker
from polybus.protocols.zbus.client import MqClient
from polybus.protocols.zbus.connection import MqError, to_address
from polybus.protocols.zbus.producer import Consumer, Producer
from polybus.protocols.zbus.rpc_client import RpcProcessor, convert, unwrap
from polybus.protocols.zbus.wire import Message
from polybus.server.config import Config, Zbus
from polybus.server.node import Node
from tests.protocols.zbus import client_scenarios
from tests.protocols.zbus.client_scenarios import becomes


def address_of(node: Node) -> str:
    address = node.addresses[0]
    return f"{address.host}:{address.port}"


def make_node(folder: Path, *trackers: str, port: int = 0) -> Node:
    config = Config(listen=(f"tcp://127.0.0.1:{port}",), data=folder, zbus=Zbus(trackers=trackers))
    return Node(config)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with make_node(tmp_path / "data") as running:
        yield running


@pytest.mark.parametrize("scenario", client_scenarios.ALL)
async def test_the_client_does_what_it_says(scenario: Callable[[str], Awaitable[None]], node: Node):
    await scenario(address_of(node))


async def test_policy_is_changed_by_declaring_again(node: Node):
    async with await MqClient.connect(address_of(node)) as client:
        await client.declare("T", "g", filter="a")
        assert (await client.declare("T", "g", filter="b.*", group_mask=4))["filter"] == "b.*"
        assert (await client.query("T", "g"))["mask"] == 4
        assert "filter" not in await client.declare("T", "g")
        with pytest.raises(TypeError):
            await client.declare("T", nonsense=1)


async def test_messages_are_read_by_offset_and_groups_emptied(node: Node):
    async with await MqClient.connect(address_of(node)) as client:
        await client.declare("T")
        for number in range(3):
            await client.produce("T", str(number))
        assert (await client.read("T", 1)).text == "1"
        with pytest.raises(MqError, match="Message Not Found: offset=9"):
            await client.read("T", 9)
        await client.empty("T", "T")
        assert (await client.query("T", "T"))["messageCount"] == 0
        assert (await client.read("T", 1)).text == "1"
        await client.empty("T")
        with pytest.raises(MqError, match="Message Not Found"):
            await client.read("T", 1)


async def test_a_group_starts_at_a_time(node: Node):
    async with await MqClient.connect(address_of(node)) as client:
        await client.declare("T")
        await client.produce("T", "old")
        old = await client.ping()
        await becomes(lambda: node.clock.wall_ms() > old)
        await client.produce("T", "new")
        await client.declare("T", "g", start_time=old + 1)
        assert (await client.consume("T", "g", timeout=5)).text == "new"


async def test_a_message_is_confirmed_where_the_group_requires_it(node: Node):
    async with await MqClient.connect(address_of(node)) as client:
        await client.declare("T", "g", group_mask=64)
        await client.produce("T", "x")
        message = await client.consume("T", "g")
        await client.ack(message, "g")
        assert (await client.query("T", "g"))["messageCount"] == 0


async def test_a_consume_can_be_given_up_and_taken_back(node: Node):
    async with await MqClient.connect(address_of(node)) as client:
        await client.declare("T")
        with pytest.raises(CallTimeout):
            await client.consume("T", timeout=0.05)
        await client.unconsume("T")
        await client.produce("T", "x")
        assert (await client.consume("T", timeout=5)).text == "x"


async def test_a_window_keeps_several_consumes_waiting(node: Node):
    got: list[str] = []
    done = asyncio.Event()

    async def handle(message: Message, client: MqClient) -> None:
        got.append(message.text)
        await asyncio.sleep(0)
        if len(got) == 50:
            done.set()

    async with Broker(address_of(node)) as broker:
        producer = Producer(broker)
        await producer.declare("T")
        async with Consumer(broker, "T", handle, window=8):
            for number in range(50):
                await producer.publish("T", str(number))
            async with asyncio.timeout(10):
                await done.wait()
    assert got == [str(number) for number in range(50)]


async def test_a_handler_that_fails_gets_the_message_again(node: Node, monkeypatch):
    monkeypatch.setattr("polybus.protocols.zbus.producer.RETRY", 0.01)
    seen: list[tuple[str, str]] = []
    done = asyncio.Event()

    def handle(message: Message, client: MqClient) -> None:
        seen.append((message.text, message.get("retry")))
        if len(seen) == 1:
            raise RuntimeError("not yet")
        done.set()

    async with Broker(address_of(node)) as broker:
        producer = Producer(broker)
        await producer.declare("T")
        await producer.publish("T", "x")
        async with Consumer(broker, "T", handle):
            async with asyncio.timeout(10):
                await done.wait()
    assert seen == [("x", ""), ("x", "1")]


async def test_a_static_broker_needs_no_tracker(node: Node):
    async with Broker() as broker:
        with pytest.raises(NotReachable):
            await Producer(broker).publish("T", "x")
        await broker.add_server(address_of(node))
        assert await Producer(broker).declare("T")
        await Producer(broker).publish("T", "x")
        await broker.remove_server(address_of(node))
        with pytest.raises(NotReachable):
            await Producer(broker).publish("T", "x")


async def test_a_tracker_that_is_not_there_is_told(unused_tcp_port: int):
    with pytest.raises(PeerUnavailable):
        async with Broker(f"127.0.0.1:{unused_tcp_port}", timeout=0.2):
            raise AssertionError("no tracker")
    with pytest.raises(PeerUnavailable):
        await MqClient.connect(f"127.0.0.1:{unused_tcp_port}", timeout=1)


async def test_pending_requests_fail_when_the_connection_ends(node: Node):
    client = await MqClient.connect(address_of(node))
    await client.declare("T")
    waiting = asyncio.ensure_future(client.consume("T"))
    await asyncio.sleep(0.05)
    client.connection.abort()
    with pytest.raises(ConnectionLost):
        await waiting
    with pytest.raises(ConnectionLost):
        await client.produce("T", "x")
    assert client.closed


async def test_two_nodes_behind_a_tracker_fail_over(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("polybus.protocols.zbus.uplink.RETRY", 0.05)
    got: list[str] = []
    async with make_node(tmp_path / "a") as tracker:
        joined = make_node(tmp_path / "b", address_of(tracker))
        await joined.start()
        async with Broker(address_of(tracker)) as broker:
            await becomes(lambda: len(broker.route_table.server_table) == 2)
            producer = Producer(broker)
            assert len(await producer.declare("T")) == 2
            async with Consumer(broker, "T", lambda m, c: got.append(m.text)):
                await producer.publish("T", "before")
                await joined.stop()
                await becomes(lambda: len(broker.route_table.server_table) == 1)
                await producer.publish("T", "after")
                await becomes(lambda: "after" in got)


async def test_a_node_behind_a_forwarded_port_is_reached_by_what_it_advertises(tmp_path: Path):
    """A DMZ: clients see only the forwarder's port, which the node is told to advertise."""
    inside: list[Node] = []

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        address = inside[0].addresses[0]
        there, back = await asyncio.open_connection(address.host, address.port)

        async def pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            while data := await source.read(65536):
                target.write(data)
                await target.drain()
            target.close()

        await asyncio.gather(pump(reader, back), pump(there, writer), return_exceptions=True)

    server = await asyncio.start_server(forward, "127.0.0.1", 0)
    outside = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    config = Config(
        listen=("tcp://127.0.0.1:0",), data=tmp_path / "data", zbus=Zbus(advertise=outside)
    )
    async with Node(config) as node:
        inside.append(node)
        async with Broker(outside) as broker:
            assert list(broker.route_table.server_table) == [outside]
            await client_scenarios.many(outside, 20)
        await client_scenarios.rpc(outside)
        page = await asyncio.to_thread(ask, outside, "GET", "/")
        assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
        own = {"Origin": f"http://{outside}"}
        assert (await asyncio.to_thread(ask, outside, "GET", "/api/v1/topics", own)).status == 200
        declared = await asyncio.to_thread(ask, outside, "GET", "/declare/FromThePage", own)
        assert declared.status == 200
    server.close()
    await server.wait_closed()


def ask(
    address: str, method: str, path: str, headers: Mapping[str, str] | None = None
) -> HTTPResponse:
    """One request of a browser."""
    connection = HTTPConnection(address, timeout=10)
    connection.request(method, path, headers=dict(headers or {}))
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer


async def test_where_a_server_speaks_tls_so_does_the_client(tmp_path: Path):
    ca, issued = trustme.CA(), tmp_path / "cert.pem"
    certificate = ca.issue_cert("127.0.0.1")
    certificate.private_key_and_cert_chain_pem.write_to_path(issued)
    trusting = ssl.create_default_context()
    ca.configure_trust(trusting)
    config = Config(
        listen=(f"tls://127.0.0.1:0?cert={issued}&key={issued}",), data=tmp_path / "data"
    )
    got: list[str] = []
    async with Node(config) as node:
        address = address_of(node)
        async with await MqClient.connect(address, tls=trusting) as client:
            shown = (await client.tracker_info())["serverTable"][f"[SSL]{address}"]
            assert shown["serverAddress"] == {"address": address, "sslEnabled": True}
        async with Broker(f"[SSL]{address}", tls=trusting) as broker:
            assert list(broker.route_table.server_table) == [f"[SSL]{address}"]
            producer = Producer(broker)
            await producer.declare("T")
            async with Consumer(broker, "T", lambda m, c: got.append(m.text)):
                await producer.publish("T", "secret")
                await becomes(lambda: got == ["secret"])
        with pytest.raises(PeerUnavailable):
            await MqClient.connect(f"[SSL]{address}")  # not trusted


async def test_arguments_that_come_as_texts_are_converted_by_annotations():
    def method(a: int, b: float, c: bool, d: str, e, f: list[int]) -> None:
        """Never called."""

    texts = ["1", "2.5", "true", "4", "5", [1]]
    assert convert(method, texts) == [1, 2.5, True, "4", "5", [1]]
    answer = await RpcProcessor(client_scenarios.Calc()).answer(
        b'{"method":"plus","module":"Calc","params":["1","2"]}'
    )
    assert answer == b'{"error":null,"result":3}'
    listed = await RpcProcessor(client_scenarios.Calc()).answer(b'{"method":"","params":[]}')
    assert b"plus" in listed
    assert b"_hidden" not in listed
    assert b'"error":"' in await RpcProcessor(client_scenarios.Calc()).answer(b"not json")


def test_responses_of_all_dialects_are_understood():
    assert unwrap(Message(body=b'{"error":null,"result":3}', status=200)) == 3
    assert unwrap(Message(body=b'{"result": 3}', status=200)) == 3
    assert unwrap(Message(body=b"3", status=200)) == 3
    assert unwrap(Message(body=b"plain", status=200)) == "plain"


def test_addresses_are_read_as_zbus_spells_them():
    assert to_address("h:1").scheme == "tcp"
    assert to_address("[SSL]h:1").scheme == "tls"
