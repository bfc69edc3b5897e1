"""Limits per identity and per connection, each refused in its wire's own words."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

import polybus
from polybus.core.policy import NEIGHBOUR
from polybus.errors import LimitExceeded, PolybusError, Refused
from polybus.protocols.gsb.client import GsbClient
from polybus.protocols.t2.client import Connector
from polybus.protocols.zbus.client import MqClient
from polybus.protocols.zbus.connection import MqError
from polybus.server import Node
from tests.server.doors import Door, guarded, http


@asynccontextmanager
async def limited(
    folder: Path, *limits: str, names: int = 100_000
) -> AsyncIterator[tuple[Node, Door]]:
    async with (
        guarded(folder, "loopback", limits=limits, names=names) as (node, door),
        asyncio.timeout(15),
    ):
        yield node, door


# -- connections -------------------------------------------------------------------------------------


async def test_one_connection_too_many_is_refused_on_every_wire(tmp_path):
    async with limited(tmp_path, "anonymous at most 1 connections") as (node, door):
        async with polybus.connect(door.url("polybus")) as first:
            with pytest.raises(LimitExceeded, match="too many connections"):
                async with polybus.connect(door.url("polybus")):
                    pass
            with pytest.raises(PolybusError):
                async with GsbClient(f"tcp://{door.place}") as gsb:
                    await gsb.broadcast("/news", b"")
            async with await Connector.tcp(door.place).connect() as t2:
                with pytest.raises(PolybusError):
                    await t2.publish_bytes("news", b"")
            assert await http(door, "/?cmd=query") == 429
            await first.publish("news", b"")
        assert node.connections.ended["too many connections"] >= 3
        await _settled(lambda: not node.router.endpoints)
        async with polybus.connect(door.url("polybus")) as again:
            await again.publish("news", b"")


# -- calls -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("service_wire", ["native", "own"])
async def test_one_call_too_many_is_refused_in_the_words_of_gsb(service_wire, tmp_path):
    async with (
        limited(tmp_path, "anonymous at most 1 calls") as (node, door),
        slow_service(tmp_path, door, "gsb" if service_wire == "own" else "native") as release,
        GsbClient(f"tcp://{door.place}") as client,
    ):
        first = asyncio.create_task(client.call("/slow", b""))
        await one_is_open(node)
        with pytest.raises(Refused, match="too many calls"):
            await client.call("/slow", b"")
        release()
        assert await first == b"done"
        assert await client.call("/slow", b"") == b"done"


@pytest.mark.parametrize("service_wire", ["native", "own"])
async def test_one_call_too_many_is_refused_in_the_words_of_t2(service_wire, tmp_path):
    async with (
        limited(tmp_path, "anonymous at most 1 calls") as (node, door),
        slow_service(tmp_path, door, "t2" if service_wire == "own" else "native") as release,
        await Connector.tcp(door.place).connect() as client,
    ):
        first = asyncio.create_task(client.request_bytes("slow", b""))
        await one_is_open(node)
        with pytest.raises(Refused, match="too many calls"):
            await client.request_bytes("slow", b"")
        release()
        assert await first == b"done"
        assert await client.request_bytes("slow", b"") == b"done"


async def test_one_call_too_many_is_refused_in_the_words_of_zbus_and_the_native_wire(tmp_path):
    async with (
        limited(tmp_path, "anonymous at most 1 calls") as (node, door),
        slow_service(tmp_path, door, "native") as release,
        polybus.connect(door.url("polybus")) as bus,
        await MqClient.connect(door.place) as zbus,
    ):
        first = asyncio.create_task(bus.call("slow", b""))
        await one_is_open(node)
        with pytest.raises(LimitExceeded):
            await bus.call("slow", b"")
        headers = {"cmd": "produce", "topic": "slow", "ack": "0"}
        body = msgspec.json.encode({"method": "", "module": "", "params": []})
        assert (await zbus.connection.invoke(headers, body, 5)).status == 400
        release()
        assert await first == b"done"


async def one_is_open(node: Node) -> None:
    """A call of a client on this machine waits for its answer."""
    usage = node.router.quotas.of(NEIGHBOUR)
    assert usage is not None
    await _settled(lambda: usage.calls == 1)


@asynccontextmanager
async def slow_service(folder: Path, door: Door, wire: str) -> AsyncIterator[Callable[[], None]]:
    """A service that answers once it is let; the first of its answers and all later ones."""
    allowed = asyncio.Event()

    async def answer(_request: Any) -> bytes:
        await allowed.wait()
        return b"done"

    async with contextlib.AsyncExitStack() as stack:
        if wire == "gsb":
            gsb = await stack.enter_async_context(GsbClient(f"tcp://{door.place}"))
            await gsb.bind("/slow", answer)
        elif wire == "t2":
            t2 = await stack.enter_async_context(await Connector.tcp(door.place).connect())
            claims = await t2.serve_bytes("slow")

            async def serve() -> None:
                async for _topic, request_id, payload in claims:
                    await t2.respond_bytes(request_id, await answer(payload))

            serving = asyncio.create_task(serve())
            stack.callback(serving.cancel)
        else:
            bus = await stack.enter_async_context(polybus.connect(f"memory:{folder.name}"))
            await bus.serve("slow", answer)
        yield allowed.set


# -- topics ------------------------------------------------------------------------------------------


async def test_one_topic_too_many_is_refused_on_both_durable_wires(tmp_path):
    async with (
        limited(tmp_path, "anonymous at most 2 topics") as (_node, door),
        polybus.connect(door.url("polybus")) as bus,
        await MqClient.connect(door.place) as zbus,
    ):
        await bus.declare_topic("a")
        await zbus.declare("b")
        with pytest.raises(LimitExceeded, match="too many topics"):
            await bus.declare_topic("c")
        with pytest.raises(LimitExceeded):
            await bus.produce("c", b"x", create=True)
        with pytest.raises(MqError, match="too many topics") as refused:
            await zbus.declare("c")
        assert refused.value.status == 400
        # What is there already is no new topic, and what is declared anew keeps its mark.
        await bus.declare_topic("a", retain_ms=1000)
        with pytest.raises(LimitExceeded):
            await bus.declare_topic("c")
        await bus.remove_topic("a")
        await bus.declare_topic("c")


async def test_topics_that_are_declared_at_once_are_counted_at_once(tmp_path):
    async with (
        limited(tmp_path, "anonymous at most 3 topics") as (node, door),
        polybus.connect(door.url("polybus")) as bus,
    ):
        asked = [bus.declare_topic(f"t{number}") for number in range(20)]
        results = await asyncio.gather(*asked, return_exceptions=True)
        assert sum(isinstance(result, LimitExceeded) for result in results) == 17
        assert node.topics is not None
        assert len(node.topics.all()) == 3


# -- bytes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wire", ["gsb", "t2", "native", "zbus"])
async def test_who_sends_more_than_it_may_is_held_back_and_loses_nothing(wire, tmp_path):
    async with (
        limited(tmp_path, "anonymous at most 200KB/s") as (node, door),
        contextlib.AsyncExitStack() as stack,
    ):
        send = await sender(stack, wire, door)
        loop = asyncio.get_running_loop()
        started = loop.time()
        for _ in range(12):
            await send(os.urandom(20_000))  # nothing that a wire could compress
        # What comes within a tick is taken; it has to be made up for afterwards.
        (sending,) = node.router.endpoints
        usage = node.router.quotas.of(sending.identity)
        assert usage is not None
        await _settled(lambda: usage.held)
        await send(b"")
        took = loop.time() - started
        assert took > 0.8, f"240 kB in {took} s are more than 200 kB/s"
        assert not usage.held
        assert sending.traffic.bytes_in > 240_000


async def sender(stack: contextlib.AsyncExitStack, wire: str, door: Door) -> Any:
    """Sends some bytes and returns when the node has taken them."""
    if wire == "gsb":
        gsb = await stack.enter_async_context(GsbClient(f"tcp://{door.place}"))
        return lambda data: gsb.broadcast("/news", data)
    if wire == "t2":
        t2 = await stack.enter_async_context(await Connector.tcp(door.place).connect())
        return lambda data: t2.publish_bytes("news", data)
    if wire == "zbus":
        zbus = await stack.enter_async_context(await MqClient.connect(door.place))
        await zbus.declare("news")
        return lambda data: zbus.produce("news", data)
    bus = await stack.enter_async_context(polybus.connect(door.url("polybus")))
    return lambda data: bus.publish("news", data)


# -- names of one connection -------------------------------------------------------------------------


async def test_one_name_too_many_of_a_connection_is_refused(tmp_path):
    async with limited(tmp_path, names=2) as (_node, door):
        async with polybus.connect(door.url("polybus")) as bus:
            for name in ("a", "b"):
                await bus.serve(name, _ignore)
            with pytest.raises(LimitExceeded, match="too many services"):
                await bus.serve("c", _ignore)
            async with bus.subscribe("a"), bus.subscribe("b"):
                with pytest.raises(LimitExceeded, match="too many subscriptions"):
                    async with bus.subscribe("c"):
                        pass
        async with GsbClient(f"tcp://{door.place}") as gsb:
            for name in ("/x", "/y"):
                await gsb.bind(name, _ignore)
                await gsb.subscribe(name, lambda *_: None)
            with pytest.raises(Refused, match="too many services"):
                await gsb.bind("/z", _ignore)
            with pytest.raises(Refused, match="too many subscriptions"):
                await gsb.subscribe("/z", lambda *_: None)
        async with await Connector.tcp(door.place).connect() as t2:
            # Kept: what is dropped is given up.
            served = [await t2.serve_bytes(name) for name in ("p", "q")]
            heard = [await t2.subscribe_bytes(name) for name in ("p", "q")]
            with pytest.raises(Refused, match="too many services"):
                await t2.serve_bytes("r")
            with pytest.raises(Refused, match="too many subscriptions"):
                await t2.subscribe_bytes("r")
            assert len(served + heard) == 4


async def _ignore(_request: Any) -> bytes:
    return b""


async def _settled(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.01)
