"""Groups: who gets which record, how often, and what is remembered of it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from polybus.core import backlog, ledger
from polybus.core.engine import Append, Engine, GroupState, Move, TopicOptions
from polybus.core.group_options import (
    BEGINNING,
    END,
    MAX_IN_FLIGHT,
    GroupOptions,
    Start,
    options_from,
    options_to,
)
from polybus.core.groups import ORPHAN_S
from polybus.errors import (
    Conflict,
    CorruptRecord,
    InvalidName,
    LimitExceeded,
    NoSuchGroup,
    NoSuchTopic,
    OutOfRange,
    StorageFull,
)
from polybus.model.clock import ManualClock
from polybus.model.record import NewRecord, Record
from polybus.storage.engine import EmbeddedEngine
from tests.core.durable import Consumer, DurableNode
from tests.core.memory_engine import MemoryEngine


async def started(engine: Engine, clock: ManualClock) -> Any:
    await engine.start()
    node = DurableNode(engine, clock)
    await node.topics.start()
    return node


async def prepared(engine: Engine, clock: ManualClock) -> Any:
    node = await started(engine, clock)
    await node.topics.declare("t")
    return node


async def restart(node: DurableNode) -> Any:
    """The same data under a new node."""
    await node.topics.stop()
    await node.engine.stop()
    engine = node.engine
    if isinstance(engine, MemoryEngine):
        return await started(engine.crash(), node.clock)
    assert isinstance(engine, EmbeddedEngine)
    return await started(EmbeddedEngine(engine._folder, node.clock), node.clock)


@pytest.fixture(params=["warm", "cold", "embedded"])
async def node(request, clock, tmp_path):
    """A node with topic `t`: on records in memory, on records that must be read, and on the real engine."""
    engine: Engine = (
        EmbeddedEngine(tmp_path / "data", clock)
        if request.param == "embedded"
        else MemoryEngine(cold=request.param == "cold")
    )
    node = await prepared(engine, clock)
    yield node
    await node.topics.stop()
    await node.engine.stop()


@pytest.fixture(params=["warm", "cold"])
async def frail(request, clock):
    """A node whose engine can be made to fail."""
    node = await prepared(MemoryEngine(cold=request.param == "cold"), clock)
    yield node
    await node.topics.stop()


# -- sharing --------------------------------------------------------------------------------------


async def test_a_member_gets_as_many_records_as_it_gave_credit_for(node):
    await node.produce("t", "a", "b", "c")
    await node.group()
    consumer, member = await node.join(2)
    assert consumer.offsets == [0, 1]
    member.credit(5)
    await node.settle()
    assert consumer.offsets == [0, 1, 2]
    await node.produce("t", "d")
    assert consumer.offsets == [0, 1, 2, 3]
    assert [d.record.payload for d in consumer.got] == [b"a", b"b", b"c", b"d"]
    assert {(d.topic, d.group, d.attempt, d.token) for d in consumer.got} == {("t", "g", 1, member)}


async def test_credit_of_nothing_is_nothing_and_credit_is_bounded(node):
    await node.group()
    _, member = await node.join(0)
    member.credit(-1)
    assert member.wanted == 0
    for huge in (2 * MAX_IN_FLIGHT, 2**63 - 1, 2**64):
        member.credit(huge)
        assert member.wanted == MAX_IN_FLIGHT
    member.recall()
    member.credit(2**63 - 1)
    assert (member.wanted, member.recalled) == (MAX_IN_FLIGHT, 0)


async def test_credit_without_end_confirms_all_that_is_held(node):
    await node.produce("t", *"abc")
    group = await node.group(ack=False)
    consumer, member = await node.join(3)
    member.credit(2**64)
    await node.settle()
    assert (consumer.offsets, len(group.in_flight), member.wanted) == ([0, 1, 2], 0, MAX_IN_FLIGHT)


async def test_a_member_is_served_at_once_with_what_is_at_hand(node):
    await node.group(ack=False)
    await node.produce("t", "a", "b")
    consumer, member = await node.join(1)
    node.groups.serve(member)
    assert consumer.offsets == [0, 1]
    node.groups.serve(member)
    assert consumer.offsets == [0, 1]
    await node.produce("t", "c")
    assert consumer.offsets == [0, 1, 2]
    assert node.groups.get("t", "g").floor() == 2
    await node.settle()
    assert node.engine.groups("t")[0].floor == 2


async def test_serving_one_member_does_not_pass_over_those_who_came_before(node):
    await node.group()
    await node.produce("t", "a")
    one, first = await node.join()
    two, second = await node.join()
    node.groups.serve(first)  # reads ahead
    await node.settle()
    first.credit(1)
    node.groups.serve(second)
    await node.produce("t", "b", "c")
    assert (one.offsets, two.offsets) == ([0, 1], [2])


async def test_nobody_is_served_by_groups_that_have_stopped(node):
    await node.group()
    await node.produce("t", "a")
    consumer, member = await node.join()
    await node.topics.stop()
    node.groups.serve(member)
    assert consumer.offsets == []
    assert member.wanted == 1


async def test_members_are_served_first_come_first_served_and_queue_again(node):
    await node.group()
    one, first = await node.join(2)
    two, second = await node.join(2)
    await node.produce("t", *"abcdef")
    assert (one.offsets, two.offsets) == ([0, 2], [1, 3])
    second.credit(1)
    first.credit(1)
    await node.settle()
    assert (one.offsets, two.offsets) == ([0, 2, 5], [1, 3, 4])


async def test_every_group_gets_every_record(node):
    await node.group(name="g")
    await node.group(name="h")
    one, _ = await node.join(9, name="g")
    two, _ = await node.join(9, name="h")
    await node.produce("t", *"abc")
    assert one.offsets == two.offsets == [0, 1, 2]


async def test_many_records_arrive_in_log_order_over_many_reads(node):
    await node.produce("t", *(str(n) for n in range(1000)))
    await node.group()
    consumer, member = await node.join(1000)
    assert consumer.offsets == list(range(1000))
    assert member.ack(consumer.offsets) == 1000
    await node.settle()
    assert node.engine.groups("t")[0].floor == 1000


async def test_a_member_that_reacts_at_once_gets_its_turn_without_end(node):
    await node.produce("t", *(str(n) for n in range(600)))
    await node.group()
    consumer, member = await node.join(0)

    def react(delivery):
        assert member.ack([delivery.record.offset]) == 1
        member.credit(1)

    consumer.react = react
    member.credit(1)
    await node.settle()
    assert consumer.offsets == list(range(600))


async def test_a_member_that_leaves_in_the_middle_of_a_delivery_gives_it_back(node):
    await node.produce("t", *"ab")
    await node.group()
    consumer, member = await node.join(0)
    consumer.react = lambda delivery: member.leave()
    member.credit(2)
    await node.settle()
    assert consumer.offsets == [0]
    other, _ = await node.join(2)
    assert other.attempts == [(0, 2), (1, 1)]


async def test_joining_again_finds_the_same_member(node):
    await node.group()
    consumer = Consumer()
    member = node.groups.join(consumer, "t", "g", "m")
    assert node.groups.join(consumer, "t", "g", "m") is member
    assert node.groups.join(consumer, "t", "g", "n") is not member
    assert len(node.groups.get("t", "g").members) == 2


async def test_an_endpoint_can_be_in_several_groups_and_leave_one(node):
    await node.produce("t", "a")
    await node.group(name="g")
    await node.group(name="h")
    consumer = Consumer()
    node.groups.join(consumer, "t", "g").leave()
    node.groups.join(consumer, "t", "g")
    node.groups.join(consumer, "t", "h").leave()
    node.groups.join(consumer, "t", "h").credit(1)
    await node.settle()
    assert [delivery.group for delivery in consumer.got] == ["h"]
    node.groups.left(consumer)
    assert not node.groups.get("t", "g").members
    assert not node.groups.get("t", "h").members


async def test_groups_of_one_name_declared_at_once_are_one_group(node):
    await node.produce("t", NewRecord(b"", id="x"))
    start = Start("offset", offset=0, msgid="x")
    one, two = await asyncio.gather(node.group(start=start), node.group(start=start))
    assert one is two


async def test_an_endpoint_that_is_closed_gets_nothing(node):
    await node.group()
    gone, _ = await node.join(5)
    gone.closed = True
    other, _ = await node.join(5)
    await node.produce("t", "a", "b")
    assert (gone.offsets, other.offsets) == ([], [0, 1])


async def test_recalled_credit_is_not_used(node):
    await node.group()
    consumer, member = await node.join(5)
    member.recall()
    await node.produce("t", "a")
    assert consumer.offsets == []
    member.credit(1)
    await node.settle()
    assert consumer.offsets == [0]


# -- windows, pause, exclusive --------------------------------------------------------------------


async def test_the_window_of_a_member_bounds_what_it_holds(node):
    await node.produce("t", *"abcde")
    await node.group(window=2)
    consumer, member = await node.join(5)
    assert consumer.offsets == [0, 1]
    member.ack([0])
    await node.settle()
    assert consumer.offsets == [0, 1, 2]
    member.nack(1)
    await node.settle()
    assert consumer.attempts[3:] == [(1, 2)]


async def test_the_window_of_a_group_bounds_what_all_hold(node):
    await node.produce("t", *"abcde")
    await node.group(group_window=3)
    one, first = await node.join(2)
    two, _ = await node.join(2)
    assert (one.offsets, two.offsets) == ([0, 1], [2])
    first.ack([1])
    await node.settle()
    assert two.offsets == [2, 3]


async def test_a_paused_group_delivers_nothing_until_it_goes_on(node):
    group = await node.group(paused=True)
    consumer, _ = await node.join(5)
    await node.produce("t", "a")
    assert consumer.offsets == []
    await node.groups.declare("t", "g", replace(group.options, paused=False))
    await node.settle()
    assert consumer.offsets == [0]


async def test_an_exclusive_group_refuses_a_second_member(node):
    await node.group(exclusive=True)
    consumer, member = await node.join(1)
    with pytest.raises(Conflict, match="group g on topic t is exclusive"):
        node.groups.join(Consumer(), "t", "g")
    assert node.groups.join(consumer, "t", "g") is member
    member.leave()
    node.groups.join(Consumer(), "t", "g")


async def test_a_group_waits_when_too_much_is_confirmed_above_one_that_is_not(node, monkeypatch):
    monkeypatch.setattr(backlog, "MAX_DONE", 4)
    monkeypatch.setattr(backlog, "READ_RECORDS", 2)
    await node.produce("t", *"abcdefghij")
    await node.group()
    consumer, member = await node.join(0)
    consumer.react = lambda d: member.ack([d.record.offset]) if d.record.offset else None
    member.credit(10)
    await node.settle()
    held_back = consumer.offsets
    assert len(held_back) < 10
    member.ack([0])
    await node.settle()
    assert consumer.offsets == list(range(10))


# -- confirming and redelivery --------------------------------------------------------------------


async def test_an_ack_moves_the_floor_and_out_of_order_ones_are_remembered(node):
    await node.produce("t", *"abcd")
    group = await node.group()
    _, member = await node.join(4)
    assert member.ack([1, 3]) == 2
    await node.settle()
    state = node.engine.groups("t")[0]
    assert (state.floor, state.done, state.attempts) == (0, {1, 3}, {0: 1, 2: 1})
    assert (group.info().remaining, group.info().lag, group.info().in_flight) == (2, 4, 2)
    member.ack([0])
    await node.settle()
    assert (node.engine.groups("t")[0].floor, group.floor()) == (2, 2)
    member.ack([2])
    await node.settle()
    state = node.engine.groups("t")[0]
    assert (state.floor, state.done, state.attempts) == (4, set(), {})
    assert group.info().remaining == 0


async def test_only_the_holder_can_confirm_or_refuse(node):
    await node.produce("t", "a")
    await node.group()
    _, holder = await node.join(1)
    _, other = await node.join(1)
    assert other.ack([0]) == 0
    assert other.nack(0) is False
    assert holder.ack([0, 0, 7]) == 1
    assert holder.nack(0) is False
    holder.leave()
    assert holder.ack([0]) == 0
    holder.credit(3)
    await node.produce("t", "b")
    assert len(node.groups.get("t", "g").in_flight) == 1


async def test_an_ack_can_be_waited_for_until_it_is_durable(clock):
    node = await prepared(MemoryEngine(manual=True), clock)
    await node.group()
    node.topics.produce("t", [NewRecord(b"a"), NewRecord(b"b")], lambda first, error: None)
    node.engine.sync()
    heard: list[object] = []
    consumer, member = Consumer(), None
    member = node.groups.join(consumer, "t", "g")
    member.credit(2)
    for _ in range(5):
        await asyncio.sleep(0)
    member.ack([0], heard.append)
    for _ in range(5):
        await asyncio.sleep(0)
    member.ack([1], heard.append)
    for _ in range(5):
        await asyncio.sleep(0)
    assert heard == []
    node.engine.sync()
    for _ in range(5):
        await asyncio.sleep(0)
    assert heard == [None]
    node.engine.sync()
    for _ in range(5):
        await asyncio.sleep(0)
    assert heard == [None, None]
    assert node.engine.crash().groups("t")[0].floor == 2


async def test_an_ack_that_cannot_be_stored_now_is_told_and_stored_later(frail):
    await frail.produce("t", "a", "b")
    await frail.group()
    _, member = await frail.join(2)
    frail.engine.full = True
    heard: list[object] = []
    member.ack([1], heard.append)
    await frail.settle_without_commit()
    assert isinstance(heard[0], StorageFull)
    frail.engine.full = False
    await frail.pass_time(1)
    assert frail.engine.groups("t")[0].done == {1}
    assert frail.engine.groups("t")[0].attempts == {0: 1}


async def test_a_refused_record_comes_again_before_new_ones_with_its_count(node):
    await node.produce("t", *"abc")
    await node.group()
    consumer, member = await node.join(2)
    assert member.nack(1) is True
    member.nack(0)
    member.credit(3)
    await node.settle()
    assert consumer.attempts == [(0, 1), (1, 1), (0, 2), (1, 2), (2, 1)]
    assert node.engine.groups("t")[0].attempts == {0: 2, 1: 2, 2: 1}
    info = node.groups.get("t", "g").info()
    assert (info.delivered, info.redelivered, info.nacked) == (5, 2, 2)


async def test_a_refused_record_can_be_put_off(node):
    await node.produce("t", *"ab")
    group = await node.group()
    consumer, member = await node.join(1)
    member.nack(0, delay_s=10)
    member.credit(2)
    await node.settle()
    assert consumer.attempts == [(0, 1), (1, 1)]
    assert group.info().waiting == 1
    await node.pass_time(9)
    assert len(consumer.got) == 2
    await node.pass_time(1)
    assert consumer.attempts[2:] == [(0, 2)]


async def test_a_record_that_is_not_confirmed_in_time_comes_again(node):
    await node.produce("t", *"ab")
    group = await node.group(ack_timeout_ms=5000)
    consumer, member = await node.join(1)
    node.clock.advance(2)
    member.credit(2)
    await node.settle()
    await node.pass_time(2.9)
    assert consumer.attempts == [(0, 1), (1, 1)]
    await node.pass_time(0.2)
    assert consumer.attempts == [(0, 1), (1, 1), (0, 2)]
    assert member.ack([0, 1]) == 2
    await node.pass_time(60)
    assert len(consumer.got) == 3
    assert group.info().timed_out == 1


async def test_without_an_ack_timeout_a_record_is_waited_for_without_end(node):
    await node.produce("t", "a")
    await node.group(ack_timeout_ms=0)
    consumer, _ = await node.join(2)
    await node.pass_time(1e6)
    assert consumer.attempts == [(0, 1)]


async def test_what_a_leaving_member_held_goes_to_the_others_in_offset_order(node):
    await node.produce("t", *"abcdef")
    await node.group()
    one, first = await node.join(3)
    two, second = await node.join(1)
    first.ack([1])
    first.nack(0)
    first.credit(1)
    await node.settle()
    assert one.attempts[-1] == (0, 2)
    node.groups.left(one)
    assert first.closed
    first.leave()
    node.groups.left(one)
    second.credit(9)
    await node.settle()
    assert two.attempts == [(3, 1), (0, 3), (2, 2), (4, 1), (5, 1)]


async def test_a_member_that_leaves_with_nothing_read_ahead_changes_nothing(node):
    await node.produce("t", "a")
    group = await node.group()
    _, member = await node.join(1)
    member.ack([0])
    member.leave()
    await node.group(filter="#")
    assert (group.floor(), group.info().remaining) == (1, 0)


async def test_what_was_read_ahead_is_given_up_with_the_last_member(node):
    await node.produce("t", *"abcdef")
    group = await node.group()
    _, member = await node.join(3)
    member.nack(2, delay_s=5)
    member.leave()
    await node.settle()
    assert len(group.cursor.open) == 3
    other, again = await node.join(2)
    assert other.attempts == [(0, 2), (1, 2)]
    again.leave()
    last, _ = await node.join(9)
    await node.pass_time(5)
    assert last.attempts == [(0, 3), (1, 3), (3, 1), (4, 1), (5, 1), (2, 2)]
    assert group.info().remaining == 6


async def test_redeliveries_read_ahead_are_given_back_with_the_last_member(node):
    await node.produce("t", *"abc")
    await node.group()
    _, member = await node.join(3)
    member.leave()
    one, member = await node.join(1)
    member.leave()
    other, _ = await node.join(3)
    assert one.attempts == [(0, 2)]
    assert other.attempts == [(0, 3), (1, 2), (2, 2)]


# -- without acks ---------------------------------------------------------------------------------


async def test_without_acks_the_next_credit_confirms_the_delivery_before(node):
    await node.produce("t", *"abc")
    group = await node.group(ack=False, ack_timeout_ms=1)
    consumer, member = await node.join(1)
    await node.pass_time(100)
    assert (consumer.attempts, group.floor()) == ([(0, 1)], 0)
    member.credit(1)
    await node.settle()
    assert (consumer.offsets, node.engine.groups("t")[0].floor) == ([0, 1], 1)
    member.recall()
    member.leave()
    other, _ = await node.join(2)
    assert other.attempts == [(1, 2), (2, 1)]


async def test_without_acks_a_credit_confirms_as_many_as_it_asks_for(node):
    await node.produce("t", *"abcdef")
    group = await node.group(ack=False)
    consumer, member = await node.join(3)
    member.credit(2)
    await node.settle()
    assert (consumer.offsets, group.floor()) == ([0, 1, 2, 3, 4], 2)


async def test_without_acks_credit_that_is_only_given_again_confirms_nothing(node):
    await node.produce("t", *"abcd")
    group = await node.group(ack=False)
    consumer, member = await node.join(1)
    member.credit(2)
    member.recall()
    member.credit(2)
    await node.settle()
    assert (consumer.offsets, group.floor()) == ([0, 1, 2], 1)
    member.recall()
    member.credit(1)
    await node.settle()
    assert (consumer.offsets, group.floor()) == ([0, 1, 2, 3], 2)


async def test_without_acks_a_wire_may_still_refuse_or_confirm_one(node):
    await node.produce("t", *"abc")
    group = await node.group(ack=False)
    consumer, member = await node.join(2)
    member.nack(0)
    member.ack([1])
    member.credit(1)
    await node.settle()
    assert consumer.attempts == [(0, 1), (1, 1), (0, 2)]
    assert group.floor() == 0
    member.credit(1)
    await node.settle()
    assert group.floor() == 2


async def test_a_group_that_stops_asking_for_acks_takes_the_next_credit_for_one(node):
    await node.produce("t", *"ab")
    group = await node.group()
    _, member = await node.join(1)
    await node.group(ack=False)
    member.credit(1)
    await node.settle()
    assert group.floor() == 1


# -- filters --------------------------------------------------------------------------------------


async def test_a_filter_passes_over_what_it_does_not_want_and_the_floor_moves(node):
    await node.produce("t", "x", "a.1", "x", "x", "a.2", "x")
    group = await node.group(filter="a.*")
    consumer, member = await node.join(5)
    assert consumer.offsets == [1, 4]
    member.ack([1])
    await node.settle()
    assert (group.floor(), group.info().remaining, group.info().skipped) == (4, 1, 4)
    member.ack([4])
    await node.settle()
    assert node.engine.groups("t")[0].floor == 6


async def test_a_filter_that_wants_nothing_lets_others_have_their_turn(node, monkeypatch):
    monkeypatch.setattr(backlog, "READ_RECORDS", 1)
    await node.produce("t", *["x"] * 100, "a")
    group = await node.group(filter="a")
    consumer, _ = await node.join(1)
    assert consumer.offsets == [100]
    assert group.floor() == 100


async def test_a_new_filter_is_asked_about_what_is_neither_confirmed_nor_in_flight(node):
    await node.produce("t", *"abcabc")
    group = await node.group(filter="a;c")
    consumer, member = await node.join(2)
    assert consumer.offsets == [0, 2]
    await node.group(filter="b;c")
    await node.settle()
    assert group.floor() == 0
    member.nack(2)
    member.nack(0)
    member.credit(9)
    await node.settle()
    assert consumer.attempts[2:] == [(2, 2), (1, 1), (4, 1), (5, 1)]
    member.ack([1, 2, 4, 5])
    await node.settle()
    assert node.engine.groups("t")[0].floor == 6


async def test_a_refused_record_that_the_filter_no_longer_wants_is_done(node):
    await node.produce("t", *"abb")
    group = await node.group()
    consumer, member = await node.join(2)
    await node.group(filter="b")
    member.credit(1)
    await node.settle()
    assert consumer.offsets == [0, 1, 2]
    member.nack(0)
    member.credit(1)
    await node.settle()
    assert len(consumer.got) == 3
    assert group.floor() == 1


async def test_a_new_filter_is_asked_about_what_was_read_again_already(node):
    await node.produce("t", *"aab")
    await node.group()
    consumer, member = await node.join(3)
    member.leave()
    consumer, member = await node.join(1)
    assert consumer.offsets == [0]
    await node.group(filter="b")
    member.ack([0])
    member.credit(3)
    await node.settle()
    assert consumer.offsets == [0, 2]


async def test_what_a_filter_passed_over_comes_again_when_a_later_one_wants_it(node):
    await node.produce("t", *"bab")
    await node.group()
    consumer, member = await node.join(2)
    member.nack(1)
    await node.group(filter="b")
    member.credit(1)
    await node.settle()
    assert consumer.attempts == [(0, 1), (1, 1), (2, 1)]
    await node.group(filter="")
    member.credit(1)
    await node.settle()
    assert consumer.attempts == [(0, 1), (1, 1), (2, 1), (1, 2)]


async def test_a_filter_that_does_not_parse_declares_nothing(node):
    with pytest.raises(InvalidName, match=r"part 2 of 'a\.\.b' is empty"):
        await node.group(filter="a..b")
    assert node.groups.of("t") == []
    group = await node.group(filter="a")
    with pytest.raises(InvalidName, match="stands last only"):
        await node.group(filter="#.a")
    assert group.options.filter == "a"


async def test_a_room_brings_its_own_dialect(node):
    node.groups.filters["upper"] = lambda text: lambda tag: tag == text.upper()
    await node.produce("t", "a", "A")
    await node.group(filter="a", dialect="upper")
    consumer, _ = await node.join(2)
    assert consumer.offsets == [1]
    with pytest.raises(InvalidName, match="no filter dialect 'klingon'"):
        await node.group(name="h", filter="a", dialect="klingon")


async def test_a_kept_group_whose_dialect_is_gone_tells_who_joins(node):
    node.groups.filters["upper"] = lambda text: lambda tag: True
    await node.group(filter="a", dialect="upper")
    later = await restart(node)
    with pytest.raises(InvalidName, match="no filter dialect 'upper'"):
        later.groups.join(Consumer(), "t", "g")


# -- dead letters ---------------------------------------------------------------------------------


async def test_a_record_that_nobody_confirms_ends_in_the_dead_letter_topic_with_its_cause(node):
    record = NewRecord(b"poison", key=b"k", tag="tag", headers={"own": "1"}, id="one")
    await node.produce("t", record, "b")
    group = await node.group(max_attempts=3)
    consumer, member = await node.join(1)
    for _ in range(3):
        member.nack(0, reason="bad")
        member.credit(1)
        await node.settle()
    assert consumer.attempts == [(0, 1), (0, 2), (0, 3), (1, 1)]
    (letter,) = await node.read("t.dead")
    assert (letter.payload, letter.key, letter.tag) == (b"poison", b"k", "tag")
    assert letter.headers == {
        "own": "1",
        "dead-topic": "t",
        "dead-group": "g",
        "dead-offset": "0",
        "dead-attempts": "3",
        "dead-cause": "refused: bad",
        "dead-time": str(node.clock.wall_ms()),
    }
    assert (group.floor(), group.info().dead) == (1, 1)
    assert node.engine.groups("t")[0].floor == 1


async def test_the_dead_letter_and_the_end_of_the_record_are_one_commit(clock):
    node = await prepared(MemoryEngine(manual=True), clock)
    await node.group(max_attempts=1)
    node.topics.produce("t", [NewRecord(b"a"), NewRecord(b"b")], lambda first, error: None)
    node.engine.sync()
    member = node.groups.join(Consumer(), "t", "g")
    member.credit(2)
    await asyncio.sleep(0)
    member.nack(1)
    for _ in range(5):
        await asyncio.sleep(0)
    assert [type(operation) for operation in node.engine.commits[-1]] == [Append, Move]
    before = node.engine.crash()
    assert (before.topic("t.dead").end, before.groups("t")[0].done) == (0, set())
    assert member.ack([1]) == 0
    node.engine.sync()
    after = node.engine.crash()
    assert (after.topic("t.dead").end, after.groups("t")[0].done) == (1, {1})


async def test_causes_of_a_dead_letter_are_timeout_and_leaving_too(node):
    await node.produce("t", *"ab")
    await node.group(max_attempts=1, dead_letter="grave", ack_timeout_ms=1000)
    _, member = await node.join(1)
    await node.pass_time(2)
    member.credit(1)
    await node.settle()
    member.leave()
    await node.settle()
    causes = [letter.headers["dead-cause"] for letter in await node.read("grave")]
    assert causes == ["not confirmed in time", "member left"]


async def test_consumers_of_the_dead_letter_topic_get_it_and_it_has_no_limit_of_its_own(node):
    await node.produce("t", "a")
    await node.topics.declare("t.dead")
    await node.group("t", max_attempts=1)
    await node.group("t.dead", max_attempts=1)
    dead, member = await node.join(9, topic="t.dead")
    _, first = await node.join(1)
    first.nack(0)
    await node.settle()
    for _ in range(3):
        member.nack(0)
        await node.settle()
    assert dead.attempts == [(0, 1), (0, 2), (0, 3), (0, 4)]
    assert not node.topics.has("t.dead.dead")


async def test_no_limit_means_no_dead_letter(node):
    await node.produce("t", "a")
    await node.group(max_attempts=0)
    consumer, member = await node.join(30)
    for _ in range(25):
        member.nack(0)
        await node.settle()
    assert consumer.attempts[-1] == (0, 26)


@pytest.mark.parametrize("declared", [True, False])
async def test_a_dead_letter_that_cannot_be_stored_is_neither_lost_nor_acked(
    frail, caplog, declared
):
    await frail.produce("t", *"ab")
    if declared:
        await frail.topics.declare("t.dead")
    group = await frail.group(max_attempts=1)
    consumer, member = await frail.join(2)
    frail.engine.full = True
    member.nack(0)
    member.ack([1])
    await frail.settle_without_commit()
    assert (group.floor(), group.info().dead) == (0, 0)
    await frail.tick_without_commit(ledger.RETRY_S / 2)
    await frail.tick_without_commit(ledger.RETRY_S)
    assert caplog.text.count("cannot dead-letter") == 1
    frail.engine.full = False
    await frail.pass_time(ledger.RETRY_S)
    assert len(await frail.read("t.dead")) == 1
    assert (group.floor(), consumer.attempts) == (2, [(0, 1), (1, 1)])


async def test_many_dead_letters_go_in_several_commits(node):
    await node.produce("t", *(str(n) for n in range(40)))
    await node.group(max_attempts=1)
    _, member = await node.join(40)
    member.leave()
    await node.settle()
    letters = await node.read("t.dead")
    assert [letter.payload for letter in letters] == [str(n).encode() for n in range(40)]


async def test_a_record_that_retention_took_is_not_dead_lettered(node):
    await node.produce("t", *"abc")
    group = await node.group(max_attempts=1)
    _, member = await node.join(2)
    await node.topics.empty("t")
    member.nack(0)
    member.ack([1])
    await node.settle()
    assert not node.topics.has("t.dead")
    assert (group.floor(), group.info().expired) == (3, 2)


async def test_a_lower_limit_buries_what_waits_for_another_try(node):
    await node.produce("t", *"ab")
    group = await node.group()
    _, member = await node.join(1)
    for _ in range(3):
        member.nack(0)
        member.credit(1)
        await node.settle()
    member.nack(0)
    await node.group(max_attempts=3)
    await node.settle()
    assert [r.headers["dead-attempts"] for r in await node.read("t.dead")] == ["4"]
    assert group.floor() == 1


# -- restart --------------------------------------------------------------------------------------


async def test_after_a_restart_what_was_in_flight_comes_again_with_its_count(node):
    await node.produce("t", *"abcd")
    await node.group(filter="#")
    _, member = await node.join(3)
    member.ack([1])
    member.nack(0)
    await node.settle()
    later = await restart(node)
    assert later.groups.get("t", "g").info().remaining == 3
    consumer, member = await later.join(9)
    assert consumer.attempts == [(0, 2), (2, 2), (3, 1)]
    member.ack([0, 2, 3])
    await later.settle()
    assert later.engine.groups("t")[0].floor == 4


async def test_after_a_restart_the_last_attempt_counts_as_failed(node):
    await node.produce("t", "a")
    await node.group(max_attempts=1)
    await node.join(1)
    later = await restart(node)
    await later.settle()
    (letter,) = await later.read("t.dead")
    assert letter.headers["dead-cause"] == "not confirmed"
    consumer, _ = await later.join(1)
    assert consumer.got == []
    assert later.groups.get("t", "g").floor() == 1


def test_options_survive_the_engine_and_unknown_ones_are_left_alone():
    options = GroupOptions(filter="a", window=3, ack=False, extra={"mask": "16"})
    kept = options_to(options) | {"from the future": 1}
    assert options_from(GroupState("g", kept, 0)) == options


# -- positions ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "floor"),
    [
        (BEGINNING, 0),
        (END, 4),
        (Start("offset", offset=2), 2),
        (Start("offset", offset=4), 4),
        (Start("offset", offset=2, msgid="id2"), 2),
        (Start("time", time_ms=0), 0),
        (Start("time", time_ms=201), 3),
        (Start("time", time_ms=999), 4),
    ],
)
async def test_a_new_group_starts_where_it_is_told(node, start, floor):
    began = node.clock.wall_ms()
    node.clock.advance(1)
    times = [began + n * 100 for n in range(4)]
    await node.produce("t", *(NewRecord(b"", id=f"id{n}", time_ms=times[n]) for n in range(4)))
    group = await node.group(start=replace(start, time_ms=began + start.time_ms))
    assert (group.floor(), node.engine.groups("t")[0].floor) == (floor, floor)


async def test_a_copy_starts_where_the_other_group_is(node):
    await node.produce("t", *"abcd")
    await node.group()
    _, member = await node.join(3)
    member.ack([0, 2])
    await node.group(name="h", start=Start("copy", group="g"))
    consumer, _ = await node.join(9, name="h")
    assert consumer.attempts == [(1, 1), (3, 1)]
    with pytest.raises(NoSuchGroup):
        await node.group(name="i", start=Start("copy", group="none"))


@pytest.mark.parametrize("offset", [-1, 3])
async def test_a_start_outside_of_the_topic_is_refused(node, offset):
    await node.produce("t", "a", "b")
    with pytest.raises(OutOfRange, match=f"offset {offset} of t"):
        await node.group(start=Start("offset", offset=offset))
    assert node.groups.of("t") == []


@pytest.mark.parametrize(("offset", "held"), [(0, "the record 'x'"), (1, "no record")])
async def test_a_start_at_the_wrong_message_is_refused(node, offset, held):
    await node.produce("t", NewRecord(b"", id="x"))
    with pytest.raises(Conflict, match=f"offset {offset} of t holds {held}, not 'y'"):
        await node.group(start=Start("offset", offset=offset, msgid="y"))


async def test_a_reset_forgets_what_is_in_flight_and_begins_anew(node):
    await node.produce("t", *"abc")
    await node.group(ack=False)
    consumer, member = await node.join(3)
    await node.groups.reset("t", "g", Start("offset", offset=1))
    assert member.ack([0, 1]) == 0
    member.credit(5)
    await node.settle()
    assert consumer.attempts[3:] == [(1, 1), (2, 1)]
    state = node.engine.groups("t")[0]
    assert (state.floor, state.attempts) == (1, {1: 1, 2: 1})
    await node.groups.reset("t", "g", END)
    assert node.groups.get("t", "g").info().remaining == 0
    with pytest.raises(NoSuchGroup):
        await node.groups.reset("t", "h", END)


async def test_a_reset_while_records_are_read_drops_the_old_read(clock):
    node = await prepared(MemoryEngine(cold=True), clock)
    await node.produce("t", *"abcd")
    await node.group()
    consumer = Consumer()
    node.groups.join(consumer, "t", "g").credit(4)
    await asyncio.sleep(0)
    assert node.groups.get("t", "g").backlog.reading
    await node.groups.reset("t", "g", Start("offset", offset=2))
    await node.settle()
    assert consumer.offsets == [2, 3]


# -- retention ------------------------------------------------------------------------------------


async def test_what_retention_took_is_passed_over_and_counted(node):
    await node.produce("t", *"abcdef")
    group = await node.group()
    consumer, member = await node.join(2)
    member.nack(1, delay_s=3)
    await node.engine.trim("t", 4)
    await node.pass_time(4)
    member.credit(9)
    await node.settle()
    assert consumer.attempts == [(0, 1), (1, 1), (4, 1), (5, 1)]
    assert group.info().expired == 3
    assert group.floor() == 0
    member.ack([0, 4, 5])
    await node.settle()
    assert (group.floor(), group.info().remaining) == (6, 0)


async def test_retention_is_noticed_by_reading_too(node):
    await node.produce("t", *"abcd")
    group = await node.group()
    await node.engine.trim("t", 2)
    consumer, member = await node.join(1)
    assert (consumer.offsets, group.info().expired) == ([2], 2)
    await node.engine.trim("t", 3)
    member.nack(2)
    member.credit(2)
    await node.settle()
    assert consumer.attempts == [(2, 1), (3, 1)]
    assert group.floor() == 3


async def test_retention_that_comes_while_reading_is_noticed(clock):
    node = await prepared(MemoryEngine(cold=True), clock)
    await node.produce("t", *"abcd")
    await node.group()
    consumer = Consumer()
    node.groups.join(consumer, "t", "g").credit(4)
    await asyncio.sleep(0)
    await node.engine.trim("t", 3)
    await node.settle()
    assert consumer.offsets == [3]


async def test_retention_after_a_rewind_keeps_what_is_in_flight(node):
    await node.produce("t", *"abcdef")
    group = await node.group()
    consumer, member = await node.join(4)
    member.ack([1])
    await node.group(filter="a;b;c;d;e;f")
    await node.engine.trim("t", 4)
    await node.pass_time(1)
    assert group.floor() == 0
    member.ack([0, 2, 3])
    member.credit(2)
    await node.settle()
    assert (consumer.offsets, group.floor()) == ([0, 1, 2, 3, 4, 5], 4)


async def test_gaps_in_the_log_are_passed_over(frail):
    await frail.produce("t", *"abcdefg")
    group = await frail.group()
    frail.engine.punch("t", 1)
    consumer, member = await frail.join(5)
    assert consumer.offsets == [0, 2, 3, 4, 5]
    frail.engine.punch("t", 3)
    for offset in (2, 3, 4):
        member.nack(offset)
    member.ack([0])
    member.credit(9)
    await frail.settle()
    assert consumer.attempts[5:] == [(2, 2), (4, 2), (6, 1)]
    member.ack([2, 4, 5, 6])
    await frail.settle()
    assert (group.floor(), group.info().expired) == (7, 1)


async def test_the_slowest_group_decides_what_is_consumed(node):
    await node.produce("t", *"abc")
    assert node.groups.floor("t") is None
    await node.group(name="g")
    await node.group(name="h")
    _, fast = await node.join(3)
    fast.ack([0, 1, 2])
    assert node.groups.floor("t") == 0
    _, slow = await node.join(1, name="h")
    slow.ack([0])
    assert node.groups.floor("t") == 1


# -- trouble --------------------------------------------------------------------------------------


async def test_a_corrupt_chunk_stops_the_group_loudly_and_is_tried_again(clock, caplog):
    engine = MemoryEngine(cold=True)
    node = await prepared(engine, clock)
    await node.produce("t", "a")
    group = await node.group()
    engine.broken = CorruptRecord("0.seg", 64, "checksum")
    consumer, _ = await node.join(1)
    assert "corrupt chunk in 0.seg at byte 64" in group.info().problem
    reads = engine.reads
    await node.pass_time(backlog.RETRY_S / 2)
    assert engine.reads == reads
    await node.pass_time(backlog.RETRY_S)
    assert engine.reads == reads + 1
    assert caplog.text.count("stops at 0") == 1
    engine.broken = None
    await node.pass_time(backlog.RETRY_S)
    assert (consumer.offsets, group.info().problem) == ([0], "")


async def test_records_are_held_within_bounds_whatever_their_number(clock):
    node = await prepared(MemoryEngine(cold=True), clock)
    await node.produce("t", *(NewRecord(bytes(50_000)) for _ in range(20)))
    group = await node.group()
    await node.join(1)
    assert len(group.cursor.open) <= backlog.READ_BYTES // 50_000 + 1


class Paged(MemoryEngine):
    """Has only those pages in memory that were read, as an engine with chunks on disk."""

    size = 10

    def __init__(self) -> None:
        super().__init__()
        self.pages = {0}
        self.asked: list[int] = []

    def cached(
        self, topic: str, start: int, max_records: int, max_bytes: int
    ) -> list[Record] | None:
        page = start // self.size
        if start < self.topic(topic).end and page not in self.pages:
            return None
        room = (page + 1) * self.size - start
        return self._read(topic, start, min(max_records, room), max_bytes)

    async def read(self, topic: str, start: int, max_records: int, max_bytes: int) -> list[Record]:
        self.asked.append(start)
        found = list(await super().read(topic, start, max_records, max_bytes))
        self.pages.add(start // self.size)
        return found


async def test_the_disk_is_asked_for_what_comes_next_while_what_is_here_is_delivered(clock):
    engine = Paged()
    node = await prepared(engine, clock)
    await node.produce("t", *(str(n) for n in range(35)))
    group = await node.group()
    consumer, member = await node.join(1)
    assert (consumer.offsets, engine.asked) == ([0], [10])
    assert not group.backlog.reading
    for _ in range(40):
        member.credit(1)
        await node.settle()
    assert consumer.offsets == list(range(35))
    assert engine.asked == [10, 20, 30], "each page once, and before it was needed"


async def test_what_is_wanted_before_it_came_is_not_asked_for_twice(clock):
    engine = Paged()
    node = await prepared(engine, clock)
    await node.produce("t", *(str(n) for n in range(35)))
    await node.group()
    consumer, _ = await node.join(100)
    assert consumer.offsets == list(range(35))
    assert engine.asked == [10, 20, 30]


async def test_a_page_that_cannot_be_read_is_told_once_it_is_wanted(clock, caplog):
    engine = Paged()
    node = await prepared(engine, clock)
    await node.produce("t", *(str(n) for n in range(20)))
    group = await node.group()
    engine.broken = CorruptRecord("0.seg", 64, "checksum")
    consumer, member = await node.join(9)
    assert (engine.asked, group.info().problem, caplog.text) == ([10], "", "")
    member.credit(9)
    await node.settle()
    assert "corrupt chunk in 0.seg" in group.info().problem
    assert consumer.offsets == list(range(10))
    engine.broken = None
    await node.pass_time(backlog.RETRY_S)
    assert consumer.offsets == list(range(18))


async def test_a_failure_nobody_expected_is_logged(node, caplog):
    async def fail():
        raise RuntimeError("boom")

    node.groups.spawn(fail())
    await node.settle()
    assert "work on a group failed" in caplog.text
    assert "boom" in caplog.text
    caplog.clear()

    async def wait():
        await asyncio.Event().wait()

    node.groups.spawn(wait())
    (task,) = node.groups._tasks
    task.cancel()
    await node.settle()
    assert caplog.text == ""


# -- declaring and removing -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"window": -1}, LimitExceeded, "window must be 0 to"),
        ({"group_window": MAX_IN_FLIGHT + 1}, LimitExceeded, "group_window must be 0 to"),
        ({"ack_timeout_ms": -1}, LimitExceeded, "ack_timeout_ms"),
        ({"max_attempts": -1}, LimitExceeded, "max_attempts"),
        ({"dead_letter": "t"}, Conflict, "cannot dead-letter into t itself"),
        ({"dead_letter": "a//b"}, InvalidName, "a segment is empty"),
    ],
)
async def test_options_that_cannot_work_are_refused(node, options, error, text):
    with pytest.raises(error, match=text):
        await node.group(**options)
    assert node.groups.of("t") == []
    group = await node.group()
    with pytest.raises(error, match=text):
        await node.group(**options)
    assert group.options == GroupOptions()


async def test_names_of_groups_are_checked(node):
    with pytest.raises(InvalidName, match="a segment is empty"):
        await node.group(name="a//b")
    with pytest.raises(InvalidName, match="longer than 255 bytes"):
        await node.group(name="x" * 256)
    with pytest.raises(NoSuchTopic):
        await node.group(topic="none")


async def test_unknown_topics_and_groups_are_told_apart(node):
    with pytest.raises(NoSuchTopic):
        node.groups.get("none", "g")
    with pytest.raises(NoSuchGroup):
        node.groups.join(Consumer(), "t", "none")


async def test_declaring_again_without_options_changes_nothing(node):
    group = await node.group(window=3)
    heard: list[object] = []
    node.topics.listen(heard.append)
    assert await node.groups.declare("t", "g") is group
    assert await node.groups.declare("t", "g", GroupOptions(window=3)) is group
    assert (group.options.window, heard) == (3, [])


async def test_an_edit_that_cannot_be_stored_changes_nothing(frail):
    await frail.produce("t", *"ab")
    group = await frail.group()
    _, member = await frail.join(2)
    member.ack([1])
    frail.engine.full = True
    with pytest.raises(StorageFull):
        await frail.group(window=1)
    frail.engine.full = False
    assert group.options.window == 0
    await frail.pass_time(1)
    assert (frail.engine.groups("t")[0].done, frail.engine.groups("t")[0].attempts) == ({1}, {0: 1})


async def test_a_removed_group_tells_its_members_and_who_waits(node):
    await node.produce("t", "a")
    await node.group()
    ends: list[object] = []
    waits: list[object] = []
    consumer = Consumer()
    member = node.groups.join(consumer, "t", "g", on_closed=ends.append)
    quiet = node.groups.join(Consumer(), "t", "g")
    member.credit(1)
    await node.settle()
    member.ack([0], waits.append)
    await node.groups.remove("t", "g")
    await node.settle()
    assert isinstance(ends[0], NoSuchGroup)
    assert len(waits) == 1
    assert member.closed
    assert quiet.closed
    member.leave()
    assert node.groups.of("t") == []
    assert node.engine.groups("t") == []
    with pytest.raises(NoSuchGroup):
        await node.groups.remove("t", "g")


@pytest.mark.parametrize("trimmed", [False, True])
async def test_a_read_that_ends_after_its_group_is_dropped(clock, trimmed):
    node = await prepared(MemoryEngine(cold=True), clock)
    await node.produce("t", "a")
    await node.group()
    consumer = Consumer()
    node.groups.join(consumer, "t", "g").credit(1)
    await asyncio.sleep(0)
    await node.groups.remove("t", "g")
    if trimmed:
        await node.engine.trim("t", 1)
    await node.settle()
    assert consumer.got == []


async def test_a_delete_on_exit_group_goes_with_its_last_member(node):
    await node.group(delete_on_exit=True)
    _, one = await node.join(1)
    _, two = await node.join(1)
    one.leave()
    await node.settle()
    assert len(node.groups.of("t")) == 1
    two.leave()
    await node.settle()
    assert node.groups.of("t") == []
    assert node.engine.groups("t") == []


async def test_a_delete_on_exit_group_stays_when_a_new_member_is_faster(node):
    await node.group(delete_on_exit=True)
    _, one = await node.join(1)
    one.leave()
    node.groups.join(Consumer(), "t", "g")
    await node.settle()
    assert len(node.groups.of("t")) == 1


async def test_after_a_restart_a_delete_on_exit_group_waits_a_while_for_its_members(node):
    await node.group(name="back", delete_on_exit=True)
    await node.group(name="gone", delete_on_exit=True)
    await node.group(name="stays")
    later = await restart(node)
    _, _ = await later.join(1, name="back")
    await later.pass_time(ORPHAN_S - 1)
    assert len(later.groups.of("t")) == 3
    await later.pass_time(2)
    assert [group.name for group in later.groups.of("t")] == ["back", "stays"]


async def test_numbers_of_a_group_are_for_people_too(node):
    await node.produce("t", *"abc")
    group = await node.group()
    consumer, member = await node.join(2)
    consumer.peer = "10.0.0.1:5"
    member.credit(0)
    info = group.info()
    assert (info.topic, info.name, info.floor, info.remaining, info.lag) == ("t", "g", 0, 3, 3)
    assert (info.in_flight, info.waiting, info.delivered, info.acked) == (2, 0, 2, 0)
    (shown,) = info.members
    assert (shown.peer, shown.wire, shown.credit, shown.in_flight) == ("10.0.0.1:5", "test", 0, 2)


async def test_records_of_other_nodes_are_found_by_looking(node):
    await node.group()
    consumer, _ = await node.join(1)
    await node.engine.commit([Append("t", [NewRecord(b"from elsewhere")])])
    await node.settle()
    assert consumer.got == []
    await node.pass_time(2)
    assert consumer.offsets == [0]


async def test_a_stopped_node_hands_its_last_moves_over(node):
    await node.produce("t", "a")
    await node.group()
    _, member = await node.join(1)
    member.ack([0])
    later = await restart(node)
    assert later.groups.get("t", "g").floor() == 1
    assert later.topics.info("t").options == TopicOptions()
    node.groups.touch(node.groups.get("t", "g"))
