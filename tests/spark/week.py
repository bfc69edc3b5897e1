"""A week of a small company as rows of the journal: busy by day, quiet by night, with one bad afternoon.

Invariant: the rows are the same in every run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from random import Random
from typing import Final

from polybus.model.journal import Row

SECOND: Final = 1_000_000
MONDAY: Final = 1_768_176_000 * SECOND  # 2026-01-12 00:00:00 UTC
HOUR: Final = 3600 * SECOND
# Who calls whom, by which wires, how often in a busy hour, and how many milliseconds it mostly takes.
CALLS: Final = (
    ("shop", "wallet/pay", "gsb", "gsb", 40, 12),
    ("shop", "stock/reserve", "gsb", "t2", 55, 5),
    ("app", "wallet/balance", "t2", "gsb", 90, 3),
    ("app", "stock/search", "t2", "t2", 120, 8),
    ("billing", "wallet/pay", "zbus", "gsb", 12, 20),
    ("billing", "ledger/book", "zbus", "zbus", 30, 15),
    ("twin 17", "node/deploy", "rmb", "rmb", 6, 180),
    ("twin 17", "node/statistics", "rmb", "rmb", 20, 45),
    ("monitoring", "node/statistics", "t2", "rmb", 25, 60),
)
EVENTS: Final = (("stock", "price/changed", "t2", 70), ("wallet", "payment/done", "gsb", 45))
BAD: Final = range(3 * 24 + 14, 3 * 24 + 16)  # Thursday from 14 to 16 o'clock


def load(hour: int) -> float:
    """How busy an hour is, from 0 to 1."""
    day, of_day = divmod(hour, 24)
    by_day = 1.0 if day < 5 else 0.35
    return by_day * (0.08 + 0.92 * math.exp(-(((of_day - 13.5) / 4.2) ** 2)))


def week() -> Iterator[Row]:
    """All rows, hour by hour."""
    random = Random(17)
    for hour in range(7 * 24):
        for caller, name, wire_in, wire_out, often, ms in CALLS:
            for _ in range(round(often * load(hour))):
                slow = 6.0 if hour in BAD and name.startswith("wallet") else 1.0
                took = random.lognormvariate(math.log(ms * slow), 0.5)
                wrong = random.random() < (0.2 if slow > 1 else 0.003)
                yield Row(
                    MONDAY + hour * HOUR + random.randrange(HOUR), "call", "", wire_in, wire_out, name, caller,
                    random.randrange(80, 900), random.randrange(40, 4000),
                    5 if wrong else 0, round(took * 1000), "the call timed out" if wrong else "",
                )  # fmt: skip
        for caller, name, wire, often in EVENTS:
            for _ in range(round(often * load(hour))):
                time_us = MONDAY + hour * HOUR + random.randrange(HOUR)
                yield Row(time_us, "publish", "", wire, "", name, caller, random.randrange(60, 400))
