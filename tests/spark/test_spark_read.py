"""Batch and stream reads of a real node through a real Spark."""

from __future__ import annotations

import json

import pytest
from pyspark.errors import AnalysisException, PythonException, StreamingQueryException

import polybus
from polybus.model.record import NewRecord
from tests.cli.processes import ANY_PORT, node


def offsets(frame) -> list[int]:
    return sorted(row.offset for row in frame.select("offset").collect())


def run_once(frame, folder, checkpoint):
    """Everything that is there into a lake, then the end; the query."""
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start(str(folder))
    query.awaitTermination()
    return query


def test_records_come_with_all_their_columns(served, read):
    topic = served.topic(
        NewRecord(b"one", b"k", "red", {"a": "1", "b": ""}), NewRecord(b"\xff\x00"), NewRecord(b"")
    )
    rows = read(topic).orderBy("offset").collect()
    assert [(r.topic, r.partition, r.offset) for r in rows] == [(topic, 0, i) for i in range(3)]
    assert [bytes(r.payload) for r in rows] == [b"one", b"\xff\x00", b""]
    assert [(bytes(r.key), r.tag, r.headers) for r in rows[:2]] == [
        (b"k", "red", {"a": "1", "b": ""}),
        (b"", "", {}),
    ]
    stored = served.bus.fetch(topic)[0].time_ms
    assert int(rows[0].timestamp.timestamp() * 1000) == stored


def test_headers_can_be_left_out(served, read):
    frame = read(served.topic(b"1"), includeHeaders=False)
    assert "headers" not in frame.columns
    assert frame.count() == 1


def test_many_partitions_hold_every_offset_once(served, read):
    topic = served.topic(*(bytes(50) for _ in range(10_000)))
    frame = read(topic, rowsPerPartition=999)
    assert frame.rdd.getNumPartitions() == 11
    assert offsets(frame) == list(range(10_000))
    assert read(topic, minPartitions=4).rdd.getNumPartitions() == 4


def test_several_topics_come_as_a_list_of_python_too(served, spark, read):
    topics = [served.topic(b"1"), served.topic(b"2")]
    assert read(topics).count() == 2
    assert spark.read.format("polybus").option("url", served.url).load(topics).count() == 2


def test_a_pattern_reads_every_topic_that_matches(served, read):
    for name in ("pat/a", "pat/b"):
        served.topic(b"1", b"2", name=name)
    found = {row.topic: row["count"] for row in read("pat/*").groupBy("topic").count().collect()}
    assert found == {"pat/a": 2, "pat/b": 2}


def test_an_empty_topic_is_an_empty_frame(served, read):
    assert read(served.topic()).collect() == []


def test_positions_cut_what_is_read(served, read):
    topic = served.topic(*(b"%d" % i for i in range(100)))
    bounds = {"startingOffsets": json.dumps({topic: 10}), "endingOffsets": json.dumps({topic: 20})}
    assert offsets(read(topic, **bounds)) == list(range(10, 20))
    assert read(topic, startingOffsets="latest").count() == 0
    assert read(topic, startingOffsets="2000-01-01T00:00:00Z").count() == 100
    assert read(topic, endingOffsets="2000-01-01T00:00:00Z").count() == 0


def test_filters_narrow_the_ranges_before_anything_is_fetched(served, read):
    topic = served.topic(*(bytes(10) for _ in range(1000)))
    other = served.topic(b"1")

    def load():
        return read(f"{topic},{other}", rowsPerPartition=100, pushdown="true")

    cut = load().where(f"topic = '{topic}' and offset >= 250 and offset < 260")
    assert cut.rdd.getNumPartitions() == 1
    assert offsets(cut) == list(range(250, 260))
    assert load().where(f"topic in ('{other}', 'x')").count() == 1
    late = load().where("timestamp > timestamp'2100-01-01'")
    assert late.rdd.getNumPartitions() == 1
    assert late.count() == 0
    assert load().where("offset < 5 or offset > 995").count() == 5 + 4 + 1


def test_where_the_session_forbids_to_push_filters_a_frame_that_asks_for_it_is_read_whole(
    served, read, spark
):
    topic = served.topic(*(b"1" for _ in range(50)))
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    try:
        frame = read(topic, pushdown="true", rowsPerPartition=10).where("offset between 10 and 19")
        assert frame.rdd.getNumPartitions() == 5
        assert offsets(frame) == list(range(10, 20))
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


@pytest.mark.parametrize("given", ["payload string", "payload binary, offset bigint"])
def test_columns_of_ones_own_are_refused(served, spark, given):
    reader = spark.read.format("polybus").option("url", served.url).schema(given)
    with pytest.raises(AnalysisException, match="read these and select from them"):
        reader.load(served.topic(b"1")).collect()


def test_without_pushdown_a_frame_serves_any_number_of_queries(served, read):
    frame = read(served.topic(*(b"1" for _ in range(50))))
    assert offsets(frame.where("offset between 10 and 19")) == list(range(10, 20))
    assert frame.count() == 50


def test_spark_sql_reads_a_view(served, spark):
    topic = served.topic(*(b"1" for _ in range(7)))
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW records USING polybus "
        f"OPTIONS (url '{served.url}', topics '{topic}')"
    )
    assert spark.sql("SELECT count(*), max(offset) FROM records").collect()[0][:] == (7, 6)


def test_executors_read_and_write_through_tls(secured, spark):
    options = {"url": secured.url, **secured.options}
    rows = spark.range(100, numPartitions=2).selectExpr("string(id) AS payload")
    rows.write.format("polybus").options(**options, topic="t").mode("append").save()
    assert offsets(spark.read.format("polybus").options(**options, topics="t").load()) == [
        *range(100)
    ]


def test_a_wrong_token_ends_in_one_message_that_names_it(guarded, spark):
    reader = spark.read.format("polybus").options(url=guarded, topics="t")
    with pytest.raises(AnalysisException, match=r"option token: .* a token that nobody has"):
        reader.option("token", "guess").load().count()


def test_a_corrupt_chunk_ends_in_one_message_that_names_its_place(spark, tmp_path):
    with node("--listen", ANY_PORT, "--data", str(tmp_path)) as (process, where):
        with polybus.connect_sync(where[0]) as bus:
            bus.produce_many("t", [b"payload that will be found"] * 100, create=True)
        process.terminate()
        process.wait()
    for file in (tmp_path / "topics").rglob("*"):
        if file.is_file():
            file.write_bytes(file.read_bytes().replace(b"will be", b"WILL BE", 1))
    with node("--listen", ANY_PORT, "--data", str(tmp_path)) as (_, where):
        frame = spark.read.format("polybus").options(url=where[0], topics="t").load()
        with pytest.raises(PythonException, match=r"corrupt chunk in .*\.seg at byte"):
            frame.collect()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topics": "nowhere"}, "no such topic: nowhere"),
        ({"topics": "a", "url": "tcp://127.0.0.1:1"}, "option url: no node answers"),
        ({}, "option topics: name a topic"),
        ({"topics": "a", "colour": "red"}, "option colour: there is no such option"),
    ],
)
def test_wrong_options_end_in_one_message_that_names_them(served, spark, options, message):
    reader = spark.read.format("polybus").options(**{"url": served.url, **options})
    with pytest.raises(AnalysisException, match=message):
        reader.load().count()


def test_an_offset_that_is_gone_fails_unless_loss_is_allowed(served, read):
    topic = served.topic(*(b"1" for _ in range(10)))
    served.bus.empty_topic(topic)
    served.bus.produce_many(topic, [b"2", b"3"])
    start = json.dumps({topic: 3})
    with pytest.raises(AnalysisException, match="records are lost"):
        read(topic, startingOffsets=start).count()
    assert offsets(read(topic, startingOffsets=start, failOnDataLoss="false")) == [10, 11]


def test_a_stream_goes_on_from_its_checkpoint_and_reports_its_group(
    served, stream, spark, tmp_path
):
    topic = served.topic(*(b"1" for _ in range(1000)))
    frame = stream(topic, maxRowsPerTrigger=400, group="lake")
    query = run_once(frame, tmp_path / "lake", tmp_path / "check")
    assert [batch["numInputRows"] for batch in query.recentProgress] == [400, 400, 200]
    served.bus.produce_many(topic, [b"2"] * 500)
    run_once(frame, tmp_path / "lake", tmp_path / "check")
    run_once(frame, tmp_path / "lake", tmp_path / "check")
    assert offsets(spark.read.parquet(str(tmp_path / "lake"))) == list(range(1500))
    # Spark tells a source of a batch's end when the next one begins.
    assert served.bus.group(topic, "lake").floor >= 800


def test_a_trigger_is_bounded_by_bytes_too(served, stream, tmp_path):
    topic = served.topic(*(bytes(1000) for _ in range(1000)))
    query = run_once(stream(topic, maxBytesPerTrigger=300_000), tmp_path / "l", tmp_path / "c")
    assert len(query.recentProgress) >= 4


def test_a_topic_that_appears_later_is_read_from_its_beginning(served, stream, spark, tmp_path):
    served.topic(b"1", name="late/a")
    run_once(stream("late/*"), tmp_path / "lake", tmp_path / "check")
    served.topic(b"1", b"2", name="late/b")
    run_once(stream("late/*"), tmp_path / "lake", tmp_path / "check")
    found = spark.read.parquet(str(tmp_path / "lake")).groupBy("topic").count().collect()
    assert {row.topic: row["count"] for row in found} == {"late/a": 1, "late/b": 2}


def test_a_stream_that_retention_overtook_fails_unless_loss_is_allowed(
    served, stream, spark, tmp_path
):
    topic = served.topic(*(b"1" for _ in range(10)))
    run_once(stream(topic), tmp_path / "lake", tmp_path / "check")
    served.bus.produce_many(topic, [b"2"] * 10)
    served.bus.empty_topic(topic)
    served.bus.produce_many(topic, [b"3"] * 5)
    with pytest.raises(StreamingQueryException, match="records are lost"):
        run_once(stream(topic), tmp_path / "lake", tmp_path / "check")
    run_once(stream(topic, failOnDataLoss="false"), tmp_path / "lake", tmp_path / "check")
    assert offsets(spark.read.parquet(str(tmp_path / "lake"))) == [*range(10), *range(20, 25)]
