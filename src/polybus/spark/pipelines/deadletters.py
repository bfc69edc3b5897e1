"""`deadletters`: what no consumer could take, by cause, with samples; and back again with `--requeue`.

Invariant: a letter is requeued once, whatever is repeated and however selections overlap: a record that was put back
names its letter in a header, and a letter that is found there is left out.
"""

from __future__ import annotations

import uuid
from datetime import UTC, datetime

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from polybus.core.group_options import DEAD_SUFFIX
from polybus.errors import ConfigError
from polybus.spark.pipelines.running import Bus, filtered

SAMPLE_CHARACTERS = 120
LETTER = "requeued-from"
MARKS = (
    *("dead-topic", "dead-group", "dead-offset", "dead-attempts", "dead-cause", "dead-time"),
    LETTER,
)


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
    """The letters of a selection as records for the topic they came from: which letter, but no marks of its death.

    Letters that do not say where they came from are left out.
    """
    known = filtered(letters, where).where(F.col("headers")["dead-topic"].isNotNull())
    plain = F.map_filter("headers", lambda key, _: ~key.isin(*MARKS))
    letter = F.concat_ws("@", "topic", "offset")
    return known.select(
        letter.alias("letter"),
        F.col("topic").alias("source"),
        "offset",
        "timestamp",
        F.col("headers")["dead-topic"].alias("topic"),
        "key",
        "tag",
        F.map_concat(plain, F.create_map(F.lit(LETTER), letter)).alias("headers"),
        "payload",
    )


def without(chosen: DataFrame, records: DataFrame) -> DataFrame:
    """The letters that no record says it was made from."""
    made = records.select(F.col("headers")[LETTER].alias("letter")).where("letter IS NOT NULL")
    return chosen.join(made, "letter", "left_anti")


def dead_topics(bus: Bus) -> str:
    """The topics that groups make for their dead letters.

    Raises:
        ConfigError: there is none.
    """
    found = [name for name in bus.topics() if name.endswith(DEAD_SUFFIX)]
    if not found:
        raise ConfigError(
            f"there are no dead letters: no topic has a name that ends in {DEAD_SUFFIX}"
        )
    return ",".join(found)


def run_deadletters(bus: Bus, topics: str = "", samples: int = 3) -> DataFrame:
    """The table of causes."""
    return causes(bus.read(topics or dead_topics(bus)), samples)


def requeue(bus: Bus, topics: str = "", where: str = "") -> int:
    """Put the chosen letters back that were not before, in order; how many."""
    chosen = to_requeue(bus.read(topics or dead_topics(bus)), where).persist()
    run, count = uuid.uuid4().hex, 0
    targets = (
        chosen.groupBy("topic").agg(F.min(F.unix_millis("timestamp")).alias("since")).collect()
    )
    for target, since in sorted(targets):
        # A record that was made from a letter is younger than the letter.
        time = datetime.fromtimestamp(since / 1000, UTC)
        records = bus.read(target, startingOffsets=time.isoformat())
        part = without(chosen.where(F.col("topic") == target), records).persist()
        if found := part.count():
            ordered = part.coalesce(1).sortWithinPartitions("source", "offset")
            bus.write(
                ordered.select("key", "tag", "headers", "payload"), target, f"requeue {run}", 0
            )
        count += found
        part.unpersist()
    chosen.unpersist()
    return count
