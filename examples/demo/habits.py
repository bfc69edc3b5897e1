"""What a program does again and again, and how it copes when a service does not do its part.

Invariant: a failure that the demo has on purpose is passed over; any other is kept and told at the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from polybus.errors import PolybusError

SOLD_OUT: Final = "sold out"  # what goes wrong on purpose
RUSH: Final = 3.0  # in the middle third everybody is so much busier

Act = Callable[[int], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Habit:
    """Something that is done about `rate` times a second; it is told how many times it was done before."""

    what: str
    rate: float
    act: Act


@dataclass(slots=True)
class Day:
    """The time of the demo, and what went wrong in it that should not have."""

    seconds: float
    surprises: list[str] = field(default_factory=list)
    ending: asyncio.Event = field(default_factory=asyncio.Event)
    interrupted: bool = False
    _began: float = 0.0

    def interrupt(self) -> None:
        """End it early."""
        self.interrupted = True
        self.ending.set()

    async def spend(self, habits: list[Habit]) -> None:
        """Do all that the programs do until the day is over; what is under way then is finished."""
        self._began = asyncio.get_running_loop().time()
        async with asyncio.TaskGroup() as tasks:
            for number, habit in enumerate(habits):
                tasks.create_task(self._repeat(habit, Random(number)))
            try:
                async with asyncio.timeout(self.seconds):
                    await self.ending.wait()
            except TimeoutError:
                self.ending.set()

    async def _repeat(self, habit: Habit, random: Random) -> None:
        done = 0
        while not self.ending.is_set():
            await asyncio.sleep(random.expovariate(habit.rate * self._busy()))
            try:
                await habit.act(done)
            except PolybusError as exc:
                if SOLD_OUT not in exc.text:
                    self.surprises.append(f"{habit.what}: {type(exc).__name__}: {exc.text}")
            done += 1

    def _busy(self) -> float:
        passed = (asyncio.get_running_loop().time() - self._began) / self.seconds
        return RUSH if 1 / 3 < passed < 2 / 3 else 1.0


@asynccontextmanager
async def beside(*works: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Services and the like, at work until the context ends, which raises what ended one of them before."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(ended, Exception):
                raise ended
