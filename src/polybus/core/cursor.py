"""The position of a group in its topic: what is done, what is out, and where to read on.

Invariant: every offset below `next` is either in `open` or done (confirmed, passed over, or gone); `open` is in
offset order; the floor is the lowest offset that is not done and never falls except by `rewind` of a reset.

    done …… floor … open and done mixed … next … not read yet (but see `known`) … end
"""

from __future__ import annotations

from collections.abc import Iterable

from polybus.core.engine import GroupState, Move


class Cursor:
    """Plain bookkeeping, no I/O. Its fields are read and written by `Group` in the delivery loop."""

    __slots__ = ("done", "floor", "fresh", "fresh_tries", "known", "next", "open", "tries")

    def __init__(
        self, floor: int, done: Iterable[int] = (), tries: dict[int, int] | None = None
    ) -> None:
        self.floor = floor  # as of the last `advance`
        self.next = floor
        self.open: dict[int, None] = {}
        self.done = set(done)
        self.tries = dict(tries or {})  # deliveries so far of what is neither done nor in flight
        # Below `known` an offset may be done or out already although reading has not come by (again).
        self.known = max(floor, max(self.done, default=-1) + 1, max(self.tries, default=-1) + 1)
        self.fresh: list[int] = []  # done since the last move
        self.fresh_tries: dict[int, int] = {}  # delivered since the last move

    @classmethod
    def of(cls, state: GroupState) -> Cursor:
        """The cursor as the engine kept it."""
        return cls(state.floor, state.done, state.attempts)

    def finish(self, offset: int) -> None:
        """The record is done: it will never be delivered again."""
        self.open.pop(offset, None)
        self.done.add(offset)
        self.fresh.append(offset)
        self.fresh_tries.pop(offset, None)
        if offset == self.next:
            while self.next in self.done:
                self.next += 1

    def head(self) -> int:
        """The floor as it is now."""
        return min(next(iter(self.open), self.next), self.next)

    def rewind(self, to: int) -> None:
        """Read again from `to` on; what is done stays done."""
        if to < self.next:
            self.known = max(self.known, self.next)
            self.next = to
            self.open = {offset: None for offset in self.open if offset < to}

    def drop_below(self, first: int, out: Iterable[int]) -> int:
        """Retention has taken what lies below `first`: all of it but `out` is done. Returns how many were lost."""
        held = set(out)
        gone = [offset for offset in self.open if offset < first and offset not in held]
        for offset in gone:
            del self.open[offset]
        lost = len(gone)
        if self.next < first:
            # What is out there was not read again yet; it joins `open` at its end, which keeps the order.
            passed = sorted(offset for offset in held if self.next <= offset < first)
            lost += self.unread(first) - len(passed)
            self.open.update(dict.fromkeys(passed))
            self.next = first
        self.tries = {o: n for o, n in self.tries.items() if o >= first or o in held}
        return lost

    def unread(self, end: int) -> int:
        """How many offsets from `next` to `end` are not done."""
        ahead = (
            sum(1 for offset in self.done if offset >= self.next) if self.next < self.known else 0
        )
        return max(0, end - self.next) - ahead

    def take(self, topic: str, group: str) -> Move:
        """What the engine does not know yet, as one move."""
        floor = self.advance()
        done = [offset for offset in self.fresh if offset >= floor]
        attempts = self.fresh_tries
        self.fresh = []
        self.fresh_tries = {}
        return Move(topic, group, floor, done, attempts)

    def give_back(self, move: Move) -> None:
        """The engine did not take the move: the next one says it again."""
        self.fresh = [*move.done, *self.fresh]
        again = {o: n for o, n in move.attempts.items() if o >= self.floor and o not in self.done}
        self.fresh_tries = {**again, **self.fresh_tries}

    def advance(self) -> int:
        """Bring the floor up to the head, and forget what lies below."""
        floor = self.head()
        if self.done and floor > self.floor:
            if floor - self.floor <= len(self.done):
                self.done.difference_update(range(self.floor, floor))
            else:
                self.done = {offset for offset in self.done if offset >= floor}
        if self.tries and floor > self.floor:
            self.tries = {offset: n for offset, n in self.tries.items() if offset >= floor}
        self.floor = floor
        return floor
