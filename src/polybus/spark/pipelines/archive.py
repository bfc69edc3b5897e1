"""`archive`: topics into a Parquet lake by topic and date, each record exactly once.

Invariant: a record lies in the lake once, or in `_rejected` with the reason; never in both, never in neither.
"""

from __future__ import annotations

import json
from uuid import uuid4

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, StringType, StructField, StructType

from polybus.spark.pipelines.delta import write_delta
from polybus.spark.pipelines.lake import Folder, write_batch
from polybus.spark.pipelines.running import Bus, Watch, sink_of, start, wait

PARTITIONS = ("topic", "date")
SCHEMA_FILE = "_schema.json"
BAD = f"_bad_{uuid4().hex}"  # the name of no field of anybody's


def with_date(records: DataFrame) -> DataFrame:
    """Records with the day of their time, in UTC whatever the session's zone is."""
    day = F.date_format(F.to_utc_timestamp("timestamp", F.current_timezone()), "yyyy-MM-dd")
    return records.withColumn("date", day)


def merge_schemas(kept: StructType, found: StructType) -> StructType:
    """What is known plus what is new; a field that changed its type keeps the old one.

    Of fields that differ in their case only the first counts: Spark could not read a file with both.
    """
    fields = {field.name.lower(): field for field in kept.fields}
    for field in found.fields:
        old = fields.get(field.name.lower())
        name, kind = (field.name, None) if old is None else (old.name, old.dataType)
        merged = StructField(name, _merged(kind, field.dataType), True)
        fields[name.lower()] = merged
    return StructType(list(fields.values()))


def _merged(kept: DataType | None, found: DataType) -> DataType:
    if isinstance(found, StructType) and isinstance(kept, StructType | None):
        return merge_schemas(kept or StructType([]), found)
    if isinstance(found, ArrayType) and isinstance(kept, ArrayType | None):
        return ArrayType(_merged(kept.elementType if kept else None, found.elementType), True)
    return found if kept is None else kept


def infer_schema(records: DataFrame) -> StructType:
    """The fields that the JSON objects among the payloads have; none when there is no object."""
    texts = records.select(F.col("payload").cast("string").alias("text"))
    lines = texts.rdd.map(lambda row: row.text)
    reader = records.sparkSession.read.option("columnNameOfCorruptRecord", BAD)
    return StructType([field for field in reader.json(lines).schema if field.name != BAD])


def split_json(records: DataFrame, schema: StructType) -> tuple[DataFrame, DataFrame]:
    """Records with a column `value` by the schema, and those whose payload does not fit, with the reason."""
    wanted = StructType([*schema.fields, StructField(BAD, StringType(), True)])
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": BAD}
    parsed = records.withColumn(
        "value", F.from_json(F.col("payload").cast("string"), wanted, options)
    )
    bad = F.col("value").isNull() | F.col(f"value.{BAD}").isNotNull()
    good = parsed.where(~bad).withColumn("value", F.col("value").dropFields(BAD))
    reason = F.concat(
        F.lit("the payload is no JSON object of the schema "), F.lit(schema.simpleString()[:200])
    )
    if not schema.fields:
        good = good.drop("value")  # Parquet has no struct without fields
    return good, parsed.where(bad).drop("value").withColumn("reason", reason)


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
