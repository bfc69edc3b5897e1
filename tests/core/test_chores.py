"""Parties that leave much behind: cleared away in slices, and nothing reaches them meanwhile."""

from __future__ import annotations

import pytest

from polybus.core.chores import SLICE, Chores
from polybus.core.router import Router
from polybus.core.subscriptions import PATTERNS
from polybus.errors import NoSuchService
from polybus.model.clock import ManualClock
from polybus.model.message import Call, Publication, Reply, Status
from tests.core.party import Party, Turns

MANY = 10 * SLICE


@pytest.fixture
def router():
    router = Router(ManualClock())
    router.add_wire("test", PATTERNS)
    return router


@pytest.fixture
def turns(router):
    return Turns(router.chores)


def party(router: Router) -> Party:
    found = Party("test")
    router.attach(found)
    return found


def ask(router: Router, caller: Party) -> Call:
    call = Call(caller, "s", b"")
    router.call(call)
    return call


def note(number: int, done: list[int]) -> int:
    done.append(number)
    return number


def test_small_work_is_done_at_once_and_large_work_in_slices():
    chores = Chores()
    done: list[int] = []
    flushed: list[int] = []
    turns = Turns(chores)
    chores.add((note(n, done) for n in range(SLICE - 1)), lambda: flushed.append(len(done)))
    assert len(done) == SLICE - 1
    assert not turns.due
    chores.add((note(n, done) for n in range(3 * SLICE)), lambda: flushed.append(len(done)))
    chores.add(note(n, done) for n in range(2 * SLICE))
    assert len(turns.due) == 1
    assert turns.all() == 5  # two to see that nothing is left
    assert len(done) == 6 * SLICE - 1
    assert flushed == [SLICE - 1, *(n * SLICE - 1 for n in (2, 4, 6, 6))]


def test_long_work_holds_up_no_other():
    chores = Chores()
    done: list[int] = []
    turns = Turns(chores)
    chores.add(iter(range(100 * SLICE)))
    chores.add(note(n, done) for n in range(3 * SLICE))
    for _ in range(4):
        turns.one()
    assert len(done) == 3 * SLICE


def test_without_turns_to_come_all_is_done_at_once():
    chores = Chores()
    done: list[int] = []
    chores.add(note(n, done) for n in range(MANY))
    assert len(done) == MANY
    turns = Turns(chores)
    chores.add(note(n, done) for n in range(MANY))
    chores.finish()
    assert len(done) == 2 * MANY
    turns.all()
    assert len(done) == 2 * MANY


def test_work_that_raises_does_not_keep_the_next_from_its_turns():
    chores = Chores()
    done: list[int] = []
    turns = Turns(chores)

    def broken():
        yield from range(SLICE)
        raise RuntimeError

    chores.add(broken())
    chores.add(note(n, done) for n in range(MANY))
    with pytest.raises(RuntimeError):
        turns.one()
    turns.all()
    assert len(done) == MANY


def test_names_of_who_leaves_lead_nowhere_at_once_and_may_be_taken(router, turns):
    gone, heir, caller = party(router), party(router), party(router)
    for n in range(MANY):
        router.register(gone, f"s{n}", f"s{n}")
    router.detach(gone)
    assert turns.due
    with pytest.raises(NoSuchService):
        router.call(Call(caller, "s0", b""))
    router.register(heir, "s0", "s0")
    assert heir.names_size > 0
    turns.all()
    assert len(router.services) == 1
    router.call(Call(caller, "s0", b""))
    assert len(heir.calls) == 1
    assert gone.registrations is None


def test_nothing_is_published_to_who_leaves(router, turns):
    gone, stays = party(router), party(router)
    for n in range(MANY):
        router.subscribe(gone, f"a/b{n}", f"a/b{n}")
    router.subscribe(stays, "a/*", "a/*")
    assert set(router.recipients("test", "a/b7", "a/b7")) == {gone, stays}
    epoch = router.subscription_epoch
    router.detach(gone)
    assert router.subscription_epoch > epoch
    while turns.due:
        for topic in ("a/b7", f"a/b{MANY - 1}", "a/**"):
            assert router.publish(Publication(stays, topic, topic, b"")) == 1
        turns.one()
    assert gone.publications == []
    assert router.subscribed("test") == 1


def test_calls_of_who_leaves_are_cancelled_and_their_answers_reach_nobody(router, turns):
    service, gone = party(router), party(router)
    router.register(service, "s", "s")
    calls = [ask(router, gone) for _ in range(MANY)]
    router.detach(gone)
    assert 0 < router.calls.pending < MANY
    late = [call for call in calls if call.open]
    assert not router.reply(Reply(late[0], b"part", final=False))
    assert not late[0].open
    router.fail(late[1], Status.STALLED)
    turns.all()
    assert gone.replies == []
    assert len(service.cancelled) == MANY
    assert router.calls.pending == 0
    assert not service.calls_taken


def test_calls_to_who_leaves_fail_each_once_and_time_out_meanwhile(router, turns):
    service, caller = party(router), party(router)
    router.register(service, "s", "s")
    for n in range(MANY):
        router.call(Call(caller, "s", b"", deadline=router.clock.monotonic() + 1 + n % 2))
    router.detach(service)
    router.tick(router.clock.advance(1.5))
    statuses = [reply.status for reply in caller.replies]
    assert Status.TIMED_OUT in statuses
    turns.all()
    statuses = [reply.status for reply in caller.replies]
    assert len(statuses) == MANY
    assert set(statuses) == {Status.GONE, Status.TIMED_OUT}
    assert not caller.calls_made
    assert router.calls.pending == 0


def test_who_comes_back_while_it_is_cleared_away_keeps_its_new_calls(router, turns):
    service, caller = party(router), party(router)
    router.register(service, "s", "s")
    for _ in range(MANY):
        ask(router, caller)
    router.detach(service)
    router.attach(service)
    service.closed = False
    router.register(service, "s", "s")
    call = ask(router, caller)
    turns.all()
    assert call.open
    assert router.reply(Reply(call, b"done"))
    assert [reply.status for reply in caller.replies].count(Status.GONE) == MANY
    assert caller.replies[-1].payload == b"done"
