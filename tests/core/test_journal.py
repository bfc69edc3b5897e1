"""The collector of rows: what becomes of one row and of calls that are alike, and what is counted."""

from __future__ import annotations

from array import array
from itertools import pairwise

import pytest

from polybus.core import journal as core_journal
from polybus.core.engine import Done
from polybus.core.journal import Journal
from polybus.errors import PolybusError, StorageFull
from polybus.model.clock import ManualClock
from polybus.model.journal import Row, parse_row
from polybus.model.message import Status


class Log:
    """Takes what the journal hands over, and stores it when told to."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.writes: list[int] = []
        self.waiting: list[Done] = []
        self.full = False

    def write(self, ends: array[int], parts: list[bytes], done: Done) -> bool:
        if self.full:
            raise StorageFull("no space")
        whole = b"".join(parts)
        self.rows += [parse_row(whole[a:b]) for a, b in pairwise(ends)]
        self.writes.append(len(ends) - 1)
        self.waiting.append(done)
        return True

    def store(self, error: PolybusError | None = None) -> None:
        for done in self.waiting:
            done(-1 if error else 0, error)
        self.waiting = []


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def kept(log: Log, clock: ManualClock) -> Journal:
    return Journal(clock, log.write)


def test_calls_that_are_alike_are_rows_of_their_own(kept, log):
    started = kept.now()
    ids = kept.alike(started + 250, "gsb", (started, 128, "calc/add"), "token:ann", 64)
    ids += (b"1", b"22", b"333")
    kept.settle(3)
    kept.tick()
    assert log.rows == [
        Row(started + 250, "call", id, "gsb", "gsb", "calc/add", "token:ann", 128, 64, 0, 250, "")
        for id in ("1", "22", "333")
    ]


@pytest.mark.parametrize(
    "id", ['a"b', "back\\slash", "\x00\x1f\x7f", '","call",""', "", "üñï".encode().hex()]
)
def test_an_id_stands_in_its_row_as_the_client_wrote_it(kept, log, id):
    name = 'no"thing,"call",""\n'
    kept.alike(kept.now(), "gsb", (0, 1, name), 'tok"en', 1).extend([b"7", id.encode()])
    kept.tick()
    assert [(row.id, row.name, row.caller) for row in log.rows] == [
        ("7", name, 'tok"en'),
        (id, name, 'tok"en'),
    ]


def test_a_row_does_not_grow_with_what_a_client_writes(kept, log):
    long = "x" * 1_000_000
    kept.call(0, long, ("gsb", "gsb"), long, "me", (1, 2), Status.FAILED, long)
    kept.alike(kept.now(), "gsb", (0, 1, long), "me", 1).extend([b"7", long.encode()])
    kept.note("publish", "t2", long, "me", (1, 2), long)
    kept.error("gsb", "127.0.0.1:1", long)
    kept.tick()
    assert len(log.rows) == 5
    assert all(len(str(row)) < 5000 for row in log.rows)
    assert log.rows[1].id == "7"


def test_rows_of_all_kinds_stay_in_the_order_they_came(kept, log):
    kept.note("publish", "t2", "news", "anonymous", (3, 6))
    ids = kept.alike(kept.now(), "t2", (0, 1, "a"), "x", 2, int(Status.TIMED_OUT))
    kept.error("gsb", "127.0.0.1:1", "no\nframe")
    ids += (b"x-1", b"x-2")
    kept.call(0, "z", ("gsb", "t2"), "b", "x", (1, 2), Status.FAILED, "why")
    kept.tick()
    assert [(row.kind, row.id, row.status) for row in log.rows] == [
        ("publish", "", Status.OK),
        ("call", "x-1", Status.TIMED_OUT),
        ("call", "x-2", Status.TIMED_OUT),
        ("error", "", Status.REFUSED),
        ("call", "z", Status.FAILED),
    ]


def test_a_batch_goes_to_the_log_once_it_is_worth_a_write(kept, log):
    ids = kept.alike(kept.now(), "gsb", (0, 1, "a"), "x", 2)
    ids += [b"1"] * (core_journal.BATCH - 1)
    kept.settle(core_journal.BATCH - 1)
    assert log.writes == []
    kept.note("publish", "t2", "news", "anonymous", (3, 6))
    kept.settle(0)
    assert log.writes == [core_journal.BATCH]
    kept.tick()
    assert log.writes == [core_journal.BATCH]


def test_every_row_is_counted_as_written_or_as_dropped(kept, log, monkeypatch):
    monkeypatch.setattr(core_journal, "MAX_WAITING", 5)

    def three() -> None:
        kept.note("publish", "t2", "news", "anonymous", (3, 6))
        kept.alike(kept.now(), "gsb", (0, 1, "a"), "x", 2).extend([b"1", b"2"])
        kept.tick()

    three()
    assert (kept.written, kept.dropped) == (0, 0)
    three()  # while the first three wait
    assert (kept.written, kept.dropped) == (0, 3)
    log.store()
    assert (kept.written, kept.dropped) == (3, 3)
    three()
    log.store(StorageFull("no space"))
    assert (kept.written, kept.dropped) == (3, 6)
    log.full = True
    three()
    assert (kept.written, kept.dropped) == (3, 9)
    log.full = False
    three()
    log.store()
    assert (kept.written, kept.dropped) == (6, 9)
