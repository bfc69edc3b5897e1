"""What one client owes for costly topics: what it makes the bus do beyond passing on is counted.

Invariant: walks of its topics through the subscriptions are charged less the free part of each, so topics of ordinary
cost never add up; nobody ever owes more than `MAX_DEBT`, which is paid off in so many seconds.
"""

from __future__ import annotations

from typing import Final

# Of one topic; no concrete topic needs more where subscriptions are sensible
FREE_VISITS: Final = 256
# 50 ms or so of walking
VISITS_PER_S: Final = 200_000
MAX_DEBT: Final = 3 * VISITS_PER_S


class Toll:
    """The debt of one client, in nodes visited."""

    __slots__ = ("debt",)

    def __init__(self) -> None:
        self.debt = 0

    def charge(self, visits: int) -> bool:
        """Count work; True once it has had a second's worth: then nothing more is read until all is paid off."""
        self.debt = min(self.debt + visits, MAX_DEBT)
        return self.debt > VISITS_PER_S

    def charge_walk(self, visits: int) -> bool:
        """The same for one walk, of which a part is free."""
        return self.charge(visits - FREE_VISITS) if visits > FREE_VISITS else False

    def pay(self) -> bool:
        """A second has passed; whether nothing is owed any more."""
        self.debt = max(0, self.debt - VISITS_PER_S)
        return not self.debt
