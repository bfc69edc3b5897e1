"""An endpoint that keeps what it is given, for tests of the core."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from polybus.core.chores import Chores
from polybus.core.endpoint import ANONYMOUS, Endpoint, Identity
from polybus.model.message import Call, Publication, Reply
from polybus.model.record import Delivery


class Party(Endpoint):
    """Remembers every delivery in order."""

    def __init__(self, wire: str = "test", identity: Identity = ANONYMOUS) -> None:
        super().__init__(identity)
        self.wire = wire  # parties of several wires meet in one test
        self.calls: list[Call] = []
        self.replies: list[Reply] = []
        self.publications: list[Publication] = []
        self.deliveries: list[Delivery] = []
        self.cancelled: list[Call] = []
        self.full = False

    def deliver_call(self, call: Call) -> None:
        self.calls.append(call)

    def deliver_reply(self, reply: Reply) -> None:
        self.replies.append(reply)

    def deliver_publication(self, publication: Publication) -> bool:
        if not self.full:
            self.publications.append(publication)
        return not self.full

    def deliver_record(self, delivery: Delivery) -> None:
        self.deliveries.append(delivery)

    def cancel_call(self, call: Call) -> None:
        self.cancelled.append(call)

    def close(self, reason: str) -> None:
        self.closed = True


def all_steps(work: Iterator[object]) -> int:
    """Do what is left to do for somebody who leaves; how many steps it took."""
    return sum(1 for _ in work)


class Turns:
    """Stands in for the event loop where parties are cleared away."""

    def __init__(self, chores: Chores) -> None:
        self.due: deque[Callable[[], None]] = deque()
        chores.later = self.due.append

    def one(self) -> None:
        self.due.popleft()()

    def all(self) -> int:
        count = 0
        while self.due:
            self.one()
            count += 1
        return count
