"""Rows of the journal as a frame.

Invariant: a record of the journal is a row or is rejected with its reason; the row itself is `polybus.model.journal`'s.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from polybus.model.journal import FIELDS

REASON = "no journal row: a JSON array of a version, a time, a kind and what follows is expected"


def _with_items(records: DataFrame) -> DataFrame:
    return records.withColumn(
        "items", F.from_json(F.col("payload").cast("string"), "array<string>")
    )


def _is_row() -> Column:
    items = F.col("items")
    # `get` is null beyond the end: an older row is shorter, a newer one longer.
    version, time_us = F.get(items, F.lit(0)), F.get(items, F.lit(1))
    numbers = version.try_cast("int").isNotNull() & time_us.try_cast("bigint").isNotNull()
    return F.coalesce(numbers & F.get(items, F.lit(6)).isNotNull(), F.lit(False))


def journal_rows(records: DataFrame) -> DataFrame:
    """One row per record that is one, with the column `time` as a timestamp; elements that are missing are null."""
    items = F.col("items")
    columns = [
        F.get(items, F.lit(number)).try_cast(kind).alias(name)
        for number, (name, kind) in enumerate(FIELDS)
    ]
    rows = _with_items(records).where(_is_row()).select("offset", *columns)
    return rows.withColumn("time", F.timestamp_micros("time_us"))


def rejected(records: DataFrame) -> DataFrame:
    """The records that are no rows, with the reason."""
    return _with_items(records).where(~_is_row()).drop("items").withColumn("reason", F.lit(REASON))


def failed() -> Column:
    """Whether a row tells of an error."""
    return (F.col("status") != 0) | (F.col("kind") == "error")


def percentiles(column: str = "duration_us") -> list[Column]:
    """p50, p95 and p99 of a duration in milliseconds; what is not known does not count."""
    known = F.when(F.col(column) >= 0, F.col(column))
    return [
        (F.percentile_approx(known, share, 10_000) / 1000).alias(name)
        for name, share in (("p50_ms", 0.5), ("p95_ms", 0.95), ("p99_ms", 0.99))
    ]
