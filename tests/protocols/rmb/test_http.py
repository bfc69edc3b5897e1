"""Every status of both path families, in the order in which the real daemon checks (protocol page §1.4, §2, §3.4)."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from polybus.protocols.rmb.faces import STATUS
from tests.protocols.rmb.posting import http, message, sign
from tests.protocols.rmb.twins import World
from tests.protocols.rmb.vectors import VECTORS

CAPTURED = VECTORS["rs"]["http_answers"]["cases"]

# Name of the captured case: how to make its body, and the request's path where it is another one.
Maker = Callable[[int], bytes]
CASES: dict[str, Maker] = {
    "good_sr25519": lambda now: sign(message(now)),
    "good_ed25519": lambda now: sign(message(now, src=3)),
    "good_future_now": lambda now: sign(message(now + 30)),
    "good_two_dst_first_ours": lambda now: sign(message(now, dst=[2, 1])),
    "good_uppercase_hex_sig": lambda now: upper(sign(message(now))),
    "good_pxy_true": lambda now: sign(message(now, pxy=True)),
    "ver_2_signed": lambda now: sign(message(now, ver=2)),
    "exp_changed_after_signing": lambda now: change(sign(message(now)), exp=59),
    "dat_changed_after_signing": lambda now: change(sign(message(now)), dat="d29ybGQ="),
    "bad_json": lambda now: b"{not json",
    "missing_field_try": lambda now: sign(message(now, **{"try": ...})),
    "negative_src": lambda now: json.dumps(message(now, src=-1)).encode(),
    "too_old_61s": lambda now: sign(message(now - 61, exp=300)),
    "old_59s_ok": lambda now: sign(message(now - 59, exp=300)),
    "no_dst": lambda now: sign(message(now, dst=[])),
    "wrong_dst": lambda now: sign(message(now, dst=[1])),
    "expired": lambda now: sign(message(now - 40, exp=30)),
    "unknown_source": lambda now: sign(message(now, src=999), twin=9),
    "unsigned_null": lambda now: json.dumps(message(now)).encode(),
    "sig_empty_string": lambda now: json.dumps(message(now, sig="")).encode(),
    "sig_not_hex": lambda now: json.dumps(message(now, sig="zz" * 65)).encode(),
    "sig_short": lambda now: json.dumps(message(now, sig="6501")).encode(),
    "sig_bad_type": lambda now: json.dumps(message(now, sig="00" * 65)).encode(),
    "sig_wrong_sr": lambda now: sign(message(now), twin=2),
    "sig_wrong_ed": lambda now: sign(message(now), twin=3),
}
REPLIES: dict[str, Maker] = {
    "reply_no_backlog": lambda now: sign(message(now)),
    "reply_wrong_dst": lambda now: sign(message(now, dst=[1])),
    "reply_expired": lambda now: sign(message(now - 40, exp=30)),
}


def change(body: bytes, **fields: Any) -> bytes:
    return json.dumps(json.loads(body) | fields).encode()


def upper(body: bytes) -> bytes:
    return change(body, sig=json.loads(body)["sig"].upper())


async def start(world: World, **settings: Any) -> int:
    """Twin 2, which knows 1 and 3; its port."""
    from tests.protocols.rmb.twins import Twin

    world.twins = {1: Twin(world, 1), 3: Twin(world, 3)}
    (two,) = await world.start(2, **settings)
    return two.port


async def test_the_second_generation_is_answered_as_captured(world: World):
    port = await start(world)
    for name, make in {**CASES, **REPLIES}.items():
        path = "/zbus-reply" if name in REPLIES else "/zbus-remote"
        status, headers, body = await http(port, path, make(world.now()))
        expected = CAPTURED[name]
        assert status == expected["status"], (name, body)
        prefix = "bad request: failed to parse message: "
        if expected["body"].startswith(prefix):
            # What follows is the words of another JSON library.
            assert body.decode().startswith(prefix), name
        else:
            assert body.decode() == expected["body"], name
        assert "content-type" not in headers, name
        assert int(headers["content-length"]) == len(body)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/zbus-remote", "get"),
        ("POST", "/zbus-remote/", "trailing_slash"),
        ("POST", "/zbus-upload", "upload_disabled"),
        ("POST", "/zbus-remote?a=b", "query_string"),
    ],
)
async def test_other_methods_and_paths_are_answered_as_captured(world: World, method, path, status):
    port = await start(world)
    body = sign(message(world.now()))
    answered, _headers, text = await http(port, path, body, method=method)
    assert answered == CAPTURED[status]["status"]
    assert text == b""


async def test_unknown_paths_of_both_families_are_not_found(world: World):
    port = await start(world)
    for path in ("/", "/zbus-", "/rmb-", "/zbus-other", "/rmb-upload", "/api", "/healthz"):
        assert (await http(port, path, b"{}"))[0] == 404, path


DOCUMENTED: list[tuple[str, str, Maker, int]] = [
    ("good", "remote", lambda now: sign(message(now)), 202),
    (
        "minimal names",
        "remote",
        lambda now: sign(
            message(now, uid=..., id="doc-1", dat=..., data="aGk=", dst=2, shm=..., tag=...)
        ),
        202,
    ),
    ("bad json", "remote", lambda now: b"[]", 400),
    ("numbers as text", "remote", lambda now: json.dumps(message(now, exp="30")).encode(), 400),
    ("too old", "remote", lambda now: sign(message(now - 61, exp=300)), 400),
    ("from the future", "remote", lambda now: sign(message(now + 61)), 400),
    ("no destination", "remote", lambda now: sign(message(now, dst=[])), 400),
    ("wrong destination", "remote", lambda now: sign(message(now, dst=[1])), 403),
    ("unknown source", "remote", lambda now: sign(message(now, src=999), twin=9), 401),
    ("unsigned", "remote", lambda now: json.dumps(message(now)).encode(), 401),
    ("wrong key", "remote", lambda now: sign(message(now), twin=3), 401),
    ("expired", "remote", lambda now: sign(message(now - 40, exp=30)), 408),
    ("reserved", "remote", lambda now: sign(message(now, cmd="system.local")), 400),
    ("reply, backlog gone", "reply", lambda now: sign(message(now)), 408),
    ("reply, wrong destination", "reply", lambda now: sign(message(now, dst=[1])), 403),
    ("reply, unsigned", "reply", lambda now: json.dumps(message(now)).encode(), 401),
    ("reply, bad json", "reply", lambda now: b"", 400),
    ("reply, expired", "reply", lambda now: sign(message(now - 40, exp=30)), 408),
]


async def test_the_documented_paths_are_answered_as_documented(world: World):
    port = await start(world)
    for name, kind, make, expected in DOCUMENTED:
        status, _headers, body = await http(port, f"/rmb-{kind}", make(world.now()))
        assert status == expected, (name, body)
    request = await world.twins[2].request()
    assert request["cmd"] == "cap.echo"


async def test_the_first_generation_is_answered_with_200_and_json(world: World):
    port = await start(world)
    world.write_directory(twin1={"generation": "v1", "allow_unsigned": True})
    world.clock.advance(2)  # type: ignore[attr-defined]
    now = world.now()
    accepted = b'{"status": "accepted"}'
    old = json.dumps(message(now - 61, exp=300, sig=...)).encode()
    plain = json.dumps(message(now, uid="2.1", tag=..., sig=..., **{"try": ...})).encode()
    reply = json.dumps(message(now, uid="2.2", sig=...)).encode()
    for path, body in (("remote", plain), ("remote", old), ("reply", reply)):
        status, headers, text = await http(port, f"/zbus-{path}", body)
        assert (status, text) == (200, accepted)
        assert headers["content-type"] == "application/json"
    status, _, text = await http(
        port, "/zbus-remote", json.dumps(message(now, dst=[7], sig=...)).encode()
    )
    assert status == 200
    assert json.loads(text) == {"status": "error", "error": "invalid destination twin 7"}


async def test_text_that_is_no_message_gets_the_words_of_the_nodes_generation(world: World):
    vector = VECTORS["v_http"]["v1_parse_failure"]
    port = await start(world, generation="v1")
    status, _, text = await http(port, "/zbus-remote", b"{")
    assert (status, text.decode()) == (vector["status"], vector["body"])


async def test_the_later_first_generation_refuses_old_messages(world: World):
    port = await start(world, generation="v2")
    world.write_directory(twin1={"allow_unsigned": True})
    world.clock.advance(2)  # type: ignore[attr-defined]
    status, _, text = await http(port, "/zbus-remote", b"{")
    assert status == 400
    assert json.loads(text)["message"] == "could not parse message request"
    old = json.dumps(message(world.now() - 61, sig=...)).encode()
    status, _, text = await http(port, "/zbus-remote", old)
    assert (status, json.loads(text)["message"]) == (400, "message is too old")
    good = json.dumps(message(world.now(), sig=...)).encode()
    assert (await http(port, "/zbus-remote", good))[0] == 200
    assert (await world.twins[2].request())["dat"] == "aGVsbG8="


async def test_an_unsigned_first_generation_twin_is_refused_unless_it_is_allowed(world: World):
    port = await start(world)
    world.write_directory(twin1={"generation": "v1"})
    world.clock.advance(2)  # type: ignore[attr-defined]
    body = json.dumps(message(world.now(), sig=...)).encode()
    status, _, text = await http(port, "/zbus-remote", body)
    assert status == 401
    assert json.loads(text)["error"] == "unauthorized: message is not signed"


async def test_a_replay_within_the_window_is_refused_and_delivered_once(world: World):
    port = await start(world)
    two = world.twins[2]
    body = sign(message(world.now(), uid="once"))
    assert (await http(port, "/zbus-remote", body))[0] == 202
    status, _, text = await http(port, "/zbus-remote", body)
    assert (status, text) == (401, b"unauthorized: message was seen before")
    # Other fields than the signed ones do not make it another message.
    assert (await http(port, "/zbus-remote", change(body, exp=31)))[0] == 401
    world.clock.advance(59)  # type: ignore[attr-defined]
    assert (await http(port, "/zbus-remote", change(body, exp=500)))[0] == 401
    await two.request()
    await two.nothing("msgbus.cap.echo")


async def test_a_sender_that_signs_the_same_request_again_is_told_202_and_it_is_delivered_once(
    world: World,
):
    port = await start(world)
    two = world.twins[2]
    for _ in range(2):  # these signatures are randomised, so each is another one
        body = sign(message(world.now(), uid="again"))
        assert (await http(port, "/zbus-remote", body))[0] == 202
    await two.request()
    await two.nothing("msgbus.cap.echo")


async def test_a_twin_that_sends_too_much_is_told_so(world: World):
    port = await start(world, twin_rate=2)
    statuses = [(await http(port, "/zbus-remote", sign(message(world.now()))))[0] for _ in range(3)]
    assert statuses == [202, 202, 429]
    assert (await http(port, "/zbus-remote", sign(message(world.now(), src=3))))[0] == 202
    world.clock.advance(60)  # type: ignore[attr-defined]
    assert (await http(port, "/zbus-remote", sign(message(world.now()))))[0] == 202


async def test_a_body_that_is_too_large_gets_413(world: World):
    port = await start(world, max_body=10_000)
    body = sign(message(world.now(), dat="A" * 20_000))
    assert (await http(port, "/zbus-remote", body))[0] == 413


async def test_a_browser_is_refused(world: World):
    port = await start(world)
    for header in ({"origin": "http://127.0.0.1"}, {"sec-fetch-site": "none"}):
        body = sign(message(world.now()))
        assert (await http(port, "/zbus-remote", body, headers=header))[0] == 403


async def test_without_redis_the_sender_is_told_500(world: World):
    port = await start(world)
    two = world.twins[2]
    await two.redis_server.stop()
    status, _, text = await http(port, "/zbus-remote", sign(message(world.now())))
    assert status == 500
    assert text.startswith(b"internal server error: ")
    assert (await http(port, "/rmb-reply", sign(message(world.now()))))[0] == 500


async def test_the_common_port_serves_the_same_paths(world: World):
    await start(world)
    port = world.twins[2].common_port
    assert (await http(port, "/zbus-remote", sign(message(world.now()))))[0] == 202
    assert (await http(port, "/rmb-reply", sign(message(world.now()))))[0] == 408
    foreign = {"host": "rebound.example:15555"}
    assert (await http(port, "/zbus-remote", b"{}", headers=foreign))[0] == 403


async def test_commands_of_the_grid_proxy_are_answered_through_their_return_queue(world: World):
    port = await start(world)
    two = world.twins[2]
    two.echo("demo.echo")
    body = sign(message(world.now(), cmd="demo.echo", ret="", uid="", pxy=True))
    status, _, text = await http(port, "/zbus-cmd", body)
    assert status == VECTORS["v_http"]["v2_cmd_ok"]["status"]
    queue = json.loads(text)["retqueue"]
    while True:
        wanted = json.dumps({"retqueue": queue}).encode()
        status, _, text = await http(port, "/zbus-result", wanted)
        assert status == 200
        if json.loads(text):
            break
    (answer,) = json.loads(text)
    assert (answer["dat"], answer["src"], answer["dst"]) == ("hello", 2, [1])
    assert 0 < await two.client.ttl(queue) <= 1800


@pytest.mark.parametrize("body", [b"{", b"{}", b'{"retqueue": "x"}', b'{"retqueue": 5}'])
async def test_a_return_queue_that_is_none_is_refused(world: World, body):
    port = await start(world)
    status, _, text = await http(port, "/zbus-result", body)
    assert status == 400
    assert json.loads(text)["message"] == "Invalid Retqueue, it should be a valid UUID"


async def test_unsigned_commands_of_the_grid_proxy_are_refused(world: World):
    port = await start(world)
    body = json.dumps(message(world.now(), pxy=True)).encode()
    assert (await http(port, "/zbus-cmd", body))[0] == 401


def test_every_kind_of_peer_has_an_answer_to_every_verdict():
    assert len({frozenset(table) for table in STATUS.values()}) == 1
