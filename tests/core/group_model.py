"""What groups promise, as plainly as it can be said: the oracle of the state machine.

Time, order and counts are exact. One thing is left to the real one: how far reading has gone, which decides what a
filter has passed over for good; `passed` takes its floor over, after checking that nothing wanted lies below.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field


@dataclass
class Rules:
    tags: frozenset[str] | None = None
    ack: bool = True
    paused: bool = False
    window: int = 99
    group_window: int = 99
    timeout: float = 0.0
    limit: int = 3


@dataclass
class ModelGroup:
    rules: Rules
    floor: int
    done: set[int] = field(default_factory=set)
    tries: dict[int, int] = field(default_factory=dict)
    flight: dict[int, tuple[str, float]] = field(default_factory=dict)  # member, since
    redo: set[int] = field(default_factory=set)
    delayed: dict[int, float] = field(default_factory=dict)
    buried: set[int] = field(default_factory=set)
    credit: dict[str, int] = field(default_factory=dict)
    recalled: dict[str, int] = field(default_factory=dict)
    waiting: list[str] = field(default_factory=list)

    def held(self, member: str) -> list[int]:
        return [offset for offset, (who, _) in self.flight.items() if who == member]

    def undone(self, log: Log) -> list[int]:
        start = max(self.floor, log.first)
        tags = self.rules.tags
        return [
            o
            for o in range(start, len(log.tags))
            if o not in self.done and (tags is None or log.tags[o] in tags)
        ]

    def enqueue(self, member: str) -> None:
        room = len(self.held(member)) < self.rules.window
        if self.credit.get(member) and room and member not in self.waiting:
            self.waiting.append(member)

    def finish(self, member: str, offsets: list[int]) -> int:
        mine = [o for o in dict.fromkeys(offsets) if self.flight.get(o, ("", 0))[0] == member]
        for offset in mine:
            del self.flight[offset]
            self.done.add(offset)
        self.enqueue(member)
        return len(mine)

    def release(self, offset: int, due: float = 0.0) -> None:
        member, _ = self.flight.pop(offset)
        if self.tries[offset] >= self.rules.limit:
            self.buried.add(offset)
        elif due:
            self.delayed[offset] = due
        else:
            self.redo.add(offset)
        self.enqueue(member)

    def give_credit(self, member: str, count: int) -> None:
        again = min(count, self.recalled.get(member, 0))
        self.recalled[member] = self.recalled.get(member, 0) - again
        if not self.rules.ack:
            self.finish(member, self.held(member)[: count - again])
        self.credit[member] += count
        self.enqueue(member)

    def recall(self, member: str) -> None:
        self.recalled[member] = self.recalled.get(member, 0) + self.credit[member]
        self.credit[member] = 0

    def leave(self, member: str) -> None:
        del self.credit[member]
        self.recalled.pop(member, None)
        for offset in self.held(member):
            self.release(offset)
        self.waiting = [who for who in self.waiting if who != member]

    def expire(self, now: float) -> None:
        if self.rules.ack and self.rules.timeout:
            for offset, (_, since) in list(self.flight.items()):
                if since <= now - self.rules.timeout:
                    self.release(offset)

    def pump(self, log: Log, now: float) -> list[tuple[str, int, int]]:
        """Who gets which record at which attempt, in this order."""
        delivered: list[tuple[str, int, int]] = []
        for offset in [o for o, due in self.delayed.items() if due <= now]:
            del self.delayed[offset]
            self.redo.add(offset)
        while self.waiting and len(self.flight) < self.rules.group_window and not self.rules.paused:
            out = {*self.flight, *self.delayed, *self.buried}
            free = [offset for offset in self.undone(log) if offset not in out]
            if not free:
                break
            member = self.waiting.pop(0)
            if not self.credit[member]:
                continue
            offset = min(free, key=lambda o: (o not in self.redo, o))
            self.redo.discard(offset)
            self.tries[offset] = self.tries.get(offset, 0) + 1
            self.flight[offset] = (member, now)
            self.credit[member] -= 1
            self.enqueue(member)
            delivered.append((member, offset, self.tries[offset]))
        return delivered

    def bury_spent(self) -> None:
        for offset, count in self.tries.items():
            out = offset in self.done or offset in self.flight or offset < self.floor
            if count >= self.rules.limit and not out:
                self.buried.add(offset)
                self.redo.discard(offset)
                self.delayed.pop(offset, None)

    def passed(self, floor: int, log: Log) -> None:
        assert all(offset >= floor for offset in self.undone(log)), "a wanted record was passed by"
        assert floor >= self.floor
        self.floor = floor

    def after_crash(self) -> None:
        self.flight, self.redo, self.delayed, self.buried = {}, set(), {}, set()
        self.credit, self.recalled, self.waiting = {}, {}, []
        self.bury_spent()


@dataclass
class Log:
    tags: list[str] = field(default_factory=list)
    unsynced: list[str] = field(default_factory=list)
    first: int = 0
    groups: dict[str, ModelGroup] = field(default_factory=dict)
    dead: list[tuple[str, int, int]] = field(default_factory=list)  # group, offset, attempts

    def sync(self) -> None:
        self.tags += self.unsynced
        self.unsynced = []
        for name, group in self.groups.items():
            for offset in group.buried:
                if offset >= self.first:
                    self.dead.append((name, offset, group.tries[offset]))
                group.done.add(offset)
            group.buried = set()

    def snapshot(self) -> Log:
        return copy.deepcopy(self)
