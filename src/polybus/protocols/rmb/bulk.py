"""Signing and verifying in bulk, off the event loop (DESIGN 4).

Invariant: every job's callback is called once, in the event loop. What came in one turn of the loop is done in one go;
a few jobs are done at once, since handing them to a thread would take longer than doing them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

AT_ONCE: Final = 4  # at about 60 µs each
MAX_BATCH: Final = 128  # so that several batches share the threads fairly

Job = tuple[Callable[[], Any], Callable[[Any], None]]


class Bulk:
    """Collects jobs (what to do, who is told the result) and does them."""

    def __init__(self, threads: int = 2) -> None:
        self._jobs: list[Job] = []
        self._loop = asyncio.get_running_loop()
        self._pool = ThreadPoolExecutor(threads, "polybus-rmb")
        self._running: set[asyncio.Future[None]] = set()

    def submit(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Do `work`, which must not raise, soon; `done` gets its result."""
        if not self._jobs:
            self._loop.call_soon(self._start)
        self._jobs.append((work, done))

    async def close(self) -> None:
        """Wait for what is under way and give the threads back."""
        if self._running:
            await asyncio.wait(self._running)
        self._pool.shutdown()

    def _start(self) -> None:
        jobs, self._jobs = self._jobs, []
        if len(jobs) <= AT_ONCE:
            for work, done in jobs:
                done(work())
            return
        for start in range(0, len(jobs), MAX_BATCH):
            part = jobs[start : start + MAX_BATCH]
            future = self._loop.run_in_executor(self._pool, _work, part)
            task = self._loop.create_task(self._finish(part, future))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _finish(self, jobs: list[Job], future: asyncio.Future[list[Any]]) -> None:
        for (_work, done), result in zip(jobs, await future, strict=True):
            done(result)


def _work(jobs: list[Job]) -> list[Any]:
    return [work() for work, _done in jobs]
