"""`replay`: records of the lake or of topics into a topic again, by time and filter, at a rate.

Invariant: records of one source topic come in the order they had; a slice is published whole, and once.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from polybus.spark.pipelines.running import Bus, filtered

SLICE_SECONDS = 5.0  # a slice is one job, and a job costs some 300 ms however small it is
ORDER = ("timestamp", "topic", "offset")


def select(records: DataFrame, since: str = "", until: str = "", where: str = "") -> DataFrame:
    """The records of a time range (`until` exclusive) that a SQL condition lets through."""
    if since:
        records = records.where(F.col("timestamp") >= F.lit(since).cast("timestamp"))
    if until:
        records = records.where(F.col("timestamp") < F.lit(until).cast("timestamp"))
    return filtered(records, where)


def number(records: DataFrame, per_slice: int) -> DataFrame:
    """Records with the slice they belong to, in the order of their time and, within a topic, of their offset."""
    place = F.row_number().over(Window.orderBy(*ORDER)) - 1
    return records.withColumn("slice", F.floor(place / per_slice).cast("int"))


def replay(
    bus: Bus,
    records: DataFrame,
    topic: str,
    *,
    rate: float = 0,
    run: str = "",
    pause: Callable[[float], None] = time.sleep,
    done: Callable[[int, int], None] | None = None,
) -> int:
    """Publish records into a topic, at most `rate` per second on average; how many.

    Args:
        run: names this replay; one that is repeated under its name publishes only what is missing.
        done: hears of each slice: (slices published, all slices).
    """
    sink = f"replay {run or time.time_ns()}"
    per_slice = max(int(rate * SLICE_SECONDS), 1) if rate else 1 << 31
    wanted = [c for c in ("timestamp", "key", "tag", "headers", "payload") if c in records.columns]
    sliced = number(records, per_slice).persist()
    sizes = {row["slice"]: row["count"] for row in sliced.groupBy("slice").count().collect()}
    begin = time.monotonic()
    for at in range(len(sizes)):
        if rate:
            pause(max(begin + at * SLICE_SECONDS - time.monotonic(), 0))
        part = sliced.where(F.col("slice") == at).coalesce(1).sortWithinPartitions(*ORDER)
        # The old time would be that of an old record; the topic gives the time of the replay.
        part = part.select(*(c for c in wanted if c != "timestamp"))
        bus.write(part, topic, sink, at)
        if done is not None:
            done(at + 1, len(sizes))
    sliced.unpersist()
    return sum(sizes.values())
