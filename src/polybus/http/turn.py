"""One write per connection and turn of the event loop, however many messages there were for it; answers in a busy loop
wait for a few turns more.

Invariant: what a session was given goes out in that order, when this turn's input has been dealt with; answers at the
latest `HELD` turns after that, and at once where there is little to do. A write is a system call that wakes the peer,
and costs several times what a small message does: a caller with several calls open gets more of the answers with each.

Plain typed Python which Cython also compiles (`turn.pxd` has the C types).
"""

from __future__ import annotations

import asyncio
from typing import Final

HELD: Final = 5  # turns that answers may wait, each as long as what came in meanwhile takes
# Sessions with something new to write in a turn; with fewer the loop is about to sleep
BUSY: Final = 2


class Gathering:
    """A session that gathers what it has to write."""

    __slots__ = ()

    def write_out(self) -> None:
        """Write what was gathered."""
        raise NotImplementedError


class Turn:
    """The sessions that have something to write at the end of this turn, or of one of the next."""

    __slots__ = ("_held", "_loop", "_news", "_patient", "_scheduled", "_sessions")

    def __init__(self) -> None:
        self._sessions: list[Gathering] = []
        self._patient: list[Gathering] = []
        self._news = 0
        """Sessions that were added in this turn."""
        self._held = 0
        """Turns for which the oldest answer has waited."""
        self._scheduled = False
        self._loop: asyncio.AbstractEventLoop | None = None
        """The one that all sessions are on; asking for it is a system call, and turns are many."""

    def add(self, session: Gathering, patient: bool = False) -> None:
        """Let a session write when this turn ends; a patient one when a turn ends that has little to do, or after a
        few."""
        self._news += 1
        (self._patient if patient else self._sessions).append(session)
        if not self._scheduled:
            self._schedule()

    def _schedule(self) -> None:
        self._scheduled = True
        if self._loop is None or self._loop.is_closed():
            self._loop = asyncio.get_running_loop()
        self._loop.call_soon(self._end)

    def _end(self) -> None:
        self._scheduled = False
        sessions, self._sessions = self._sessions, []
        for session in sessions:
            session.write_out()
        if self._patient:
            self._held += 1
            if self._news >= BUSY and self._held < HELD:
                self._schedule()
            else:
                sessions, self._patient = self._patient, []
                self._held = 0
                for session in sessions:
                    session.write_out()
        self._news = 0
