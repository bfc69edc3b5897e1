"""What the connector is compared with: a source that yields tuples, and a stream that has nothing to read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)

from polybus.model.chunk import parse_chunk
from polybus.spark.link import Link
from polybus.spark.offsets import batch_ranges, split
from polybus.spark.options import Options, parse_options
from polybus.spark.scan import Piece


class NaiveReader(DataSourceReader):
    """The same offsets over the same wire, but row by row, as one would write it at first."""

    def __init__(self, options: Options) -> None:
        self.options = options

    def partitions(self) -> list[InputPartition]:
        with Link(self.options.place) as link:
            ranges = batch_ranges(link, self.options)
        return [Piece(piece) for piece in split(ranges, self.options.rows_per_partition, 1)]

    def read(self, partition: Any) -> Iterator[tuple[Any, ...]]:
        from datetime import UTC, datetime

        piece = partition.range
        with Link(self.options.place) as link:
            for chunk in link.fetch(piece.topic, piece.start, piece.end):
                for r in parse_chunk(chunk).slice(piece.start, piece.end):
                    time = datetime.fromtimestamp(r.time_ms / 1000, UTC)
                    yield piece.topic, 0, r.offset, time, r.key, r.tag, dict(r.headers), r.payload


class Naive(DataSource):
    """`format("naive")`."""

    @classmethod
    def name(cls) -> str:
        return "naive"

    def schema(self) -> str:
        from polybus.spark.source import SCHEMA

        return SCHEMA

    def reader(self, schema: Any) -> NaiveReader:
        return NaiveReader(parse_options(self.options))


class EmptyStream(DataSourceStreamReader):
    """A batch per trigger without a row in it: what Spark itself takes for one."""

    def __init__(self) -> None:
        self.at = 0

    def initialOffset(self) -> dict[str, int]:
        return {"at": 0}

    def latestOffset(self) -> dict[str, int]:  # type: ignore[override]
        self.at += 1
        return {"at": self.at}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        return iter(())

    def commit(self, end: dict[str, int]) -> None:
        """Nothing to do."""


class Empty(DataSource):
    """`format("empty")`."""

    @classmethod
    def name(cls) -> str:
        return "empty"

    def schema(self) -> str:
        return "at BIGINT"

    def streamReader(self, schema: Any) -> EmptyStream:
        return EmptyStream()
