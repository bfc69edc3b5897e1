"""Twins of the first generation: counters, unsigned bodies, the backlog as a hash, and their own errors."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from polybus.model.clock import ManualClock
from tests.protocols.rmb.peer import ForeignPeer, foreign_peer
from tests.protocols.rmb.posting import http
from tests.protocols.rmb.twins import Twin, World, free_port, until
from tests.protocols.rmb.vectors import VECTORS

V1 = VECTORS["v1"]
PUSHED = json.loads(V1["pushed_to_msgbus.system.local"])
RET = PUSHED["ret"]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(wall_ms=PUSHED["now"] * 1000)


@pytest.fixture
async def peer() -> AsyncIterator[ForeignPeer]:
    async with foreign_peer() as made:
        made.answers = [200]
        yield made


async def start(world: World, port: int, **settings: str) -> Twin:
    """Twin 1001 of the vectors, with 1002 and 1003 at one address."""
    world.extra = [
        {"id": number, "address": f"127.0.0.1:{port}", "allow_unsigned": True}
        for number in (1002, 1003)
    ]
    (one,) = await world.start(V1["local_twin"], **({"generation": "v1"} | settings))
    await one.client.set("msgbus.counter.1002", 116)
    return one


async def push(twin: Twin, **fields: object) -> None:
    await twin.client.lpush("msgbus.system.local", json.dumps(PUSHED | fields))


async def test_a_round_trip_is_that_of_the_vectors(world: World, peer: ForeignPeer):
    one = await start(world, peer.port)
    text = V1["pushed_to_msgbus.system.local"]
    await one.client.lpush("msgbus.system.local", text)
    await until(lambda: bool(peer.posted))
    path, _headers, body = peer.posted[0]
    assert path == "/zbus-remote"
    assert body.decode() == V1["http"]["body"]
    stored = await one.client.hget("msgbus.system.backlog", "1002.117")
    assert stored.decode() == V1["backlog_after_send"]["value"] == text
    status, _, answer = await http(one.port, "/zbus-reply", V1["http_reply"]["body"].encode())
    assert (status, answer.decode()) == (
        V1["http"]["answer"]["status"],
        V1["http"]["answer"]["body"],
    )
    found = await one.client.blpop([RET], timeout=10)
    assert found[1].decode() == V1["delivered_to_ret"]
    assert await one.client.hlen("msgbus.system.backlog") == 0


async def test_several_destinations_are_numbered_each(world: World, peer: ForeignPeer):
    one = await start(world, peer.port)
    await one.client.delete("msgbus.counter.1002")
    vector = V1["multi_destination"]
    await one.client.lpush("msgbus.system.local", vector["pushed"])
    await until(lambda: len(peer.posted) == 2)
    assert sorted(body.decode() for _, _, body in peer.posted) == sorted(vector["forwarded"])
    stored = await one.client.hgetall("msgbus.system.backlog")
    assert {k.decode(): v.decode() for k, v in stored.items()} == vector["backlog"]


async def test_a_request_reaches_the_handler_through_the_remote_queue(world: World):
    one = await start(world, free_port())
    body = json.loads(V1["remote_lpush_msgbus.system.remote"])
    body |= {"src": 1002, "dst": [1001]}
    status, _, _ = await http(one.port, "/zbus-remote", json.dumps(body).encode())
    assert status == 200
    request = await one.request(PUSHED["cmd"])
    assert request == body
    assert list(request) == list(json.loads(V1["remote_lpush_msgbus.system.remote"]))


async def test_an_answer_of_our_handler_goes_back_as_it_is(world: World, peer: ForeignPeer):
    one = await start(world, peer.port)
    body = PUSHED | {"uid": "1001.5", "src": 1002, "dst": [1001], "ret": "msgbus.system.reply"}
    await http(one.port, "/zbus-remote", json.dumps(body).encode())
    request = await one.request(PUSHED["cmd"])
    await one.reply(request, dat="d29ybGQ=")
    await until(lambda: bool(peer.posted))
    path, _headers, sent = peer.posted[0]
    assert path == "/zbus-reply"
    expected = json.loads(V1["http_reply"]["body"]) | {
        "uid": "1001.5",
        "src": 1001,
        "dst": [1002],
        "now": PUSHED["now"],
    }
    assert json.loads(sent) == expected


async def test_an_unknown_twin_is_told_as_the_vectors_have_it(world: World):
    one = await start(world, free_port())
    world.extra = []
    world.write_directory()
    one.room.directory.forget(1002)
    await push(one)
    found = await one.client.blpop([RET], timeout=10)
    assert found[1].decode() == V1["errors"]["unknown_twin"]
    assert await one.client.get("msgbus.counter.1002") == b"116"


async def test_one_attempt_and_all_retries_end_with_the_number_left(
    world: World, clock: ManualClock
):
    one = await start(world, free_port())
    await push(one)
    retry = V1["retry_entry"]
    entries: list[dict[str, object]] = []

    async def has_entry() -> bool:
        found = await one.client.hget("msgbus.system.retry", "1002.117")
        if found is not None:
            entries.append(json.loads(found))
        return found is not None

    await until(has_entry)
    assert entries[0] == json.loads(retry["value"]) | {"now": PUSHED["now"]}
    answer = await one.read(RET)
    assert answer == json.loads(V1["errors"]["all_retries_done"]) | {"now": PUSHED["now"]}
    assert await one.client.get("msgbus.counter.1002") == b"121"
    assert await one.client.hlen("msgbus.system.retry") == 0


@pytest.mark.parametrize(("name", "exp"), [("expired", 10), ("expired_with_exp_0", 0)])
async def test_an_expired_request_is_told_as_the_vectors_have_it(
    world: World, peer: ForeignPeer, clock: ManualClock, name, exp
):
    one = await start(world, peer.port)
    await push(one, exp=exp)
    await until(lambda: bool(peer.posted))
    clock.advance((exp or 3600) + 1)
    found = await one.client.blpop([RET], timeout=10)
    assert found[1].decode() == V1["errors"][name]


async def test_the_later_form_refreshes_the_time_and_lets_return_queues_expire(
    world: World, peer: ForeignPeer, clock: ManualClock
):
    one = await start(world, peer.port, generation="v2")
    clock.advance(7)
    await push(one)
    await until(lambda: bool(peer.posted))
    sent = json.loads(peer.posted[0][2])
    assert (sent["now"], sent["exp"], sent["pxy"]) == (PUSHED["now"] + 7, 3593, False)
    assert list(sent)[-3:] == ["now", "pxy", "err"]
    reply = sent | {"src": 1002, "dst": [1001], "dat": "d29ybGQ="}
    await http(one.port, "/zbus-reply", json.dumps(reply).encode())
    await until(lambda: _expires(one))
    assert (await one.read(RET))["dat"] == "d29ybGQ="


async def _expires(twin: Twin) -> bool:
    return bool(0 < await twin.client.ttl(RET) <= 1800)


async def test_the_later_form_takes_only_200_for_success(world: World, peer: ForeignPeer):
    one = await start(world, peer.port, generation="v2")
    peer.answers = [202]
    await push(one)
    answer = await one.read(RET)
    assert answer["err"].startswith("could not send request and all retries done, last error: got")


async def test_a_second_generation_node_speaks_to_a_first_generation_twin(
    world: World, peer: ForeignPeer
):
    one = await start(world, peer.port, generation="rs")
    world.extra[0]["generation"] = "v1"
    world.write_directory()
    one.room.directory.forget(1002)
    await push(one, tag="kept", **{"try": 3})
    await until(lambda: bool(peer.posted))
    sent = json.loads(peer.posted[0][2])
    assert (sent["uid"], sent["ret"], "sig" in sent) == ("1002.117", "msgbus.system.reply", False)
    reply = sent | {"src": 1002, "dst": [1001]}
    status, _, text = await http(one.port, "/zbus-reply", json.dumps(reply).encode())
    assert (status, text) == (200, b'{"status": "accepted"}')
    assert (await one.read(RET))["tag"] == "kept"
