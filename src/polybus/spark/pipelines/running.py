"""What all pipelines share: where they read and write, how a stream is run to its end, and exactly-once per batch.

Invariant: a batch that is repeated after a crash leaves the lake and the topics as one run would have left them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

POLL_SECONDS: Final = 1
TRIGGER: Final = "2 seconds"  # of pipelines that go on: a batch costs about 0.3 s whatever it holds


@dataclass(frozen=True, slots=True)
class Bus:
    """The node that a pipeline reads from and writes to."""

    spark: SparkSession
    url: str
    token: str = ""

    def _options(self) -> dict[str, str]:
        return {"url": self.url, **({"token": self.token} if self.token else {})}

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


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a stream has got; `lag` is in records, -1 when the source does not say."""

    batch: int
    rows: int
    rows_per_second: float
    lag: int


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


def wait(queries: list[StreamingQuery], watch: Watch | None = None) -> int:
    """Wait for the end of all queries, telling `watch` how far they are; the rows that were read.

    Raises what a query failed with; the others are stopped then.
    """
    rows = 0
    seen: dict[str, int] = {}
    try:
        while True:
            running = [query for query in queries if query.isActive]
            for query in queries:
                for report in query.recentProgress:
                    if report["batchId"] <= seen.get(str(query.runId), -1):
                        continue
                    seen[str(query.runId)] = report["batchId"]
                    rows += report["numInputRows"]
                    if watch is not None:
                        watch(_progress(report, rows))
            for query in queries:
                if (error := query.exception()) is not None:
                    raise error
            if not running:
                return rows
            running[0].awaitTermination(POLL_SECONDS)
    finally:
        for query in queries:
            if query.isActive:
                query.stop()


def _progress(report: Any, rows: int) -> Progress:
    lag = -1
    for source in report["sources"]:
        end, latest = source["endOffset"], source["latestOffset"]
        if isinstance(end, dict) and isinstance(latest, dict):
            behind = sum(int(at) - int(end.get(topic, 0)) for topic, at in latest.items())
            lag = max(lag, 0) + behind
    return Progress(report["batchId"], rows, report["processedRowsPerSecond"] or 0.0, lag)


def sink_of(pipeline: str, frame: DataFrame) -> str:
    """A sink's name from inside a batch: that of the query, which its checkpoint keeps for its whole life."""
    ident = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    return f"{pipeline}-{ident or time.time_ns()}"
