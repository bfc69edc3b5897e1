"""Ids that the node makes: random ones for the outside, counted ones inside.

Invariant: an id of a counter is never given twice within one process.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable


def random_id() -> str:
    """A UUID v4 in its usual text form."""
    return str(uuid.uuid4())


def counter(start: int = 1) -> Callable[[], int]:
    """A function that returns `start`, `start + 1`, …"""
    return itertools.count(start).__next__
