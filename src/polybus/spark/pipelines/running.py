"""What all pipelines share: where they read and write, how a stream is run to its end, and exactly-once per batch.

Invariant: a batch that is repeated after a crash leaves the lake and the topics as one run would have left them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from polybus.errors import ConfigError
from polybus.spark.link import Link
from polybus.spark.options import parse_options

POLL_SECONDS: Final = 1
TRIGGER: Final = "2 seconds"  # of pipelines that go on: a batch costs about 0.3 s whatever it holds


@dataclass(frozen=True, slots=True)
class Bus:
    """The node that a pipeline reads from and writes to; what is empty is as `format("polybus")` takes it."""

    spark: SparkSession
    url: str = ""
    token: str = ""

    def _options(self) -> dict[str, str]:
        return _texts({"url": self.url, "token": self.token})

    def topics(self) -> list[str]:
        """The names of all topics."""
        with Link(parse_options(self._options()).place, eager=True) as link:
            return sorted(topic["name"] for topic in link.topics())

    def read(self, topics: str, **options: object) -> DataFrame:
        """Records as a frame."""
        reader = self.spark.read.format("polybus").options(**self._options())
        return reader.option("topics", topics).options(**_texts(options)).load()

    def stream(self, topics: str, **options: object) -> DataFrame:
        """Records as a stream, from the beginning unless said otherwise."""
        reader = self.spark.readStream.format("polybus").options(**self._options())
        given = {"startingOffsets": "earliest", **options}
        return reader.option("topics", topics).options(**_texts(given)).load()

    def write(self, frame: DataFrame, topic: str, sink: str, batch: int) -> None:
        """Rows into a topic, once per (sink, batch)."""
        writer = frame.write.format("polybus").options(**self._options())
        writer.option("topic", topic).option("sink", sink).option("batch", batch).mode(
            "append"
        ).save()


def _texts(options: dict[str, object]) -> dict[str, str]:
    return {key: str(value) for key, value in options.items() if value not in (None, "")}


def filtered(frame: DataFrame, where: str) -> DataFrame:
    """The rows that a SQL condition lets through; all without one.

    Raises:
        ConfigError: Spark does not understand it.
    """
    try:
        return frame.where(where) if where else frame
    except PySparkException as exc:
        first = str(exc).strip().partition("\n")[0]
        raise ConfigError(f"option where: {first}") from exc


@dataclass(frozen=True, slots=True)
class Progress:
    """How far streams have got: records read and those too late for their window; `lag` is -1 when nobody says it."""

    rows: int = 0
    late: int = 0
    rows_per_second: float = 0.0
    lag: int = -1


Watch = Callable[[Progress], None]


def start(
    frame: DataFrame,
    checkpoint: str,
    once: bool,
    each: Callable[[DataFrame, int], None],
    mode: str = "append",
) -> StreamingQuery:
    """Begin a stream that hands every batch to `each`; with `once` it ends when all that is there is done."""
    writer = frame.writeStream.outputMode(mode).option("checkpointLocation", checkpoint)
    writer = writer.foreachBatch(each)
    writer = writer.trigger(availableNow=True) if once else writer.trigger(processingTime=TRIGGER)
    return writer.start()


def wait(queries: list[StreamingQuery], watch: Watch | None = None) -> Progress:
    """Wait for the end of all queries, telling `watch` how far the first one is; how far it got.

    The others read the same records, which count once. Raises what a query failed with; the others are stopped then.
    """
    so_far, seen = Progress(), -1
    try:
        while True:
            running = [query for query in queries if query.isActive]
            for report in queries[0].recentProgress:
                if report["batchId"] > seen:
                    seen = report["batchId"]
                    so_far = _add(so_far, report)
                    if watch is not None:
                        watch(so_far)
            for query in queries:
                if (error := query.exception()) is not None:
                    raise error
            if not running:
                return so_far
            running[0].awaitTermination(POLL_SECONDS)
    finally:
        for query in queries:
            if query.isActive:
                query.stop()


def _add(so_far: Progress, report: Any) -> Progress:
    lag = -1
    for source in report["sources"]:
        end, latest = source["endOffset"], source["latestOffset"]
        if isinstance(end, dict) and isinstance(latest, dict):
            behind = sum(int(at) - int(end.get(topic, 0)) for topic, at in latest.items())
            lag = max(lag, 0) + behind
    dropped = sum(state["numRowsDroppedByWatermark"] for state in report["stateOperators"])
    return Progress(
        so_far.rows + report["numInputRows"],
        so_far.late + dropped,
        report["processedRowsPerSecond"] or 0.0,
        lag,
    )


def sink_of(pipeline: str, frame: DataFrame) -> str:
    """A sink's name from inside a batch: that of the query, which its checkpoint keeps for its whole life."""
    ident = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    return f"{pipeline}-{ident or time.time_ns()}"
