"""The JSON API on a real node, over HTTP."""

from __future__ import annotations

import hashlib
import logging

import msgspec
import pytest

import polybus
from polybus.monitor import shapes
from polybus.server import Config, Node, config
from tests.monitor.serving import ReadOnly, Shut, Watched, watched

ORDERS = "/topics/orders%2Feu"


async def fill(bus: Watched, count: int = 5) -> None:
    async with polybus.connect(bus.url) as client:
        for number in range(count):
            tag = "orders.new" if number % 2 == 0 else "orders.paid"
            await client.produce("orders/eu", b'{"n":%d}' % number, tag=tag, create=True)


async def test_the_overview_counts_what_happened(bus):
    async with polybus.connect(bus.url) as service, polybus.connect(bus.url) as client:
        await service.serve("twice", lambda body: body * 2)
        await client.call("twice", b"ab")
        await client.produce("log", b"x", create=True)
        await bus.node.monitor.sampler.sample()
        found = await bus.get("/overview?history=10")
    native = next(wire for wire in found["wires"] if wire["protocol"] == "native")
    assert native["connections"] == 2
    assert native["services"] == 1
    assert native["calls"] == 1
    assert native["messages_in"] >= 4
    assert found["topics"] == found["records"] == 1
    assert found["ready"] is True
    assert found["disk"]["free_bytes"] > 0
    assert len(found["history"]["times_ms"]) == len(found["history"]["lag"])


async def test_totals_do_not_fall_when_clients_go(bus):
    async with polybus.connect(bus.url) as client:
        await client.serve("twice", lambda body: body * 2)
        await client.call("twice", b"ab")
        await bus.node.monitor.sampler.sample()
        before = bus.node.monitor.sampler.overview()
    while bus.node.router.endpoints:
        await bus.get("/me")
    await bus.node.monitor.sampler.sample()
    after = bus.node.monitor.sampler.overview()
    assert after.wires[-1].messages_in >= before.wires[-1].messages_in
    assert after.wires[-1].calls == 1
    assert after.wires[-1].connections == 0


async def test_topics_are_filtered_sorted_and_paged_by_the_server(bus):
    topics = bus.node.topics
    assert topics is not None
    for number in range(12):
        await topics.declare(f"t/{number:02}")
    await topics.declare("other")
    found = await bus.get("/topics?q=T%2F&sort=name&order=desc&limit=5&page=2")
    assert [row["name"] for row in found["items"]] == [f"t/{n:02}" for n in (6, 5, 4, 3, 2)]
    assert (found["total"], found["matching"], found["page"]) == (13, 12, 2)
    assert (await bus.get("/topics?page=9"))["items"] == []


@pytest.mark.parametrize("sort", ["name", "records", "bytes", "rate", "oldest_ms", "groups"])
async def test_every_column_of_topics_sorts(bus, sort):
    await fill(bus)
    found = await bus.get(f"/topics?sort={sort}")
    assert [row["name"] for row in found["items"]] == ["orders/eu"]


async def test_records_are_found_by_offset_time_and_tag(bus):
    await fill(bus, 6)
    newest = await bus.get(ORDERS + "/records?limit=2")
    assert [r["offset"] for r in newest["items"]] == [4, 5]
    assert newest["items"][0]["payload"] == '{\n  "n": 4\n}'
    middle = await bus.get(ORDERS + "/records?offset=2&limit=2")
    assert [r["offset"] for r in middle["items"]] == [2, 3]
    assert middle["next"] == 4
    tagged = await bus.get(ORDERS + "/records?tag=orders.paid&offset=0&limit=2")
    assert [r["offset"] for r in tagged["items"]] == [1, 3]
    last_tagged = await bus.get(ORDERS + "/records?tag=orders.new&limit=2")
    assert [r["offset"] for r in last_tagged["items"]] == [2, 4]
    time = middle["items"][0]["time_ms"]
    by_time = await bus.get(ORDERS + f"/records?time_ms={time}&limit=1")
    assert by_time["items"][0]["time_ms"] >= time
    assert (await bus.get(ORDERS + f"/records?time_ms={time + 10**9}"))["items"] == []
    assert (await bus.get(ORDERS + "/records?offset=999"))["items"] == []


async def test_one_record_comes_with_more_of_its_payload(bus):
    async with polybus.connect(bus.url) as client:
        await client.produce("big", b"x" * 100_000, create=True)
    short = (await bus.get("/topics/big/records"))["items"][0]
    assert short["truncated"] is True
    whole = await bus.get("/topics/big/records/0")
    assert (len(whole["payload"]), whole["truncated"]) == (100_000, False)
    raw = await bus.get("/topics/big/records/0?raw=true")
    assert raw["format"] == "base64"
    assert (await bus.ask("/api/v1/topics/big/records/1")).status == 404


async def test_groups_show_lag_and_members_and_can_be_reset(bus):
    await fill(bus)
    async with polybus.connect(bus.url) as client, client.consume("orders/eu", "billing") as c:
        (await anext(c)).ack()
        while (await bus.get("/groups"))["items"][0]["acked"] < 1:
            pass
        row = (await bus.get("/groups?topic=orders%2Feu"))["items"][0]
        assert (row["name"], row["lag"], len(row["members"])) == ("billing", 4, 1)
        assert row["members"][0]["protocol"] == "native"
    answer = await bus.post(ORDERS + "/groups/billing/reset", {"to": "end"})
    assert answer.status == 200, answer.body
    assert (await bus.get("/groups"))["items"][0]["lag"] == 0
    answer = await bus.post(ORDERS + "/groups/billing/reset", {"to": "offset", "offset": 99})
    assert answer.status == 404
    assert (await bus.post(ORDERS + "/groups/nobody/reset", {"to": "end"})).status == 404


async def test_services_show_their_owner_and_how_long_calls_take(bus):
    async with polybus.connect(bus.url) as client:
        await client.serve("twice", lambda body: body * 2)

        def fail(body: bytes) -> bytes:
            raise ValueError("no")

        await client.serve("never", fail)
        await client.call("twice", b"ab")
        with pytest.raises(polybus.errors.PolybusError):
            await client.call("never", b"")
        found = await bus.get("/services?sort=calls&protocol=native")
    rows = {row["name"]: row for row in found["items"]}
    assert rows["twice"]["calls"] == 1
    assert rows["twice"]["p99_ms"] > 0
    assert rows["twice"]["owner"].startswith("127.0.0.1:")
    assert rows["never"]["failures"] == 1


async def test_a_service_is_called_from_the_page(bus):
    async with polybus.connect(bus.url) as client:
        await client.serve("twice", lambda body: body * 2)
        answer = await bus.post("/call", {"name": "twice", "payload": "ab"})
        assert (answer.json["status"], answer.json["payload"]) == ("OK", "abab")
        answer = await bus.post("/call", {"name": "twice", "payload": "AP8=", "encoding": "base64"})
        assert (answer.json["format"], answer.json["payload"]) == ("base64", "AP8A/w==")
    answer = await bus.post("/call", {"name": "nobody"})
    assert (answer.status, answer.json["code"]) == (404, 1201)
    assert not any(e.wire == "monitor" for e in bus.node.router.endpoints)


async def test_topics_are_added_filled_emptied_and_removed(bus, caplog):
    caplog.set_level(logging.INFO, "polybus.monitor")
    assert (await bus.post("/topics", {"name": "new", "retain_ms": 1000})).status == 201
    assert (await bus.post("/topics", {"name": "new"})).status == 409
    body = {"payload": "hello", "tag": "t", "key": "k", "headers": {"a": "b"}}
    assert (await bus.post("/topics/new/records", body)).json == {"topic": "new", "offset": 0}
    record = await bus.get("/topics/new/records/0")
    assert (record["payload"], record["tag"], record["key"]) == ("hello", "t", "k")
    assert record["headers"] == {"a": "b"}
    assert (await bus.post("/topics/new/empty", {})).status == 200
    assert (await bus.get("/topics/new"))["records"] == 0
    assert (await bus.ask("/api/v1/topics/new", method="DELETE")).status == 200
    assert (await bus.ask("/api/v1/topics/new")).status == 404
    assert (await bus.post("/topics/new/records", body)).status == 404
    told = [record.getMessage() for record in caplog.records]
    for what in ("was added", "was produced", "was emptied", "was removed"):
        assert any(what in line and "127.0.0.1" in line for line in told), what


async def test_a_connection_is_listed_and_closed(bus):
    async with polybus.connect(bus.url) as client:
        await client.serve("twice", lambda body: body * 2)
        found = await bus.get("/connections?protocol=native&sort=age_s")
        row = found["items"][0]
        assert (row["transport"], row["services"]) == ("tcp", 1)
        answer = await bus.ask(f"/api/v1/connections/{row['id']}", method="DELETE")
        assert answer.status == 200
        assert (await bus.ask("/api/v1/connections/999999", method="DELETE")).status == 404
    assert bus.node.connections.ended["closed by an operator"] == 1


async def test_dead_letters_are_listed_with_the_groups_that_gave_up(bus):
    await fill(bus, 1)
    topics = bus.node.topics
    assert topics is not None
    await topics.groups.declare("orders/eu", "billing")
    await topics.declare("orders/eu.dead")
    found = await bus.get("/dead-letters")
    assert found["items"][0]["topic"] == "orders/eu.dead"
    assert found["items"][0]["sources"] == ["orders/eu / billing"]


async def test_this_server_is_its_own_first_tracker(bus):
    found = await bus.get("/federation")
    assert found["trackers"][0]["role"] == "this server"
    assert found["twins"] == []


async def test_a_node_without_topics_says_so(tmp_path):
    async with watched(None) as bus:
        assert (await bus.get("/topics"))["items"] == []
        assert (await bus.get("/groups"))["items"] == []
        assert (await bus.get("/dead-letters"))["items"] == []
        assert (await bus.get("/overview"))["disk"] is None
        assert (await bus.ask("/api/v1/topics/x")).status == 404


async def test_who_may_not_change_things_can_still_look(tmp_path):
    async with watched(tmp_path, ReadOnly()) as bus:
        topics = bus.node.topics
        assert topics is not None
        await topics.declare("t")
        assert (await bus.get("/me"))["admin"] is False
        assert (await bus.get("/topics"))["total"] == 1
        for method, path, body in (
            ("POST", "/topics", {"name": "x"}),
            ("DELETE", "/topics/t", None),
            ("POST", "/topics/t/empty", None),
            ("POST", "/topics/t/records", {"payload": "x"}),
            ("POST", "/topics/t/groups/g/reset", {"to": "end"}),
            ("POST", "/call", {"name": "x"}),
            ("DELETE", "/connections/1", None),
        ):
            answer = await bus.ask("/api/v1" + path, body, method)
            assert (answer.status, answer.json["code"]) == (403, 1301), path
        assert topics.has("t")


async def test_who_may_nothing_sees_nothing(tmp_path):
    async with watched(tmp_path, Shut()) as bus:
        for path in ("/overview", "/topics", "/connections", "/stream", "/topics/t/records"):
            assert (await bus.ask("/api/v1" + path)).status == 403, path
        assert (await bus.ask("/metrics/detailed")).status == 403
        assert (await bus.ask("/")).status == 200


async def test_pages_of_other_origins_get_nothing(bus):
    for headers in ({"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}):
        assert (await bus.ask("/api/v1/overview", headers=headers)).status == 403
        answer = await bus.ask("/api/v1/topics", {"name": "x"}, headers=headers)
        assert answer.status == 403
    assert (await bus.get("/topics"))["total"] == 0


@pytest.mark.parametrize(
    "path",
    [
        "/topics?limit=0",
        "/topics?limit=10001",
        "/topics?sort=nothing",
        "/topics?unknown=1",
        "/topics/t/records/abc",
        "/topics/t/records?offset=-1",
        "/topics/t/records?time_ms=null",
        "/topics?q=" + "x" * 300,
        "/me?x=1",
    ],
)
async def test_a_bad_question_is_told_what_is_wrong(bus, path):
    answer = await bus.ask("/api/v1" + path)
    assert answer.status == 400
    assert msgspec.json.decode(answer.body, type=shapes.Problem).error


async def test_a_payload_that_is_no_base64_is_bad_input_and_no_conflict(bus):
    await fill(bus, 1)
    payload = {"payload": "?", "encoding": "base64"}
    for path, body in (
        ("/topics/orders%2Feu/records", payload),
        ("/call", {"name": "x", **payload}),
    ):
        answer = await bus.post(path, body)
        assert (answer.status, answer.json["code"]) == (400, 1000), path
        assert "no base64" in answer.json["error"]
        assert "openapi.json" in answer.json["hint"]


async def test_what_is_not_there_and_what_cannot_be_done_have_their_status(bus):
    assert (await bus.ask("/api/v1/nothing")).status == 404
    assert (await bus.ask("/api/v2/topics")).status == 404
    answer = await bus.ask("/api/v1/overview", method="DELETE")
    assert (answer.status, answer.headers["allow"]) == (405, "GET, OPTIONS")
    for body in (b"", b"{", b'{"name":1}', b"\xff", b'{"name":"x","other":1}'):
        answer = await bus.ask("/api/v1/topics", msgspec.Raw(body))
        assert answer.status == 400, body
    assert (await bus.post("/topics", {"name": "a//b"})).status == 400
    assert (await bus.ask("/api/v1/topics/t/records?tag=a..b")).status in (400, 404)


async def test_a_token_makes_somebody_of_a_stranger_and_the_page_stays_open(tmp_path):
    secret = hashlib.sha256(b"sesame").hexdigest()
    policy = config.Policy(rules=("token:ops may * on **",), tokens=(f"ops sha256:{secret}",))
    listen = ("tcp://127.0.0.1:0",)
    async with Node(Config(listen=listen, data=tmp_path, policy=policy)) as node:
        bus = Watched(node)
        nobody = (await bus.ask("/api/v1/me")).json
        assert (nobody["look"], nobody["admin"], nobody["token"]) == (False, False, True)
        cookie = {"cookie": "theme=dark; token=sesame"}
        ops = (await bus.ask("/api/v1/me", headers=cookie)).json
        assert ops == {"identity": "token:ops", "look": True, "admin": True, "token": False}
        old = {"cookie": "token=old"}
        assert (await bus.ask("/api/v1/me", headers=old)).status == 401
        for path in ("/", "/static/app.js"):
            assert (await bus.ask(path, headers=old)).status == 200


@pytest.mark.parametrize("path", ["/api/v1/topics", "/metrics"])
async def test_a_mistake_of_ours_is_answered_and_logged(bus, monkeypatch, caplog, path):
    def stumble(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(bus.node.monitor.sampler, "topics", stumble)
    monkeypatch.setattr(bus.node.monitor.sampler, "fresh", stumble)
    answer = await bus.ask(path)
    assert answer.status == 500
    assert b"ZeroDivision" not in answer.body
    assert f"GET {path} failed" in caplog.text
