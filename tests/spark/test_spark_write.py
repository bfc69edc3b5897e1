"""Batch and stream writes into a real node: whole, in order, once."""

from __future__ import annotations

import shutil

import pytest
from pyspark.sql import functions as F


def write(frame, served, **options):
    frame.write.format("polybus").option("url", served.url).options(**options).mode("append").save()


def test_rows_become_records_with_all_their_parts(spark, served):
    topic = served.topic()
    frame = spark.range(3).select(
        F.format_string("p%d", "id").alias("payload"),
        F.lit("key").alias("key"),
        F.lit("tag").alias("tag"),
        F.create_map(F.lit("a"), F.lit("1")).alias("headers"),
        F.timestamp_millis(F.lit(2_000_000_000_000) - F.col("id")).alias("timestamp"),
    )
    write(frame.coalesce(1), served, topic=topic)
    records = served.bus.fetch(topic)
    assert [r.payload for r in records] == [b"p0", b"p1", b"p2"]
    # The times of a topic lie between its last one and now, and never fall.
    assert len({r.time_ms for r in records}) == 1
    assert (records[0].key, records[0].tag, dict(records[0].headers)) == (b"key", "tag", {"a": "1"})


def test_many_rows_of_many_tasks_arrive_once(spark, served):
    topic = served.topic()
    frame = spark.range(50_000, numPartitions=4).select(F.col("id").cast("string").alias("payload"))
    write(frame, served, topic=topic)
    assert served.payloads(topic) == [b"%d" % i for i in range(50_000)]


def test_a_column_names_the_topic_of_each_row(spark, served):
    a, b = served.topic(), served.topic()
    frame = spark.createDataFrame([(a, "1"), (b, "2"), (a, "3")], "topic string, payload string")
    write(frame.coalesce(1), served)
    assert (served.payloads(a), served.payloads(b)) == ([b"1", b"3"], [b"2"])


def test_a_repeated_write_under_the_same_sink_and_batch_is_a_no_op(spark, served):
    topic = served.topic()
    frame = spark.createDataFrame([("1",), ("2",)], "payload string").coalesce(1)
    for batch in (0, 0, 1, 1):
        write(frame, served, topic=topic, sink="mine", batch=batch)
    assert served.payloads(topic) == [b"1", b"2"] * 2


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ("other string", {"topic": "t"}, "column other: a record has none of that name"),
        ("payload int", {"topic": "t"}, "column payload: it is int, not binary or string"),
        ("key string", {"topic": "t"}, "column payload: a record needs it"),
        ("payload string", {}, "option topic: name one topic"),
        ("payload string", {"topic": "a/*"}, "option topic: rows are written to one topic"),
    ],
)
def test_rows_that_cannot_be_records_are_refused_with_the_column(
    spark, served, columns, options, message
):
    with pytest.raises(Exception, match=message):
        write(spark.createDataFrame([], columns), served, **options)


def test_a_topic_is_never_overwritten(spark, served):
    writer = spark.createDataFrame([("1",)], "payload string").write.format("polybus")
    with pytest.raises(Exception, match="mode overwrite: a topic is a log"):
        writer.option("url", served.url).option("topic", "t").mode("overwrite").save()


def copy_once(stream, source, target, served, checkpoint):
    writer = stream(source, maxRowsPerTrigger=100).select("payload").writeStream.format("polybus")
    writer = writer.option("url", served.url).option("topic", target)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()


def test_a_stream_that_repeats_its_last_batch_writes_it_once(served, stream, tmp_path):
    source = served.topic(*(b"%d" % i for i in range(250)))
    target = served.topic()
    check = tmp_path / "check"
    copy_once(stream, source, target, served, check)
    # As after a driver that was killed between the sink's commit and Spark's own.
    last = max(int(file.name) for file in (check / "commits").iterdir() if file.name.isdigit())
    for file in (check / "commits").glob(f"*{last}*"):
        file.unlink()
    served.bus.produce_many(source, [b"more"])
    copy_once(stream, source, target, served, check)
    assert sorted(served.payloads(target)) == sorted([*(b"%d" % i for i in range(250)), b"more"])


def test_a_new_checkpoint_is_a_new_sink(served, stream, tmp_path):
    source, target = served.topic(b"1", b"2"), served.topic()
    for _ in range(2):
        copy_once(stream, source, target, served, tmp_path / "check")
        shutil.rmtree(tmp_path / "check")
    assert served.payloads(target) == [b"1", b"2"] * 2
