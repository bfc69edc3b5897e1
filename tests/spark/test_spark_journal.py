"""What a node writes of its own traffic is what the pipelines read."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable

import pytest
from flatbuffers import flexbuffers
from pyspark.sql import functions as F

import polybus
from polybus.errors import PolybusError
from polybus.model.journal import CALL_FROM, TOPIC
from polybus.protocols.gsb.client import GsbClient
from polybus.protocols.t2.client import Connector as T2Connector
from polybus.protocols.t2.typed import RequestProtocol
from polybus.protocols.zbus.broker import Broker
from polybus.protocols.zbus.rpc_client import RpcInvoker
from polybus.spark.functions import decode_as
from polybus.spark.pipelines import graph, journal, latency, report
from polybus.spark.pipelines.running import Bus
from tests.cli.processes import ANY_PORT, node

CALLS = 20
CONFIG = """
[journal]
enabled = true

[[capture]]
pattern = "calc/*"
topic = "captured"
kind = "call"

[[capture]]
pattern = "wire/*"
topic = "wires"
kind = "call"
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """A node that has passed on calls, some of which failed, and noted them."""
    folder = tmp_path_factory.mktemp("journal")
    (folder / "node.toml").write_text(CONFIG)
    args = ("--listen", ANY_PORT, "--data", str(folder / "data"))
    with node(*args, "--config", str(folder / "node.toml")) as (_, where):
        with polybus.connect_sync(where[0]) as service, polybus.connect_sync(where[0]) as caller:

            @service.serve("calc/half")
            def half(number: int) -> float:
                if number == 13:
                    raise ValueError("13 is not liked")
                return number / 2

            for number in range(CALLS):
                try:
                    assert caller.call("calc/half", number, type=float) == number / 2
                except PolybusError:
                    assert number == 13
            wait_for_rows(caller)
        yield where[0]


def wait_for_rows(bus) -> None:
    """The journal is written behind what it tells of."""
    wait_until(lambda: bus.declare_topic(TOPIC).end >= CALLS)
    wait_until(lambda: bus.declare_topic("captured").end >= 2 * CALLS)


def wait_until(there: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not there():
        assert time.monotonic() < end, "the node wrote no journal"
        time.sleep(0.05)


def test_the_journal_of_a_node_is_measured_without_a_row_rejected(url, spark, tmp_path):
    records = Bus(spark, url).read(TOPIC)
    rows = journal.journal_rows(records).persist()
    assert journal.rejected(records).count() == 0
    (edge,) = graph.edges(rows).where("name = 'calc/half'").collect()
    assert (edge.calls, edge.error_share, edge.wire_in) == (CALLS, 1 / CALLS, "native")
    assert edge.p99_ms > 0
    report.write_report(rows, tmp_path / "page.html", "Real traffic")
    assert "13 is not liked" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_captured_calls_are_joined_and_decoded(url, spark):
    records = Bus(spark, url).read("captured")
    joined = latency.join_replies(latency.requests(records), latency.replies(records))
    row = latency.latency(joined).collect()[0]
    assert (row.name, row.requests, row.unanswered) == ("calc/half", CALLS, 0)
    asked = records.where("tag = 'request'").orderBy("offset")
    found = asked.select(decode_as(F.col("headers")[CALL_FROM], "payload").alias("d")).collect()
    assert [json.loads(row.d.json) for row in found] == list(range(CALLS))


WIRES = ("t2", "gsb", "zbus")
VALUE = {"name": "ann", "n": [1, 2.5, None, True], "text": "long enough to be packed " * 100}


async def call_from_every_wire(url: str) -> None:
    """Each with its own client and the payload that its users send."""
    address = url.removeprefix("tcp://")
    async with polybus.connect(url) as service:
        await service.serve("wire/same", return_it)
        async with await T2Connector.tcp(address).connect() as t2:
            assert await t2.request(RequestProtocol("wire", object, object), "same", VALUE) == VALUE
        async with GsbClient(url) as gsb:
            body = bytes(flexbuffers.Dumps(VALUE))
            assert await gsb.call("/wire/same", body) == body
        async with Broker(address) as broker:
            await RpcInvoker(broker, "wire").same(VALUE)


async def return_it(body: bytes) -> bytes:
    return body


def test_what_the_clients_of_each_wire_sent_is_decoded_by_its_name(url, spark):
    asyncio.run(call_from_every_wire(url))
    with polybus.connect_sync(url) as bus:
        wait_until(lambda: bus.declare_topic("wires").end >= 2 * 3)
    records = Bus(spark, url).read("wires").where("tag = 'request'")
    wire = F.col("headers")[CALL_FROM]
    rows = records.select(wire.alias("wire"), decode_as(wire, "payload").alias("d")).collect()
    assert {row.wire: json.loads(row.d.json) for row in rows} == dict.fromkeys(WIRES, VALUE)
