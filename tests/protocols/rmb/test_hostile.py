"""What others put into the queues and post, to do harm: the node lives on and its clients are answered."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from polybus.errors import ConfigError
from polybus.protocols.rmb import local
from polybus.protocols.rmb.resp import connect
from tests.protocols.rmb.posting import http, message, sign
from tests.protocols.rmb.twins import Twin, World, until


@pytest.mark.parametrize(
    "item", [b"a.\xc2\xb2", b"a." + b"1" * 5000, b"a.-1", b"a.", b".", b"\xff"]
)
async def test_an_entry_of_the_forward_queue_that_is_none_harms_nobody(world: World, item):
    one, two = await world.start(1, 2)
    two.echo()
    await one.client.lpush("msgbus.system.forward", item)
    await until(lambda: _is_empty(one, "msgbus.system.forward"))
    assert (await one.read(await one.push()))["src"] == 2


async def _is_empty(twin: Twin, key: str) -> bool:
    return bool(await twin.client.llen(key) == 0)


@pytest.mark.parametrize(
    "ret", ["msgbus.system.local", "msgbus.system.reply", "polybus.rmb.pending"]
)
async def test_an_answer_never_goes_into_a_queue_of_the_bus(world: World, ret):
    (one,) = await world.start(1)
    one.echo()
    for fields in ({"ver": 2}, {"dst": [1]}, {"exp": "text"}, {"dst": [999]}):
        await one.push(ret=ret, **fields)
    assert (await one.read(await one.push(dst=[1])))["dat"] == "aGVsbG8="
    assert one.room.stats.local == 5
    assert one.room.stats.refused == 4


@pytest.mark.parametrize("cmd", ["system.local", "system.reply", "backlog.x", "counter.2"])
async def test_a_client_cannot_make_its_own_twin_fill_a_queue_of_the_bus(world: World, cmd):
    (one,) = await world.start(1)
    answer = await one.read(await one.push(dst=[1], cmd=cmd))
    assert answer["err"] == f"command {cmd} is reserved"
    assert one.room.stats.local == 1


async def test_a_twin_that_answers_nothing_holds_up_nobody_else(world: World):
    silent = await asyncio.start_server(_never_answer, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    world.extra = [{"id": 77, "address": f"127.0.0.1:{port}", "public_key": "ab" * 32}]
    one, two = await world.start(1, 2, workers=20)
    two.echo()
    for _ in range(100):
        await one.push(dst=[77], ret="silent")
    assert (await one.read(await one.push(dst=[2]), timeout=5))["src"] == 2
    # Answers of own handlers pass as well.
    ret = await one.push(dst=[1], cmd="cap.own")
    await one.reply(await one.request("cap.own"))
    assert (await one.read(ret, timeout=5))["src"] == 1
    silent.close()


async def _never_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()


async def test_nobody_uses_up_the_share_of_a_twin_in_its_name(world: World):
    port = await _start_two(world, twin_rate=2)
    for _ in range(5):
        forged = sign(message(world.now()), twin=3)
        assert (await http(port, "/zbus-remote", forged))[0] == 401
    statuses = [(await http(port, "/zbus-remote", sign(message(world.now()))))[0] for _ in range(3)]
    assert statuses == [202, 202, 429]


async def test_requests_that_no_handler_answers_are_bounded(world: World):
    port = await _start_two(world, max_pending=2)
    forever = {"exp": 2**60}
    statuses = []
    for number in range(3):
        body = sign(message(world.now(), cmd=f"nobody.{number}", **forever))
        statuses.append((await http(port, "/zbus-remote", body))[0])
    assert statuses == [202, 202, 429]


async def test_large_requests_that_wait_are_bounded_in_bytes(world: World, monkeypatch):
    monkeypatch.setattr(local, "MAX_PENDING_BYTES", 1000)
    (one,) = await world.start(1)
    first = await one.push(dst=[1], dat="A" * 1004)
    request = await one.request()
    refused = await one.read(await one.push(dst=[1]))
    assert refused["err"] == "more than 1000 bytes wait for answers"
    await one.reply(request)
    assert (await one.read(first))["err"] == ""
    await one.push(dst=[1])
    assert (await one.request())["dat"] == "aGVsbG8="


async def test_a_redis_whose_machine_has_gone_is_noticed(world: World):
    (one,) = await world.start(1)
    connection = await connect(one.redis_server.url)
    assert connection._transport is not None
    plug = connection._transport.get_extra_info("socket")
    assert plug.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert plug.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 20_000
    connection.close()


async def _start_two(world: World, **settings: Any) -> int:
    """Twin 2, which knows 1 and 3; its port."""
    world.twins = {1: Twin(world, 1), 3: Twin(world, 3)}
    (two,) = await world.start(2, **settings)
    return two.port


@pytest.mark.parametrize("queues", [["local"], ["local", "remote", "reply"]])
async def test_a_node_does_not_start_where_an_original_daemon_takes_the_messages(
    world: World, queues
):
    world.twins[1] = one = Twin(world, 1)
    world.write_directory()
    await one.start_redis()

    async def daemon() -> None:
        while True:
            await one.client.blpop([f"msgbus.system.{name}" for name in queues], timeout=1)

    running = world.spawn(daemon())
    await until(lambda: _is_awaited(one))
    with pytest.raises(ConfigError, match="belongs to another bus"):
        await one.start()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await one.client.client_kill_filter(_type="normal", skipme=True)
    await one.start()
    assert await one.client.llen("msgbus.system.local") == 0


async def _is_awaited(twin: Twin) -> bool:
    return bool((await twin.client.info("clients"))["blocked_clients"])
