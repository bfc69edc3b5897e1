"""The bus as a Spark table and stream: `format("polybus")`, a session that works, decoders and pipelines.

Invariant: importing this package needs neither pyspark nor pyarrow; what runs inside executors (`link`, `scan`,
`write` and what they import) needs the standard library, pyarrow and Spark's own Python package only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polybus.spark.sessions import register, session

__all__ = ["register", "session"]


def __getattr__(name: str) -> object:
    if name in __all__:
        from polybus.spark import sessions

        return getattr(sessions, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
