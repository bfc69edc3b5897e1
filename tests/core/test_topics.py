"""Topics: declaring, producing, and what others hear of it."""

from __future__ import annotations

import asyncio

import pytest

from polybus.core.engine import TopicOptions
from polybus.core.group_options import MAX_TOPIC_BYTES
from polybus.core.topic_events import TopicEvent
from polybus.core.topics import Topics
from polybus.errors import Conflict, InvalidName, LimitExceeded, NoSuchTopic, StorageFull
from polybus.model.record import NewRecord
from tests.core.durable import Consumer, DurableNode
from tests.core.memory_engine import MemoryEngine


@pytest.fixture
async def node(clock):
    node = DurableNode(MemoryEngine(), clock)
    await node.topics.start()
    yield node
    await node.topics.stop()


def told(node):
    heard: list[TopicEvent] = []
    stop = node.topics.listen(heard.append)
    return heard, stop


async def test_a_topic_is_declared_once_and_found_after(node):
    heard, _ = told(node)
    info = await node.topics.declare("a/b", TopicOptions(retain_ms=5))
    assert (info.name, info.options.retain_ms, info.first, info.end) == ("a/b", 5, 0, 0)
    assert await node.topics.declare("a/b") == info
    assert await node.topics.declare("a/b", TopicOptions(retain_ms=5)) == info
    assert node.topics.has("a/b")
    assert not node.topics.has("a")
    assert node.topics.info("a/b") == info
    assert list(node.topics.all()) == [info]
    assert heard == [TopicEvent("declared", "a/b")]


async def test_declaring_with_other_options_or_editing_changes_them(node):
    await node.topics.declare("t", TopicOptions(retain_ms=5))
    heard, _ = told(node)
    await node.topics.declare("t", TopicOptions(retain_ms=6, retain_bytes=7))
    info = await node.topics.edit("t", retain_ms=8)
    assert (info.options.retain_ms, info.options.retain_bytes) == (8, 7)
    assert heard == [TopicEvent("edited", "t")] * 2


async def test_an_edit_names_what_is_wrong_with_it(node):
    with pytest.raises(NoSuchTopic):
        await node.topics.edit("t", retain_ms=1)
    await node.topics.declare("t")
    with pytest.raises(LimitExceeded, match="dedup_ids cannot be negative"):
        await node.topics.declare("u", TopicOptions(dedup_ids=-1))
    with pytest.raises(Conflict, match="a topic has no option colour, size"):
        await node.topics.edit("t", size=1, colour=2)
    with pytest.raises(LimitExceeded, match="retain_ms cannot be negative"):
        await node.topics.edit("t", retain_ms=-1)
    assert node.topics.info("t").options == TopicOptions()


@pytest.mark.parametrize(
    "name", ["", "/", "a//b", "../x/", "a\0b", "*", "x" * (MAX_TOPIC_BYTES + 1)]
)
async def test_an_illegal_name_is_refused_and_nothing_is_stored(node, name):
    with pytest.raises(InvalidName):
        await node.topics.declare(name)
    with pytest.raises(InvalidName):
        node.topics.produce(name, [NewRecord(b"")], lambda first, error: None, create=True)
    assert not node.topics.all()


async def test_a_removed_topic_takes_its_groups_along_and_tells_the_members(node):
    await node.topics.declare("t")
    await node.group()
    ends: list[object] = []
    member = node.groups.join(Consumer(), "t", "g", on_closed=ends.append)
    heard, _ = told(node)
    await node.topics.remove("t")
    assert [type(end) for end in ends] == [NoSuchTopic]
    assert member.closed
    assert not node.topics.has("t")
    assert [event.change for event in heard] == ["left", "removed"]
    with pytest.raises(NoSuchTopic):
        await node.topics.remove("t")
    await node.topics.declare("t")
    assert await node.produce("t", "a") == 0
    assert node.groups.of("t") == []


async def test_a_topic_that_is_being_removed_disturbs_nobody(node):
    for topic in ("t", "u"):
        await node.topics.declare(topic)
        await node.produce(topic, "a")
        await node.group(topic)
    _, going = await node.join(0, "t")
    stays, staying = await node.join(0, "u")
    removal = asyncio.ensure_future(node.topics.remove("t"))
    await asyncio.sleep(0)
    going.credit(1)
    staying.credit(1)
    node.topics.tick(node.clock.advance(5))
    await asyncio.sleep(0)
    assert stays.offsets == [0]
    await removal
    assert going.closed


async def test_an_emptied_topic_has_no_records_and_its_offsets_go_on(node):
    await node.topics.declare("t")
    await node.produce("t", *"abc")
    group = await node.group()
    consumer, member = await node.join(1)
    heard, _ = told(node)
    await node.topics.empty("t")
    assert heard == [TopicEvent("emptied", "t")]
    assert group.info().remaining == 1
    member.ack([0])
    member.credit(5)
    await node.settle()
    assert (group.floor(), group.info().remaining) == (3, 0)
    assert await node.produce("t", "d") == 3
    assert consumer.offsets == [0, 3]


async def test_all_changes_are_told_in_order_until_the_listener_stops(node):
    heard, stop = told(node)
    await node.topics.declare("t")
    await node.group()
    consumer, member = await node.join()
    member.leave()
    await node.groups.remove("t", "g")
    assert heard == [
        TopicEvent("declared", "t"),
        TopicEvent("declared", "t", "g"),
        TopicEvent("joined", "t", "g", consumer),
        TopicEvent("left", "t", "g", consumer),
        TopicEvent("removed", "t", "g"),
    ]
    stop()
    await node.topics.remove("t")
    assert len(heard) == 5


# -- producing ------------------------------------------------------------------------------------


async def test_produced_records_get_dense_offsets_in_order(node):
    await node.topics.declare("t")
    assert await node.produce("t", "a", "b") == 0
    assert await node.produce("t", "c") == 2
    assert [record.payload for record in await node.read("t")] == [b"a", b"b", b"c"]


async def test_an_unknown_topic_is_refused_unless_it_may_be_created(node):
    with pytest.raises(NoSuchTopic):
        await node.produce("t", "a")
    stored = []
    pause = node.topics.produce("t", [NewRecord(b"a")], lambda *a: stored.append(a), create=True)
    assert pause is False
    # These come while the topic is being declared, and stay behind the first.
    node.topics.produce("t", [NewRecord(b"b")], lambda *a: stored.append(a))
    node.topics.produce("t", [NewRecord(b"c")], lambda *a: stored.append(a), create=True)
    await node.settle()
    assert stored == [(0, None), (1, None), (2, None)]
    assert [record.payload for record in await node.read("t")] == [b"a", b"b", b"c"]


async def test_the_node_may_create_topics_by_default(clock):
    node = DurableNode(MemoryEngine(), clock)
    node.topics = Topics(node.engine, clock, create=True)
    node.groups = node.topics.groups
    await node.topics.start()
    assert await node.produce("t", "a") == 0
    with pytest.raises(NoSuchTopic):
        node.topics.produce("u", [NewRecord(b"")], lambda first, error: None, create=False)


async def test_a_topic_that_cannot_be_created_fails_all_who_wait_for_it(node):
    node.engine.full = True
    failed = []
    node.topics.produce("t", [NewRecord(b"a")], lambda *a: failed.append(a), create=True)
    node.topics.produce("t", [NewRecord(b"b")], lambda *a: failed.append(a))
    await node.settle_without_commit()
    assert [(first, type(error)) for first, error in failed] == [(-1, StorageFull)] * 2
    node.engine.full = False
    node.topics.produce("t", [NewRecord(b"c")], lambda *a: failed.append(a), create=True)
    await node.settle()
    assert failed[2] == (0, None)


async def test_an_append_that_fails_after_creating_is_told(node, monkeypatch):
    def refuse(*args):
        raise LimitExceeded("commit queue", limit=1, actual=2)

    failed = []
    node.topics.produce("t", [NewRecord(b"a")], lambda *a: failed.append(a), create=True)
    monkeypatch.setattr(node.engine, "append", refuse)
    await node.settle()
    assert [(first, type(error)) for first, error in failed] == [(-1, LimitExceeded)]


async def test_too_large_or_no_records_are_refused_and_nothing_is_stored(clock):
    node = DurableNode(MemoryEngine(), clock)
    node.topics = Topics(node.engine, clock, max_record_bytes=10)
    node.groups = node.topics.groups
    await node.topics.start()
    await node.topics.declare("t")
    fits = NewRecord(b"12345", b"k", "t", {"h": "v"}, "i")
    for record in (
        NewRecord(b"12345678901"),
        NewRecord(b"12345", b"k", "t", {"h": "vv"}, "i"),
    ):
        with pytest.raises(LimitExceeded, match=r"record too large \(11 > 10\)"):
            node.topics.produce("t", [fits, record], lambda first, error: None)
    with pytest.raises(LimitExceeded, match="at least one record"):
        node.topics.produce("t", [], lambda first, error: None)
    await node.settle()
    assert node.topics.info("t").end == 0
    assert await node.produce("t", fits) == 0


async def test_a_full_disk_is_told_to_the_producer_and_delivers_nothing(node):
    await node.topics.declare("t")
    await node.group()
    consumer, _ = await node.join(1)
    node.engine.full = True
    with pytest.raises(StorageFull):
        await node.produce("t", "a")
    node.engine.full = False
    await node.settle()
    assert consumer.got == []
    await node.produce("t", "b")
    assert consumer.offsets == [0]


async def test_staged_records_reach_the_groups_once_they_are_published(node):
    await node.topics.declare("t")
    await node.group()
    consumer, _ = await node.join(5)
    tickets = [await node.engine.stage("t", chunk) for chunk in (b"a", b"b")]
    assert await node.topics.publish_staged("t", "sink", 1, tickets) == 0
    await node.settle()
    assert consumer.offsets == [0, 1]


async def test_deliveries_wait_for_the_end_of_the_batch_and_moves_are_one_per_group(node):
    await node.topics.declare("t")
    await node.produce("t", *"abcd")
    await node.group()
    consumer = Consumer()
    member = node.groups.join(consumer, "t", "g")
    for _ in range(4):
        member.credit(1)
    assert consumer.got == []
    await asyncio.sleep(0)
    assert consumer.offsets == [0, 1, 2, 3]
    before = len(node.engine.moves)
    for offset in range(4):
        member.ack([offset])
    await node.settle()
    assert len(node.engine.moves) == before + 1


async def test_who_takes_one_record_at_a_time_makes_one_move_of_many_turns(node):
    await node.topics.declare("t")
    await node.produce("t", *"abcdefgh")
    await node.group(ack=False)
    consumer = Consumer()
    member = node.groups.join(consumer, "t", "g")
    await node.settle()
    before = len(node.engine.moves)
    for _ in range(8):
        node.groups.serve(member)
        await asyncio.sleep(0)
    assert consumer.offsets == list(range(8))
    assert len(node.engine.moves) == before
    async with asyncio.timeout(10):
        while len(node.engine.moves) == before:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    (move,) = node.engine.moves[before:]
    assert (move.floor, move.attempts) == (7, {7: 1})
