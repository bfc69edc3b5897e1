"""The writers behind `df.write` and `df.writeStream`: tasks stage chunks, the commit publishes them.

Invariant: nothing that a task wrote is visible before its commit, a commit makes all of a topic visible at once, and
the commit of a batch that was published before changes nothing: every row is in its topic exactly once.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import BinaryType, DataType, MapType, StringType, StructType, TimestampType

from polybus.errors import ConfigError
from polybus.model.pattern import has_wildcard
from polybus.spark.link import Link
from polybus.spark.options import Options

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS: Final[dict[str, tuple[type[DataType], ...]]] = {
    "topic": (StringType,),
    "timestamp": (TimestampType,),
    "key": (BinaryType, StringType),
    "tag": (StringType,),
    "headers": (MapType,),
    "payload": (BinaryType, StringType),
}
IGNORED: Final = (
    "partition",
    "offset",
)  # the node gives these, so a row that was read can be written


@dataclass
class Staged(WriterCommitMessage):
    """What one task left with the node: tickets by topic, in order."""

    tickets: dict[str, list[str]]
    rows: int


def check_columns(schema: StructType, options: Options) -> None:
    """Refuse rows that cannot be records.

    Raises:
        ConfigError: naming the column or the option.
    """
    for column in schema.fields:
        kinds = COLUMNS.get(column.name)
        if kinds is None and column.name not in IGNORED:
            raise ConfigError(
                f"column {column.name}: a record has none of that name; "
                f"it can have {', '.join((*COLUMNS, *IGNORED))}"
            )
        if kinds is not None and not isinstance(column.dataType, kinds):
            wanted = " or ".join(kind.typeName() for kind in kinds)
            raise ConfigError(
                f"column {column.name}: it is {column.dataType.simpleString()}, not {wanted}"
            )
    names = schema.fieldNames()
    if "payload" not in names:
        raise ConfigError("column payload: a record needs it, and the rows have none")
    if len(options.topics) > 1 or any(map(has_wildcard, options.topics)):
        raise ConfigError(
            "option topic: rows are written to one topic, or as their column topic says"
        )
    if not options.topics and "topic" not in names:
        raise ConfigError("option topic: name one topic, or give the rows a column topic")


def stage_rows(options: Options, batches: Iterator[pa.RecordBatch]) -> Staged:
    """What a task does with its rows."""
    from polybus.spark.packing import by_topic, chunks_of

    tickets: dict[str, list[str]] = {}
    rows = 0
    with Link(options.place) as link:
        for batch in batches:
            rows += batch.num_rows
            for topic, part in by_topic(batch, "".join(options.topics)):
                if topic not in tickets:
                    link.declare(topic)
                    tickets[topic] = []
                tickets[topic] += link.stage(topic, chunks_of(part))
    return Staged(tickets, rows)


def publish(
    options: Options, messages: list[WriterCommitMessage | None], sink: str, batch: int
) -> None:
    """Make the rows of all tasks visible, topic by topic; a repeat does nothing."""
    tickets: dict[str, list[str]] = {}
    for message in messages:
        if isinstance(message, Staged):
            for topic, more in message.tickets.items():
                tickets.setdefault(topic, []).extend(more)
    with Link(options.place) as link:
        for topic in sorted(tickets):
            link.publish(topic, sink, batch, tickets[topic])


class BatchWriter(DataSourceArrowWriter):
    """Writes a frame; with the options `sink` and `batch` a repeated run writes nothing twice."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.sink = options.sink or f"spark-{uuid.uuid4().hex}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return stage_rows(self.options, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        publish(self.options, messages, self.sink, self.options.batch)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing to undo: what is staged expires."""


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes a stream, batch by batch."""

    def __init__(self, options: Options) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return stage_rows(self.options, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        publish(self.options, messages, find_sink(self.options), batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing to undo: what is staged expires."""


def find_sink(options: Options) -> str:
    """Who a stream is, so that a batch it repeats is known again.

    The id that Spark keeps in the checkpoint is that of the query for its whole life, and another one after the
    checkpoint was deleted, when batches count from 0 again.

    Raises:
        ConfigError: the checkpoint cannot be read here, so the user must name the sink.
    """
    if options.sink:
        return options.sink
    parts = urlsplit(options.checkpoint)
    path = Path(unquote(parts.path) if parts.scheme == "file" else options.checkpoint) / "metadata"
    try:
        ident = str(json.loads(path.read_text())["id"])
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise ConfigError(
            "option sink: name one that no other query has, since the id of this query cannot be read from option "
            f"checkpointLocation ({options.checkpoint or 'not given'})"
        ) from exc
    return f"spark-{hashlib.sha256(ident.encode()).hexdigest()[:32]}"
