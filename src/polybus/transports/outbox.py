"""The outgoing side of one connection: writes are coalesced, queues are bounded, a stalled peer is noticed.

The event loop's transport already joins all writes of one loop turn into one system call, so the outbox adds only the
bounds. Invariants: `write` (replies, acknowledgements) is never refused; `offer` (calls, publications) is
refused once this
peer's queue is over its total or over the sender's share of it, so that a full target never pauses its callers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

KiB: Final = 1024
MiB: Final = 1024 * KiB


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of one outgoing queue."""

    pending_bytes: int = 64 * MiB  # as NATS's max_pending
    share_bytes: int = 16 * MiB  # what one sender may have waiting at one congested peer
    high_water: int = 1 * MiB  # above it a queue counts as congested and is accounted per sender
    write_timeout: float = 30.0  # a congested peer that takes nothing for so long is cut


class Transport(Protocol):
    """What an outbox needs of an asyncio (or in-memory) transport."""

    def write(self, data: bytes) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...
    def is_closing(self) -> bool: ...
    def get_write_buffer_size(self) -> int: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def get_extra_info(self, name: str, default: Any = None) -> Any: ...


class Budget:
    """The memory that all outgoing queues of a node share; when it is spent, the largest queue is cut first."""

    __slots__ = ("_congested", "charged", "cuts", "limit")

    def __init__(self, limit: int = 1024 * MiB) -> None:
        self.limit = limit
        self.charged = 0
        self.cuts = 0
        self._congested: set[Outbox] = set()

    def join(self, outbox: Outbox) -> None:
        self._congested.add(outbox)

    def leave(self, outbox: Outbox, charged: int) -> None:
        self._congested.discard(outbox)
        self.charged -= charged

    def charge(self, size: int) -> None:
        self.charged += size
        if self.charged > self.limit:
            self._cut_largest()

    def _cut_largest(self) -> None:
        # Charges are given back only when a queue drains, so look at the real sizes before anybody is cut.
        if sum(box.pending_bytes for box in self._congested) <= self.limit:
            return
        largest = max(self._congested, key=lambda box: box.pending_bytes)
        self.cuts += 1
        largest.abort("memory budget spent")


class Outbox:
    """What a session writes to. Created by the connection, which also tells it about congestion."""

    __slots__ = (
        "_bounds",
        "_budget",
        "_charged",
        "_own_bytes",
        "_progress",
        "_progress_at",
        "_shares",
        "_transport",
        "close_reason",
        "congested",
        "on_drained",
        "reading_paused",
        "write",
        "written",
    )

    def __init__(self, transport: Transport, bounds: Bounds, budget: Budget) -> None:
        self._transport = transport
        self._bounds = bounds
        self._budget = budget
        self._shares: dict[int, int] | None = None
        self._charged = 0
        self._own_bytes = 0
        self._progress = 0
        self._progress_at = 0.0
        self.written = 0
        self.congested = False
        self.reading_paused = False
        self.close_reason: str | None = None
        self.on_drained: Callable[[], None] | None = None
        """Set by a session that wants to know when its congested queue has drained."""
        # Not congested is the common case: then a write costs no call of ours at all.
        self.write: Callable[[bytes], None] = transport.write

    @property
    def pending_bytes(self) -> int:
        """Bytes that wait for the peer to take them."""
        return self._transport.get_write_buffer_size()

    @property
    def closing(self) -> bool:
        return self.close_reason is not None or self._transport.is_closing()

    def offer(self, data: bytes, sender: int) -> bool:
        """Queue bytes on behalf of another connection, or return False when its share or the total is used up.

        A sender with nothing waiting may always place one frame below the total, however large.
        """
        if not self.congested:
            self._transport.write(data)
            return True
        size = len(data)
        if self.pending_bytes + size > self._bounds.pending_bytes + self._bounds.share_bytes:
            return False
        shares = self._shares
        assert shares is not None
        used = shares.get(sender, 0)
        if used and used + size > self._bounds.share_bytes:
            return False
        shares[sender] = used + size
        self._charge(size)
        self._transport.write(data)
        return True

    def _write_congested(self, data: bytes) -> None:
        # Answers to a peer that does not read them: first stop reading its requests, then cut it.
        self._own_bytes += len(data)
        self._charge(len(data))
        self._transport.write(data)
        if self._own_bytes > self._bounds.pending_bytes:
            self.abort("it does not read its replies")
        elif self._own_bytes > self._bounds.share_bytes and not self.reading_paused:
            self.pause_reading()

    def _charge(self, size: int) -> None:
        self._charged += size
        self._budget.charge(size)

    def pause_reading(self) -> None:
        """Take no more input from this peer for now (its own share is used up, or a commit queue is full)."""
        if not self.reading_paused and not self.closing:
            self.reading_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self.reading_paused and not self.closing:
            self.reading_paused = False
            self._transport.resume_reading()

    def close(self, reason: str) -> None:
        """Send what is queued, then close."""
        if self.close_reason is None:
            self.close_reason = reason
        self._transport.close()

    def abort(self, reason: str) -> None:
        """Close at once; what is queued is dropped."""
        if self.close_reason is None:
            self.close_reason = reason
        self._transport.abort()

    def get_extra_info(self, name: str) -> Any:
        """What the transport knows of the peer (socket, certificate)."""
        return self._transport.get_extra_info(name)

    # -- called by the connection ---------------------------------------------------------------------------------

    def choked(self, now: float) -> None:
        """The transport's buffer went over the high-water mark."""
        self.congested = True
        self.write = self._write_congested
        self._shares = {}
        self._own_bytes = 0
        self._charged = 0
        self._progress = -self.pending_bytes
        self._progress_at = now
        self._budget.join(self)

    def drained(self) -> None:
        """The transport's buffer is small again."""
        if not self.congested:
            return
        self.congested = False
        self.write = self._transport.write
        self._shares = None
        self._budget.leave(self, self._charged)
        self._charged = 0
        self.resume_reading()
        if self.on_drained is not None:
            self.on_drained()

    def tick(self, now: float) -> None:
        """Cut a congested peer that has taken nothing for the write timeout."""
        if not self.congested:
            return
        # More may have been queued since; only a queue whose head does not move is stalled. What was charged
        # minus what waits is how much has been taken.
        taken = self._charged - self.pending_bytes
        if taken != self._progress:
            self._progress = taken
            self._progress_at = now
        elif now - self._progress_at > self._bounds.write_timeout:
            self.abort("it takes no data")

    def lost(self) -> None:
        """The connection is gone: give its share of the budget back."""
        if self.congested:
            self.congested = False
            self._budget.leave(self, self._charged)
