"""What other twins have sent: requests under way to our handlers, and a memory against replays.

Invariant: both tables are bounded by time; a signed message is delivered once within the window in which its age
would be accepted.
"""

from __future__ import annotations

from typing import Final

from polybus.core.watch import Watched
from polybus.model.message import Status

MINUTE_MS: Final = 60_000
SLICE_MS: Final = 15_000  # how much longer than needed a message may be remembered


class Taken:
    """Requests of other twins that our handlers have not answered yet."""

    def __init__(self) -> None:
        self._by_uid: dict[str, dict[int, tuple[int, Watched | None]]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, uid: str, src: int, deadline_ms: int, watched: Watched | None = None) -> None:
        asked = self._by_uid.setdefault(uid, {})
        self._count += src not in asked
        asked[src] = (deadline_ms, watched)

    def holds(self, uid: str, src: int) -> bool:
        return src in self._by_uid.get(uid, ())

    def only(self, uid: str) -> int | None:
        """The one twin that has asked under this id."""
        found = self._by_uid.get(uid, {})
        return next(iter(found)) if len(found) == 1 else None

    def drop(self, uid: str, src: int) -> Watched | None:
        """Forget a request; what was noted of it, for who ends it."""
        found = self._by_uid.get(uid)
        if found is None or src not in found:
            return None
        _deadline, watched = found.pop(src)
        self._count -= 1
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
    """Which messages were seen, each for as long as it would be accepted, in slices that are forgotten as a whole."""

    def __init__(self) -> None:
        self._slices: dict[int, dict[tuple[str, int], int]] = {}
        self._forgotten = 0

    def __len__(self) -> int:
        return sum(map(len, self._slices.values()))

    def seen(self, uid: str, src: int, proof: bytes, until_ms: int, now_ms: int) -> str:
        """Note a message until then; "" for a new one, `replay` for the very same, `again` for one signed anew."""
        if now_ms // SLICE_MS != self._forgotten:
            self._forgotten = now_ms // SLICE_MS
            for late in [number for number in self._slices if number < self._forgotten]:
                del self._slices[late]
        key = (uid, src)
        mark = hash(proof)  # a tenth of the memory that a signature takes
        for each in self._slices.values():
            found = each.get(key)
            if found is not None:
                return "replay" if found == mark else "again"
        self._slices.setdefault(until_ms // SLICE_MS, {})[key] = mark
        return ""


class Rates:
    """How many messages each twin has sent in the present minute."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._since = 0
        self._counts: dict[int, int] = {}

    def is_spent(self, twin: int, now_ms: int) -> bool:
        """Whether the twin has sent as many as it may."""
        if now_ms - self._since >= MINUTE_MS:
            self._since = now_ms
            self._counts.clear()
        return self._counts.get(twin, 0) >= self._limit

    def count(self, twin: int) -> None:
        """Note a message that is certainly of this twin."""
        self._counts[twin] = self._counts.get(twin, 0) + 1
