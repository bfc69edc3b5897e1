"""The lake as a Delta table, for those who have one: each batch is one transaction under the query's name.

Invariant: a batch that is repeated finds its own mark in the table and writes nothing.
"""

from __future__ import annotations

from pyspark.sql import DataFrame

from polybus.errors import ConfigError


def write_delta(
    frame: DataFrame, table: str, query: str, batch: int, partitions: list[str]
) -> None:
    """Append a batch; it passes through the driver, so bound it with the most rows of one batch.

    Raises:
        ConfigError: the package is not installed.
    """
    try:
        from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
    except ImportError as exc:
        raise ConfigError("option delta: install the extra polybus[delta]") from exc
    if DeltaTable.is_deltatable(table):
        done = DeltaTable(table).transaction_version(query)
        if done is not None and done >= batch:
            return
    rows = frame.toArrow()
    if rows.num_rows:
        mark = CommitProperties(app_transactions=[Transaction(query, batch)])
        write_deltalake(
            table,
            rows,
            mode="append",
            partition_by=partitions,
            schema_mode="merge",
            commit_properties=mark,
        )
