"""Names on the native wire: they are the shared names, spelt the same.

Invariant: what these functions let through is spelt alike by every room that can spell it.
"""

from __future__ import annotations

from polybus.model.name import check_name
from polybus.model.pattern import check_pattern

WIRE = "native"

to_service = check_name
"""A service's name as the core wants it; raises InvalidName."""

to_pattern = check_pattern
"""A subscription's or publication's topic as the core wants it; raises InvalidName."""
