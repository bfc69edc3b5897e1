"""The outgoing side of one connection: queues are bounded, a stalled peer is noticed.

A write to a peer that keeps up is a system call of its own, so rooms join what one batch of input has for a peer before
they come here. Invariants: `write` (replies, acknowledgements) is never refused; `offer` (calls, publications) is
refused once this peer's queue is over its total or over the sender's share of it, so that a full target never pauses
its callers.
"""

from __future__ import annotations

from collections.abc import Callable, Sized
from dataclasses import dataclass
from enum import IntFlag
from typing import Any, Final, Literal, Protocol

KiB: Final = 1024
MiB: Final = 1024 * KiB


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of one outgoing queue."""

    pending_bytes: int = 64 * MiB  # as NATS's max_pending
    share_bytes: int = 16 * MiB  # what one sender may have waiting at one congested peer
    high_water: int = 1 * MiB  # above it a queue counts as congested and is accounted per sender
    write_timeout: float = 30.0  # a congested peer that takes nothing for so long is cut
    slow_subscriber: Literal["drop", "disconnect"] = "drop"  # if its queue is full


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


class Gone:
    """Stands in for a transport that is no more: late output for the peer falls away here."""

    def write(self, data: bytes) -> None:
        pass

    def close(self) -> None:
        pass

    def abort(self) -> None:
        pass

    def is_closing(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default


GONE: Final = Gone()


class Budget:
    """The memory that all connections of a node share; when it is spent, the largest holder is cut first."""

    __slots__ = ("_sizes", "cuts", "held", "limit")

    def __init__(self, limit: int = 1024 * MiB) -> None:
        self.limit = limit
        self.held = 0
        self.cuts = 0
        self._sizes: dict[Outbox, int] = {}

    def hold(self, outbox: Outbox, size: int) -> None:
        """Note how much a connection holds, at the most."""
        self.held += size - self._sizes.pop(outbox, 0)
        if size:
            self._sizes[outbox] = size
        if self.held > self.limit:
            self._cut_largest()

    def _cut_largest(self) -> None:
        # A congested queue is noted as it grows and not as it drains: look at the real sizes before anybody is cut.
        self._sizes = {box: box.held_bytes for box in self._sizes}
        self.held = sum(self._sizes.values())
        if self.held > self.limit:
            largest = max(self._sizes, key=self._sizes.__getitem__)
            self.held -= self._sizes.pop(largest)
            self.cuts += 1
            largest.abort("memory budget spent")


class Pause(IntFlag):
    """Reasons to take no input from a peer; each is taken back by who gave it."""

    SESSION = 1  # a commit queue is full, or a command has to end first
    UNREAD = 2  # the peer does not read its own answers
    ORDER = 4  # too many of its requests wait for their turn to be answered
    RATE = 8  # its identity has sent its share of bytes
    TURN = 16  # what it sent took long to handle: first it is the others' turn
    DEBT = 32  # its topics were too costly to match: it has to pay that off first


class Outbox:
    """What a session writes to. Created by the connection, which also tells it about congestion."""

    __slots__ = (
        "_bounds",
        "_budget",
        "_charged",
        "_own_bytes",
        "_progress_at",
        "_shares",
        "_transport",
        "close_reason",
        "congested",
        "input",
        "on_closing",
        "on_drained",
        "paused",
        "write",
    )

    def __init__(self, transport: Transport, bounds: Bounds, budget: Budget, now: float) -> None:
        self._transport = transport
        self._bounds = bounds
        self._budget = budget
        self._shares: dict[int, int] | None = None
        self._charged = 0
        self._own_bytes = 0
        self._progress_at = now
        self.congested = False
        self.paused = Pause(0)
        """Why no input is taken now; it comes again when no reason is left."""
        self.close_reason: str | None = None
        self.on_drained: Callable[[], None] | None = None
        """Set by a session that wants to know when its congested queue has drained."""
        self.on_closing: Callable[[], None] | None = None
        """Set by a session that gathers its output: called before the connection takes no more of it."""
        self.input: Sized = ()
        """Set by a session to where it keeps the beginning of a frame, which counts as held too."""
        # Not congested is the common case: then a write costs no call of ours at all.
        self.write: Callable[[bytes], None] = transport.write

    @property
    def pending_bytes(self) -> int:
        """Bytes that wait for the peer to take them."""
        return self._transport.get_write_buffer_size()

    @property
    def held_bytes(self) -> int:
        """What this connection costs in memory: output that waits, and input that makes no whole frame yet."""
        return self._transport.get_write_buffer_size() + len(self.input)

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
        waiting = self.pending_bytes
        if waiting + size > self._bounds.pending_bytes + self._bounds.share_bytes:
            return False
        shares = self._shares
        assert shares is not None
        # Counted since the queue became congested; what was taken meanwhile may be used again.
        used = min(shares.get(sender, 0), waiting)
        if used and used + size > self._bounds.share_bytes:
            return False
        shares[sender] = used + size
        self._transport.write(data)
        self._charge(size)
        return True

    def offer_publication(self, data: bytes, sender: int) -> bool:
        """The same for what nobody waits for: the peer loses it, or its connection, as the setting says."""
        taken = self.offer(data, sender)
        if not taken and self._bounds.slow_subscriber == "disconnect":
            self.abort("slow subscriber")
        return taken

    def _write_congested(self, data: bytes) -> None:
        # Answers to a peer that does not read them: first stop reading its requests, then cut it.
        self._own_bytes = min(self._own_bytes, self.pending_bytes) + len(data)
        self._transport.write(data)
        self._charge(len(data))
        if self._own_bytes > self._bounds.pending_bytes:
            self.abort("it does not read its replies")
        elif self._own_bytes > self._bounds.share_bytes:
            self.pause_reading(Pause.UNREAD)

    def _charge(self, size: int) -> None:
        self._charged += size
        self._budget.hold(self, self._charged + len(self.input))

    @property
    def reading_paused(self) -> bool:
        return bool(self.paused)

    def pause_reading(self, why: Pause = Pause.SESSION) -> None:
        """Take no more input from this peer while the reason stands."""
        if not self.closing:
            if not self.paused:
                self._transport.pause_reading()
            self.paused |= why

    def resume_reading(self, why: Pause = Pause.SESSION) -> None:
        """The reason has gone; input comes again if it was the last one."""
        if self.paused & why and not self.closing:
            self.paused &= ~why
            if not self.paused:
                self._transport.resume_reading()

    def throttle(self, held: bool) -> None:
        """Hold the input back, or let it come, because of who sends it."""
        if held:
            self.pause_reading(Pause.RATE)
        else:
            self.resume_reading(Pause.RATE)

    def close(self, reason: str) -> None:
        """Send what is queued, then close."""
        if self.close_reason is None:
            if self.on_closing is not None:
                self.on_closing()
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
        self._progress_at = now
        self._charge(self.pending_bytes)

    def drained(self) -> None:
        """The transport's buffer is small again."""
        if not self.congested:
            return
        self.congested = False
        self.write = self._transport.write
        self._shares = None
        self.resume_reading(Pause.UNREAD)
        if self.on_drained is not None:
            self.on_drained()

    def tick(self, now: float) -> None:
        """Settle with the budget; cut a peer that takes nothing for the write timeout, also while it is closed."""
        waiting = self.pending_bytes
        # More may have been queued since: only a queue of which nothing was taken is stalled.
        taken = self._charged - waiting
        self._charged = waiting
        self._budget.hold(self, waiting + len(self.input))
        if taken > 0 or not (self.congested or self.closing):
            self._progress_at = now
        elif now - self._progress_at > self._bounds.write_timeout:
            self.abort("it takes no data")

    def lost(self) -> None:
        """The connection is gone: late output falls away, and what was held goes back to the budget."""
        self.congested = False
        self.input = ()
        self._transport = GONE
        self.write = GONE.write
        self._budget.hold(self, 0)
