"""Work that may be long, done in slices between the turns of others: clearing away what parties leave, and lists.

Invariant: what is small is done at once; of anything larger one slice is done per turn of the event loop, until all is.
Where there is several such work, one slice of each comes after the other, so that nothing long holds up the rest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

SLICE: Final = 256  # steps of one turn; to fail so many calls takes 2 ms or so


class Chores:
    """Work to do, as iterators that take one step each time."""

    def __init__(self) -> None:
        self.later: Callable[[Callable[[], None]], object] | None = None
        """Has something called in a turn to come; None where there are no turns, and nobody to wait for them."""
        self._waiting: deque[tuple[Iterator[object], Callable[[], None]]] = deque()

    def add(self, work: Iterator[object], flush: Callable[[], None] = lambda: None) -> None:
        """Begin work, and end it if it is small.

        Args:
            flush: called after each slice.
        """
        more = _do_slice(work, flush)
        while more and self.later is None:
            more = _do_slice(work, flush)
        if more and self.later is not None:
            self._waiting.append((work, flush))
            if len(self._waiting) == 1:
                self.later(self._turn)

    def finish(self) -> None:
        """Do all that is left: there are no turns to come."""
        self.later = None
        while self._waiting:
            self.add(*self._waiting.popleft())

    def _turn(self) -> None:
        if not self._waiting or self.later is None:
            return
        work, flush = self._waiting[0]
        more = False
        try:
            more = _do_slice(work, flush)
        finally:
            if more:
                self._waiting.rotate(-1)
            else:
                self._waiting.popleft()
            if self._waiting:
                self.later(self._turn)


def _do_slice(work: Iterator[object], flush: Callable[[], None]) -> bool:
    steps = sum(1 for _ in islice(work, SLICE))
    flush()
    return steps == SLICE
