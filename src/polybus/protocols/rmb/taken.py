"""What other twins have sent: requests under way to our handlers, and a memory against replays.

Invariant: both tables are bounded by time; a signed message is delivered once within the window in which its age
would be accepted.
"""

from __future__ import annotations

from typing import Final

from polybus.core.watch import Watched
from polybus.model.message import Status

MINUTE_MS: Final = 60_000


class Taken:
    """Requests of other twins that our handlers have not answered yet."""

    def __init__(self) -> None:
        self._by_uid: dict[str, dict[int, tuple[int, Watched | None]]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_uid.values()))

    def add(self, uid: str, src: int, deadline_ms: int, watched: Watched | None = None) -> None:
        self._by_uid.setdefault(uid, {})[src] = (deadline_ms, watched)

    def holds(self, uid: str, src: int) -> bool:
        return src in self._by_uid.get(uid, ())

    def only(self, uid: str) -> int | None:
        """The one twin that has asked under this id."""
        found = self._by_uid.get(uid, {})
        return next(iter(found)) if len(found) == 1 else None

    def drop(self, uid: str, src: int) -> Watched | None:
        """Forget a request; what was noted of it, for who ends it."""
        found = self._by_uid.get(uid)
        if found is None:
            return None
        _deadline, watched = found.pop(src, (0, None))
        if not found:
            del self._by_uid[uid]
        return watched

    def expire(self, now_ms: int) -> None:
        """Forget those whose callers have given up."""
        late = [
            (uid, src)
            for uid, asked in self._by_uid.items()
            for src, (deadline_ms, _) in asked.items()
            if deadline_ms < now_ms
        ]
        for uid, src in late:
            watched = self.drop(uid, src)
            if watched is not None:
                watched.answered(b"", Status.TIMED_OUT)


class Replays:
    """Which messages were seen within the window, in two halves that take turns."""

    def __init__(self, window_ms: int) -> None:
        self._window = window_ms
        self._since = 0
        self._now: dict[tuple[str, int], bytes] = {}
        self._before: dict[tuple[str, int], bytes] = {}

    def seen(self, uid: str, src: int, proof: bytes, now_ms: int) -> str:
        """Note a message; "" for a new one, `replay` for the very same, `again` for the same id signed anew."""
        if now_ms - self._since >= self._window:
            fresh = now_ms - self._since < 2 * self._window
            self._before = self._now if fresh else {}
            self._now = {}
            self._since = now_ms
        key = (uid, src)
        found = self._now.get(key) or self._before.get(key)
        if found is None:
            self._now[key] = proof
            return ""
        return "replay" if found == proof else "again"


class Rates:
    """How many messages each twin has sent in the present minute."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._since = 0
        self._counts: dict[int, int] = {}

    def allow(self, twin: int, now_ms: int) -> bool:
        """Count a message; False when the twin has sent too many."""
        if now_ms - self._since >= MINUTE_MS:
            self._since = now_ms
            self._counts.clear()
        count = self._counts.get(twin, 0) + 1
        self._counts[twin] = count
        return count <= self._limit
