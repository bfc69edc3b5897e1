"""Every pipeline on a small frame whose result is known, and as a whole against a real node."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from uuid import uuid4

import pytest
from deltalake import DeltaTable
from pyspark.sql import functions as F

from polybus.errors import ConfigError
from polybus.model.journal import (
    CALL_ID,
    CALL_NAME,
    CALL_STATUS,
    REPLY_TAG,
    REQUEST_TAG,
    Row,
    encode_row,
)
from polybus.model.message import Status
from polybus.model.record import NewRecord
from polybus.spark.pipelines import (
    archive,
    deadletters,
    graph,
    journal,
    lake,
    latency,
    replay,
    report,
    traffic,
)
from polybus.spark.pipelines.running import Bus

SECOND = 1_000_000
NOON = 1_767_960_000 * SECOND  # 2026-01-09 12:00:00 UTC
RECORD = (
    "topic string, offset bigint, timestamp timestamp, key binary, tag string, "
    "headers map<string,string>, payload binary"
)


@pytest.fixture
def bus(spark, served) -> Bus:
    return Bus(spark, served.url)


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(NOON / SECOND + seconds, UTC)


def call(seconds: float, name: str, caller: str, ms: int, status: int = 0, error: str = "") -> Row:
    time_us = NOON + int(seconds * SECOND)
    return Row(time_us, "call", "", "gsb", "t2", name, caller, 10, 20, status, ms * 1000, error)


JOURNAL = [
    *(call(i * 0.5, "wallet/pay", "shop", ms=i + 1) for i in range(100)),
    call(10, "wallet/pay", "shop", ms=500, status=5, error="timed out"),
    call(70, "wallet/pay", "bot", ms=7),
    Row(NOON + 5 * SECOND, "publish", "", "t2", "", "price/eur", "feed", 40),
]


@pytest.fixture
def rows(spark):
    frame = spark.createDataFrame(
        [(i, encode_row(row)) for i, row in enumerate(JOURNAL)], "offset bigint, payload binary"
    )
    return journal.journal_rows(frame)


def test_journal_records_are_rows_or_rejected(spark):
    payloads = [encode_row(JOURNAL[0]), b"junk", b'["x"]', b'[2,5,"call","i","a","b","n"]', b"{}"]
    frame = spark.createDataFrame(list(enumerate(payloads)), "offset bigint, payload binary")
    found = journal.journal_rows(frame).orderBy("offset").collect()
    assert [row.offset for row in found] == [0, 3]
    assert (found[0].name, found[0].duration_us, found[0].time) == (
        "wallet/pay",
        1000,
        at(0).replace(tzinfo=None),
    )
    assert found[1].status is None
    refused = journal.rejected(frame).orderBy("offset").collect()
    assert [row.offset for row in refused] == [1, 2, 4]
    assert refused[0].reason.startswith("no journal row")


def test_traffic_counts_per_minute_protocol_and_name(rows):
    found = traffic.traffic(rows).orderBy("start", "protocol").collect()
    told = [(r.protocol, r.name, r.calls, r.publications, r.bytes, r.errors) for r in found]
    assert told == [
        ("gsb", "wallet/pay", 101, 0, 101 * 30, 1),
        ("t2", "price/eur", 0, 1, 40, 0),
        ("gsb", "wallet/pay", 1, 0, 30, 0),
    ]
    assert (found[0].p50_ms, found[0].p95_ms, found[0].p99_ms) == (51.0, 96.0, 100.0)
    assert found[1].p50_ms is None
    assert (found[0].end - found[0].start).seconds == 60


def test_edges_tell_who_calls_whom(rows):
    found = graph.edges(rows).collect()
    assert [(e.caller, e.name, e.calls) for e in found] == [
        ("shop", "wallet/pay", 101),
        ("bot", "wallet/pay", 1),
    ]
    assert found[0].error_share == pytest.approx(1 / 101)
    assert found[0].rate == pytest.approx(101 / 70, abs=0.001)
    drawing = graph.draw(found)
    assert drawing.count("<path d=") == 2
    assert "shop → wallet/pay: 101 calls" in drawing


def test_requests_meet_their_replies_or_stay_unanswered(spark):
    def record(offset, seconds, tag, ident, status="0"):
        headers = {CALL_ID: ident, CALL_NAME: "calc/add", CALL_STATUS: status}
        return ("calls", offset, at(seconds), b"", tag, headers, b"xx")

    frame = spark.createDataFrame(
        [
            record(0, 0, REQUEST_TAG, "1"),
            record(1, 0.1, REPLY_TAG, "1", None),  # more is to come
            record(1, 0.25, REPLY_TAG, "1"),
            record(2, 1, REQUEST_TAG, "2"),
            record(3, 2, REQUEST_TAG, "3"),
            record(4, 70, REPLY_TAG, "3"),
            record(5, 70, REQUEST_TAG, "4"),
            record(6, 71, REPLY_TAG, "4", str(int(Status.GONE))),
        ],
        RECORD,
    )
    joined = latency.join_replies(latency.requests(frame), latency.replies(frame), "1 minute")
    found = {row.id: row.duration_us for row in joined.collect()}
    assert found == {"1": 250_000, "2": None, "3": None, "4": None}
    row = latency.latency(joined).collect()[0]
    assert (row.name, row.requests, row.unanswered, row.p50_ms) == ("calc/add", 4, 3, 250.0)


def test_dead_letters_are_shown_by_cause_and_put_back_without_their_marks(spark):
    def letter(offset, cause, payload):
        headers = {"dead-topic": "orders", "dead-group": "g", "dead-cause": cause, "own": "1"}
        return ("orders.dead", offset, at(offset), b"k", "t", headers, payload)

    rows = [letter(i, "attempts", b"bad %d" % i) for i in range(5)]
    rows.append(letter(9, "expired", b"x"))
    stray: tuple[object, ...] = ("o.dead", 1, at(0), b"", "", {}, b"?")
    frame = spark.createDataFrame([*rows, stray], RECORD)
    found = deadletters.causes(frame, samples=2).collect()
    assert [(r.source, r.cause, r.letters, r.samples) for r in found] == [
        ("orders", "attempts", 5, ["bad 0", "bad 1"]),
        ("?", "?", 1, ["?"]),
        ("orders", "expired", 1, ["x"]),
    ]
    back = deadletters.to_requeue(frame, "headers['dead-cause'] = 'expired'").collect()
    assert [(r.topic, r.headers, bytes(r.payload)) for r in back] == [
        ("orders", {"own": "1", "requeued-from": "orders.dead@9"}, b"x")
    ]


def test_replay_selects_and_slices_in_order(spark):
    rows: list[tuple[object, ...]] = [
        ("t", i, at(i), b"", "", {}, b"%d" % i) for i in (3, 1, 0, 2, 4)
    ]
    frame = spark.createDataFrame(rows, RECORD)
    chosen = replay.select(frame, "2026-01-09T12:00:01Z", "2026-01-09T12:00:04Z", "offset != 2")
    assert sorted(row.offset for row in chosen.collect()) == [1, 3]
    numbered = replay.number(frame, 2).orderBy("offset").collect()
    assert [row.slice for row in numbered] == [0, 0, 1, 1, 2]


def test_json_schemas_grow_and_what_does_not_fit_is_rejected(spark):
    def frame(*payloads):
        return spark.createDataFrame(
            [("t", i, at(i), b"", "", {}, p) for i, p in enumerate(payloads)], RECORD
        )

    first = archive.infer_schema(frame(b'{"a": 1}'))
    second = archive.infer_schema(frame(b'{"a": "x", "b": {"c": true}}'))
    merged = archive.merge_schemas(first, second)
    assert merged.simpleString() == "struct<a:bigint,b:struct<c:boolean>>"
    good, bad = archive.split_json(
        frame(b'{"a": 1}', b"nope", b'{"a": "x"}', b'{"b":{"c":true}}'), merged
    )
    assert [row.offset for row in good.orderBy("offset").collect()] == [0, 3]
    refused = bad.orderBy("offset").collect()
    assert [(row.offset, bytes(row.payload)) for row in refused] == [
        (1, b"nope"),
        (2, b'{"a": "x"}'),
    ]
    assert "no JSON object" in refused[0].reason


def test_archive_fills_a_lake_once_and_compaction_changes_nothing(served, bus, tmp_path):
    one, two = served.topic(*(b"%d" % i for i in range(500))), served.topic(b"x")
    where = str(tmp_path / "lake")
    assert archive.archive(bus, f"{one},{two}", where, max_rows=200) == (501, 0)
    served.bus.produce_many(one, [b"more"] * 10)
    assert archive.archive(bus, f"{one},{two}", where) == (10, 0)
    assert archive.archive(bus, f"{one},{two}", where) == (0, 0)

    def offsets():
        rows = lake.read(bus.spark, where).select("topic", "offset", "date").collect()
        assert all(len(row.date) == 10 for row in rows)
        return sorted((row.topic, row.offset) for row in rows)

    expected = sorted([*((one, i) for i in range(510)), (two, 0)])
    assert offsets() == expected
    before, after = archive.compact(bus, where)
    assert (before, after) == (4, 2)
    assert offsets() == expected
    served.bus.produce_many(two, [b"y"])
    archive.archive(bus, f"{one},{two}", where)
    assert offsets() == sorted([*expected, (two, 1)])


def test_a_compaction_that_was_killed_is_finished_or_dropped(served, bus, tmp_path, monkeypatch):
    topic = served.topic(*(b"1" for _ in range(30)))
    where = str(tmp_path / "lake")
    archive.archive(bus, topic, where, max_rows=10)
    removed = []
    with monkeypatch.context() as patch:
        patch.setattr(lake.Folder, "remove", lambda self, name: removed.append(name))
        archive.compact(bus, where)
    assert removed
    count = lake.read(bus.spark, where).select("offset").distinct().count()
    assert lake.read(bus.spark, where).count() == count == 30
    archive.compact(bus, where)
    assert lake.read(bus.spark, where).count() == 30


def test_archive_keeps_json_as_columns_and_rejects_the_rest(served, bus, tmp_path):
    topic = served.topic(b'{"a": 1}', b"junk")
    where = str(tmp_path / "lake")
    assert archive.archive(bus, topic, where, as_json=True) == (1, 1)
    served.bus.produce_many(topic, [b'{"a": 2, "b": "new"}'])
    archive.archive(bus, topic, where, as_json=True)
    rows = (
        lake.read(bus.spark, where)
        .orderBy("offset")
        .select("offset", "value.a", "value.b")
        .collect()
    )
    assert [row[:] for row in rows] == [(0, 1, None), (2, 2, "new")]
    refused = lake.read(bus.spark, where, "_rejected").collect()
    assert [(row.offset, bytes(row.payload)) for row in refused] == [(1, b"junk")]


def test_no_payload_stops_an_archive_or_spoils_the_lake(served, bus, tmp_path):
    topic = served.topic(b"junk", b"[1]", b"", b"\xff{}", b'[{"a": 9}]')
    where = str(tmp_path / "lake")
    assert archive.archive(bus, topic, where, as_json=True) == (0, 5)
    served.bus.produce_many(
        topic,
        [
            b"{}",
            b'{"a": 1, "A": 2, "b": [{"c": 1, "C": 2}]}',
            b'{"_bad": 3, "_corrupt_record": 4, "": 5, "x.y z": 6}',
        ],
    )
    assert archive.archive(bus, topic, where, as_json=True) == (3, 0)
    rows = lake.read(bus.spark, where).orderBy("offset").collect()
    assert [row.value.asDict(True).get("x.y z") for row in rows] == [None, None, 6]
    assert [(row.value["_bad"], row.value["_corrupt_record"]) for row in rows][2] == (3, 4)


def test_a_delta_table_takes_each_batch_once(served, bus, tmp_path):
    topic = served.topic(*(b"%d" % i for i in range(30)))
    where = tmp_path / "lake"
    archive.archive(bus, topic, str(where), delta=True, max_rows=10)
    for file in (where / "_checkpoint" / "commits").glob("*2*"):
        file.unlink()  # as after a driver that was killed between write and commit
    served.bus.produce_many(topic, [b"more"])
    archive.archive(bus, topic, str(where), delta=True)
    found = DeltaTable(str(where / "delta")).to_pyarrow_table()
    assert sorted(found["offset"].to_pylist()) == list(range(31))


def test_traffic_goes_to_the_lake_and_back_to_the_bus(served, bus, tmp_path):
    late = call(600, "a/b", "x", 1)
    topic = served.topic(*(encode_row(row) for row in [*JOURNAL, late]), b"junk")
    where = str(tmp_path / "lake")
    before = served.end(traffic.TRAFFIC_TOPIC)
    traffic.run_traffic(bus, where, topic=topic)
    windows = [json.loads(p) for p in served.payloads(traffic.TRAFFIC_TOPIC, before)]
    assert sum(w["calls"] for w in windows) == 102  # the last window is still open
    assert sum(row.calls for row in lake.read(bus.spark, where, "traffic").collect()) == 102
    refused = lake.read(bus.spark, where, "_rejected_journal").collect()
    assert [bytes(row.payload) for row in refused] == [b"junk"]

    # The windows of noon are closed: a row of theirs changes nothing, and is told of.
    served.bus.produce_many(topic, [encode_row(call(1, "a/b", "x", 1)), encode_row(late)])
    assert traffic.run_traffic(bus, where, topic=topic).late == 1
    assert sum(row.calls for row in lake.read(bus.spark, where, "traffic").collect()) == 102


def test_latency_sends_unanswered_requests_to_their_topic(served, bus, tmp_path):
    topic = served.topic()
    declared = served.bus.topic(topic).created_ms
    time.sleep(0.6)  # a topic takes times from its declaration until now

    def record(tag, ident, ms):
        headers = {CALL_ID: ident, CALL_NAME: "n", CALL_STATUS: "0"}
        return NewRecord(b"x", b"", tag, headers, "", declared + ms)

    served.bus.produce_many(
        topic,
        [
            record(REQUEST_TAG, "1", 1),
            record(REQUEST_TAG, "2", 2),
            record(REPLY_TAG, "1", 3),
            record(REQUEST_TAG, "3", 500),
            record(REPLY_TAG, "3", 501),
        ],
    )
    where = str(tmp_path / "lake")
    before = served.end(latency.UNANSWERED_TOPIC)
    latency.run_latency(bus, topic, where, patience="100 milliseconds", lateness="0 seconds")
    unanswered = served.payloads(latency.UNANSWERED_TOPIC, before)
    lost = [json.loads(payload)["id"] for payload in unanswered]
    assert lost == ["2"]


def test_replay_publishes_in_order_and_a_named_one_only_what_is_missing(served, bus):
    source, target = served.topic(*(b"%d" % i for i in range(40))), f"t{uuid4().hex[:8]}"
    waits: list[float] = []

    def run(rate: float, most: int) -> int:
        chosen = bus.read(source).where(F.col("offset") < most)
        return replay.replay(bus, chosen, target, rate=rate, run="r", pause=waits.append)

    assert run(3, 30) == 30
    assert len(waits) == 1
    assert 0 < waits[0] <= replay.SLICE_SECONDS
    assert run(3, 30) == 0
    assert run(0.1, 32) == 2  # another rate, and more of it: one in ten seconds
    assert len(waits) == 2
    assert 5 < waits[1] <= 10
    assert run(1, 40) == 8
    assert served.payloads(target) == [b"%d" % i for i in range(40)]
    assert replay.replay(bus, bus.read(target), served.topic(), run="again") == 40


def test_replay_takes_topics_of_a_lake_by_pattern(served, bus, tmp_path):
    lake_folder, target = str(tmp_path / "lake"), served.topic()
    for name in ("rep/a", "rep/b"):
        served.topic(name.encode(), name=name)
    archive.archive(bus, "rep/*", lake_folder)
    assert replay.replay(bus, replay.from_lake(bus, lake_folder, "rep/*"), target) == 2
    assert served.payloads(target) == [b"rep/a", b"rep/b"]
    with pytest.raises(ConfigError, match="option lake: there is nothing of rep/c"):
        replay.from_lake(bus, lake_folder, "rep/c")


def test_a_letter_is_put_back_once_also_by_another_selection_and_beside_new_ones(served, bus):
    target = served.topic()

    def letter(text: bytes, cause: str, **more: str) -> NewRecord:
        return NewRecord(text, headers={"dead-topic": target, "dead-cause": cause, **more})

    dead = served.topic(letter(b"a", "expired"), letter(b"b", "attempts"), letter(b"c", "expired"))
    expired = "headers['dead-cause'] = 'expired'"
    assert [deadletters.requeue(bus, dead, expired) for _ in range(2)] == [2, 0]
    # One that was put back, and died again.
    served.bus.produce_many(dead, [letter(b"a", "attempts", **{"requeued-from": f"{dead}@0"})])
    assert [deadletters.requeue(bus, dead) for _ in range(2)] == [2, 0]
    assert served.payloads(target) == [b"a", b"c", b"b", b"a"]


def test_the_report_is_one_page_that_needs_nothing_else(rows, tmp_path):
    figures = report.write_report(rows, tmp_path / "r.html", "A <title>", tmp_path / "png")
    page = (tmp_path / "r.html").read_text()
    assert figures.totals["rows"] == len(JOURNAL)
    assert page.count("<svg") == 2 * 4  # for a desk and for a phone
    assert "A &lt;title&gt;" in page
    assert "timed out" in page
    for outside in ("<script", "<link", "src=", "@import"):
        assert outside not in page
    assert {file.name for file in (tmp_path / "png").iterdir()} == {
        "rates.png",
        "latency.png",
        "heat.png",
    }
