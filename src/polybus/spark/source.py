"""`format("polybus")`: what Spark creates for every read and write.

Invariant: options are checked when a frame is made, before a job starts.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from polybus.errors import ConfigError
from polybus.spark.options import Options, parse_options
from polybus.spark.read import BatchReader, PushingReader, StreamReader
from polybus.spark.write import BatchWriter, StreamWriter, check_columns

HEADERS: Final = "headers map<string,string> not null, "
# Never null, and said so: else Spark looks twice at every value of every row whether it is.
SCHEMA: Final = (
    "topic string not null, partition int not null, offset bigint not null, "
    "timestamp timestamp not null, key binary not null, tag string not null, "
    + HEADERS
    + "payload binary not null"
)


class PolybusSource(DataSource):
    """Topics of a node as rows."""

    @classmethod
    def name(cls) -> str:
        return "polybus"

    def _options(self, *, streaming: bool = False) -> Options:
        return parse_options(self.options, streaming=streaming)

    def schema(self) -> str:
        return SCHEMA if self._options().include_headers else SCHEMA.replace(HEADERS, "")

    def _check_schema(self, given: StructType) -> None:
        """Refuse columns of the user's own: what a topic has is fixed."""
        columns = ", ".join(
            f"{each.name} {each.dataType.simpleString()}{'' if each.nullable else ' not null'}"
            for each in given.fields
        )
        if columns != self.schema():
            raise ConfigError(
                f"schema {columns}: records have the columns {self.schema()}; read these and select from them"
            )

    def reader(self, schema: StructType) -> BatchReader:
        self._check_schema(schema)
        options = self._options()
        return PushingReader(options) if options.pushdown else BatchReader(options)

    def streamReader(self, schema: StructType) -> StreamReader:
        self._check_schema(schema)
        return StreamReader(self._options(streaming=True))

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        if overwrite:
            raise ConfigError('mode overwrite: a topic is a log; write with mode("append")')
        options = self._options()
        check_columns(schema, options)
        return BatchWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        options = self._options(streaming=True)
        check_columns(schema, options)
        return StreamWriter(options)
