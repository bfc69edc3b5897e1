"""`replay`: records of the lake or of topics into a topic again, by time and filter, at a rate.

Invariant: records of one source topic come in the order they had, and a slice is published whole. Of a replay with a
name each record comes once, whatever is repeated: the copy names it in a header, and what is found there is left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from polybus.errors import ConfigError
from polybus.model.pattern import matches
from polybus.spark.options import parse_topics
from polybus.spark.pipelines.lake import read
from polybus.spark.pipelines.running import Bus, Progress, Watch, filtered

SLICE_SECONDS = 5.0  # a slice is one job, and a job costs some 300 ms however small it is
MARK = "replayed-from"
ORDER = ("timestamp", "topic", "offset")


def select(records: DataFrame, since: str = "", until: str = "", where: str = "") -> DataFrame:
    """The records of a time range (`until` exclusive) that a SQL condition lets through."""
    if since:
        records = records.where(F.col("timestamp") >= F.lit(since).cast("timestamp"))
    if until:
        records = records.where(F.col("timestamp") < F.lit(until).cast("timestamp"))
    return filtered(records, where)


def from_lake(bus: Bus, lake: str, topics: str) -> DataFrame:
    """What the lake holds of topics, which are named or matched as by the option `topics`.

    Raises:
        ConfigError: nothing.
    """
    records, wanted = read(bus.spark, lake), parse_topics(topics)
    there = [row.topic for row in records.select("topic").distinct().collect()]
    chosen = [name for name in there if any(matches(pattern, name) for pattern in wanted)]
    if not chosen:
        raise ConfigError(f"option lake: there is nothing of {topics} in {lake}")
    return records.where(F.col("topic").isin(*chosen))


def number(records: DataFrame, per_slice: int) -> DataFrame:
    """Records with the slice they belong to, in the order of their time and, within a topic, of their offset."""
    place = F.row_number().over(Window.orderBy(*ORDER)) - 1
    return records.withColumn("slice", F.floor(place / per_slice).cast("int"))


def marked(records: DataFrame, run: str) -> DataFrame:
    """Records that say in a header which replay they belong to, and of which record they are the copy."""
    plain = F.map_filter("headers", lambda key, _: key != MARK)
    mark = F.concat(F.lit(f"{run} "), F.concat_ws("@", "topic", "offset"))
    return records.withColumn("headers", F.map_concat(plain, F.create_map(F.lit(MARK), mark)))


def missing(records: DataFrame, published: DataFrame) -> DataFrame:
    """The marked records of which there is no copy yet."""
    there = published.select(F.col("headers")[MARK].alias("mark")).where("mark IS NOT NULL")
    return records.withColumn("mark", F.col("headers")[MARK]).join(there, "mark", "left_anti")


def replay(
    bus: Bus,
    records: DataFrame,
    topic: str,
    *,
    rate: float = 0,
    run: str = "",
    pause: Callable[[float], None] = time.sleep,
    watch: Watch | None = None,
) -> int:
    """Publish records into a topic, at most `rate` per second on average; how many.

    Args:
        run: names this replay; one that is repeated under its name, with whatever selection and rate, publishes only
            what is missing.
    """
    if run:
        records = marked(records, run)
        if topic in bus.topics():
            records = missing(records, bus.read(topic))
    sink = f"replay {time.time_ns()}"
    per_slice = max(int(rate * SLICE_SECONDS), 1) if rate else 1 << 31
    # The old time would be that of an old record; the topic gives the time of the replay.
    wanted = [c for c in ("key", "tag", "headers", "payload") if c in records.columns]
    sliced = number(records, per_slice).persist()
    sizes = {row["slice"]: row["count"] for row in sliced.groupBy("slice").count().collect()}
    total, published, begin = sum(sizes.values()), 0, time.monotonic()
    for at in range(len(sizes)):
        if at and rate:
            pause(max(begin + at * per_slice / rate - time.monotonic(), 0))
        part = sliced.where(F.col("slice") == at).coalesce(1).sortWithinPartitions(*ORDER)
        bus.write(part.select(*wanted), topic, sink, at)
        if at == 0 and rate:
            begin = time.monotonic()  # the first slice counts from when it is there
        published += sizes[at]
        if watch is not None:
            spent = max(time.monotonic() - begin, 1e-3)
            watch(Progress(published, 0, published / spent, total - published))
    sliced.unpersist()
    return published
