"""`latency`: captured requests joined with their replies: how long they took, and which were never answered.

Reads topics that `[[capture]] kind = "call"` fills: one record per request and per reply, told apart by the tag, with
the call's id, name and status in headers (`polybus.model.journal`).
Invariant: a request is counted once, as answered or, when the time for a reply has passed, as unanswered.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from polybus.model.journal import CALL_ID, CALL_NAME, CALL_STATUS, REPLY_TAG, REQUEST_TAG
from polybus.model.message import Status
from polybus.spark.pipelines.journal import percentiles
from polybus.spark.pipelines.lake import write_batch
from polybus.spark.pipelines.running import Bus, Progress, Watch, sink_of, start, wait

UNANSWERED_TOPIC = "polybus.unanswered"


def requests(records: DataFrame) -> DataFrame:
    """Captured requests: id, name and time."""
    return records.where(F.col("tag") == REQUEST_TAG).select(
        F.col("headers")[CALL_ID].alias("id"),
        F.col("headers")[CALL_NAME].alias("name"),
        F.col("timestamp").alias("asked"),
        F.length("payload").alias("bytes"),
    )


def replies(records: DataFrame) -> DataFrame:
    """Captured ends of replies: id, status and time.

    Only the last part of a streamed reply has a status; a service or caller that went away is no reply.
    """
    ends = records.where(F.col("tag") == REPLY_TAG).select(
        F.col("headers")[CALL_ID].alias("reply_id"),
        F.col("headers")[CALL_STATUS].try_cast("int").alias("status"),
        F.col("timestamp").alias("answered"),
    )
    return ends.where(F.col("status") != int(Status.GONE))


def join_replies(
    asked: DataFrame,
    answered: DataFrame,
    patience: str = "1 minute",
    lateness: str = "10 seconds",
) -> DataFrame:
    """Requests with their reply, or with nulls once `patience` has passed without one."""
    left = asked.withWatermark("asked", lateness)
    right = answered.withWatermark("answered", lateness)
    within = F.expr(
        f"id = reply_id AND answered >= asked AND answered <= asked + INTERVAL {patience}"
    )
    joined = left.join(right, within, "leftOuter").drop("reply_id")
    micros = F.unix_micros("answered") - F.unix_micros("asked")
    return joined.withColumn("duration_us", micros)


def latency(joined: DataFrame) -> DataFrame:
    """Duration percentiles by name, and how many had no reply."""
    return joined.groupBy("name").agg(
        F.count("*").alias("requests"),
        F.count_if(F.col("answered").isNull()).alias("unanswered"),
        *percentiles(),
    )


def run_latency(
    bus: Bus,
    topics: str,
    lake: str,
    *,
    patience: str = "1 minute",
    lateness: str = "10 seconds",
    once: bool = True,
    watch: Watch | None = None,
) -> Progress:
    """Run it: joined calls to the lake, unanswered ones to `polybus.unanswered`; how far it got."""

    def take(batch: DataFrame, number: int) -> None:
        batch.persist()
        calls = batch.coalesce(2)  # few files, however many tasks keep the state
        write_batch(calls, f"{lake}/calls", number)
        lost = calls.where(F.col("answered").isNull())
        record = lost.select(
            F.col("id").cast("binary").alias("key"),
            F.to_json(F.struct("id", "name", "asked", "bytes")).alias("payload"),
        )
        bus.write(record, UNANSWERED_TOPIC, sink_of("latency", batch), number)
        batch.unpersist()

    records = bus.stream(topics, group="latency")
    joined = join_replies(requests(records), replies(records), patience, lateness)
    return wait([start(joined, f"{lake}/_checkpoint_latency", once, take)], watch)
