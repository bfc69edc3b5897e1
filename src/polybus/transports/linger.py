"""Lingering: after input the event loop looks out for more before it sleeps, while that pays.

Being woken costs 20 to 50 µs, several times what is done for a message, and whoever asks, waits and asks again pays it
at every step: a consumer that takes one message at a time is served twice as fast by a loop that is still awake, for
the same processor time per message.

Invariant: a loop that gets no input sleeps. It lingers for `patience` seconds at a time, and less often the less comes
of it; never while threads of this process are at work, which would have to fight for the interpreter.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Final

from polybus.model.clock import Clock

# Inputs in a row that show a peer who waits for its answers; after so many, one that is late is forgiven
STEADY: Final = 32
FIRST_REST: Final = 8  # inputs to pass over after lingering for nothing; twice as many each time
LONGEST_REST: Final = 1024
# Times `patience`: who looks that late has had other things to do, or no processor, and is not forgiven
LATE: Final = 4.0


class Linger:
    """One per event loop; its connections tell it of input."""

    __slots__ = (
        "_busy",
        "_clock",
        "_last",
        "_loop",
        "_rest",
        "_rests",
        "_steady",
        "_until",
        "awake",
        "came",
        "patience",
    )

    def __init__(self, clock: Clock, patience: float, busy: Callable[[], bool]) -> None:
        """See the module.

        Args:
            busy: Whether threads of this process are at work.
        """
        self.patience = patience
        self.came = False
        """Whether there was input since the last look; who sets it calls `begin` where it was not set."""
        self.awake = False
        """Whether the loop is kept from sleeping."""
        self._busy = busy
        self._clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._until = self._last = 0.0
        self._steady = 0  # inputs that came in time, one after the other
        self._rest = 0  # inputs to pass over
        self._rests = FIRST_REST

    def begin(self) -> None:
        """There was input: linger from the end of this turn on, unless that has not paid lately."""
        if self.awake:
            self.came = True
            return
        if self._rest:
            self._rest -= 1
            return
        if self._busy():
            return
        self.awake = True
        self._steady = 0
        self._last = self._clock.monotonic()
        self._until = self._last + self.patience
        self._loop = asyncio.get_running_loop()
        self._loop.call_soon(self._look)

    def _look(self) -> None:
        assert self._loop is not None
        now = self._clock.monotonic()
        late = now - self._last > LATE * self.patience
        self._last = now
        if self.came:
            # What was done for the input took its time; whether others did cannot be told.
            self.came = False
            self._until = now + self.patience
            self._steady += 1
            if self._steady == STEADY:
                self._rests = FIRST_REST
        elif now >= self._until:
            self._rest = 0 if self._steady >= STEADY and not late else self._rests
            self._rests = min(2 * self._rests, LONGEST_REST)
            self.awake = False
            return
        if self._busy():
            self.awake = False
            return
        self._loop.call_soon(self._look)


def processors() -> int:
    """On how many this process may run: alone on one, it would keep from it whom it waits for."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
