"""A bus for users' own tests: a whole node in memory, without sockets.

`async with TestBus() as bus:` in any test; `polybus.testing.fixtures` offers the same as fixtures of pytest.
"""

from __future__ import annotations

from polybus.testing.bus import TestBus

__all__ = ["TestBus"]
