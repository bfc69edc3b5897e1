"""Traffic and the graph of calls, out of topics as the pipelines and the journal write them."""

from __future__ import annotations

import json

import pytest

import polybus
from polybus.model.clock import ManualClock
from polybus.model.journal import Row, encode_row
from polybus.monitor import history
from polybus.server import config
from tests.monitor.serving import Shut, watched

# As Spark's to_json writes a row: nulls are left out.
ROW = (
    '{"start":"2026-11-16T21:%02d:00.000Z","end":"2026-11-16T21:%02d:00.000Z","protocol":"%s","name":"%s",'
    '"calls":%d,"publications":1,"bytes":100,"errors":%d,"p50_ms":1.5,"p95_ms":2.0,"p99_ms":%s}'
)


def row(
    minute: int, protocol: str, name: str, calls: int, errors: int = 0, p99: float = 3.0
) -> bytes:
    return (ROW % (minute, minute + 1, protocol, name, calls, errors, p99)).encode()


async def produce(bus, topic: str, payloads: list[bytes]) -> None:
    async with polybus.connect(bus.url) as client:
        await client.produce_many(topic, payloads, create=True)


async def test_windows_are_summed_by_protocol_without_gaps(bus):
    rows = [
        row(1, "gsb", "pay", 10),
        row(1, "gsb", "bill", 5, errors=2),
        row(4, "gsb", "pay", 7, p99=9.5),
        row(4, "t2", "heat", 1),
    ]
    await produce(bus, history.TRAFFIC, rows)
    found = await bus.get("/history/traffic")
    assert found["present"]
    assert found["window_ms"] == 60_000
    assert [(b - a) for a, b in zip(found["times_ms"], found["times_ms"][1:], strict=False)] == [
        60_000
    ] * 3
    gsb, t2 = found["series"]
    assert gsb["protocol"] == "gsb"
    assert gsb["calls"] == [15, 0, 0, 7]
    assert gsb["errors"] == [2, 0, 0, 0]
    assert t2["calls"] == [0, 0, 0, 1]
    assert [(n["name"], n["calls"], n["worst_p99_ms"]) for n in found["names"]] == [
        ("pay", 17, 9.5),
        ("bill", 5, 3.0),
        ("heat", 1, 3.0),
    ]


async def test_what_is_no_row_is_counted_and_left_out(bus):
    rows = [b"{", b"[]", b'{"start":5}', row(1, "gsb", "pay", 10), row(1, "gsb", "pay", -1)]
    rows += [json.dumps({**json.loads(rows[3]), "calls": 2**70}).encode()]
    await produce(bus, history.TRAFFIC, rows)
    found = await bus.get("/history/traffic")
    assert (found["rows"], found["rejected"]) == (1, 5)


async def test_a_row_from_another_age_does_not_make_the_answer_long(bus):
    old = row(1, "gsb", "pay", 10).replace(b"2026-11-16", b"0001-01-01")
    await produce(bus, history.TRAFFIC, [old, row(1, "gsb", "pay", 4)])
    found = await bus.get("/history/traffic")
    assert len(found["times_ms"]) == history.MAX_WINDOWS
    assert found["series"][0]["calls"][-1] == 4


async def test_the_graph_tells_who_called_whom(bus):
    rows = [
        Row(
            1_000_000 * n,
            "call",
            str(n),
            "gsb",
            "native",
            "pay",
            "shop",
            status=n % 2,
            duration_us=n,
        )
        for n in range(1, 11)
    ]
    rows += [Row(5_000_000, "call", "x", "t2", "t2", "heat", "thermostat")]
    rows += [Row(5_000_000, "publish", "x", "t2", "t2", "news", "thermostat")]
    await produce(bus, history.JOURNAL, [encode_row(each) for each in rows])
    found = await bus.get("/history/graph")
    assert (found["rows"], found["from_ms"], found["to_ms"]) == (12, 1000, 10_000)
    first, second = found["edges"]
    assert first == {
        "caller": "shop",
        "name": "pay",
        "protocol_in": "gsb",
        "protocol_out": "native",
        "calls": 10,
        "errors": 5,
        "rate": 1.111,
        "p99_ms": 0.009,
    }
    assert (second["caller"], second["calls"], second["p99_ms"]) == ("thermostat", 1, None)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"[]",
        b"[1]",
        b'[1,5,"call","x","gsb","gsb",7,"shop"]',
        b'[1,5,"call","x","gsb","gsb","pay","shop",0,0,"ok"]',
        b'[1,5,"call","x","gsb","gsb","pay","shop",0,0,0,1e9]',
        b'[1,99999999999999999999999,"call","x","gsb","gsb","pay"]',
    ],
)
async def test_a_hostile_row_is_rejected(bus, payload):
    await produce(bus, history.JOURNAL, [payload, encode_row(Row(1, "call", "x", "a", "b", "pay"))])
    found = await bus.get("/history/graph")
    assert (found["rows"], found["rejected"]) == (1, 1)


async def test_without_the_pipelines_there_is_nothing_and_no_error(bus):
    assert (await bus.get("/history/traffic"))["present"] is False
    assert (await bus.get("/history/graph"))["edges"] == []


async def test_an_answer_is_kept_for_all_who_ask(bus):
    made = 0

    async def make(topics: object) -> int:
        nonlocal made
        made += 1
        return made

    clock = ManualClock()
    kept = history.Kept(clock, make)
    assert [await kept.get(bus.node.topics) for _ in range(3)] == [1, 1, 1]
    clock.advance(history.KEPT_S + 1)
    assert await kept.get(bus.node.topics) == 2


async def test_history_is_only_for_those_who_may_look(tmp_path):
    async with watched(tmp_path, Shut()) as bus:
        for path in ("traffic", "graph"):
            assert (await bus.ask(f"/api/v1/history/{path}")).status == 403


async def test_the_graph_is_drawn_from_what_the_node_itself_notes(tmp_path):
    async with (
        watched(tmp_path, journal=config.Journal(enabled=True)) as bus,
        polybus.connect(bus.url) as service,
        polybus.connect(bus.url) as client,
    ):
        await service.serve("twice", lambda body: body * 2)
        await client.call("twice", b"ab")
        assert bus.node.topics is not None
        found = await history.call_graph(bus.node.topics)
        while not found.edges:
            await bus.get("/me")
            found = await history.call_graph(bus.node.topics)
    edge = found.edges[0]
    assert (edge.name, edge.calls, edge.errors) == ("twice", 1, 0)
    assert (edge.protocol_in, edge.protocol_out) == ("native", "native")
    assert found.rejected == 0
