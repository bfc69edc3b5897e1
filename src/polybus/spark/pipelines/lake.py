"""The lake: Parquet folders, one per batch, so that a batch that is repeated replaces itself.

    LAKE/records/batch=000000000017/topic=orders/date=2026-01-31/part-….parquet
    LAKE/_rejected/batch=000000000017/…                 rows that could not be taken, with the reason
    LAKE/records/_compacting/…                          one compaction under way

Invariant: `read` returns each archived record exactly once, also while a compaction runs or after it was killed.
Folder operations go through Hadoop's file systems, so the lake may lie on any of them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from polybus.errors import ConfigError

DIGITS: Final = 12
COMPACTING: Final = "_compacting"
READY: Final = "ready.json"
FILE_ROWS: Final = 1_000_000  # of a compacted file: some hundred MiB of small records


def batch_name(batch: int) -> str:
    """The folder of a batch; folders sort by batch."""
    return f"batch={batch:0{DIGITS}d}"


def write_batch(
    frame: DataFrame, folder: str, batch: int, partitions: tuple[str, ...] = ()
) -> None:
    """Put a batch in its place, whole, also when it was there before."""
    writer = frame.write.mode("overwrite")
    if partitions:
        writer = writer.partitionBy(*partitions)
    writer.parquet(f"{folder}/{batch_name(batch)}")


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder of batches on any file system that Hadoop knows."""

    spark: SparkSession
    path: str

    def _fs(self) -> tuple[Any, Any]:
        jvm = self.spark._jvm
        assert jvm is not None
        path = jvm.org.apache.hadoop.fs.Path(self.path)
        return path.getFileSystem(
            self.spark._jsc.hadoopConfiguration()
        ), jvm.org.apache.hadoop.fs.Path

    def names(self, under: str = "") -> list[str]:
        """What lies in the folder, sorted."""
        fs, path = self._fs()
        where = path(f"{self.path}/{under}" if under else self.path)
        return (
            sorted(s.getPath().getName() for s in fs.listStatus(where)) if fs.exists(where) else []
        )

    def move(self, source: str, target: str) -> None:
        """Rename within the folder."""
        fs, path = self._fs()
        if not fs.rename(path(f"{self.path}/{source}"), path(f"{self.path}/{target}")):
            raise ConfigError(f"the lake at {self.path} does not let {source} be renamed")

    def remove(self, name: str) -> None:
        """Delete something in the folder with all that it holds."""
        fs, path = self._fs()
        fs.delete(path(f"{self.path}/{name}"), True)

    def read_text(self, name: str) -> str | None:
        """A small file, None when it is not there."""
        fs, path = self._fs()
        where = path(f"{self.path}/{name}")
        if not fs.exists(where):
            return None
        stream = fs.open(where)
        try:
            return bytes(stream.readAllBytes()).decode()
        finally:
            stream.close()

    def write_text(self, name: str, text: str) -> None:
        """Put a small file in place, at once and whole."""
        fs, path = self._fs()
        fresh = path(f"{self.path}/{name}.new")
        stream = fs.create(fresh, True)
        stream.write(bytearray(text.encode()))
        stream.close()
        where = path(f"{self.path}/{name}")
        fs.delete(where, False)
        fs.rename(fresh, where)

    def batches(self) -> list[str]:
        """The folders that count."""
        names = [name for name in self.names() if name.startswith("batch=")]
        done = self._compaction()
        if done is not None and done["new"] in names:
            names = [name for name in names if name not in done["old"]]
        return names

    def _compaction(self) -> Any:
        text = self.read_text(f"{COMPACTING}/{READY}")
        return json.loads(text) if text else None

    def finish_compaction(self) -> None:
        """Complete a compaction that was cut short, or drop it if it was not ready."""
        done = self._compaction()
        if done is not None:
            if done["new"] not in self.names():
                self.move(f"{COMPACTING}/{done['new']}", done["new"])
            for name in done["old"]:
                self.remove(name)
        self.remove(COMPACTING)

    def compact(self, partitions: tuple[str, ...]) -> tuple[int, int]:
        """Merge all batches but the last, which its stream may still repeat; folders before and after."""
        self.finish_compaction()
        names = self.batches()
        old = names[:-1]
        if len(old) < 2:
            return len(names), len(names)
        first, last = (name.removeprefix("batch=") for name in (old[0], old[-1]))
        new = f"batch={first.partition('-')[0]}-{last.rpartition('-')[2]}"
        frame = read_batches(self, old)
        sorted_ = frame.repartition(*partitions).sortWithinPartitions(*partitions, "offset")
        writer = sorted_.write.mode("overwrite").option("maxRecordsPerFile", FILE_ROWS)
        writer.partitionBy(*partitions).parquet(f"{self.path}/{COMPACTING}/{new}")
        self.write_text(f"{COMPACTING}/{READY}", json.dumps({"old": old, "new": new}))
        self.finish_compaction()
        return len(names), len(self.batches())


def read_batches(folder: Folder, names: list[str]) -> DataFrame:
    """The rows of some batches; columns that older ones lack are null."""
    reader = folder.spark.read.option("basePath", folder.path).option("mergeSchema", "true")
    reader = reader.option("inferSchema", "false")
    frame = reader.parquet(*(f"{folder.path}/{name}" for name in names)).drop("batch")
    # What a folder's name looks like must not decide the type of a column.
    for column in ("topic", "date"):
        if column in frame.columns:
            frame = frame.withColumn(column, F.col(column).cast("string"))
    return frame


def read(spark: SparkSession, lake: str, table: str = "records") -> DataFrame:
    """All rows of a table of the lake, each exactly once.

    Raises:
        ConfigError: there is no such table.
    """
    folder = Folder(spark, f"{lake}/{table}")
    names = folder.batches()
    if not names:
        raise ConfigError(f"option lake: there is nothing archived in {lake}/{table}")
    return read_batches(folder, names)
