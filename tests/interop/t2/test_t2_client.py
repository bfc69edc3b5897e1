"""The Python client and the SDK pass the same scenarios on the real server and on polybus."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Iterator
from contextlib import suppress

import pytest

import polybus
from polybus.errors import (
    CallTimeout,
    Conflict,
    ConnectionLost,
    InvalidName,
    NameTaken,
    NoSuchService,
)
from polybus.protocols.t2.client import Connector
from polybus.protocols.t2.typed import PublishProtocol, RequestProtocol
from tests.interop.t2.servers import Server, polybus_server

# Building the real parts counts towards the first test that needs them.
pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

CHAT = PublishProtocol("chat", str)
ECHO = RequestProtocol("echo", str, str)


@pytest.fixture(params=["real", "polybus"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    if request.param == "real":
        yield request.getfixturevalue("real_t2")
    else:
        with polybus_server() as running:
            yield running


@pytest.fixture(params=["tcp", "unix"])
def address(request: pytest.FixtureRequest, server: Server) -> str:
    return server.addresses[request.param]


def connector(address: str) -> Connector:
    kind, _, where = address.partition(":")
    return Connector.tcp(where) if kind == "tcp" else Connector.unix(where)


async def test_publications_reach_their_subscribers_in_order(address: str):
    to_bus = connector(address)
    async with await to_bus.connect() as one, await to_bus.connect() as two:
        subscription = await one.subscribe(CHAT, "lobby/*")
        for number in range(300):
            assert await two.publish(CHAT, "lobby/alice", str(number)) == 1
        got = [await subscription.recv() for _ in range(300)]
        assert got == [("chat/lobby/alice", str(number)) for number in range(300)]
        assert await two.publish(CHAT, "*/alice", "to all rooms") == 1
        assert await subscription.recv() == ("chat/*/alice", "to all rooms")
        subscription.close()
        assert await one.publish(CHAT, "lobby/alice", "nobody") == 0


async def test_ten_thousand_publications_come_in_order(address: str):
    to_bus = connector(address)
    async with await to_bus.connect() as reader, await to_bus.connect() as writer:
        exact = await reader.subscribe_bytes("bulk/all")
        wild = await reader.subscribe_bytes("bulk/*")
        for first in range(0, 10_000, 1000):
            numbers = (str(n).encode() for n in range(first, first + 1000))
            counts = await asyncio.gather(*(writer.publish_bytes("bulk/all", n) for n in numbers))
            assert counts == [1] * 1000
        for subscription in (exact, wild):
            got = [(await subscription.recv())[1] for _ in range(10_000)]
            assert got == [str(n).encode() for n in range(10_000)]


async def test_a_thousand_requests_at_once_are_all_answered(address: str):
    to_bus = connector(address)
    async with await to_bus.connect() as one, await to_bus.connect() as two:
        requests = await one.serve(ECHO, "many")

        async def answer() -> None:
            async for _topic, request_id, request in requests:
                await one.respond(ECHO, request_id, request + "!")

        answering = asyncio.create_task(answer())
        replies = await asyncio.gather(*(two.request(ECHO, "many", str(n)) for n in range(1000)))
        assert replies == [f"{n}!" for n in range(1000)]
        requests.close()
        await answering


async def test_what_is_dropped_ends_at_the_bus_too(address: str):
    to_bus = connector(address)
    async with await to_bus.connect() as one, await to_bus.connect() as two:
        subscription = await one.subscribe(CHAT, "dropped")
        claim = await one.serve(ECHO, "dropped")
        assert await two.publish(CHAT, "dropped", "x") == 1
        del subscription, claim
        gc.collect()
        async with asyncio.timeout(20):
            while True:
                await asyncio.sleep(0.01)
                if await two.publish(CHAT, "dropped", "x"):
                    continue
                with suppress(NameTaken):
                    async with await two.serve(ECHO, "dropped"):
                        return


@pytest.mark.parametrize(
    ("kind", "size"),
    [(k, n) for k in ("noise", "text") for n in (0, 5000, 5001)]
    + [("noise", 512 * 1024), ("text", 1 << 20)],
)
async def test_payloads_come_whole(address: str, size: int, kind: str):
    payload = random.Random(size).randbytes(size) if kind == "noise" else b"t" * size
    async with await connector(address).connect() as client:
        subscription = await client.subscribe_bytes("raw/**")
        assert await client.publish_bytes("raw/x", payload) == 1
        assert await subscription.recv() == ("raw/x", payload)


async def test_requests_are_answered_and_fail_in_their_own_words(address: str):
    to_bus = connector(address)
    async with await to_bus.connect() as one, await to_bus.connect() as two:
        requests = await one.serve(ECHO, "a")
        with pytest.raises(NameTaken):
            await two.serve(ECHO, "a")

        async def answer() -> None:
            async for _topic, request_id, request in requests:
                await one.respond(ECHO, request_id, request.upper())

        answering = asyncio.create_task(answer())
        replies = await asyncio.gather(*(two.request(ECHO, "a", f"r{n}") for n in range(50)))
        assert replies == [f"R{n}" for n in range(50)]
        requests.close()
        await answering
        await one.publish(CHAT, "x", "once this is acknowledged, the claim is known to be given up")
        with pytest.raises(NoSuchService):
            await two.request(ECHO, "a", "x")
        with pytest.raises(Conflict):
            await one.respond(ECHO, 123_456, "x")
        for attempt in (one.publish(CHAT, "Bad", "x"), one.subscribe(CHAT, "a//b")):
            with pytest.raises(InvalidName):
                await attempt
        with pytest.raises(InvalidName):
            await one.serve(ECHO, "a/*")


async def test_a_request_that_is_not_answered_in_time_ends(address: str):
    async with await connector(address).connect() as client:
        await client.publish_bytes("a", b"")
        async with await client.serve(ECHO, ""):
            with pytest.raises(CallTimeout):
                await client.request(ECHO, "", "x", timeout=0.5)


async def test_the_bus_can_be_stopped(address: str):
    to_bus = connector(address)
    async with await to_bus.connect() as one, await to_bus.connect() as two:
        subscription = await two.subscribe(CHAT, "a")
        await one.stop_bus()
        with pytest.raises(ConnectionLost):
            await subscription.recv()


async def test_the_sdk_works_on_both(server: Server):
    url = "t2://" + server.addresses["tcp"].removeprefix("tcp:")
    async with polybus.connect(url) as bus, bus.subscribe("price/**") as prices:
        await bus.serve("calc/double", lambda body: body * 2)
        assert await bus.call("calc/double", b"ab") == b"abab"
        for name in ("price", "price/eth"):
            assert await bus.publish(name, b"1") == 1
            assert (await anext(aiter(prices))).name == name
