"""Requests whose heads have come before pass by the party: with the same outcome, and never once it is out of date."""

from __future__ import annotations

import asyncio
import re
from array import array
from collections.abc import AsyncIterator, Iterable
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polybus.core.engine import Done
from polybus.core.journal import Journal
from polybus.core.policy import RulePolicy
from polybus.core.watch import Watch
from polybus.model.message import Call
from polybus.protocols.zbus import party, planning
from polybus.protocols.zbus.party import ZbusParty
from polybus.protocols.zbus.relay import Exchange, RpcCall
from polybus.protocols.zbus.wire import encode_request
from tests.core.party import Party
from tests.protocols.zbus.bus import Bus, Client, settle

BODY = b'{"method": "m", "module": "", "params": []}'
CALLED = re.compile(rb"\r\nsender: ([^\r]+)\r\n(?:[^\r]+\r\n)*?id: take\r\norigin_id: ([^\r]+)\r\n")


@pytest.fixture
async def bus() -> AsyncIterator[Bus]:
    async with Bus() as running:
        yield running


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of the requests that parties looked at."""
    ids: list[str] = []
    take = ZbusParty.take

    def noting(self: ZbusParty, request: Any) -> None:
        ids.append(request.id)
        take(self, request)

    monkeypatch.setattr(ZbusParty, "take", noting)
    return ids


def request(cmd: str, ident: str, body: bytes = b"", **headers: str) -> bytes:
    return encode_request({"cmd": cmd, "id": ident, **headers}, body)


def call(ident: str, body: bytes = BODY) -> bytes:
    return request("produce", ident, body, topic="R", ack="0")


def take(topic: str = "R") -> bytes:
    return request("consume", "take", topic=topic)


def store(ident: str) -> bytes:
    return request("produce", ident, b"stored", topic="T")


def route(recver: str, ident: str) -> bytes:
    return request(
        "route", ident, b'{"result": 3}', recver=recver, ack="0", origin_status="200", topic="R"
    )


async def declare(client: Client) -> None:
    await client.one("declare", topic="R", topic_mask="2")
    await client.one("declare", topic="T")


async def served(bus: Bus, calls: int) -> tuple[Client, Client, str]:
    """A caller and a service that have dealt with some calls, and the caller's name."""
    caller, service = bus.client(), bus.client()
    await declare(caller)
    await service.send(take())
    sender = ""
    for number in range(calls):
        assert await caller.send(call(f"c{number}")) == []
        (taken,) = service.received()
        sender = taken.get("sender")
        await service.send(take() + route(sender, f"c{number}"))
        (answered,) = caller.received()
        assert (answered.id, answered.status, answered.body) == (
            f"c{number}",
            200,
            b'{"result": 3}',
        )
    return caller, service, sender


async def test_a_head_that_came_twice_needs_no_look_of_the_party(bus, looked_at):
    await served(bus, 10)
    assert [ident for ident in looked_at if ident.startswith("c")] == ["c0", "c0", "c1", "c1"]


async def test_messages_are_consumed_without_a_look_of_the_party(bus, looked_at):
    client = bus.client()
    await declare(client)
    for number in range(5):
        await client.send(store(f"m{number}"))
        (message,) = await client.send(take("T"))
        assert (message.get("origin_id"), message.get("offset")) == (f"m{number}", str(number))
    assert looked_at.count("take") == 2
    group = bus.topics.groups.get("T", "T")
    assert (group.acked, len(group.in_flight)) == (4, 1)


OFTEN = ("call", "call", "call", "take", "take", "answer", "answer", "store", "eat", "eat")
STEPS = st.sampled_from([*OFTEN, "declare", "replace", "ask", "foreign", "leave"])


def party_of(client: Client) -> ZbusParty:
    assert client.session is not None
    found = client.session.party
    assert isinstance(found, ZbusParty)
    return found


class Play:
    """Clients that do what a script says, and all that they were sent."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.clients = [bus.client() for _ in range(3)]
        self.taken: list[list[tuple[str, str]]] = [[], [], []]
        self.seen: list[bytes] = []
        self.ids = count()

    async def step(self, who: int, steps: list[str], splits: Iterable[int]) -> None:
        if "leave" in steps:
            await self.clients[who].hang_up()
            self.clients[who] = self.bus.client(f"127.0.0.1:{50000 + next(self.ids)}")
            self.taken[who].clear()
        data = b"".join(self._bytes(who, step) for step in steps)
        self.clients[who].peer.send(data, (cut % (len(data) + 1) for cut in splits))
        await settle()
        for number, client in enumerate(self.clients):
            raw = client.peer.received()
            self.seen.append(raw)
            for sender, origin in CALLED.findall(raw):
                self.taken[number].append((sender.decode(), origin.decode()))

    def _bytes(self, who: int, step: str) -> bytes:
        ident = f"{step}-{next(self.ids)}"
        match step:
            case "call":
                return call(ident)
            case "take":
                return take()
            case "answer":
                return route(*self.taken[who].pop(0)) if self.taken[who] else b""
            case "store":
                return store(ident)
            case "eat":
                return take("T")
            case "declare":
                return request("declare", ident, topic="T")
            case "replace":  # the topic gets a new mask, and what was known of it is out of date
                return request("declare", ident, topic="R", topic_mask="2", creator=ident)
            case "ask":
                return b"GET /consume/T HTTP/1.1\r\n\r\n"
            case "foreign":
                return call("ä" + ident) + call("")[: -len(BODY)] + BODY
        return b""


async def play(script: list[tuple[int, list[str], list[int]]], *, short: bool) -> list[bytes]:
    with pytest.MonkeyPatch.context() as patch:
        senders = count()
        patch.setattr(party, "random_id", lambda: f"sender-{next(senders)}")
        for module in (party, planning):
            patch.setattr(module, "new_id", lambda: "new")
        if not short:
            patch.setattr(planning, "may_pass_by", lambda *_: False)
            patch.setattr(party, "may_pass_by", lambda *_: False)
        async with Bus() as bus:
            await declare(bus.client())
            playing = Play(bus)
            for who, steps, splits in script:
                await playing.step(who, steps, splits)
            parties = [
                party_of(client)
                for client in playing.clients
                if client.session and client.session.party
            ]
            counts = [
                (each.traffic.messages_in, each.traffic.messages_out, each.serving)
                for each in parties
            ]
            groups = bus.topics.groups.get("T", "T")
            state = repr((counts, groups.acked, groups.delivered, bus.room.pending()))
            return [*playing.seen, state.encode()]


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 2),
            st.lists(STEPS, min_size=1, max_size=6),
            st.lists(st.integers(0, 3000), max_size=3),
        ),
        min_size=5,
        max_size=40,
    )
)
def test_what_passes_by_the_party_ends_as_if_it_had_not(script):
    short = asyncio.run(play(script, short=True))
    assert short == asyncio.run(play(script, short=False))


async def test_a_call_behind_a_message_is_made_after_it_was_stored(bus):
    caller, service, _ = await served(bus, 3)
    answers = await caller.send(store("m1") + store("m2") + store("m3") + call("c"))
    assert [answer.id for answer in answers] == ["m1", "m2", "m3"]
    (taken,) = service.received()
    assert taken.get("origin_id") == "c"


async def test_a_call_behind_a_command_that_waits_for_the_disk_waits_too(bus):
    caller, service, _ = await served(bus, 3)
    removed, down = await caller.send(request("remove", "r", topic="R") + call("c"))
    assert (removed.id, removed.status) == ("r", 200)
    assert (down.id, down.status) == ("c", 404)
    assert [(told.id, told.status) for told in service.received()] == [("take", 404)]


async def test_rules_that_have_changed_hold_for_heads_that_are_known():
    policy = RulePolicy(allow_anonymous=True)
    async with Bus(policy=policy) as bus:
        caller, service, _ = await served(bus, 3)
        policy.replace([])
        assert [answer.status for answer in await caller.send(call("c"))] == [403]
        assert service.received() == []
        assert [answer.status for answer in await service.send(take())] == [403]


async def test_who_begins_to_trace_gets_copies_of_calls_whose_heads_are_known(bus):
    caller, service, _ = await served(bus, 3)
    tracer = bus.client()
    await tracer.one("trace", topic="R", id="t")
    await caller.send(call("c"))
    assert [copy.id for copy in tracer.received()] == ["c"]
    await tracer.one("trace", topic_mask="0", id="t")
    await caller.send(call("d") + call("e") + call("f"))
    assert tracer.received() == []
    assert [taken.get("origin_id") for taken in service.received()] == ["c"]
    assert [taken.get("origin_id") for taken in await service.send(take())] == ["d"]


async def test_calls_are_noted_from_when_there_is_a_journal(bus):
    caller, service, sender = await served(bus, 3)
    rows: list[bytes] = []

    def write(ends: array[int], parts: list[bytes], done: Done) -> bool:
        rows.extend(parts)
        return True

    journal = Journal(bus.clock, write)
    bus.router.note_by(Watch(journal, None, True), journal)
    await caller.send(call("c"))
    await service.send(take() + route(sender, "c"))
    assert [answer.status for answer in caller.received()] == [200]
    journal.flush()
    assert b'"R/m"' in b"".join(rows)


async def test_messages_that_pass_by_the_party_are_counted(bus):
    caller, service, _ = await served(bus, 10)
    await bus.tick(1.0)
    for client, taken, sent in ((caller, 10, 10), (service, 10, 0)):
        traffic = party_of(client).traffic
        assert (traffic.messages_in, traffic.messages_out) == (taken, sent)


async def test_a_service_that_comes_back_to_a_topic_declared_anew_is_called(bus):
    caller, service, _ = await served(bus, 3)
    await caller.one("remove", topic="R")
    await caller.one("declare", topic="R", topic_mask="2")
    await service.send(take())
    await caller.send(call("c"))
    assert [taken.get("origin_id") for taken in service.received()] == ["c"]


async def test_several_consumes_may_wait_up_to_the_bound_also_when_their_head_is_known():
    async with Bus(max_waiting=3) as bus:
        client = bus.client()
        await declare(client)
        asked = b"".join(
            request("consume", f"w{number}", topic="T", consume_several="1") for number in range(5)
        )
        assert [(answer.id, answer.status) for answer in await client.send(asked)] == [
            ("w3", 400),
            ("w4", 400),
        ]


async def test_what_was_cancelled_is_not_kept_while_nobody_takes_calls(bus):
    service, other = bus.client(), Party()
    await declare(service)
    await service.send(take() + call("self"))
    bus.router.attach(other)
    exchange: Exchange = bus.room.rpc["R"].exchange
    staying = Call(other, "R/m", b"1")
    bus.router.call(staying)
    kept: list[RpcCall] = []
    for number in range(1000):
        each = Call(other, "R/m", b"%d" % number)
        bus.router.call(each)
        kept.append(bus.room.rpc["R"].bridged[each.key])
        bus.router.cancel(each)
    assert exchange.depth == 1
    assert not any(each.queued for each in kept)
    # One that was cancelled twice is not taken out twice.
    exchange.drop(kept[-1])
    assert (exchange.depth, bus.room.pending()) == (1, 2)
    service.received()
    (taken,) = await service.send(take())
    assert b'"params":[1]' in taken.body
    assert (exchange.depth, exchange.size) == (0, 0)


async def test_who_changes_its_mind_again_and_again_stands_in_line_once(bus):
    wavering, steady, caller = bus.client(), bus.client(), bus.client()
    await declare(caller)
    for _ in range(100):
        assert await wavering.send(take()) == []
        assert (await wavering.one("unconsume", topic="R")).status == 200
    await steady.send(take())
    exchange: Exchange = bus.room.rpc["R"].exchange
    assert len(exchange.waiting) == 2
    await caller.send(call("first"))
    assert [taken.get("origin_id") for taken in steady.received()] == ["first"]
    await wavering.send(take())
    await caller.send(call("second"))
    assert [taken.get("origin_id") for taken in wavering.received()] == ["second"]
    assert len(exchange.waiting) == 0
