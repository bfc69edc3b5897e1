"""The checksum of chunks, frames and files: CRC-32, by the fastest code that is here.

Invariant: the numbers are those of zlib, whoever computes them, so that files and chunks pass between machines that
differ in this. Every record goes through it twice on its way to a segment; ISA-L is four to ten times as fast as zlib.
"""

from __future__ import annotations

__all__ = ["crc32"]

try:
    from isal.isal_zlib import crc32
except (
    ImportError
):  # Spark's executors have only the standard library; and there are machines without a wheel
    from zlib import crc32
