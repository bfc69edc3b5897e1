"""Journal, captures, relays and aliases on a whole node, with the clients of several wires."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import polybus
from polybus.core import journal as core_journal
from polybus.errors import ConfigError, PolybusError
from polybus.model import journal
from polybus.model.journal import Row, parse_row
from polybus.model.message import Status
from polybus.model.record import Record
from polybus.protocols.rmb.client import MessageBusClient, MessageBusServer
from polybus.protocols.rmb.embedded import EmbeddedRedis
from polybus.protocols.zbus.broker import Broker
from polybus.protocols.zbus.producer import Consumer
from polybus.protocols.zbus.rpc_client import RpcError, RpcInvoker, RpcProcessor
from polybus.server.config import Alias, Capture, Config, Journal, Relay, Rmb
from polybus.server.node import Node
from tests.protocols.rmb.twins import free_port, secret_of

ON = Journal(enabled=True)


class Bench:
    """A node and a way to its clients."""

    def __init__(self, node: Node) -> None:
        self.node = node
        address = node.addresses[0]
        self.where = f"{address.host}:{address.port}"

    def connect(self, wire: str = "polybus") -> Any:
        return polybus.connect(f"{wire}://{self.where}")

    async def records(self, topic: str, count: int) -> list[Record]:
        """So many records of a topic, once they are there."""
        topics = self.node.topics
        assert topics is not None
        while not topics.has(topic) or topics.info(topic).end < count:
            self.node.recording.tick()
            await asyncio.sleep(0.005)
        return list(await topics.engine.read(topic, 0, 1000, 1 << 24))

    async def rows(self, count: int) -> list[Row]:
        return [parse_row(record.payload) for record in await self.records(journal.TOPIC, count)]


@asynccontextmanager
async def bench(folder: Path, **settings: Any) -> AsyncIterator[Bench]:
    config = Config(listen=("tcp://127.0.0.1:0",), data=folder / "data", **settings)
    async with Node(config) as node:
        yield Bench(node)


# -- the journal ----------------------------------------------------------------------------------


@pytest.mark.parametrize("wire", ["polybus", "gsb", "t2"])
async def test_every_ended_call_leaves_one_row(tmp_path, wire):
    async with bench(tmp_path, journal=ON) as b, b.connect(wire) as service, b.connect(wire) as bus:

        async def double(request: bytes) -> bytes:
            return request * 2

        await service.serve("calc/double", double)

        for _ in range(3):
            assert await bus.call("calc/double", b"abc") == b"abcabc"
        rows = [row for row in await b.rows(3) if row.kind == "call"]
    assert len(rows) == 3
    assert len({row.id for row in rows}) == 3
    native = {"polybus": "native"}.get(wire, wire)
    for row in rows:
        assert (row.wire_in, row.wire_out, row.name, row.status) == (
            native,
            native,
            "calc/double",
            0,
        )
        assert row.caller.startswith("anonymous")
        assert 0 <= row.duration_us < 10_000_000
        assert 3 <= row.bytes_in < 200
        assert 6 <= row.bytes_out < 200


async def test_a_call_across_wires_names_both(tmp_path):
    async with bench(tmp_path, journal=ON) as b, b.connect("gsb") as golem, b.connect("t2") as bus:

        async def length(request: bytes) -> bytes:
            return b"%d" % len(request)

        await golem.serve("calc/len", length)

        assert await bus.call("calc/len", b"abcd") == b"4"
        (row,) = await b.rows(1)
    assert (row.wire_in, row.wire_out, row.name) == ("t2", "gsb", "calc/len")
    assert row.bytes_out == 1


@pytest.mark.parametrize("wire", ["polybus", "gsb", "t2"])
async def test_a_call_that_nobody_answers_leaves_a_row_with_the_reason(tmp_path, wire):
    async with bench(tmp_path, journal=ON) as b, b.connect(wire) as bus:
        with pytest.raises(PolybusError):
            await bus.call("no/body", b"x")
        (row,) = await b.rows(1)
    assert (row.kind, row.name, row.status) == ("call", "no/body", Status.NOT_FOUND)


@pytest.mark.parametrize("wire", ["polybus", "gsb", "t2"])
async def test_a_service_that_leaves_ends_its_calls_in_the_journal(tmp_path, wire):
    async with bench(tmp_path, journal=ON) as b, b.connect(wire) as bus, b.connect(wire) as service:
        asked = asyncio.Event()

        async def wait(request: bytes) -> bytes:
            asked.set()
            await asyncio.Event().wait()
            return b""

        await service.serve("slow/one", wait)

        call = asyncio.create_task(bus.call("slow/one", b"x"))
        await asked.wait()
        (service_side,) = (
            connection
            for connection in b.node.connections.open
            if getattr(connection.session, "registrations", None)
        )
        service_side.outbox.abort("cut by the test")
        with pytest.raises(PolybusError):
            await call
        (row,) = await b.rows(1)
    assert (row.kind, row.name, row.status) == ("call", "slow/one", Status.GONE)


@pytest.mark.parametrize("wire", ["polybus", "gsb", "t2"])
async def test_a_publication_counts_its_bytes_once_per_recipient(tmp_path, wire):
    async with (
        bench(tmp_path, journal=ON) as b,
        b.connect(wire) as one,
        b.connect(wire) as bus,
        one.subscribe("news/today") as news,
    ):
        await bus.publish("news/today", b"abc")
        assert (await anext(news)).payload == b"abc"
        rows = [row for row in await b.rows(1) if row.kind == "publish"]
    (row,) = rows
    assert row.name == "news/today"
    assert row.bytes_in == row.bytes_out >= 3


async def test_records_leave_rows_when_produced_and_when_delivered(tmp_path):
    async with bench(tmp_path, journal=ON) as b, b.connect() as bus:
        await bus.declare_topic("orders")
        await bus.produce("orders", b"one")
        async with bus.consume("orders", "g") as records:
            async for record in records:
                record.ack()
                break
        rows = await b.rows(2)
    assert [(row.kind, row.name, row.bytes_in) for row in rows] == [
        ("produce", "orders", 3),
        ("deliver", "orders", 3),
    ]


async def test_the_journal_does_not_write_about_itself(tmp_path):
    async with bench(tmp_path, journal=ON) as b, b.connect() as bus:
        with pytest.raises(PolybusError):
            await bus.call("no/body", b"")
        await b.rows(1)
        async with bus.consume(journal.TOPIC, "reader") as records:
            async for record in records:
                record.ack()
                break
        b.node.recording.tick()
        assert len(await b.rows(1)) == 1


async def test_a_peer_that_breaks_its_wire_leaves_an_error(tmp_path):
    async with bench(tmp_path, journal=ON) as b:
        address = b.node.addresses[0]
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(b"PBUS\x01" + b"\xff" * 64)
        await reader.read()
        writer.close()
        (row,) = await b.rows(1)
    assert (row.kind, row.status) == ("error", Status.REFUSED)
    assert row.error


async def test_rows_are_dropped_and_counted_when_the_log_is_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(core_journal, "MAX_WAITING", 2)
    async with bench(tmp_path, journal=ON) as b, b.connect() as bus:
        for _ in range(5):
            with pytest.raises(PolybusError):
                await bus.call("no/body", b"")
        kept = b.node.recording.journal
        assert kept is not None
        kept.flush()
        while kept.written + kept.dropped < 5:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        assert kept.dropped


async def test_a_node_without_a_data_folder_refuses_a_journal():
    with pytest.raises(ConfigError, match="journal needs durable topics"):
        Node(Config(listen=(), data=None, journal=ON))


class Calculator:
    """A service of Zbus."""

    def plus(self, a: int, b: int) -> int:
        return a + b

    def fail(self) -> None:
        raise ValueError("no luck")


async def test_calls_between_zbus_clients_leave_rows_and_records(tmp_path):
    rules = (Capture(pattern="Calc/**", topic="calls", kind="call"),)
    processor = RpcProcessor(Calculator())
    async with (
        bench(tmp_path, journal=ON, capture=rules) as b,
        Broker(b.where) as broker,
        Consumer(broker, "Calc", processor.handle, mask=2) as service,
    ):
        await service.ready()
        calculator = RpcInvoker(broker, "Calc")
        assert await calculator.plus(1, 2) == 3
        with pytest.raises(RpcError, match="no luck"):
            await calculator.fail()
        rows = [row for row in await b.rows(2) if row.kind == "call"]
        kept = await b.records("calls", 4)
    assert [(row.wire_in, row.wire_out, row.name, row.status) for row in rows] == [
        ("zbus", "zbus", "Calc/plus", 0),
        ("zbus", "zbus", "Calc/fail", Status.FAILED),
    ]
    assert "no luck" in rows[1].error
    assert [record.tag for record in kept] == ["request", "reply"] * 2
    assert b'"params":[1,2]' in kept[0].payload.replace(b" ", b"")


async def test_requests_of_twins_leave_rows_and_records(tmp_path):
    rules = (Capture(pattern="**", topic="calls", kind="call"),)
    key = tmp_path / "key"
    key.write_text(secret_of(1))
    redis = EmbeddedRedis(None, free_port())
    await redis.start()
    twins = tmp_path / "twins.json"
    twins.write_text("[]")
    rmb = Rmb(twin=1, key_file=key, twins=str(twins), redis=str(redis.url))
    async with bench(tmp_path, journal=ON, capture=rules, rmb=rmb) as b:
        server = MessageBusServer(redis.url.port)

        async def double(message: object, payload: str | bytes) -> str:
            return str(payload) * 2

        server.with_handler("calc.double", double)
        serving = asyncio.create_task(server.run())
        client = MessageBusClient(redis.url.port)
        message = client.prepare("calc.double", 1, 30)
        await client.send(message, b"abc")
        (answer,) = await client.read(message)
        assert answer.payload == b"abcabc"
        (row,) = await b.rows(1)
        request, reply = await b.records("calls", 2)
        client.close()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        server.close()
    await redis.stop()
    assert (row.wire_in, row.name, row.caller, row.status) == ("rmb", "calc/double", "twin:1", 0)
    assert (request.payload, reply.payload) == (b"abc", b"abcabc")


# -- captures -------------------------------------------------------------------------------------

PRICES = (Capture(pattern="price/**", topic="prices"),)


@pytest.mark.parametrize("wire", ["polybus", "gsb", "t2"])
async def test_publications_of_every_wire_are_kept(tmp_path, wire):
    async with bench(tmp_path, capture=PRICES) as b, b.connect(wire) as bus:
        await bus.publish("price/usd", b"1.1")
        await bus.publish("weather/usd", b"rain")
        await bus.publish("price/eur", b"0.9")
        records = await b.records("prices", 2)
    assert [(r.tag, r.payload) for r in records] == [("price/usd", b"1.1"), ("price/eur", b"0.9")]
    assert records[0].headers["name"] == "price/usd"
    assert records[0].headers["wire"] == {"polybus": "native"}.get(wire, wire)


@pytest.mark.parametrize(
    ("callers", "services"),
    [("polybus", "polybus"), ("gsb", "gsb"), ("t2", "t2"), ("gsb", "t2"), ("t2", "polybus")],
)
async def test_calls_are_kept_with_their_answers(tmp_path, callers, services):
    rules = (Capture(pattern="calc/**", topic="calls", kind="call"),)
    async with (
        bench(tmp_path, capture=rules) as b,
        b.connect(services) as service,
        b.connect(callers) as bus,
    ):

        async def double(request: bytes) -> bytes:
            return request * 2

        await service.serve("calc/double", double)

        async def echo(request: bytes) -> bytes:
            return request

        await service.serve("other/echo", echo)

        assert await bus.call("other/echo", b"not kept") == b"not kept"
        assert await bus.call("calc/double", b"abc") == b"abcabc"
        request, reply = await b.records("calls", 2)
    assert (request.tag, request.payload) == (journal.REQUEST_TAG, b"abc")
    assert (reply.tag, reply.payload) == (journal.REPLY_TAG, b"abcabc")
    assert request.headers[journal.CALL_ID] == reply.headers[journal.CALL_ID]
    assert reply.headers[journal.CALL_STATUS] == "0"
    wires = {"polybus": "native"}
    assert request.headers[journal.CALL_FROM] == wires.get(callers, callers)
    assert request.headers[journal.CALL_TO] == wires.get(services, services)


async def test_a_kept_call_between_golem_clients_keeps_its_error_code(tmp_path):
    rules = (Capture(pattern="**", topic="calls", kind="call"),)
    async with bench(tmp_path, capture=rules) as b, b.connect("gsb") as golem:

        async def fail(request: bytes) -> bytes:
            raise ValueError("no luck")

        await golem.serve("bad/luck", fail)

        async with b.connect("gsb") as bus:
            with pytest.raises(PolybusError, match="no luck"):
                await bus.call("bad/luck", b"")
        reply = (await b.records("calls", 2))[1]
    assert reply.headers[journal.CALL_STATUS] == str(int(Status.FAILED))
    assert b"no luck" in reply.payload


async def test_a_call_that_nobody_answers_is_kept_with_the_reason(tmp_path):
    rules = (Capture(pattern="**", topic="calls", kind="call"),)
    async with bench(tmp_path, capture=rules) as b, b.connect() as bus:
        with pytest.raises(PolybusError):
            await bus.call("no/body", b"abc")
        request, reply = await b.records("calls", 2)
    assert request.payload == b"abc"
    assert reply.payload == b"no such service: no/body"
    assert reply.headers[journal.CALL_STATUS] == str(int(Status.NOT_FOUND))


async def test_no_header_of_a_client_keeps_its_publication_out_of_a_capture(tmp_path):
    settings = {"capture": PRICES, "relay": (Relay(topic="prices"),)}
    async with bench(tmp_path, **settings) as b, b.connect() as bus:
        await bus.publish("price/usd", b"1.1", headers={"via": "prices", "name": "x", "of": "mine"})
        (record,) = await b.records("prices", 1)
        assert record.headers == {
            "of": "mine",
            "name": "price/usd",
            "wire": "native",
            "publisher": "anonymous:loopback",
        }


# -- relays ---------------------------------------------------------------------------------------


async def test_new_records_of_a_topic_are_published(tmp_path):
    relay = (Relay(topic="orders", name="orders/live"),)
    async with (
        bench(tmp_path, relay=relay) as b,
        b.connect() as bus,
        b.connect("gsb") as golem,
        golem.subscribe("orders/live") as live,
    ):
        await bus.produce("orders", b"one")
        assert (await anext(live)).payload == b"one"


async def test_a_topic_that_is_captured_and_relayed_does_not_go_round(tmp_path):
    settings = {
        "capture": PRICES,
        "relay": (Relay(topic="prices"),),
    }
    async with bench(tmp_path, **settings) as b, b.connect() as bus:
        async with bus.subscribe("price/**") as prices:
            await bus.publish("price/usd", b"1.1")
            first, second = await anext(prices), await anext(prices)
        assert (first.payload, second.payload) == (b"1.1", b"1.1")
        assert second.name == "price/usd"
        await bus.publish("price/end", b"")
        assert [r.tag for r in await b.records("prices", 2)] == ["price/usd", "price/end"]


# -- aliases --------------------------------------------------------------------------------------


async def test_an_alias_reaches_the_service_behind_it(tmp_path):
    alias = (Alias(name="wallet/balance", target="Wallet.V2/Balance"),)
    async with bench(tmp_path, alias=alias, journal=ON) as b, b.connect() as service:

        async def balance(request: bytes) -> bytes:
            return b"42"

        await service.serve("Wallet.V2/Balance", balance)

        async with b.connect("t2") as bus:
            assert await bus.call("wallet/balance", b"") == b"42"
        (row,) = await b.rows(1)
    assert (row.wire_in, row.name, row.status) == ("t2", "wallet/balance", 0)


async def test_a_second_name_is_no_way_around_a_capture_of_the_first(tmp_path):
    alias = (Alias(name="wallet/balance", target="Wallet.V2/Balance"),)
    rules = (
        Capture(pattern="Wallet.V2/**", topic="first", kind="call"),
        Capture(pattern="**", topic="all", kind="call"),
    )
    async with (
        bench(tmp_path, alias=alias, journal=ON, capture=rules) as b,
        b.connect() as service,
        b.connect("t2") as bus,
    ):

        async def balance(request: bytes) -> bytes:
            return b"42"

        await service.serve("Wallet.V2/Balance", balance)
        assert await bus.call("wallet/balance", b"mine") == b"42"
        (row,) = await b.rows(1)
        kept = await b.records("first", 2)
        everything = await b.records("all", 2)
    assert [record.payload for record in kept] == [b"mine", b"42"]
    for record in kept:
        assert record.headers[journal.CALL_ID] == row.id
        assert record.headers[journal.CALL_NAME] == "Wallet.V2/Balance"
        assert record.headers[journal.CALL_FROM] == "t2"
        assert record.headers[journal.CALL_TO] == "native"
    # Once, though both names match.
    assert [record.headers[journal.CALL_NAME] for record in everything] == ["wallet/balance"] * 2


async def test_an_alias_without_its_service_is_not_found(tmp_path):
    alias = (Alias(name="wallet/balance", target="Wallet.V2/Balance"),)
    async with bench(tmp_path, alias=alias) as b, b.connect() as bus:
        with pytest.raises(PolybusError, match="Wallet"):
            await bus.call("wallet/balance", b"")


def test_an_alias_of_an_alias_is_refused(tmp_path):
    alias = (Alias(name="a", target="b"), Alias(name="b", target="c"))
    with pytest.raises(ConfigError, match="not for another alias"):
        Node(Config(listen=(), data=None, alias=alias))
