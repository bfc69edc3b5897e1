"""`archive`: topics into a Parquet lake by topic and date, each record exactly once.

Invariant: a record lies in the lake once, or in `_rejected` with the reason; never in both, never in neither.
"""

from __future__ import annotations

import json

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructField, StructType

from polybus.spark.pipelines.delta import write_delta
from polybus.spark.pipelines.lake import Folder, write_batch
from polybus.spark.pipelines.running import Bus, Watch, sink_of, start, wait

PARTITIONS = ("topic", "date")
SCHEMA_FILE = "_schema.json"
BAD = "_bad"


def with_date(records: DataFrame) -> DataFrame:
    """Records with the day of their time, in UTC whatever the session's zone is."""
    day = F.date_format(F.to_utc_timestamp("timestamp", F.current_timezone()), "yyyy-MM-dd")
    return records.withColumn("date", day)


def merge_schemas(kept: StructType, found: StructType) -> StructType:
    """What is known plus what is new; a field that changed its type keeps the old one."""
    fields = {field.name: field for field in kept.fields}
    for field in found.fields:
        old = fields.get(field.name)
        if old is None:
            fields[field.name] = StructField(field.name, field.dataType, True)
        elif isinstance(old.dataType, StructType) and isinstance(field.dataType, StructType):
            merged: DataType = merge_schemas(old.dataType, field.dataType)
            fields[field.name] = StructField(field.name, merged, True)
    return StructType(list(fields.values()))


def infer_schema(records: DataFrame) -> StructType:
    """The fields that the JSON objects among the payloads have."""
    texts = records.select(F.col("payload").cast("string").alias("text"))
    lines = texts.rdd.map(lambda row: row.text)
    found = records.sparkSession.read.json(lines).schema
    return StructType([field for field in found.fields if field.name != "_corrupt_record"])


def split_json(records: DataFrame, schema: StructType) -> tuple[DataFrame, DataFrame]:
    """Records with a column `value` by the schema, and those whose payload does not fit, with the reason."""
    wanted = StructType([*schema.fields, StructField(BAD, _string(), True)])
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": BAD}
    parsed = records.withColumn(
        "value", F.from_json(F.col("payload").cast("string"), wanted, options)
    )
    bad = F.col("value").isNull() | F.col(f"value.{BAD}").isNotNull()
    good = parsed.where(~bad).withColumn("value", F.col("value").dropFields(BAD))
    reason = F.concat(
        F.lit("the payload is no JSON object of the schema "), F.lit(schema.simpleString()[:200])
    )
    return good, parsed.where(bad).drop("value").withColumn("reason", reason)


def _string() -> DataType:
    from pyspark.sql.types import StringType

    return StringType()


def archive(
    bus: Bus,
    topics: str,
    lake: str,
    *,
    as_json: bool = False,
    delta: bool = False,
    once: bool = True,
    max_rows: int = 5_000_000,
    group: str = "archive",
    watch: Watch | None = None,
) -> tuple[int, int]:
    """Run it; how many records were archived and how many rejected."""
    folder = Folder(bus.spark, f"{lake}/records")
    folder.finish_compaction()
    refused = 0

    def keep(rows: DataFrame, number: int) -> None:
        if delta:
            query = sink_of("archive", rows)
            write_delta(with_date(rows), f"{lake}/delta", query, number, list(PARTITIONS))
        else:
            write_batch(with_date(rows), f"{lake}/records", number, PARTITIONS)

    def take(batch: DataFrame, number: int) -> None:
        nonlocal refused
        if not as_json:
            keep(batch, number)
            return
        batch.persist()
        text = folder.read_text(SCHEMA_FILE)
        kept = StructType.fromJson(json.loads(text)) if text else StructType([])
        schema = merge_schemas(kept, infer_schema(batch))
        good, bad = split_json(batch, schema)
        keep(good, number)
        write_batch(bad, f"{lake}/_rejected", number)
        refused += bad.count()
        if schema != kept:
            folder.write_text(SCHEMA_FILE, schema.json())
        batch.unpersist()

    stream = bus.stream(topics, maxRowsPerTrigger=max_rows, group=group)
    rows = wait([start(stream, f"{lake}/_checkpoint", once, take)], watch).rows
    return rows - refused, refused


def compact(bus: Bus, lake: str) -> tuple[int, int]:
    """Merge the small files of the lake; folders before and after."""
    return Folder(bus.spark, f"{lake}/records").compact(PARTITIONS)
