"""The same scenarios on every transport, over the async and the sync face."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from polybus.errors import NameTaken, NoSuchService, NoSuchTopic, ServiceFailed
from polybus.model.record import NewRecord

Face = Callable[[], Any]


class Pair(msgspec.Struct):
    left: int
    right: int


def add(pair: Pair) -> int:
    return pair.left + pair.right


def echo(body: bytes) -> bytes:
    return body


def fail(body: bytes) -> bytes:
    raise ValueError("not today")


def count(most: int):
    yield from range(most)


async def count_later(most: int):
    for number in range(most):
        yield number


async def test_a_typed_call_is_answered(face: Face):
    async with face() as service, face() as caller:
        await service.serve("calc/add", add)
        assert await caller.call("calc/add", Pair(1, 2), type=int) == 3
        assert await caller.call("calc/add", b'{"left":3,"right":4}') == b"7"


async def test_bytes_pass_untouched_whatever_their_size(face: Face):
    async with face() as service, face() as caller:
        await service.serve("echo", echo)
        for size in (0, 1, 100_000, 3_000_000):
            body = bytes(size)
            assert await caller.call("echo", body) == body


async def test_many_calls_at_once_find_their_own_answers(face: Face):
    async with face() as service, face() as caller:
        await service.serve("echo", echo)
        bodies = [b"%d" % number for number in range(50)]
        assert await asyncio.gather(*(caller.call("echo", body) for body in bodies)) == bodies


async def test_a_reply_in_parts_is_read_part_by_part_or_joined(face: Face):
    async with face() as service, face() as caller:
        is_sync = type(service).__name__ == "SyncFace"
        await service.serve("count", count if is_sync else count_later)
        parts = [part async for part in caller.call_streaming("count", 4, type=int)]
        assert parts == [0, 1, 2, 3]
        assert await caller.call("count", 3) == b"012"


async def test_errors_come_with_their_class_and_data(face: Face):
    async with face() as service, face() as caller:
        await service.serve("fail", fail)
        with pytest.raises(ServiceFailed, match="ValueError: not today"):
            await caller.call("fail")
        with pytest.raises(NoSuchService) as caught:
            await caller.call("nobody")
        assert caught.value.name == "nobody"
        with pytest.raises(NameTaken):
            await caller.serve("fail", fail)


async def test_publications_reach_who_subscribed(face: Face):
    async with face() as reader, face() as writer, reader.subscribe("price/**") as prices:
        assert await writer.publish("price/eth", {"usd": 1}, headers={"from": "test"}) == 1
        assert await writer.publish("weather/here", b"rain") == 0
        await writer.publish_nowait("price/btc", b"2")
        first, second = await anext(prices), await anext(prices)
        assert (first.name, first.headers) == ("price/eth", {"from": "test"})
        assert first.decode(dict[str, int]) == {"usd": 1}
        assert (second.name, second.payload) == ("price/btc", b"2")


async def test_services_are_listed_and_given_up(face: Face):
    async with face() as service, face() as caller:
        await service.serve("echo", echo)
        assert [entry["name"] for entry in await caller.services()] == ["echo"]
        await service.unserve("echo")
        with pytest.raises(NoSuchService):
            await caller.call("echo")


async def test_records_are_stored_fetched_and_consumed(face: Face):
    async with face() as bus:
        await bus.declare_topic("orders", retain_ms=10**9)
        assert await bus.produce("orders", {"n": 0}, key=b"k", tag="t", headers={"h": "v"}) == 0
        assert await bus.produce_many("orders", [b"1", NewRecord(b"2", tag="u")]) == 1
        fetched = await bus.fetch("orders")
        assert [(r.offset, r.payload) for r in fetched] == [(0, b'{"n":0}'), (1, b"1"), (2, b"2")]
        assert (fetched[0].key, fetched[0].tag, fetched[0].headers) == (b"k", "t", {"h": "v"})
        assert await bus.fetch("orders", 3) == []
        got = []
        async with bus.consume("orders", "all", window=2) as records:
            async for record in records:
                got.append((record.offset, record.attempt))
                if len(got) == 3:
                    break
        assert got == [(0, 1), (1, 1), (2, 1)]
        info = await bus.group("orders", "all")
        assert (info.floor, info.acked, info.in_flight) == (3, 3, 0)


async def refuse(bus: Any, payload: bytes) -> None:
    async with bus.consume("jobs", "g") as records:
        async for record in records:
            if record.payload == payload:
                raise RuntimeError("cannot")


async def test_a_body_that_raises_gives_its_record_back(face: Face):
    async with face() as bus:
        await bus.produce_many("jobs", [b"a", b"b"], create=True)
        with pytest.raises(RuntimeError):
            await refuse(bus, b"b")
        async with bus.consume("jobs", "g") as records:
            again = await anext(records)
            assert (again.payload, again.attempt) == (b"b", 2)


async def test_records_are_acked_and_nacked_by_hand(face: Face):
    async with face() as bus:
        await bus.produce_many("jobs", [b"a", b"b"], create=True)
        async with bus.consume("jobs", "g") as records:
            first = await anext(records)
            first.nack(reason="later")
            first.ack()
            second = await anext(records)
            second.ack()
            again = await anext(records)
            assert (again.offset, again.attempt, again.settled) == (0, 2, False)
            again.ack()
        assert (await bus.group("jobs", "g")).remaining == 0


async def test_topics_and_groups_are_administered(face: Face):
    async with face() as bus:
        await bus.declare_topic("a", retain_bytes=1 << 20)
        await bus.edit_topic("a", retain_ms=1000)
        info = await bus.topic("a")
        assert (info.options.retain_bytes, info.options.retain_ms) == (1 << 20, 1000)
        assert [topic.name for topic in await bus.topics()] == ["a"]
        await bus.produce("a", b"x")
        assert (await bus.declare_group("a", "g", start="end", window=5)).floor == 1
        assert (await bus.reset_group("a", "g", 0)).floor == 0
        assert [group.name for group in await bus.groups("a")] == ["g"]
        assert await bus.offset_at("a", 0) == 0
        await bus.remove_group("a", "g")
        await bus.empty_topic("a")
        assert await bus.fetch("a", 1) == []
        await bus.remove_topic("a")
        with pytest.raises(NoSuchTopic) as caught:
            await bus.topic("a")
        assert caught.value.topic == "a"


async def test_a_produce_with_an_id_is_stored_once(face: Face):
    async with face() as bus:
        await bus.declare_topic("t")
        offsets = [await bus.produce("t", b"x", id="one") for _ in range(3)]
        assert offsets == [0, 0, 0]
        assert (await bus.topic("t")).end == 1


async def test_chunks_are_fetched_staged_and_published_once(face: Face):
    async with face() as bus:
        await bus.produce_many("from", [b"a", b"b"], create=True)
        await bus.declare_topic("to")
        after, chunks = await bus.fetch_chunks("from", 0)
        assert after == 2
        tickets = [await bus.stage("to", chunk) for chunk in chunks]
        assert (await bus.topic("to")).end == 0
        for _ in range(2):
            assert await bus.publish_staged("to", "sink", 1, tickets) == 0
        assert [record.payload for record in await bus.fetch("to")] == [b"a", b"b"]
