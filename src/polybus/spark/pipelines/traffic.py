"""`traffic`: the journal per minute, protocol and name: how much, how quick, how often wrong.

Invariant: a window is written once, when no row of it is expected any more; rows that come later still are left out,
and how many is told.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from polybus.model.journal import TOPIC
from polybus.spark.pipelines.journal import failed, journal_rows, percentiles, rejected
from polybus.spark.pipelines.lake import write_batch
from polybus.spark.pipelines.running import Bus, Progress, Watch, sink_of, start, wait

TRAFFIC_TOPIC = "polybus.traffic"


def traffic(rows: DataFrame, window: str = "1 minute", lateness: str = "2 minutes") -> DataFrame:
    """Journal rows as windows by protocol and name; a row that is later than `lateness` is left out."""
    calls, publications = F.col("kind") == "call", F.col("kind").isin("publish", "produce")
    found = (
        rows.withWatermark("time", lateness)
        .groupBy(F.window("time", window).alias("w"), F.col("wire_in").alias("protocol"), "name")
        .agg(
            F.count_if(calls).alias("calls"),
            F.count_if(publications).alias("publications"),
            F.sum(F.col("bytes_in") + F.col("bytes_out")).alias("bytes"),
            F.count_if(failed()).alias("errors"),
            *percentiles(),
        )
    )
    edges = (F.col("w.start").alias("start"), F.col("w.end").alias("end"))
    return found.select(*edges, *(column for column in found.columns if column != "w"))


def as_records(frame: DataFrame) -> DataFrame:
    """Rows as JSON payloads, keyed by name, for the monitor and everybody else."""
    return frame.select(
        F.col("name").cast("binary").alias("key"), F.to_json(F.struct("*")).alias("payload")
    )


def run_traffic(
    bus: Bus,
    lake: str,
    *,
    topic: str = TOPIC,
    window: str = "1 minute",
    lateness: str = "2 minutes",
    once: bool = True,
    watch: Watch | None = None,
) -> Progress:
    """Run it: windows to the lake and to `polybus.traffic`; how far it got, and how many rows were too late."""

    def take(batch: DataFrame, number: int) -> None:
        batch.persist()
        # A window is a row: one file and one staged chunk hold what all tasks of the state have.
        windows = batch.coalesce(1)
        write_batch(windows, f"{lake}/traffic", number)
        bus.write(as_records(windows), TRAFFIC_TOPIC, sink_of("traffic", batch), number)
        batch.unpersist()

    def refuse(batch: DataFrame, number: int) -> None:
        write_batch(rejected(batch), f"{lake}/_rejected_journal", number)

    records = bus.stream(topic, group="traffic")
    counted = traffic(journal_rows(records), window, lateness)
    queries = [
        start(counted, f"{lake}/_checkpoint_traffic", once, take),
        start(records, f"{lake}/_checkpoint_rejected", once, refuse),
    ]
    return wait(queries, watch)
