"""Long work on the event loop, cut into turns.

Invariant: all who ask `over` once per item hold the loop for little more than `TURN_S` in one round of it, however
many items there are and however many ask (DESIGN 4 allows 10 ms; the rest is for the loop's other work in the round).
"""

from __future__ import annotations

import asyncio
import heapq
import threading
from collections.abc import Callable, Iterable
from time import perf_counter
from typing import Any, Final, TypeVar

TURN_S: Final = 0.002
RUN: Final = 1000  # items sorted in one go: about half a millisecond

T = TypeVar("T")


class Rounds(threading.local):
    """Until when long work may go on in this round of this thread's loop."""

    loop: asyncio.AbstractEventLoop | None = None
    """The loop whose round it is; None before any such work was begun in it."""
    until = 0.0

    def share(self) -> float:
        """The end of what this round has for long work, counted from the first that is begun in it."""
        loop = asyncio.get_running_loop()
        if self.loop is not loop:
            self.loop, self.until = loop, perf_counter() + TURN_S
            # Runs in the next round, ahead of whoever rests in this one.
            loop.call_soon(self._next)
        return self.until

    def _next(self) -> None:
        self.loop = None


_rounds = Rounds()


class Turns:
    """One piece of long work, which shares the time of each round with all others."""

    __slots__ = ("_until",)

    def __init__(self) -> None:
        self._until = _rounds.share()

    def over(self) -> bool:
        """Whether it is time for `rest`."""
        return perf_counter() > self._until

    async def rest(self) -> None:
        """Let the others have their turn."""
        await asyncio.sleep(0)
        self._until = _rounds.share()


async def window(
    items: Iterable[tuple[Any, T]], start: int, count: int, *, descending: bool = False
) -> tuple[list[T], int]:
    """The items from `start` on in the order of their keys, and how many there are in all.

    Sorted in runs which are then merged as far as the window reaches: one sort of everything cannot be interrupted.
    """
    turns = Turns()
    everything: list[T] = []
    # Tuples of texts and numbers alone: the garbage collector lets go of them. Ten thousand that hold items would
    # soon make it look at all that the node has, which takes a tenth of a second.
    runs: list[list[tuple[Any, int]]] = []
    run: list[tuple[Any, int]] = []
    for key, item in items:
        # The number makes ties stable.
        run.append((key, -len(everything) if descending else len(everything)))
        everything.append(item)
        if len(run) == RUN:
            run.sort(reverse=descending)
            runs.append(run)
            run = []
        if turns.over():
            await turns.rest()
    run.sort(reverse=descending)
    runs.append(run)
    found = []
    for position, (_, number) in enumerate(heapq.merge(*runs, reverse=descending)):
        if position >= start + count:
            break
        if position >= start:
            found.append(everything[abs(number)])
        if turns.over():
            await turns.rest()
    return found, len(everything)


async def rendered(items: Iterable[T], render: Callable[[T], bytes]) -> list[bytes]:
    """All items as bytes."""
    turns = Turns()
    found = []
    for item in items:
        found.append(render(item))
        if turns.over():
            await turns.rest()
    return found
