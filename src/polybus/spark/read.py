"""The readers behind `spark.read` and `spark.readStream`.

Invariant: planning, on the driver's machine, asks for offsets only; records go from the node to the executors.
The checkpoint decides where a stream goes on; what a group shows is a report and never read back.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from polybus.errors import PolybusError
from polybus.spark.filters import Bounds, push
from polybus.spark.link import Link
from polybus.spark.offsets import (
    Extent,
    Range,
    admit,
    batch_ranges,
    find_topics,
    held,
    resolve,
    split,
)
from polybus.spark.options import Options
from polybus.spark.scan import Piece, read_range

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)


class BatchReader(DataSourceReader):
    """Reads the ranges that the options name."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.bounds = Bounds()

    def partitions(self) -> list[InputPartition]:
        options = self.options
        with Link(options.place, eager=True) as link:
            ranges = self.bounds.narrow(batch_ranges(link, options), link.offset_at)
        return [
            Piece(piece)
            for piece in split(ranges, options.rows_per_partition, options.min_partitions)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Piece):
            return iter(())  # Spark's stand-in for an empty list of partitions
        options = self.options
        return read_range(
            options.place, partition.range, options.include_headers, options.fail_on_data_loss
        )


class PushingReader(BatchReader):
    """The same with filters pushed down, for a frame that serves one query.

    A choice of the user's: 4.3 keeps the narrowed plan with the frame, so that a second query on the same frame
    would miss rows without a word.
    """

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        setattr(self, "pushFilters", Pusher(self))  # noqa: B010 (a method cannot be assigned)


@dataclass(frozen=True)
class Pusher:
    """Takes filters over for a reader.

    Where its setting forbids pushing, Spark refuses every reader whose `pushFilters` is a method of its own rather
    than calling none; to this one it looks inherited, so such a session reads all and filters by itself.
    """

    reader: BatchReader
    __func__: ClassVar = staticmethod(DataSourceReader.pushFilters)

    def __call__(self, filters: list[Filter]) -> list[Filter]:
        self.reader.bounds = push(filters)
        return self.reader.bounds.left


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads what came since the last trigger. An offset is a map from topic to the next offset."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self._link: Link | None = None
        self._frozen: dict[str, Extent] | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Executors get the reader too, and connect by themselves.
        return {"options": self.options, "_link": None, "_frozen": None}

    def _latest(self) -> dict[str, Extent]:
        if self._link is None:
            self._link = Link(self.options.place, eager=True)
        return find_topics(self._link, self.options.topics)

    def initialOffset(self) -> dict[str, int]:
        latest = self._latest()
        assert self._link is not None
        options = self.options
        return {
            topic: held(
                topic,
                resolve(self._link, topic, extent, options.starting, "startingOffsets"),
                extent,
                options.fail_on_data_loss,
            )
            for topic, extent in latest.items()
        }

    def getDefaultReadLimit(self) -> ReadLimit:
        if self.options.max_rows:
            return ReadMaxRows(self.options.max_rows)
        if self.options.max_bytes:
            return ReadMaxBytes(self.options.max_bytes)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._frozen = self._latest()

    def latestOffset(self, start: dict[str, int] | None, limit: ReadLimit) -> dict[str, int]:
        latest = self._frozen if self._frozen is not None else self._latest()
        begin = {
            topic: held(topic, offset, latest[topic], self.options.fail_on_data_loss)
            for topic, offset in (start or {}).items()
            if topic in latest
        }
        # Both limits hold, whichever of them Spark was told.
        all_of_it = isinstance(limit, ReadAllAvailable)
        max_rows = limit.max_rows if isinstance(limit, ReadMaxRows) else self.options.max_rows
        max_bytes = limit.max_bytes if isinstance(limit, ReadMaxBytes) else self.options.max_bytes
        end = admit(begin, latest, 0 if all_of_it else max_rows, 0 if all_of_it else max_bytes)
        # A topic that was removed keeps its place, so that one of the same name is noticed.
        return {**(start or {}), **end}

    def reportLatestOffset(self) -> dict[str, int]:
        return {topic: extent.end for topic, extent in self._latest().items()}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        latest = self._latest()
        options = self.options
        ranges = []
        for topic, last in end.items():
            if topic not in latest or last == start.get(topic):
                continue
            first = start.get(topic, latest[topic].first)
            first = held(topic, first, latest[topic], options.fail_on_data_loss)
            if first < last:
                ranges.append(Range(topic, first, last))
        return [
            Piece(piece)
            for piece in split(ranges, options.rows_per_partition, options.min_partitions)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Piece)
        options = self.options
        return read_range(
            options.place, partition.range, options.include_headers, options.fail_on_data_loss
        )

    def commit(self, end: Mapping[str, int]) -> None:
        if not self.options.group or self._link is None:
            return
        for topic, offset in end.items():
            try:
                self._link.report(topic, self.options.group, offset)
            except PolybusError as exc:
                log.warning("group %s of %s not reported: %s", self.options.group, topic, exc.text)

    def stop(self) -> None:
        if self._link is not None:
            self._link.close()
