"""How calls to an RPC topic end that no service has answered: those still in its queue, and those taken."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator

import pytest

from polybus.core.chores import SLICE
from polybus.core.engine import Done
from polybus.core.journal import Journal
from polybus.core.watch import Watch
from polybus.model.message import Call, Status
from polybus.protocols.zbus import relay
from polybus.protocols.zbus.wire import encode_request
from tests.core.party import Party, Turns
from tests.protocols.zbus.bus import Bus, Client, settle

REQUEST = b'{"method": "m", "module": "", "params": []}'


@pytest.fixture
async def bus() -> AsyncIterator[Bus]:
    async with Bus() as running:
        yield running


async def busy_service(bus: Bus) -> Client:
    """One that takes a call and then none: it is a consumer, so that further calls wait for it."""
    service, caller = bus.client(), bus.client()
    await service.one("declare", topic="slow", topic_mask="2")
    assert await service.ask("consume", topic="slow", id="take") == []
    await call(caller, "first")
    (taken,) = service.received()
    assert taken.headers["origin_id"] == "first"
    return service


def request(cmd: str, ident: str, body: bytes = b"", **headers: str) -> bytes:
    return encode_request({"cmd": cmd, "id": ident, "topic": "slow", **headers}, body)


async def call(client: Client, ident: str) -> list[int]:
    answers = await client.ask("produce", REQUEST, topic="slow", ack="0", id=ident)
    return [answer.status for answer in answers]


async def take(service: Client) -> list[str]:
    answers = await service.ask("consume", topic="slow", id="take")
    return [answer.headers["origin_id"] for answer in answers]


async def test_a_call_whose_caller_left_before_it_was_taken_is_noted_as_given_up(bus):
    rows: list[bytes] = []

    def write(ends: array[int], parts: list[bytes], done: Done) -> bool:
        rows.extend(parts)
        return True

    journal = Journal(bus.clock, write)
    bus.router.note_by(Watch(journal, None, True), journal)
    service = await busy_service(bus)
    leaving, staying = bus.client(), bus.client()
    await call(leaving, "left")
    await call(staying, "stayed")
    await leaving.hang_up()
    assert await take(service) == ["stayed"]
    journal.flush()
    assert b"the caller gave up" in b"".join(rows)
    assert bus.room.rpc["slow"].exchange.size == 0


async def test_calls_of_other_wires_that_are_cancelled_in_the_queue_reach_nobody(bus):
    service = await busy_service(bus)
    other = Party()
    bus.router.attach(other)
    calls = [Call(other, "slow/m", b"%d" % number) for number in range(3)]
    for each in calls:
        bus.router.call(each)
    rpc = bus.room.rpc["slow"]
    assert rpc.exchange.depth == len(rpc.bridged) == 3
    bus.router.cancel(calls[1])
    bus.router.cancel(calls[0])
    assert rpc.exchange.depth == len(rpc.bridged) == 1
    (taken,) = await service.ask("consume", topic="slow", id="take")
    assert b'"params":[2]' in taken.body
    assert (rpc.exchange.depth, rpc.exchange.size) == (0, 0)
    headers = {"recver": taken.headers["sender"], "id": taken.headers["origin_id"]}
    await service.ask("route", b'{"result": 7, "error": null}', origin_status="200", **headers)
    assert [(reply.call, reply.payload) for reply in other.replies] == [(calls[2], b"7")]
    assert not rpc.bridged


async def test_a_service_that_takes_calls_without_end_fails_the_oldest(bus, monkeypatch):
    monkeypatch.setattr(relay, "MAX_SERVING", 0)
    service = await busy_service(bus)
    other, zbus = Party(), bus.client()
    bus.router.attach(other)
    bus.router.call(Call(other, "slow/m", b"1"))
    assert await call(zbus, "third") == []
    for _ in range(2):
        await service.ask("consume", topic="slow", id="take")
    assert other.replies == []
    assert await call(zbus, "fourth") == []
    await service.ask("consume", topic="slow", id="take")
    assert [reply.status for reply in other.replies] == [Status.STALLED]
    await asyncio.sleep(0)
    assert zbus.received() == []


async def test_a_service_may_answer_in_any_order_and_what_it_leaves_unanswered_fails_when_it_goes(
    bus,
):
    service = bus.client()
    callers = [bus.client() for _ in range(3)]
    await service.one("declare", topic="slow", topic_mask="2")
    # Calls of different callers may have the same id.
    senders = []
    for caller in callers:
        assert await service.ask("consume", topic="slow", id="take") == []
        await call(caller, "same")
        (taken,) = service.received()
        senders.append(taken.headers["sender"])
    (party,) = (each for each in bus.room.parties.values() if each.serving)
    for answered, left in ((1, 2), (2, 1)):
        recver = senders[answered]
        await service.ask("route", b"1", recver=recver, id="same", ack="0", origin_status="200")
        assert [answer.status for answer in callers[answered].received()] == [200]
        assert party.serving == left
    await service.hang_up()
    await settle()
    assert [answer.status for answer in callers[0].received()] == [502]
    assert callers[1].received() == callers[2].received() == []


async def test_callers_of_a_service_that_leaves_with_many_calls_are_told_in_slices(bus):
    count = 4 * SLICE
    service, caller = bus.client(), bus.client()
    await service.one("declare", topic="slow", topic_mask="2")
    consumes = (request("consume", f"w{n}", consume_several="1") for n in range(count))
    assert await service.send(b"".join(consumes)) == []
    calls = (request("produce", f"c{n}", REQUEST, ack="0") for n in range(2 * count))
    assert await caller.send(b"".join(calls)) == []
    assert bus.room.pending() == 2 * count
    turns = Turns(bus.router.chores)
    await service.hang_up()
    told = caller.received()
    assert 0 < len(told) < count
    other = bus.client()
    await other.send(request("consume", "w"))
    assert await caller.send(request("produce", "later", REQUEST, ack="0")) == []
    (taken,) = other.received()
    assert taken.headers["origin_id"] == "later"
    turns.all()
    await settle()
    told += caller.received()
    assert {answer.status for answer in told} == {502}
    assert sorted(answer.id for answer in told) == sorted(f"c{n}" for n in range(2 * count))
    assert bus.room.pending() == 1


async def test_calls_in_the_queue_of_a_topic_that_is_removed_end_although_nobody_asks_for_it(bus):
    await busy_service(bus)
    caller, admin = bus.client(), bus.client()
    await call(caller, "queued")
    assert [answer.status for answer in await admin.ask("remove", topic="slow")] == [200]
    assert [(answer.id, answer.status) for answer in caller.received()] == [("queued", 502)]


@pytest.mark.parametrize("change", [{"cmd": "remove"}, {"cmd": "declare", "topic_mask": "0"}])
async def test_a_service_that_waits_hears_that_its_topic_is_none_for_calls_any_more(bus, change):
    service, admin, caller = (bus.client() for _ in range(3))
    await admin.one("declare", topic="slow", topic_mask="2")
    assert await take(service) == []
    await admin.one(topic="slow", **change)
    assert [(told.id, told.status) for told in service.received()] == [("take", 404)]
    # As clients do then
    await service.one("declare", topic="slow", topic_mask="2")
    assert await take(service) == []
    assert await call(caller, "again") == []
    assert [taken.headers["origin_id"] for taken in service.received()] == ["again"]


async def test_a_second_answer_to_a_plain_request_is_no_answer_to_the_next_one(bus):
    service, browser = bus.client(), bus.client()
    await service.one("declare", topic="slow", topic_mask="2")
    assert await take(service) == []
    assert await browser.send(b"GET /rpc/slow/m HTTP/1.1\r\n\r\n") == []
    (taken,) = service.received()
    named = {"recver": taken.headers["sender"], "id": taken.headers["origin_id"]}
    for body in (b"1", b"2"):
        await service.ask("route", body, ack="0", origin_status="200", **named)
    assert [answer.body for answer in browser.received()] == [b"1"]
    assert (await browser.get("/query/slow")).body.startswith(b"{")


async def test_a_plain_message_to_no_topic_that_wants_no_ack_does_not_hold_up_the_next_request(bus):
    browser = bus.client()
    lost = b"POST /?cmd=produce&topic=none&ack=0 HTTP/1.1\r\ncontent-length: 5\r\n\r\nhello"
    assert [answer.status for answer in await browser.send(lost)] == [404]
    assert (await browser.get("/query")).status == 200
