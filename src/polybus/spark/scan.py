"""Reading one range of a topic inside an executor: raw chunks over the native wire, as Arrow batches.

Invariant: every chunk's checksums are verified here, at the last place before Spark, and a record of the range comes
exactly once whatever the chunks' bounds are.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from polybus.errors import CorruptRecord, OutOfRange
from polybus.model.chunk import ChunkView, parse_chunk
from polybus.spark.link import Link, Place
from polybus.spark.offsets import Range

if TYPE_CHECKING:
    import pyarrow as pa


class Piece(InputPartition):
    """A range as a Spark partition."""

    def __init__(self, piece: Range) -> None:
        super().__init__(piece)
        self.range = piece


@functools.cache
def keep_modules() -> None:
    """Exempt what is there from the search for garbage, once per process, at the end of its first task.

    A worker of Spark's collects garbage after every task before it takes the next: 30 ms, all of it to find that some
    700 modules are still in use.
    """
    gc.freeze()


def read_range(
    place: Place, piece: Range, include_headers: bool, fail_on_data_loss: bool
) -> Iterator[pa.RecordBatch]:
    """The records of a range.

    Raises:
        OutOfRange: retention was quicker, and that may not be; CorruptRecord; PeerUnavailable.
    """
    with Link(place) as link:
        start = piece.start
        while start < piece.end:
            try:
                for chunk in link.fetch(piece.topic, start, piece.end):
                    view = _verified(link, piece.topic, start, chunk)
                    batch = view.to_arrow(piece.topic, start, piece.end)
                    start = min(view.header.end, piece.end)
                    yield batch if include_headers else batch.drop_columns(["headers"])
            except OutOfRange as exc:
                if fail_on_data_loss or exc.first <= start:
                    raise
                start = exc.first
    keep_modules()


def _verified(link: Link, topic: str, start: int, chunk: memoryview) -> ChunkView:
    """The chunk that holds `start`.

    Raises:
        CorruptRecord: as the node says it, which knows the file and the place.
    """
    try:
        return parse_chunk(chunk)
    except CorruptRecord:
        again = next(link.fetch(topic, start, start + 1, verify=True))
        return parse_chunk(again, f"topic {topic}")
