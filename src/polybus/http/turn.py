"""One write per connection and turn of the event loop, however many messages there were for it.

Invariant: what a session was given goes out in that order, when this turn's input has been dealt with at the latest.
A write is a system call that wakes the peer, and costs several times what a small message does.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polybus.http.session import HttpSession


class Turn:
    """The sessions that have something to write at the end of this turn."""

    __slots__ = ("_sessions",)

    def __init__(self) -> None:
        self._sessions: list[HttpSession] = []

    def add(self, session: HttpSession) -> None:
        """Let a session write when this turn ends."""
        if not self._sessions:
            asyncio.get_running_loop().call_soon(self._end)
        self._sessions.append(session)

    def _end(self) -> None:
        sessions, self._sessions = self._sessions, []
        for session in sessions:
            session.write_out()
