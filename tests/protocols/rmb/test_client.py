"""The API of the documents, the SDK and the shell, against real nodes and Redis servers."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

import polybus
from polybus.errors import CallTimeout, LocalProtocolError, ServiceFailed
from polybus.model.clock import SystemClock
from polybus.protocols.rmb.client import (
    Context,
    MessageBusClient,
    MessageBusServer,
    connect,
    server,
)
from polybus.protocols.rmb.embedded import EmbeddedRedis
from tests.protocols.rmb.twins import World, until


@pytest.fixture
def clock() -> SystemClock:
    """Clients stamp their messages themselves, so these nodes live in the same time."""
    return SystemClock()


def port_of(world: World, twin: int) -> int:
    return world.twins[twin].redis_server.url.port


async def test_prepare_send_and_read_with_several_destinations(world: World):
    await world.start(1, 2, 3)
    for number in (2, 3):
        handlers = MessageBusServer(port_of(world, number))
        handlers.with_handler(
            "demo.twice", lambda message, payload: {"twin": message.dst[0], "got": payload * 2}
        )
        world.spawn(handlers.run())
    client = MessageBusClient(port_of(world, 1))
    message = client.prepare("demo.twice", [2, 3], 60, 2)
    assert (message.cmd, message.dst, message.exp, message.tries) == ("demo.twice", [2, 3], 60, 2)
    seen: list[int] = []
    await client.send(message, "ab")
    answers = await client.read(message, lambda found: seen.append(len(found)))
    assert seen == [2]
    assert sorted(json.loads(a.dat)["twin"] for a in answers) == [2, 3]
    assert {json.loads(a.payload)["got"] for a in answers} == {"abab"}
    client.close()


async def test_the_message_prepared_last_is_meant_when_none_is_named(world: World):
    await world.start(1)
    (handlers,) = [MessageBusServer(port_of(world, 1)).withHandler("demo.up", _upper)]
    world.spawn(handlers.run())
    client = connect(port_of(world, 1))
    with pytest.raises(LocalProtocolError, match="prepare"):
        client.send("x")
    client.prepare("demo.up", 1, 60)
    await client.send("hello")
    (answer,) = await client.read()
    assert (answer.dat, answer.err) == ("HELLO", "")
    client.close()


async def _upper(message: Any, payload: str) -> str:
    await asyncio.sleep(0)
    return payload.upper()


async def test_what_a_handler_raises_is_the_error(world: World):
    await world.start(1)

    def fail(message: Any, payload: Any) -> None:
        raise ValueError("no luck")

    world.spawn(MessageBusServer(port_of(world, 1)).with_handler("demo.fail", fail).run())
    client = connect(port_of(world, 1))
    client.prepare("demo.fail", [1], 60)
    await client.send(b"\x00\xff")
    (answer,) = await client.read()
    assert (answer.err, answer.dat) == ("no luck", "")
    client.close()


async def test_a_context_answers_after_its_handler_has_returned(world: World):
    await world.start(1)
    kept: list[Context] = []
    commands = {"demo.keep": kept.append, "demo.fail": lambda context: context.error("refused")}
    world.spawn(server(commands, port_of(world, 1)).serve())
    client = connect(port_of(world, 1))
    message = client.prepare("demo.keep", [1], 60)
    await client.send(message, "later")
    await until(lambda: bool(kept))
    assert kept[0].payload == "later"
    kept[0].reply([1, 2])
    with pytest.raises(LocalProtocolError, match="already"):
        kept[0].error("again")
    (answer,) = await client.read(message)
    assert json.loads(answer.dat) == [1, 2]
    client.prepare("demo.fail", [1], 60)
    await client.send("x")
    assert (await client.read())[0].err == "refused"
    client.close()


async def test_a_value_that_cannot_be_sent_leaves_the_context_to_be_answered(world: World):
    await world.start(1)

    def handle(context: Context) -> None:
        with pytest.raises(LocalProtocolError, match="cannot be sent"):
            context.reply(object())
        context.error("half a \ud83d pair")

    commands = {"demo.object": handle, "demo.raises": lambda context: context.reply(object())}
    world.spawn(server(commands, port_of(world, 1)).serve())
    client = connect(port_of(world, 1))
    for cmd, error in (("demo.object", "half a ? pair"), ("demo.raises", "cannot be sent")):
        client.prepare(cmd, [1], 60)
        await client.send("x")
        assert error in (await client.read())[0].err
    client.close()


async def test_a_request_without_a_destination_harms_no_handler(world: World):
    (one,) = await world.start(1)
    world.spawn(MessageBusServer(port_of(world, 1)).with_handler("demo.up", _upper).run())
    await one.client.lpush("msgbus.demo.up", b'{"cmd": "demo.up"}', b"[]", b"\xff")
    client = connect(port_of(world, 1))
    client.prepare("demo.up", [1], 60)
    await client.send("still")
    assert (await client.read())[0].dat == "STILL"
    assert one.room.stats.replies_dropped == 1
    client.close()


async def test_the_sdk_tells_a_deadline_from_a_failure(world: World):
    await world.start(1, 2)
    async with polybus.connect(f"rmb://127.0.0.1:{port_of(world, 1)}") as bus:
        with pytest.raises(CallTimeout, match="expiration reached, 1 seconds"):
            await bus.call("demo.nobody", b"", timeout=1, twin=2)


async def test_an_answer_of_an_sdk_handler_waits_for_redis(world: World):
    (one,) = await world.start(1)
    port = port_of(world, 1)
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def handle(body: bytes) -> bytes:
        asked.set()
        await go_on.wait()
        return b"late"

    async with polybus.connect(f"rmb://127.0.0.1:{port}") as bus:
        await bus.serve("demo/late", handle)
        ret = await one.push(dst=[1], cmd="demo.late")
        await asked.wait()
        await one.redis_server.stop()
        go_on.set()
        await asyncio.sleep(0.1)
        one.redis_server = EmbeddedRedis(None, port)
        await one.redis_server.start()
        assert one.redis_server.url.port == port
        assert (await one.read(ret, timeout=20))["dat"] == "bGF0ZQ=="


async def test_a_program_without_an_event_loop_just_runs(world: World):
    await world.start(1)
    world.spawn(MessageBusServer(port_of(world, 1)).with_handler("demo.up", _upper).run())
    port, found = port_of(world, 1), []

    def program() -> None:
        with MessageBusClient(port) as client:
            client.prepare("demo.up", [1], 60, 2)
            client.send("plain")
            found.extend(client.read())

    await asyncio.to_thread(program)
    assert [a.dat for a in found] == ["PLAIN"]


async def test_the_sdk_calls_one_twin_or_several(world: World):
    await world.start(1, 2, 3)
    url = f"rmb://127.0.0.1:{port_of(world, 1)}"
    async with polybus.connect(url) as bus:
        for number in (2, 3):
            service = await polybus.connect(f"rmb://127.0.0.1:{port_of(world, number)}")

            async def balance(body: bytes, number: int = number) -> bytes:
                return body + str(number).encode()

            await service.serve("wallet.stellar.balance.tft", balance)
        name = "wallet.stellar.balance.tft"
        assert await bus.call(name, b"twin ", twin=2) == b"twin 2"
        assert await bus.call(name, b"twin ", twin=[3, 2]) == [b"twin 3", b"twin 2"]
        with pytest.raises(ServiceFailed, match="twin with id 999 not found"):
            await bus.call(name, b"", twin=999)
        assert await bus.call("polybus.ping", b"own", timeout=5) == b"own"


async def test_other_wires_reach_declared_commands_and_other_twins(world: World):
    one, two = await world.start(1, 2, services=("wallet.**", "ping"))
    two.echo("wallet.balance")
    one.echo("wallet.balance")
    async with polybus.connect(f"tcp://127.0.0.1:{one.common_port}") as bus:
        assert await bus.call("wallet/balance", b"mine", timeout=5) == b"mine"
        assert await bus.call("wallet.balance", b"yours", twin=2, timeout=5) == b"yours"
        with pytest.raises(ServiceFailed, match="not found"):
            await bus.call("twin/77/wallet/balance", b"", timeout=5)
        with pytest.raises(CallTimeout):
            await bus.call("ping", b"", timeout=0.3)


async def test_a_request_reaches_a_service_of_another_wire(world: World):
    one, two = await world.start(1, 2)
    async with polybus.connect(f"tcp://127.0.0.1:{two.common_port}") as bus:
        await bus.serve("calc/double", lambda body: body * 2)

        async def fail(body: bytes) -> bytes:
            raise ValueError("not today")

        await bus.serve("calc/fail", fail)
        answer = await one.read(await one.push(cmd="calc.double", dat="YWI="))
        assert (answer["dat"], answer["err"]) == ("YWJhYg==", "")
        answer = await two.read(await two.push(cmd="calc.double", dst=[2], dat="YWI="))
        assert answer["dat"] == "YWJhYg=="
        answer = await one.read(await one.push(cmd="calc.fail"))
        assert "not today" in answer["err"]


async def test_what_our_handlers_declare_is_offered_to_other_wires(world: World):
    (one,) = await world.start(1)
    port = port_of(world, 1)
    serving = world.spawn(MessageBusServer(port).with_handler("demo.up", _upper).run())
    names = one.room.router.services
    await until(lambda: any(found.shared == "demo/up" for found in names))
    async with polybus.connect(f"tcp://127.0.0.1:{one.common_port}") as bus:
        assert await bus.call("demo/up", b"hello", timeout=5) == b"HELLO"
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    await one.client.zadd("polybus.rmb.services", {"demo.up": 1, "system.local": 1 << 60})
    await until(lambda: not any(found.shared == "demo/up" for found in names))
    assert not any(found.shared == "system/local" for found in names)
