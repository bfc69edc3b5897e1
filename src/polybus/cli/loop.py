"""Which event loop the program runs on.

Invariant: uvloop where it is installed, else the standard one; nothing else depends on which.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """What makes the loop; None for the standard one."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
