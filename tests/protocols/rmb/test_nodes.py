"""Two and three nodes on loopback, each with its own Redis; clients and handlers know nothing of polybus."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest

from polybus.errors import ConfigError
from polybus.model.clock import ManualClock
from polybus.protocols.rmb.message import parse_strict
from polybus.protocols.rmb.signature import digest, parse_signature, verify
from tests.protocols.rmb.peer import foreign_peer
from tests.protocols.rmb.posting import http, message, sign
from tests.protocols.rmb.twins import Twin, World, free_port, signer_of, until
from tests.protocols.rmb.vectors import VECTORS

RS = VECTORS["rs"]["round_trip"]


def same_but(value: dict[str, Any], captured: str, *changed: str) -> None:
    """Equal to a captured message, key order included, but for the named fields."""
    expected = json.loads(captured)
    assert list(value) == list(expected)
    assert {k: v for k, v in value.items() if k not in changed} == {
        k: v for k, v in expected.items() if k not in changed
    }


async def test_a_signed_round_trip_is_the_captured_one(world: World, clock: ManualClock):
    one, two = await world.start(1, 2)
    pushed = json.loads(RS["pushed_to_msgbus.system.local"])
    clock.advance(pushed["now"] - world.now())
    ret = await one.push(**pushed)
    request = await two.request()
    changing = ("uid", "sig")
    same_but(request, RS["delivered_to_msgbus.cap.echo"], *changing)
    m = parse_strict(json.dumps(request | {"ret": ret}).encode())
    assert verify(parse_signature(m.sig), digest(m), signer_of(1).public_key) == ""
    key = f"msgbus.backlog.{request['uid']}"
    stored = await one.client.get(key)
    assert stored is not None
    same_but(json.loads(stored), RS["backlog_value"], "uid")
    assert RS["backlog_ttl"] - 2 <= await one.client.ttl(key) <= RS["backlog_ttl"]
    await two.reply(request, dat="d29ybGQ=")
    answer = await one.read(ret)
    same_but(answer, RS["delivered_to_ret"], *changing)
    assert bool(await one.client.exists(key)) == RS["backlog_after_reply_exists"]
    assert await one.client.hlen("polybus.rmb.pending") == 0


async def test_every_destination_answers_once(world: World):
    one, two, three = await world.start(1, 2, 3)
    for twin in (two, three):
        twin.echo()
    ret = await one.push(dst=[2, 3, 1])
    own = await one.request()
    await one.reply(own, dat="b3du")
    answers = [await one.read(ret) for _ in range(3)]
    assert sorted(a["src"] for a in answers) == [1, 2, 3]
    assert len({a["uid"] for a in answers}) == 1
    await one.nothing(ret)


async def test_the_same_destination_twice_is_asked_twice(world: World):
    one, two = await world.start(1, 2)
    two.echo()
    ret = await one.push(dst=[2, 2])
    answers = [await one.read(ret) for _ in range(2)]
    assert [a["src"] for a in answers] == [2, 2]


async def test_the_own_twin_is_reached_without_the_network(world: World):
    (one,) = await world.start(1)
    one.world.extra = []
    ret = await one.push(dst=[1], tag="mine", uid="my-own-id")
    request = await one.request()
    assert (request["ret"], request["src"], request["dst"]) == ("msgbus.system.reply", 1, [1])
    await one.reply(request)
    answer = await one.read(ret)
    assert (answer["uid"], answer["tag"], answer["dat"]) == ("my-own-id", "mine", "aGVsbG8=")


@pytest.mark.parametrize(
    ("generation", "text"),
    [
        ("rs", "receive error reply from remote rmb: `twin with id 999 not found`"),
        ("v1", "unknown twin destination"),
    ],
)
async def test_an_unknown_twin_fails_alone(world: World, generation, text):
    (one,) = await world.start(1, generation=generation)
    one.echo()
    ret = await one.push(dst=[999, 1])
    answers = [await one.read(ret) for _ in range(2)]
    assert sorted(a["err"] for a in answers) == sorted(["", text])


async def test_by_the_document_an_unknown_twin_refuses_the_whole_message(world: World):
    one, two = await world.start(1, 2, generation="documented")
    ret = await one.push(dst=[2, 999, 1])
    answers = [await one.read(ret) for _ in range(3)]
    assert {a["err"] for a in answers} == {"destination not found"}
    assert sorted(a["src"] for a in answers) == [1, 2, 999]
    await two.nothing("msgbus.cap.echo")


async def test_documented_nodes_talk_over_the_documented_paths_and_keys(world: World):
    one, two = await world.start(1, 2, generation="documented")
    minimal = {"id": "doc-7", "dst": 2, "cmd": "cap.echo", "data": "aGk=", "ret": "doc-ret"}
    await one.client.rpush("msgbus.system.local", json.dumps(minimal))
    request = await two.request()
    assert (request["uid"], request["dat"]) == ("doc-7", "aGk=")
    assert await one.client.ttl("backlog.doc-7") > 3500
    await two.reply(request)
    answer = await one.read("doc-ret")
    assert (answer["uid"], answer["err"] or "") == ("doc-7", "")


@pytest.mark.parametrize("case", ["unknown_twin", "unknown_twin_with_tag"])
async def test_the_error_of_an_unknown_twin_is_the_captured_one(world: World, case):
    (one,) = await world.start(1)
    captured = VECTORS["rs"]["error_replies"]["cases"][case]["reply"]
    tag = json.loads(captured)["tag"]
    ret = await one.push(dst=[999], tag=tag)
    same_but(await one.read(ret), captured, "uid", "ret", "now")


@pytest.mark.parametrize("status", [204, 400, 401, 404, 500])
async def test_a_refusal_of_the_peer_is_the_captured_error(world: World, status):
    async with foreign_peer() as peer:
        world.extra = [{"id": 77, "address": f"127.0.0.1:{peer.port}", "public_key": "ab" * 32}]
        (one,) = await world.start(1)
        peer.answers = [status]
        captured = VECTORS["rs"]["error_replies"]["cases"][f"http_{status}"]
        ret = await one.push(dst=[77], **{"try": 3})
        answer = await one.read(ret)
        same_but(answer, captured["reply"], "uid", "ret", "now", "sig")
        assert len(answer["sig"]) == 130
        assert len(peer.posted) == captured["attempts"]


async def test_what_a_peer_gets_is_the_captured_request(world: World):
    async with foreign_peer() as peer:
        world.extra = [{"id": 77, "address": f"127.0.0.1:{peer.port}", "public_key": "ab" * 32}]
        (one,) = await world.start(1)
        await one.push(dst=[77])
        await until(lambda: bool(peer.posted))
        captured = VECTORS["rs"]["forwarded_http"]
        path, headers, body = peer.posted[0]
        assert path == captured["path"]
        assert headers["content-type"] == captured["headers"]["content-type"]
        same_but(json.loads(body), captured["body"], "uid", "ret", "now", "sig")
        assert b" " not in body


async def test_connection_trouble_is_retried_and_then_told(world: World):
    async with foreign_peer() as peer:
        world.extra = [{"id": 77, "address": f"127.0.0.1:{peer.port}", "public_key": "ab" * 32}]
        (one,) = await world.start(1)
        peer.answers = [0]
        ret = await one.push(dst=[77], **{"try": 3})
        answer = await one.read(ret)
        captured = VECTORS["rs"]["error_replies"]["cases"]["connection_cut_after_request"]
        same_but(answer, captured["reply"], "uid", "ret", "now", "sig")
        assert len(peer.posted) == captured["attempts"]


async def test_a_retry_looks_the_address_up_again(world: World, clock: ManualClock):
    world.extra = [{"id": 77, "address": f"127.0.0.1:{free_port()}", "public_key": "ab" * 32}]
    (one,) = await world.start(1)
    async with foreign_peer() as peer:
        await one.push(dst=[77], **{"try": 5})
        await until(lambda: one.room.stats.retries > 0)
        world.extra[0]["address"] = f"127.0.0.1:{peer.port}"
        world.write_directory()
        await until(lambda: bool(peer.posted))


async def test_a_closed_port_is_told_with_its_reason(world: World):
    port = free_port()
    world.extra = [{"id": 77, "address": f"127.0.0.1:{port}", "public_key": "ab" * 32}]
    (one,) = await world.start(1)
    answer = await one.read(await one.push(dst=[77], **{"try": 1}))
    captured = VECTORS["rs"]["error_replies"]["cases"]["connection_refused"]["reply"]
    assert json.loads(captured)["err"].startswith(answer["err"])
    assert answer["err"].endswith("Connection refused (os error 111)")


async def test_a_peer_with_another_key_is_refused(world: World):
    one, two = await world.start(1, 2)
    world.write_directory(twin1={"public_key": signer_of(3).public_key.hex()})
    two.room.directory.forget(1)
    answer = await one.read(await one.push())
    assert answer["err"].endswith("`received error 401 Unauthorized from remote twin`")
    await two.nothing("msgbus.cap.echo")


async def test_a_request_without_an_answer_ends_at_its_deadline(world: World, clock: ManualClock):
    one, two = await world.start(1, 2)
    ret = await one.push(exp=10, dst=[2, 1])
    request = await two.request()
    clock.advance(11)
    answers = [await one.read(ret) for _ in range(2)]
    assert {a["err"] for a in answers} == {"request timeout (expiration reached, 10 seconds)"}
    assert sorted(a["src"] for a in answers) == [1, 2]
    await two.reply(request)  # too late: it has expired on the way
    await until(lambda: two.room.stats.replies_dropped == 1)
    await one.nothing(ret)


async def test_a_message_that_comes_too_late_gets_an_answer(world: World):
    (one,) = await world.start(1)
    answer = await one.read(await one.push(exp=5, now=world.now() - 6))
    assert answer["err"].endswith("message validation failed: message has expired")


async def test_no_expiry_means_an_hour_and_missing_fields_have_defaults(world: World):
    one, two = await world.start(1, 2)
    two.echo()
    ret = await one.push(exp=0, now=..., shm=..., err=..., ver=..., uid=..., **{"try": ...})
    answer = await one.read(ret)
    assert (answer["exp"], answer["ver"], answer["try"], answer["err"] or "") == (3600, 1, 1, "")


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"dst": "2"}, "message is not valid"),
        ({"exp": "30"}, "message is not valid"),
        ({"exp": -1}, "message is not valid"),
        ({"exp": 1.5}, "message is not valid"),
        ({"dst": [2**32]}, "message is not valid"),
        ({"dst": []}, "missing twin destination"),
        ({"cmd": ""}, "missing command request"),
        ({"ver": 2}, "protocol version mismatch"),
        ({"dat": "x" * 20_000}, "message is larger than 10000 bytes"),
    ],
)
async def test_a_message_that_cannot_be_sent_is_answered(world: World, fields, text):
    (one,) = await world.start(1, max_body=10_000)
    answer = await one.read(await one.push(**fields))
    assert text in answer["err"]


async def test_garbage_in_the_queues_harms_nobody(world: World):
    one, two = await world.start(1, 2)
    two.echo()
    garbage = [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"dst": 1}', b"[" * 100_000, b"1" * 5000]
    for queue in ("local", "reply", "remote", "forward"):
        await one.client.lpush(f"msgbus.system.{queue}", *garbage)
    ret = await one.push()
    assert (await one.read(ret))["dat"] == "aGVsbG8="


async def test_a_duplicate_reply_and_one_of_another_twin_are_not_delivered(world: World):
    one, two = await world.start(1, 2)
    world.twins[3] = Twin(world, 3)
    world.write_directory()
    one.room.directory.forget(3)
    ret = await one.push()
    request = await two.request()
    uid = request["uid"]
    answer = message(world.now(), uid=uid, src=2, dst=[1], ret="msgbus.system.reply")
    unasked = sign(answer | {"src": 3})
    assert (await http(one.port, "/zbus-reply", unasked))[0] == 202
    assert (await http(one.port, "/rmb-reply", unasked))[0] == 408
    await one.nothing(ret)
    body = sign(answer)
    assert (await http(one.port, "/zbus-reply", body))[0] == 202
    assert (await http(one.port, "/zbus-reply", body))[0] == 202
    assert (await http(one.port, "/rmb-reply", body))[0] == 408
    assert (await one.read(ret))["src"] == 2
    await one.nothing(ret)


@pytest.mark.parametrize(
    "fields",
    [{"dst": [2]}, {"dst": []}, {"dst": [1, 2]}, {"err": {"message": "no luck"}, "dst": [2]}],
    ids=["answers itself", "nobody", "two", "error object"],
)
async def test_a_handler_that_loses_its_caller_still_answers_it(world: World, fields):
    one, two = await world.start(1, 2)
    ret = await one.push()
    request = await two.request()
    await two.client.lpush(
        "msgbus.system.reply", json.dumps(request | {"src": 2, "err": "no luck"} | fields)
    )
    assert "no luck" in (await one.read(ret))["err"]


async def test_a_queue_without_room_answers_the_oldest(world: World):
    one, two = await world.start(1, 2, max_queue=3)
    rets = []
    for number in range(5):
        rets.append(await one.push(dat=f"n{number}"))
        await until(partial(_length, two, number))
    for ret in rets[:2]:
        answer = await one.read(ret)
        assert answer["err"] == "more than 3 requests wait for cap.echo"
    assert await two.client.llen("msgbus.cap.echo") == 3


async def test_a_burst_over_the_bound_leaves_exactly_what_there_is_room_for(world: World):
    (one,) = await world.start(1, max_queue=5)
    texts = [
        json.dumps({"cmd": "cap.burst", "dst": [1], "ret": "burst", "dat": str(n), "exp": 30})
        for n in range(40)
    ]
    await one.client.lpush("msgbus.system.local", *texts)
    await until(partial(_has, one, "burst", 35))
    assert await one.client.llen("msgbus.cap.burst") == 5
    kept = await one.client.lrange("msgbus.cap.burst", 0, -1)
    assert [json.loads(text)["dat"] for text in kept] == ["39", "38", "37", "36", "35"]


async def _length(twin: Twin, number: int) -> bool:
    return bool(await twin.client.llen("msgbus.cap.echo") >= min(number + 1, 3))


async def test_pushing_on_either_side_is_served_in_order_of_the_setting(world: World):
    (one,) = await world.start(1, push_side="right")
    await one.room.forward.capacity()
    texts = [
        json.dumps({"cmd": "cap.order", "dst": [1], "ret": "r", "dat": str(n), "exp": 30})
        for n in range(50)
    ]
    await one.client.rpush("msgbus.system.local", *texts)
    await until(lambda: _has(one, "msgbus.cap.order", 50))
    found = await one.client.lrange("msgbus.cap.order", 0, -1)
    assert [json.loads(t)["dat"] for t in found] == [str(n) for n in reversed(range(50))]


async def _has(twin: Twin, key: str, count: int) -> bool:
    return bool(await twin.client.llen(key) == count)


async def test_clients_with_the_same_id_get_their_own_answers(world: World):
    one, two = await world.start(1, 2)
    rets = [await one.push(uid="same", dat=f"n{n}") for n in range(2)]
    requests = [await two.request() for _ in range(2)]
    assert len({r["uid"] for r in requests}) == 2
    for request in requests:
        await two.reply(request)
    answers = [await one.read(ret) for ret in rets]
    assert [(a["uid"], a["dat"]) for a in answers] == [("same", "n0"), ("same", "n1")]


async def test_a_restart_of_redis_in_mid_traffic_loses_nothing(world: World, tmp_path):
    from polybus.protocols.rmb.embedded import EmbeddedRedis

    one, two = Twin(world, 1), Twin(world, 2)
    world.twins = {1: one, 2: two}
    world.write_directory()
    for twin in (one, two):
        port = twin.redis_server.url.port
        twin.redis_server = EmbeddedRedis(tmp_path / f"redis-{twin.number}", port)
        await twin.start_redis()
        await twin.start()
    rets = [await one.push(exp=60) for _ in range(20)]
    await until(lambda: _has(two, "msgbus.cap.echo", 20))
    for twin in (one, two):
        port = twin.redis_server.url.port
        await twin.redis_server.stop()
        twin.redis_server = EmbeddedRedis(tmp_path / f"redis-{twin.number}", port)
        await twin.redis_server.start()
        assert twin.redis_server.url.port == port
    # Until then a twin refuses what others post to it, which their callers are told.
    await until(lambda: one.room.redis.connected and two.room.redis.connected)
    for _ in rets:
        await two.reply(await two.request())
    for ret in rets:
        assert (await one.read(ret))["err"] == ""
    ret = await one.push()
    await two.reply(await two.request())
    assert (await one.read(ret))["src"] == 2


async def test_a_node_that_restarts_still_answers_what_it_accepted(
    world: World, clock: ManualClock
):
    one, two = await world.start(1, 2)
    late, answered = await one.push(exp=10, tag="late"), await one.push(exp=60, tag="ok")
    requests = [await two.request() for _ in range(2)]
    await one.stop()
    clock.advance(11)
    await one.start()
    assert (await one.read(late))["err"] == "request timeout (expiration reached, 10 seconds)"
    for request in requests:
        await two.reply(request | {"now": world.now(), "exp": 40})
    assert (await one.read(answered))["tag"] == "ok"


async def test_what_waits_to_be_sent_is_sent_after_a_restart(world: World):
    port = free_port()
    world.extra = [{"id": 77, "address": f"127.0.0.1:{port}", "public_key": "ab" * 32}]
    (one,) = await world.start(1)
    await one.stop()
    await one.push(dst=[77], uid="kept")
    async with foreign_peer() as peer:
        world.extra[0]["address"] = f"127.0.0.1:{peer.port}"
        world.write_directory()
        await one.start()
        await until(lambda: bool(peer.posted))
        assert json.loads(peer.posted[0][2])["uid"] == "kept"


async def test_a_second_bus_on_the_same_redis_does_not_start(world: World):
    (one,) = await world.start(1)
    world.twins[2] = other = Twin(world, 2)
    other.redis_server = one.redis_server
    world.write_directory()
    with pytest.raises(ConfigError, match="belongs to another bus"):
        await other.start()
    ret = await one.push(dst=[1])
    await one.reply(await one.request())
    assert (await one.read(ret))["src"] == 1


async def test_a_key_of_another_twin_does_not_start(world: World):
    world.twins[1] = one = Twin(world, 1, key_type="ed25519")
    world.write_directory()
    await one.start_redis()
    with pytest.raises(ConfigError, match="not the key of twin 1"):
        await one.start()


async def test_many_requests_at_once_are_all_answered(world: World):
    one, two = await world.start(1, 2)
    two.echo()
    rets = [await one.push(dat=f"n{n}", ret=f"many-{n}") for n in range(200)]
    answers = [await one.read(ret) for ret in rets]
    assert [a["dat"] for a in answers] == [f"n{n}" for n in range(200)]
    assert await one.client.hlen("polybus.rmb.pending") == 0
