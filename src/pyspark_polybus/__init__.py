"""Found by Spark by its name: where polybus is installed, `format("polybus")` needs no registration.

Invariant: importing it is cheap, since Spark imports every module of this kind in each session.
"""

from __future__ import annotations

from polybus.spark.source import PolybusSource as DefaultSource

__all__ = ["DefaultSource"]
