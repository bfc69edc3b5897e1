"""What Zbus clients are promised, where the original servers kept it and where they fell short."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polybus.core.endpoint import Endpoint
from polybus.errors import StorageFull
from polybus.http.settings import HttpSettings
from polybus.model.message import Call, Reply, Status
from polybus.model.record import NewRecord
from polybus.protocols.zbus import tracker
from polybus.protocols.zbus.wire import Message, encode_request
from tests.core.memory_engine import MemoryEngine
from tests.protocols.zbus.bus import ADDRESS, Bus, Client, settle
from tests.protocols.zbus.replay import VECTORS


@pytest.fixture
async def bus():
    async with Bus() as running:
        yield running


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracker, "MOMENT", 0.0)


async def topic(client: Client, name: str = "T", *bodies: str, **headers: str) -> None:
    await client.one("declare", b"", topic=name, **headers)
    for body in bodies:
        await client.one("produce", body.encode(), topic=name)


async def count(client: Client, name: str = "T", group: str = "T") -> int:
    info: int = json.loads((await client.one("query", topic=name, consume_group=group)).body)[
        "messageCount"
    ]
    return info


# -- produce ------------------------------------------------------------------------------------------------------


async def test_a_produce_is_acknowledged_only_when_it_is_durable():
    engine = MemoryEngine(manual=True)
    async with Bus(engine=engine) as bus:
        client = bus.client()
        client.peer.send(encode_request({"cmd": "declare", "topic": "T", "id": "d"}))
        for _ in range(5):
            await settle()
            engine.sync()
        await settle()
        assert client.received()[0].status == 200
        assert await client.ask("produce", b"x", topic="T", id="1") == []
        engine.sync()
        await settle()
        assert [m.id for m in client.received()] == ["1"]


async def test_consecutive_messages_are_stored_as_one_batch_and_acknowledged_in_order(bus):
    client = bus.client()
    await topic(client, "T")
    await topic(client, "U")
    raw = b"".join(
        encode_request({"cmd": "produce", "topic": name, "id": str(number)}, b"x")
        for number, name in enumerate(["T", "T", "U", "T"])
    )
    assert [m.id for m in await client.send(raw)] == ["0", "1", "2", "3"]
    assert bus.engine.topic("T").end == 3
    assert client.peer.tap.writes <= 5


async def test_a_storage_failure_is_told_to_each_producer(bus):
    client = bus.client()
    await topic(client)
    bus.engine.full = True
    answers = await client.send(
        encode_request({"cmd": "produce", "topic": "T", "id": "1"}, b"x")
        + encode_request({"cmd": "produce", "topic": "T", "id": "2"}, b"x")
    )
    assert [(m.status, m.id) for m in answers] == [(500, "1"), (500, "2")]
    assert answers[0].text.startswith("500: Exception Caught, ")


async def test_a_declare_and_a_produce_in_one_segment_take_effect_in_their_order(bus):
    client = bus.client()
    raw = encode_request({"cmd": "declare", "topic": "T", "id": "d"})
    raw += encode_request({"cmd": "produce", "topic": "T", "id": "p"}, b"x")
    raw += encode_request({"cmd": "consume", "topic": "T", "id": "c"})
    raw += encode_request({"cmd": "remove", "topic": "T", "id": "r"})
    raw += encode_request({"cmd": "produce", "topic": "T", "id": "q"}, b"x")
    answers = await client.send(raw)
    assert sorted((m.id, m.status) for m in answers) == [
        ("c", 404),  # what it waited for was removed before it was durable
        ("d", 200), ("p", 200), ("q", 404), ("r", 200),
    ]  # fmt: skip


async def test_ids_and_tags_that_are_too_long_are_refused_or_dropped(bus):
    client = bus.client()
    await topic(client)
    answer = await client.one("produce", b"x", topic="T", id="i" * 40)
    assert answer.text == "400: Bad Format, Message.Id length should <= 39"
    assert await client.ask("produce", b"x", topic="T", id="i" * 40, ack="0") == []
    assert await client.ask("produce", b"x", topic="T", tag="t" * 128, ack="0") == []
    assert bus.engine.topic("T").end == 0


async def test_names_are_found_in_any_case_and_kept_as_first_spelled(bus):
    client = bus.client()
    await topic(client, "MyTopic", "x")
    assert (await client.one("consume", topic="mytopic")).text == "x"
    info = json.loads((await client.one("declare", topic="MYTOPIC", consume_group="G")).body)
    assert info["topicName"] == "MyTopic"
    assert (
        json.loads((await client.one("declare", topic="mytopic", consume_group="g")).body)[
            "groupName"
        ]
        == "G"
    )
    assert (await client.one("query", topic="mytopic", consume_group="g")).status == 404


async def test_a_message_id_that_comes_again_is_another_message_unless_told_otherwise(bus):
    client = bus.client()
    await topic(client)
    for _ in range(2):
        await client.one("produce", b"x", topic="T", id="same")
    assert bus.engine.topic("T").end == 2
    async with Bus(deduplicate=True) as careful:
        client = careful.client()
        await topic(client)
        await client.one("produce", b"x", topic="T", id="same")
        assert [r.id for r in await careful.engine.read("T", 0, 9, 9999)] == ["same"]


async def test_what_is_stored_is_the_message_with_the_servers_stamps(bus):
    producer, consumer = bus.client("1.2.3.4:5"), bus.client()
    await topic(producer)
    await producer.one(
        "produce", b"x", topic="T", id="m", tag="a.b", sender="forged", host="localhost",
        cookie="secret", token="secret", ack="1", **{"x-own": "kept"},
    )  # fmt: skip
    message = await consumer.one("consume", topic="T", id="c")
    shown = dict(message.headers)
    sender = shown.pop("sender")
    assert sender != "forged"
    assert shown == {
        "id": "c", "origin_id": "m", "offset": "0", "tag": "a.b", "topic": "T", "x-own": "kept",
        "host": ADDRESS, "remote-addr": "/1.2.3.4:5", "version": "0.8.0", "connection": "Keep-Alive",
        "content-length": "1",
    }  # fmt: skip


async def test_records_of_other_wires_are_consumed_as_messages(bus):
    client = bus.client()
    await topic(client)
    record = NewRecord(
        b"\xff", b"key\r\n", "tag", {"Odd Name": "a\r\nb", "id": "1", "content-length": "9"}
    )
    bus.topics.produce("T", [record], lambda first, error: None)
    message = await client.one("consume", topic="T", id="c")
    assert (message.body, message.id, message.get("tag")) == (b"\xff", "c", "tag")
    assert message.get("odd-name") == "a b"
    assert message.get("origin_id") == "key"


# -- consume ------------------------------------------------------------------------------------------------------


async def test_the_next_consume_confirms_and_a_connection_that_dies_gives_back_with_a_mark(bus):
    first, second = bus.client(), bus.client()
    await topic(first, "T", "a", "b")
    assert (await first.one("consume", topic="T")).text == "a"
    assert (await first.one("consume", topic="T")).text == "b"
    await first.hang_up()
    message = await second.one("consume", topic="T")
    assert (message.text, message.get("retry")) == ("b", "1")


async def test_a_browser_that_has_read_its_answer_need_not_come_back(bus):
    for body in ("a", "b"):
        client = bus.client()
        if body == "a":
            await topic(client, "T", "a", "b")
        assert (await client.get("/consume/T")).text == body
        await client.hang_up()
    lost = bus.client()
    await topic(lost, "T", "c")
    assert (await lost.get("/consume/T")).text == "c"
    await lost.hang_up(ConnectionResetError())
    assert (await bus.client().get("/consume/T")).text == "c"


async def test_a_waiting_consume_holds_up_nobody_and_a_second_one_replaces_it(bus):
    client = bus.client()
    await topic(client)
    assert await client.ask("consume", topic="T", id="c1") == []
    assert (await client.one("ping", id="p")).id == "p"
    assert await client.ask("consume", topic="T", id="c2") == []
    answers = await client.ask("produce", b"x", topic="T", id="m")
    assert sorted(m.id for m in answers) == ["c2", "m"]


async def test_clients_that_ask_for_it_have_several_consumes_waiting(bus):
    client = bus.client()
    await topic(client)
    for number in range(3):
        await client.ask("consume", topic="T", id=f"c{number}", consume_several="1")
    for number in range(3):
        answers = await client.ask("produce", str(number).encode(), topic="T", ack="0")
        assert [(m.id, m.text) for m in answers] == [(f"c{number}", str(number))]


async def test_the_number_of_waiting_consumes_is_bounded():
    async with Bus(max_waiting=2) as bus:
        client = bus.client()
        await topic(client)
        for _ in range(2):
            assert await client.ask("consume", topic="T", consume_several="1") == []
        assert (await client.one("consume", topic="T", consume_several="1")).status == 400


async def test_waiting_connections_are_served_in_turn(bus):
    clients = [bus.client() for _ in range(3)]
    await topic(clients[0])
    for client in clients:
        await client.ask("consume", topic="T")
    for number in range(3):
        answers = await clients[0].ask("produce", str(number).encode(), topic="T", ack="0")
        if number:
            answers = clients[number].received()
        assert [m.text for m in answers] == [str(number)]


async def test_a_consume_that_was_taken_back_gets_nothing(bus):
    client, other = bus.client(), bus.client()
    await topic(client)
    await client.ask("consume", topic="T", id="c")
    assert (await client.one("unconsume", topic="T")).status == 200
    await other.one("produce", b"x", topic="T")
    assert client.received() == []
    assert (await client.one("consume", topic="T")).text == "x"
    assert (await client.one("unconsume", topic="None")).status == 404
    assert (await client.one("unconsume")).status == 400


async def test_consumers_of_what_is_removed_are_told(bus):
    waiting, admin = bus.client(), bus.client()
    await topic(admin)
    await admin.one("declare", topic="T", consume_group="g")
    await waiting.ask("consume", topic="T", consume_group="g", id="c")
    await admin.one("remove", topic="T", consume_group="g")
    (answer,) = waiting.received()
    assert answer.text == "404: ConsumeGroup(g) Not Found"
    await waiting.ask("consume", topic="T", id="c2")
    await admin.one("remove", topic="T")
    (answer,) = waiting.received()
    assert (answer.id, answer.text) == ("c2", "404: Topic(T) Not Found")
    assert (await waiting.one("consume", topic="T")).status == 404


async def test_one_message_is_read_by_its_offset_without_moving_anything(bus):
    client = bus.client()
    await topic(client, "T", "a", "b")
    assert (await client.one("consume", topic="T", offset="1")).text == "b"
    assert (await client.one("consume", topic="T")).text == "a"
    for offset in ("2", "x", "-1"):
        answer = await client.one("consume", topic="T", offset=offset)
        assert (answer.status, answer.text) == (404, f"Message Not Found: offset={offset}")


async def test_messages_of_a_group_that_requires_it_are_confirmed_or_come_again(bus):
    client, other = bus.client(), bus.client()
    await topic(client)
    await client.one(
        "declare", topic="T", consume_group="g", group_mask="64", group_ack_timeout="1000"
    )
    await client.one("produce", b"a", topic="T")
    message = await client.one("consume", topic="T", consume_group="g")
    assert await client.ask("consume", topic="T", consume_group="g", id="again") == []
    await bus.tick(1.5)
    (message,) = client.received()
    assert (message.text, message.get("retry")) == ("a", "1")
    assert (await other.one("ack", topic="T", consume_group="g", offset="0")).status == 200
    assert await count(client, "T", "g") == 0
    assert (await client.one("ack", topic="T", consume_group="g", offset="0")).status == 200
    assert (await client.one("ack", topic="T", consume_group="g", offset="x")).status == 400
    assert (await client.one("ack", topic="T", consume_group="no", offset="0")).status == 404
    assert (await client.one("ack", topic="No", offset="0")).status == 404
    assert await client.ask("ack", topic="T", consume_group="g", offset="0", ack="0") == []


# -- declaring ----------------------------------------------------------------------------------------------------


async def test_groups_start_where_they_are_told(bus):
    client = bus.client()
    await topic(client, "T", "0", "1", "2")
    await client.one("consume", topic="T", id="c0")
    second = await client.one("consume", topic="T", id="c1")
    assert second.get("offset") == "1"
    starts: dict[str, dict[str, str]] = {
        "1": {},  # at the most advanced group, which has not confirmed this one yet
        "0": {"group_start_offset": "0"},
        "2": {"group_start_offset": "2"},
    }
    for body, headers in starts.items():
        await client.one("declare", topic="T", consume_group=f"g{body}", **headers)
        assert (await client.one("consume", topic="T", consume_group=f"g{body}")).text == body
    await client.one("declare", topic="T", consume_group="copy", group_start_copy="g2")
    assert (await client.one("consume", topic="T", consume_group="copy")).text == "2"
    answer = await client.one(
        "declare", topic="T", consume_group="g2", group_start_offset="1", group_start_msgid="no"
    )
    assert "seek by offset unsuccessfull: (offset=1, msgid=no)" in answer.text
    for bad in (
        {"group_start_offset": "99"},
        {"group_start_offset": "x"},
        {"group_start_time": "x"},
    ):
        assert (await client.one("declare", topic="T", consume_group="g2", **bad)).status == 500


async def test_declaring_again_changes_the_policy(bus):
    client = bus.client()
    await topic(client)
    await client.one("declare", topic="T", consume_group="g", group_filter="a", group_mask="1")
    info = json.loads((await client.one("declare", topic="T", consume_group="g")).body)
    assert "filter" not in info
    assert info["mask"] == 1
    too_long = await client.one("declare", topic="T", consume_group="g", group_filter="x" * 128)
    assert too_long.status == 400


@pytest.mark.parametrize(
    ("dialect", "pause", "exclusive", "gone"), [("0.8", 1, 4, 8), ("0.9", 8, 16, 32)]
)
async def test_masks_act_in_both_dialects(dialect: str, pause: int, exclusive: int, gone: int):
    async with Bus(masks=dialect) as bus:
        client, other = bus.client(), bus.client()
        await topic(client, "T", "x")
        declare: Any = lambda mask: client.one(  # noqa: E731
            "declare", topic="T", consume_group="g", group_mask=str(mask)
        )
        await declare(pause)
        assert await client.ask("consume", topic="T", consume_group="g", id="c") == []
        resumed = await client.ask("declare", topic="T", consume_group="g", group_mask="0", id="d")
        assert [m.text for m in resumed if m.id == "c"] == ["x"]
        await declare(exclusive)
        refused = await other.one("consume", topic="T", consume_group="g")
        assert (refused.status, refused.text) == (401, "ConsumeGroup(g) exclusive, forbbiden")
        await declare(gone)
        await client.hang_up()
        assert (await other.one("query", topic="T", consume_group="g")).status == 404


async def test_a_topics_pause_holds_for_all_its_groups(bus):
    client = bus.client()
    await topic(client, "T", "x")
    await client.one("declare", topic="T", topic_mask="1")
    assert await client.ask("consume", topic="T", id="c") == []
    await client.ask("declare", topic="T", topic_mask="0", id="d")
    await settle()
    assert {m.id for m in client.received()} <= {"c", "d"}
    assert await count(client) == 0


async def test_empty_empties_and_offsets_go_on(bus):
    client = bus.client()
    await topic(client, "T", "a", "b")
    await client.one("declare", topic="T", consume_group="g")
    await client.one("empty", topic="T", consume_group="g")
    assert (await count(client, "T", "g"), await count(client)) == (0, 2)
    await client.one("empty", topic="T")
    assert await count(client) == 0
    await client.one("produce", b"c", topic="T")
    message = await client.one("consume", topic="T")
    assert (message.text, message.get("offset")) == ("c", "2")
    assert (await client.one("empty", topic="None")).status == 404
    assert (await client.one("empty", topic="T", consume_group="no")).status == 404


async def test_names_that_cannot_be_are_refused(bus):
    client = bus.client()
    assert (await client.one("declare", topic="a//b")).status == 400
    await topic(client)
    assert (await client.one("declare", topic="T", consume_group="*")).status == 400


# -- rpc ----------------------------------------------------------------------------------------------------------


async def service(client: Client, name: str = "R") -> None:
    await client.one("declare", topic=name, topic_mask="2", consume_group=name)
    await client.ask("consume", topic=name, id="wait")


async def answer(
    client: Client, call: Message, body: bytes = b'{"result": 3}', **more: str
) -> list[Message]:
    return await client.ask(
        "route",
        body,
        ack="0",
        recver=call.get("sender"),
        id=call.get("origin_id"),
        topic="R",
        **more,
    )


async def test_a_call_reaches_the_service_and_its_answer_the_caller(bus):
    serving, calling = bus.client(), bus.client()
    await service(serving)
    assert await calling.ask("produce", b"{}", topic="R", ack="0", id="q") == []
    (call,) = serving.received()
    assert (call.id, call.get("origin_id"), call.body) == ("wait", "q", b"{}")
    assert await answer(serving, call, origin_status="600") == []
    (reply,) = calling.received()
    assert (reply.status, reply.id, reply.body) == (600, "q", b'{"result": 3}')
    assert reply.headers.keys().isdisjoint({"cmd", "recver", "ack", "origin_status"})
    assert bus.engine.topic("R").end == 0


async def test_without_any_service_a_call_fails_and_with_busy_ones_it_waits(bus):
    serving, calling = bus.client(), bus.client()
    await calling.one("declare", topic="R", topic_mask="2")
    down = await calling.one("produce", b"{}", topic="R", ack="0", id="q")
    assert (down.status, down.text) == (502, "502: Service(R) Down")
    await service(serving)
    for number in range(3):
        assert await calling.ask("produce", b"{}", topic="R", ack="0", id=f"q{number}") == []
    (first,) = serving.received()
    assert first.get("origin_id") == "q0"
    assert (await serving.one("consume", topic="R")).get("origin_id") == "q1"


async def test_calls_that_wait_or_were_taken_fail_when_the_service_goes(bus):
    serving, calling = bus.client(), bus.client()
    await service(serving)
    for number in range(2):
        await calling.ask("produce", b"{}", topic="R", ack="0", id=f"q{number}")
    await serving.hang_up()
    assert sorted((m.id, m.status) for m in calling.received()) == [("q0", 502), ("q1", 502)]


async def test_the_queue_of_a_busy_service_is_bounded():
    async with Bus(rpc_queue_calls=1) as bus:
        serving, calling = bus.client(), bus.client()
        await service(serving)
        for number in range(2):
            assert await calling.ask("produce", b"{}", topic="R", ack="0", id=f"q{number}") == []
        assert (await calling.one("produce", b"{}", topic="R", ack="0")).status == 502


async def test_a_browser_calls_by_url_and_gets_the_answer_as_its_response(bus):
    serving, browser = bus.client(), bus.client()
    await service(serving)
    await browser.send(b"GET /rpc/R/plus/1/2 HTTP/1.1\r\n\r\n")
    (call,) = serving.received()
    assert json.loads(call.body)["params"] == ["1", "2"]
    await answer(serving, call)
    assert [m.body for m in browser.received()] == [b'{"result": 3}']
    assert (await browser.get("/rpc/R")).text == "400: Bad Format, Missing topic"


async def test_a_route_to_nobody_is_dropped(bus):
    client = bus.client()
    assert await client.ask("route", b"x", recver="nobody", id="r") == []
    assert await client.ask("route", b"x", id="r") == []


class Foreign(Endpoint):
    """A service or caller on another wire."""

    wire = "other"

    def __init__(self, bus: Bus) -> None:
        super().__init__()
        self.bus = bus
        self.calls: list[Call] = []
        self.replies: list[Reply] = []
        bus.router.attach(self)

    def deliver_call(self, call: Call) -> None:
        self.calls.append(call)

    def deliver_reply(self, reply: Reply) -> None:
        self.replies.append(reply)


async def test_a_call_to_a_name_of_another_wire_is_bridged(bus):
    other = Foreign(bus)
    bus.router.register(other, "calc/add", "calc/add")
    client = bus.client()
    body = b'{"method":"add","params":[1,2]}'
    assert await client.ask("produce", body, topic="calc", ack="0", id="q") == []
    (call,) = other.calls
    assert (call.name, call.payload) == ("calc/add", b"[1,2]")
    bus.router.reply(Reply(call, b"3"))
    await settle()
    (reply,) = client.received()
    assert (reply.status, reply.id, reply.body) == (200, "q", b'{"result":3}')
    await client.send(b"GET /rpc/calc/add/1/2 HTTP/1.1\r\n\r\n")
    bus.router.reply(Reply(other.calls[1], b"boom", Status.FAILED))
    await settle()
    assert client.received()[0].body == b'{"error":"boom"}'
    assert (await client.one("produce", b"{}", topic="calc", ack="0")).status == 404
    await client.ask("produce", body, topic="calc", ack="0", id="late")
    await bus.tick(31)
    assert client.received()[0].status == 502


async def test_a_service_is_called_from_another_wire(bus):
    other, serving = Foreign(bus), bus.client()
    await service(serving)
    bus.router.call(Call(other, "R/Mod/plus", b"[1,2]", headers={"Trace": "x"}))
    await settle()
    (call,) = serving.received()
    assert json.loads(call.body) == {"module": "Mod", "method": "plus", "params": [1, 2]}
    assert call.get("x-trace") == "x"
    await answer(serving, call)
    (reply,) = other.replies
    assert (reply.status, reply.payload) == (Status.OK, b"3")
    bus.router.call(Call(other, "R/a/b/c", b""))
    statuses = [reply.status for reply in other.replies]
    assert statuses[-1] is Status.NOT_FOUND
    bus.router.call(Call(other, "R/plus", b""))
    await serving.hang_up()
    assert [reply.status for reply in other.replies][-1] is Status.GONE


async def test_a_call_of_another_wire_that_is_cancelled_is_forgotten(bus):
    other, serving = Foreign(bus), bus.client()
    await service(serving)
    calls = [Call(other, "R/plus", b""), Call(other, "R/plus", b"")]
    for call in calls:
        bus.router.call(call)
    for call in calls:
        bus.router.cancel(call)
    await settle()
    (taken,) = serving.received()
    await answer(serving, taken)
    assert other.replies == []
    assert bus.room.pending() == 0


# -- trackers -----------------------------------------------------------------------------------------------------


async def test_a_subscriber_is_told_at_once_and_of_every_change_with_rising_versions(bus):
    client, admin = bus.client(), bus.client()
    (first,) = await client.ask("track_sub", id="s")
    assert (first.id, first.get("cmd")) == ("", "track_pub")
    await topic(admin)
    await admin.ask("consume", topic="T")
    await admin.hang_up()
    versions = [json.loads(m.body)["infoVersion"] for m in [first, *client.received()]]
    assert len(versions) >= 4
    assert versions == sorted(set(versions))
    info = json.loads(first.body)
    assert info["trackedServerList"] == [{"address": ADDRESS, "sslEnabled": False}]


async def test_servers_are_tracked_while_the_connection_to_them_lives(bus):
    links: dict[str, Any] = {}

    class Link:
        def close(self) -> None:
            links["closed"] = True

    def dial(address: str, up: Any, down: Any) -> Link:
        links[address] = (up, down)
        return Link()

    bus.room.tracker.dial = dial
    client = bus.client()

    def event(live: bool, version: int = 1) -> bytes:
        where = {"address": "1.1.1.1:1", "sslEnabled": False}
        return json.dumps(
            {"live": live, "serverInfo": {"serverAddress": where, "infoVersion": version}}
        ).encode()

    async def known() -> list[str]:
        return list(json.loads((await client.one("tracker")).body)["serverTable"])

    assert (await client.one("track_pub", event(True))).status == 200
    assert await known() == [ADDRESS]
    links["1.1.1.1:1"][0]()
    assert sorted(await known()) == sorted([ADDRESS, "1.1.1.1:1"])
    await client.one("track_pub", event(True, 2))
    links["1.1.1.1:1"][1]()
    assert await known() == [ADDRESS]
    await client.one("track_pub", event(True))
    links["1.1.1.1:1"][0]()
    await client.one("track_pub", event(False))
    assert await known() == [ADDRESS]
    own = {"live": True, "serverInfo": {"serverAddress": {"address": ADDRESS, "sslEnabled": False}}}
    assert (await client.one("track_pub", json.dumps(own).encode())).status == 200
    for bad in (
        b"[]",
        b"{}",
        b'{"serverInfo": 1}',
        b'{"serverInfo":{"serverAddress":{"address":1}}}',
    ):
        assert (await client.one("track_pub", bad)).status == 500
    assert await client.ask("track_pub", event(True), ack="0") == []


# -- the rest -----------------------------------------------------------------------------------------------------


async def test_copies_of_messages_go_to_those_who_trace(bus):
    watcher, client = bus.client(), bus.client()
    await topic(client)
    await topic(client, "U")
    await watcher.one("trace", topic="T", id="w")
    await client.one("produce", b"x", topic="T", id="m", token="secret")
    await client.one("produce", b"y", topic="U")
    (copy,) = watcher.received()
    assert (copy.body, copy.id, copy.get("origin_cmd")) == (b"x", "m", "produce")
    assert "token" not in copy.headers
    await watcher.one("trace", topic_mask="0")
    await client.one("produce", b"x", topic="T")
    assert watcher.received() == []


async def test_tokens_are_checked_where_there_are_rules():
    rules = ("boss: *", "maker: declare, produce on T", ": query on Open")
    async with Bus(tokens=rules) as bus:
        client = bus.client()
        await topic(client, "T", token="boss")
        await topic(client, "Open", token="boss")
        assert (await client.one("produce", b"x", topic="T", token="maker")).status == 200
        refused = await client.one("produce", b"x", topic="T")
        assert (refused.status, refused.text) == (403, "403: Topic(T) Forbbiden")
        assert (await client.get("/produce/T?token=maker")).status == 200
        assert (await client.get("/rpc/T/plus/1?token=wrong")).status == 403
        shown = json.loads((await client.get("/query", cookie="token=boss")).body)["topicTable"]
        assert sorted(shown) == ["Open", "T"]
        assert shown["T"]["creator"] == "boss"
        assert list(json.loads((await client.get("/query")).body)["topicTable"]) == ["Open"]
        home = await client.get("/")
        assert (home.status, home.get("location")) == (302, "/?cmd=login")
        assert b"form" in (await client.get("/?cmd=login")).body
        login = b"POST /?cmd=login HTTP/1.1\r\ncontent-length: 10\r\n\r\ntoken=boss"
        (entered,) = await client.send(login)
        assert (entered.status, entered.get("location")) == (302, "/")
        assert entered.get("set-cookie").startswith("token=boss; Path=/; HttpOnly")
        (wrong,) = await client.send(login.replace(b"boss", b"evil"))
        assert wrong.status == 403
        assert "Max-Age=0" in (await client.get("/?cmd=logout")).get("set-cookie")


async def test_a_page_of_another_origin_may_ask_but_not_change(bus):
    client = bus.client()
    await topic(client)
    evil = {"host": "localhost", "origin": "http://evil.example"}
    for url in (
        "/produce/T?body=x",
        "/remove/T",
        "/consume/T",
        "/declare/U",
        "/T?cmd=empty",
        "/rpc/T/m",
    ):
        assert (await client.get(url, **evil)).status == 403
    assert (await client.get("/query/T", **evil)).status == 200
    assert bus.engine.topic("T").end == 0


async def test_the_certificate_is_handed_out_where_there_is_one(tmp_path):
    pem = tmp_path / "cert.pem"
    pem.write_text("-----BEGIN CERTIFICATE-----")
    async with Bus(certificate=str(pem)) as bus:
        client = bus.client()
        assert (await client.one("ssl", server=ADDRESS)).text.startswith("-----BEGIN")
        assert (await client.one("ssl", server="other:1")).status == 404
    async with Bus() as bus:
        assert (await bus.client().one("ssl")).status == 404


async def test_a_message_over_the_limit_gets_413():
    async with Bus(http=HttpSettings(max_body=100)) as bus:
        client = bus.client()
        (answer,) = await client.send(encode_request({"cmd": "produce", "topic": "T"}, b"x" * 101))
        assert (answer.status, answer.headers) == (413, {"content-length": "0"})


async def test_over_a_websocket_every_answer_is_a_frame_of_its_own(bus):
    admin, client = bus.client(), bus.client()
    await topic(admin)
    handshake = (
        b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    client.peer.send(handshake)
    client.peer.received()
    for _ in range(2):
        message = b"GET / HTTP/1.1\r\ncmd: produce\r\ntopic: T\r\nid: w\r\n\r\nbody"
        client.peer.send(b"\x81" + bytes([0x80 | len(message)]) + bytes(4) + message)
    await settle()
    assert client.peer.received().count(b"\x81") == 2
    assert bus.engine.topic("T").end == 2


async def test_a_full_commit_queue_pauses_the_producer_until_its_messages_are_through(
    bus, monkeypatch
):
    client = bus.client()
    await topic(client)
    produce = bus.topics.produce

    def full(*args: Any, **named: Any) -> bool:
        produce(*args, **named)
        return False

    monkeypatch.setattr(bus.topics, "produce", full)
    client.peer.send(encode_request({"cmd": "produce", "topic": "T"}, b"x"))
    paused = not client.peer.tap.reading
    await settle()
    assert paused
    assert client.peer.tap.reading
    client.received()
    monkeypatch.setattr(
        bus.topics, "produce", lambda *a, **n: (_ for _ in ()).throw(StorageFull("no room"))
    )
    assert (await client.one("produce", b"x", topic="T")).status == 500


SAMPLES = [
    bytes.fromhex(step["hex"])
    for vector in VECTORS
    for step in vector["steps"]
    if step["from"] != "server" and "websocket" not in vector["name"]
]


@given(st.data())
@settings(max_examples=120, deadline=None)
def test_mutated_requests_are_answered_or_refused_and_harm_nobody(data: st.DataObject):
    import asyncio

    async def run() -> None:
        async with Bus() as bus:
            victim, attacker = bus.client(), bus.client()
            await topic(victim, "VT")
            raw = bytearray(data.draw(st.sampled_from(SAMPLES)))
            for _ in range(data.draw(st.integers(1, 5))):
                at = data.draw(st.integers(0, len(raw) - 1))
                if data.draw(st.booleans()):
                    raw[at] = data.draw(st.integers(0, 255))
                else:
                    del raw[at : at + data.draw(st.integers(1, 8))]
                    if not raw:
                        raw = bytearray(b"G")
            await attacker.send(bytes(raw))
            assert (await victim.one("ping")).status == 200

    asyncio.run(run())
