"""`deadletters`: what no consumer could take, by cause, with samples; and back again with `--requeue`.

Invariant: a letter is requeued once, whatever is repeated: the records that are put back are known by the range of
the dead-letter topic that they come from.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from polybus.spark.pipelines.running import Bus

SAMPLE_CHARACTERS = 120
MARKS = ("dead-topic", "dead-group", "dead-offset", "dead-attempts", "dead-cause", "dead-time")


def _mark(name: str) -> Column:
    return F.coalesce(F.col("headers")[name], F.lit("?"))


def causes(letters: DataFrame, samples: int = 3) -> DataFrame:
    """Dead letters by topic, group and cause: how many, since when, and the first few payloads as text."""
    text = F.substring(F.col("payload").cast("string"), 1, SAMPLE_CHARACTERS)
    marked = letters.select(
        _mark("dead-topic").alias("source"),
        _mark("dead-group").alias("group"),
        _mark("dead-cause").alias("cause"),
        "timestamp",
        F.struct("offset", text.alias("text")).alias("sample"),
    )
    return (
        marked.groupBy("source", "group", "cause")
        .agg(
            F.count("*").alias("letters"),
            F.min("timestamp").alias("first"),
            F.max("timestamp").alias("last"),
            F.slice(F.sort_array(F.collect_list("sample")), 1, samples).alias("kept"),
        )
        .withColumn("samples", F.col("kept.text"))
        .drop("kept")
        .orderBy(F.desc("letters"), "source", "group", "cause")
    )


def to_requeue(letters: DataFrame, where: str = "") -> DataFrame:
    """The letters of a selection as records for the topic they came from, without the marks of their death.

    Letters that do not say where they came from are left out.
    """
    chosen = letters.where(where) if where else letters
    known = chosen.where(F.col("headers")["dead-topic"].isNotNull())
    plain = F.map_filter("headers", lambda key, _: ~key.isin(*MARKS))
    return known.select(
        F.col("headers")["dead-topic"].alias("topic"),
        "offset",
        "key",
        "tag",
        plain.alias("headers"),
        "payload",
    )


def run_deadletters(bus: Bus, topics: str, samples: int = 3) -> DataFrame:
    """The table of causes."""
    return causes(bus.read(topics), samples)


def requeue(bus: Bus, topic: str, where: str = "") -> int:
    """Put the chosen letters of one dead-letter topic back, in order; how many."""
    chosen = to_requeue(bus.read(topic), where).orderBy("offset").coalesce(1).persist()
    found = chosen.agg(F.count("*").alias("letters"), F.max("offset").alias("last")).first()
    assert found is not None
    count, last = found["letters"], found["last"]
    if count:
        # The same selection up to the same letter is the same batch.
        for target in [row.topic for row in chosen.select("topic").distinct().collect()]:
            part = chosen.where(F.col("topic") == target)
            bus.write(part, target, f"requeue {topic} {where}"[:200], int(last))
    chosen.unpersist()
    return int(count)
