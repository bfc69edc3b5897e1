"""Durable verbs of the native wire, fed with bytes, on an engine whose disk is in the test's hand."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from polybus.core.engine import Done
from polybus.core.topics import Topics
from polybus.errors import (
    Conflict,
    InvalidName,
    LimitExceeded,
    NoSuchGroup,
    NoSuchTopic,
    NotAuthorized,
    RemoteProtocolError,
    StorageFull,
)
from polybus.model.clock import ManualClock
from polybus.model.record import NewRecord
from polybus.protocols.native import wire
from polybus.protocols.native.metas import CREATE, parse_offset
from tests.core.memory_engine import MemoryEngine
from tests.protocols.native.room import Client, Room
from tests.protocols.native.test_session import Denying, error_in, meta_of


class BusyEngine(MemoryEngine):
    """Its commit queue is always full: it takes everything and asks everybody to wait."""

    def append(self, topic: str, records: Sequence[NewRecord], done: Done) -> bool:
        super().append(topic, records, done)
        return False


class DurableRoom(Room):
    """A node with topics."""

    def __init__(self, engine: MemoryEngine, **options: object) -> None:
        clock = ManualClock()
        self.engine = engine
        super().__init__(topics=Topics(engine, clock), clock=clock, **options)  # type: ignore[arg-type]

    async def start(self) -> DurableRoom:
        assert self.topics is not None
        await self.topics.start()
        await self.topics.declare("t")
        return self

    async def settle(self) -> None:
        """Let everything happen that does not wait for time or for a manual disk."""
        assert self.topics is not None
        for _ in range(4):
            await self.topics.groups.idle()
            await asyncio.sleep(0)


async def durable_room(**options: object) -> DurableRoom:
    return await DurableRoom(MemoryEngine(), **options).start()


def records(*payloads: bytes) -> bytes:
    return wire.encode_list([NewRecord(payload) for payload in payloads])


async def join(room: DurableRoom, ident: int = 50, topic: str = "t", **meta: object) -> Client:
    client = room.connect()
    client.say(wire.CONSUME, ident, topic, meta={"group": "g", **meta})
    await room.settle()
    assert client.one().kind == wire.OK
    return client


def delivered(client: Client) -> list[wire.Delivered]:
    frames = client.heard()
    assert {frame.kind for frame in frames} <= {wire.DELIVERY}
    return [each for frame in frames for each in wire.parse_delivered(frame.payload)]


# -- producing --


async def test_a_produce_is_answered_once_it_is_durable_and_not_before():
    room = await DurableRoom(MemoryEngine()).start()
    room.engine.manual = True
    client = room.connect()
    client.say(wire.PRODUCE, 7, "t", records(b"a", b"b"))
    client.say(wire.PRODUCE, 8, "t", records(b"c"))
    await room.settle()
    assert client.heard() == []
    room.engine.sync()
    first, second = client.heard()
    assert (first.kind, first.id, parse_offset(first.payload)) == (wire.PRODUCED, 7, 0)
    assert (second.kind, second.id, parse_offset(second.payload)) == (wire.PRODUCED, 8, 2)


async def test_a_full_commit_queue_pauses_its_producer_until_the_disk_has_caught_up():
    room = await DurableRoom(BusyEngine()).start()
    room.engine.manual = True
    producer, other = room.connect(), room.connect()
    producer.say(wire.PRODUCE, 1, "t", records(b"a"))
    producer.say(wire.PRODUCE, 2, "t", records(b"b"))
    reading = [producer.tap.reading, other.tap.reading]
    room.engine.sync()
    assert reading == [False, True]
    assert producer.tap.reading
    assert len(producer.heard()) == 2


async def test_what_cannot_be_stored_is_an_error_and_nothing_is_stored():
    room = await durable_room()
    client = room.connect()
    assert error_in(client.ask(wire.PRODUCE, 1, "missing", records(b"x"))) is NoSuchTopic
    assert error_in(client.ask(wire.PRODUCE, 2, "t", records())) is LimitExceeded
    room.engine.full = True
    client.say(wire.PRODUCE, 3, "t", records(b"x"))
    await room.settle()
    assert error_in(client.one()) is StorageFull
    assert room.engine.topic("t").end == 0


async def test_a_missing_topic_is_declared_when_the_producer_asks_for_it():
    room = await durable_room()
    client = room.connect()
    client.say(wire.PRODUCE, 1, "new/one", records(b"x"), flags=CREATE)
    client.say(wire.PRODUCE, 2, "bad//one", records(b"x"), flags=CREATE)
    await room.settle()
    answers = {frame.id: frame for frame in client.heard()}
    assert answers[1].kind == wire.PRODUCED
    assert error_in(answers[2]) is InvalidName


async def test_an_acknowledgement_for_a_client_that_is_gone_goes_nowhere():
    room = await DurableRoom(MemoryEngine()).start()
    room.engine.manual = True
    client = room.connect()
    client.say(wire.PRODUCE, 1, "t", records(b"x"))
    client.hang_up()
    room.engine.sync()
    assert client.received() == b""
    assert room.engine.topic("t").end == 1


@pytest.mark.parametrize("kind", [wire.PRODUCE, wire.CONSUME, wire.FETCH])
async def test_what_the_policy_refuses_is_not_done(kind: int):
    room = await durable_room(policy=Denying())
    client = room.connect()
    meta = {"group": "g"} if kind == wire.CONSUME else {"start": 0}
    client.say(kind, 1, "t", records(b"x"), meta=meta)
    assert error_in(client.one()) is NotAuthorized


@pytest.mark.parametrize(
    "data",
    [
        wire.encode(wire.PRODUCE, 1, "t", b"\xc1"),
        wire.encode(wire.PRODUCE, 1, "t", wire.encode_list([[1, 2]])),
        wire.encode(wire.CONSUME, 1, "t"),
        wire.encode(wire.CONSUME, 0, "t", meta=wire.encode_meta({"group": "g"})),
        wire.encode(wire.CREDIT, 1, meta=wire.encode_meta({"records": -1})),
        wire.encode(wire.ACK, 1, "", b"\xa1x"),
        wire.encode(wire.NACK, 1, "", b"\x90", meta=b"\x01"),
        wire.encode(wire.FETCH, 1, "t"),
    ],
)
async def test_bad_durable_input_ends_the_connection(data: bytes):
    room = await durable_room()
    client = room.connect()
    client.send(data)
    assert error_in(client.heard()[-1]) is RemoteProtocolError
    assert client.closed


# -- consuming --


async def test_a_consumer_gets_as_many_records_as_it_gave_credit_for():
    room = await durable_room()
    producer, client = room.connect(), await join(room)
    producer.say(wire.PRODUCE, 1, "t", records(*(b"%d" % n for n in range(5))))
    await room.settle()
    assert client.heard() == []
    client.say(wire.CREDIT, 50, meta={"records": 2})
    await room.settle()
    assert [each.record.payload for each in delivered(client)] == [b"0", b"1"]
    client.say(wire.CREDIT, 50, meta={"records": 9})
    await room.settle()
    assert [each.record.offset for each in delivered(client)] == [2, 3, 4]


async def test_credit_may_be_as_large_as_a_number_can_be():
    room = await durable_room()
    producer, client = room.connect(), await join(room)
    for _ in range(2):
        client.say(wire.CREDIT, 50, meta={"records": 2**64 - 1})
    producer.say(wire.PRODUCE, 1, "t", records(b"x"))
    await room.settle()
    assert [each.record.payload for each in delivered(client)] == [b"x"]
    assert not client.closed


async def test_records_of_one_turn_share_a_frame():
    room = await durable_room()
    producer, client = room.connect(), await join(room)
    client.say(wire.CREDIT, 50, meta={"records": 100})
    producer.say(wire.PRODUCE, 1, "t", records(*(b"x" for _ in range(20))))
    await room.settle()
    frame = client.one()
    assert (frame.kind, frame.id) == (wire.DELIVERY, 50)
    assert len(wire.parse_delivered(frame.payload)) == 20


async def test_credit_in_bytes_stops_at_the_record_that_uses_it_up():
    room = await durable_room()
    producer, client = room.connect(), await join(room)
    producer.say(wire.PRODUCE, 1, "t", records(*(b"x" * 1000 for _ in range(6))))
    client.say(wire.CREDIT, 50, meta={"records": 100, "bytes": 2000})
    await room.settle()
    assert [each.record.offset for each in delivered(client)] == [0, 1]
    client.say(wire.CREDIT, 50, meta={"bytes": 64})
    await room.settle()
    assert delivered(client) == []
    client.say(wire.CREDIT, 50, meta={"bytes": 100})
    await room.settle()
    assert [each.record.offset for each in delivered(client)] == [2]
    client.say(wire.CREDIT, 50, meta={"bytes": 100_000})
    await room.settle()
    assert [each.record.offset for each in delivered(client)] == [3, 4, 5]


async def test_large_records_are_spread_over_frames(monkeypatch):
    monkeypatch.setattr("polybus.protocols.native.durable.MAX_BATCH_BYTES", 2000)
    room = await durable_room()
    producer, client = room.connect(), await join(room)
    producer.say(wire.PRODUCE, 1, "t", records(*(b"x" * 1000 for _ in range(5))))
    client.say(wire.CREDIT, 50, meta={"records": 100})
    await room.settle()
    frames = client.heard()
    assert [len(wire.parse_delivered(frame.payload)) for frame in frames] == [2, 2, 1]


async def test_what_is_acked_is_done_and_what_is_nacked_comes_again():
    room = await durable_room()
    producer, client = room.connect(), await join(room)
    producer.say(wire.PRODUCE, 1, "t", records(b"a", b"b", b"c"))
    client.say(wire.CREDIT, 50, meta={"records": 3})
    await room.settle()
    delivered(client)
    client.say(wire.ACK, 50, payload=wire.encode_list([0, 2, 99]))
    client.say(wire.NACK, 50, payload=wire.encode_list([1]), meta={"reason": "not now"})
    client.say(wire.CREDIT, 50, meta={"records": 3})
    await room.settle()
    (again,) = delivered(client)
    assert (again.record.offset, again.attempt) == (1, 2)


async def test_what_a_consumer_held_goes_to_others_when_it_leaves_or_is_lost():
    room = await durable_room()
    producer = room.connect()
    producer.say(wire.PRODUCE, 1, "t", records(b"a"))
    one, two = await join(room), await join(room)
    one.say(wire.CREDIT, 50, meta={"records": 1})
    await room.settle()
    assert len(delivered(one)) == 1
    two.say(wire.CREDIT, 50, meta={"records": 1})
    assert one.ask(wire.LEAVE, 50).kind == wire.OK
    await room.settle()
    assert delivered(two)[0].attempt == 2
    three = await join(room)
    three.say(wire.CREDIT, 50, meta={"records": 1})
    two.hang_up()
    await room.settle()
    assert delivered(three)[0].attempt == 3


async def test_frames_for_a_consumer_that_is_not_there_are_ignored():
    room = await durable_room()
    client = room.connect()
    client.say(wire.CREDIT, 3, meta={"records": 1})
    client.say(wire.ACK, 3, payload=wire.encode_list([1]))
    client.say(wire.NACK, 3, payload=wire.encode_list([1]))
    assert client.heard() == []
    assert client.ask(wire.LEAVE, 3).kind == wire.OK


async def test_two_consumers_of_one_connection_are_told_apart():
    room = await durable_room()
    client = await join(room, 50)
    client.say(wire.CONSUME, 51, "t", meta={"group": "h"})
    client.say(wire.CREDIT, 51, meta={"records": 1})
    await room.settle()
    client.heard()
    client.say(wire.CREDIT, 51, meta={"records": 1})
    room.connect().say(wire.PRODUCE, 1, "t", records(b"a"))
    await room.settle()
    assert client.one().id == 51


async def test_a_consumer_hears_of_the_end_of_its_topic():
    room = await durable_room()
    client = await join(room)
    room.connect().say(wire.ASK, 1, "topic/remove", meta={"topic": "t"})
    await room.settle()
    frame = client.one()
    assert frame.id == 50
    assert error_in(frame) is NoSuchTopic


@pytest.mark.parametrize(
    ("meta", "error"),
    [
        ({"group": "g", "options": {"filter": "a..b"}}, InvalidName),
        ({"group": "g", "options": {"colour": 1}}, Conflict),
        ({"group": "g", "options": {"window": "wide"}}, Conflict),
        ({"group": "g", "options": {"window": -1}}, LimitExceeded),
        ({"group": "bad//name"}, InvalidName),
    ],
)
async def test_a_group_that_cannot_be_declared_is_refused(meta, error):
    room = await durable_room()
    client = room.connect()
    client.say(wire.CONSUME, 1, "t", meta=meta)
    await room.settle()
    assert error_in(client.one()) is error


async def test_consumers_of_one_connection_are_bounded(monkeypatch):
    monkeypatch.setattr("polybus.protocols.native.durable.MAX_CONSUMERS", 1)
    room = await durable_room()
    client = await join(room)
    client.say(wire.CONSUME, 51, "t", meta={"group": "g"})
    await room.settle()
    assert error_in(client.one()) is LimitExceeded


async def test_a_consumer_may_declare_its_topic_and_choose_its_start():
    room = await durable_room()
    producer = room.connect()
    producer.say(wire.PRODUCE, 1, "t", records(b"a", b"b"))
    await room.settle()
    late = await join(room, group="late", start={"at": "end"})
    middle = await join(room, group="middle", start={"at": "offset", "offset": 1})
    await join(room, topic="fresh", create=True)
    for client in (late, middle):
        client.say(wire.CREDIT, 50, meta={"records": 5})
    await room.settle()
    assert delivered(late) == []
    assert [each.record.offset for each in delivered(middle)] == [1]
    assert room.engine.topic("fresh").end == 0


# -- questions --


async def asked(room: DurableRoom, question: str, **meta: object) -> wire.Frame:
    client = room.connect()
    client.say(wire.ASK, 1, question, meta=meta)
    await room.settle()
    return client.one()


async def test_topics_are_declared_edited_listed_emptied_and_removed():
    room = await durable_room()
    made = await asked(room, "topic/declare", topic="u", options={"retain_ms": 5})
    assert meta_of(made)["topic"]["options"]["retain_ms"] == 5  # type: ignore[index]
    await asked(room, "topic/edit", topic="u", options={"retain_bytes": 7})
    info = meta_of(await asked(room, "topic/info", topic="u"))["topic"]
    assert (info["options"]["retain_ms"], info["options"]["retain_bytes"]) == (5, 7)  # type: ignore[index]
    listed = meta_of(await asked(room, "topic/list"))["topics"]
    assert sorted(topic["name"] for topic in listed) == ["t", "u"]  # type: ignore[attr-defined]
    room.connect().say(wire.PRODUCE, 1, "u", records(b"x"))
    await room.settle()
    assert (await asked(room, "topic/empty", topic="u")).kind == wire.OK
    assert room.engine.topic("u").first == 1
    assert (await asked(room, "topic/remove", topic="u")).kind == wire.OK
    assert error_in(await asked(room, "topic/info", topic="u")) is NoSuchTopic


async def test_groups_are_declared_listed_reset_and_removed():
    room = await durable_room()
    room.connect().say(wire.PRODUCE, 1, "t", records(b"a", b"b", b"c"))
    await room.settle()
    made = await asked(room, "group/declare", topic="t", group="g", options={"window": 3})
    assert meta_of(made)["group"]["options"]["window"] == 3  # type: ignore[index]
    moved = await asked(room, "group/reset", topic="t", group="g", start={"at": "end"})
    assert meta_of(moved)["group"]["floor"] == 3  # type: ignore[index]
    listed = meta_of(await asked(room, "group/list", topic="t"))["groups"]
    assert [group["name"] for group in listed] == ["g"]  # type: ignore[attr-defined]
    assert (await asked(room, "group/remove", topic="t", group="g")).kind == wire.OK
    assert error_in(await asked(room, "group/info", topic="t", group="g")) is NoSuchGroup
    assert error_in(await asked(room, "group/list", topic="none")) is NoSuchTopic


@pytest.mark.parametrize(
    ("question", "meta", "error"),
    [
        ("topic/declare", {"topic": "bad//name"}, InvalidName),
        ("topic/declare", {"topic": "u", "options": {"colour": 1}}, Conflict),
        ("topic/declare", {"topic": "u", "options": {"retain_ms": -1}}, LimitExceeded),
        ("topic/edit", {"topic": "none", "options": {}}, NoSuchTopic),
        ("topic/remove", {"topic": "none"}, NoSuchTopic),
        ("group/reset", {"topic": "t", "group": "none"}, NoSuchGroup),
    ],
)
async def test_a_question_that_makes_no_sense_is_refused(question, meta, error):
    assert error_in(await asked(await durable_room(), question, **meta)) is error


async def test_an_answer_for_a_client_that_is_gone_goes_nowhere():
    room = await durable_room()
    client = room.connect()
    client.say(wire.CONSUME, 1, "t", meta={"group": "g"})
    client.say(wire.ASK, 2, "topic/remove", meta={"topic": "none"})
    client.say(wire.ASK, 3, "topic/list")
    client.hang_up()
    await room.settle()
    assert client.received() == b""
    assert room.topics is not None
    assert room.topics.groups.get("t", "g").members == {}
