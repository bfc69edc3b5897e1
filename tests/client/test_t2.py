"""The SDK over the T2 wire, on a whole node and on an embedded T2 bus with the original's matcher."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import polybus
from polybus.client.t2 import spellings
from polybus.errors import (
    ConfigError,
    ConnectionLost,
    InvalidName,
    LocalProtocolError,
    NameTaken,
    NoSuchService,
    PeerUnavailable,
    ServiceFailed,
)
from polybus.model.pattern import matches as documented
from polybus.protocols.t2.client import Connector
from polybus.protocols.t2.server import ServerBuilder
from polybus.protocols.t2.topics import matches as upstream
from polybus.protocols.t2.wire import encode_data, payload_content
from polybus.server.config import Config, Policy
from polybus.server.node import Node


@pytest.fixture(params=["node", "embedded"])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    path = tmp_path / "bus"
    if request.param == "node":
        async with Node(Config(listen=(f"unix://{path}",), data=None)):
            yield f"t2+unix://{path}"
    else:
        stopper, _ = await ServerBuilder().serve_unix_socket(path).build()
        async with stopper:
            yield f"t2+unix://{path}"


async def test_calls_are_answered_and_names_are_exclusive(url):
    async with polybus.connect(url) as service, polybus.connect(url) as caller:

        @service.serve("calc/double")
        def double(number: int) -> int:
            return 2 * number

        async def parts(body: bytes):
            for part in (b"a", b"b"):
                yield part

        await service.serve("text/parts", parts)
        assert await caller.call("calc/double", 21, type=int) == 42
        assert await caller.call("text/parts") == b"ab"
        assert [p async for p in caller.call_streaming("text/parts")] == [b"ab"]
        for bus in (service, caller):
            with pytest.raises(NameTaken):
                await bus.serve("calc/double", double)
        await service.unserve("calc/double")
        await caller.serve("calc/double", double)
        assert await service.call("calc/double", 4, type=int) == 8


async def test_failures_come_in_the_words_of_the_wire(url):
    async with polybus.connect(url) as bus:

        def broken(body: bytes) -> bytes:
            raise ValueError("not today")

        await bus.serve("broken", broken)
        with pytest.raises(ServiceFailed, match="ValueError: not today"):
            await bus.call("broken")
        with pytest.raises(NoSuchService):
            await bus.call("nobody")
        with pytest.raises(LocalProtocolError):
            await bus.call("broken", headers={"a": "b"})
        with pytest.raises(LocalProtocolError):
            await bus.services()
        for attempt in (bus.publish("Bad"), bus.publish_nowait("Bad")):
            with pytest.raises(InvalidName):
                await attempt


async def test_patterns_mean_what_they_mean_everywhere(url):
    async with polybus.connect(url) as bus, bus.subscribe("price/**") as prices:
        for name in ("price", "price/eth", "price/eth/eur", "other"):
            await bus.publish(name, name.encode())
        await bus.publish_nowait("price/end", b"x" * 6000)
        got = [(await anext(aiter(prices))) for _ in range(4)]
        assert [m.name for m in got] == ["price", "price/eth", "price/eth/eur", "price/end"]
        assert got[-1].payload == b"x" * 6000
        async with bus.subscribe("price/eth") as exact:
            assert await bus.publish("price/*", b"to all") == 1
            assert (await anext(aiter(exact))).name == "price/*"
        assert await bus.publish("price/eth", b"") == 1
    async with polybus.connect(url) as bus:
        assert await bus.publish("price/eth", b"") == 0


async def test_a_publication_that_cannot_be_unpacked_does_not_end_the_link(url):
    async with polybus.connect(url) as bus, bus.subscribe("a") as messages:
        client = await Connector.unix(url.removeprefix("t2+unix://")).connect()
        await client._peer.ask(payload_content("Pub", "a", encode_data(b"no gzip"), True))
        await bus.publish("a", b"next")
        assert (await anext(aiter(messages))).payload == b"next"
        await client.close()


async def test_all_stands_again_after_the_bus_was_away(tmp_path):
    path = tmp_path / "bus"
    stopper, _ = await ServerBuilder().serve_unix_socket(path).build()
    async with polybus.connect(f"t2+unix://{path}") as bus:
        await bus.serve("echo", lambda body: body)

        async def never(body: bytes) -> bytes:
            await asyncio.Event().wait()
            return body

        await bus.serve("never", never)
        async with bus.subscribe("a/**") as messages:
            waiting = asyncio.create_task(bus.call("never"))
            assert await bus.call("echo", b"1") == b"1"
            stopper.stop()
            await stopper.join()
            with pytest.raises(ConnectionLost):
                await waiting
            stopper, _ = await ServerBuilder().serve_unix_socket(path).build()
            assert await bus.call("echo", b"2") == b"2"
            assert await bus.publish("a/b", b"3") == 1
            assert (await anext(aiter(messages))).payload == b"3"
        await bus.unserve("never")
        await bus.drain()
        with pytest.raises(ConnectionLost):
            await bus.call("echo")
    stopper.stop()
    await stopper.join()


@asynccontextmanager
async def node_with_rules(path: Path, *rules: str) -> AsyncIterator[None]:
    policy = Policy(rules=rules)
    async with Node(Config(listen=(f"unix://{path}",), data=None, policy=policy)):
        yield


async def test_a_refused_subscription_leaves_nothing_that_would_hinder_the_next_connection(
    tmp_path,
):
    path = tmp_path / "bus"
    rules = ("uid may publish subscribe register call on open/**",)
    async with node_with_rules(path, *rules):
        bus = await polybus.connect(f"t2+unix://{path}")
        for _ in range(2):
            with pytest.raises(InvalidName, match="may not subscribe"):
                await bus.subscribe("shut/*")
        opened = await bus.subscribe("open/*")
    async with node_with_rules(path, *rules):
        assert await bus.publish("open/a", b"1") == 1
        assert (await anext(opened)).payload == b"1"
        await bus.close()


async def test_what_new_rules_refuse_keeps_nothing_else_away(tmp_path):
    path = tmp_path / "bus"
    async with node_with_rules(path, "uid may publish subscribe register call on **"):
        bus = await polybus.connect(f"t2+unix://{path}")
        await bus.serve("b/echo", lambda body: body)
        await bus.serve("a/echo", lambda body: body)
        a, b = await bus.subscribe("a/x"), await bus.subscribe("b/x")
    async with node_with_rules(path, "uid may publish subscribe register call on a/**"):
        assert await bus.call("a/echo", b"1") == b"1"
        assert await bus.publish("a/x", b"2") == 1
        assert (await anext(a)).payload == b"2"
    async with node_with_rules(path, "uid may publish subscribe register call on **"):
        assert await bus.call("b/echo", b"3") == b"3"
        assert await bus.publish("b/x", b"4") == 1
        assert (await anext(b)).payload == b"4"
        await bus.close()


async def test_nobody_there_is_told_at_once(tmp_path):
    with pytest.raises(PeerUnavailable):
        await polybus.connect(f"t2+unix://{tmp_path}/none").open()
    with pytest.raises(ConfigError):
        polybus.connect("t2+ftp://x")


def test_the_spellings_of_a_pattern_give_its_documented_meaning_on_the_real_matcher():
    segments = ("a", "b", "*", "**")
    patterns = ["/".join(p) for n in range(1, 5) for p in itertools.product(segments, repeat=n)]
    names = ["/".join(p) for n in range(1, 6) for p in itertools.product("ab", repeat=n)]
    for pattern in patterns:
        topics = spellings(pattern)
        assert len(topics) == len(set(topics))
        for name in names:
            reached = any(upstream(topic, name) for topic in topics)
            assert reached is documented(pattern, name), (pattern, name)


def test_a_pattern_that_would_take_too_many_subscriptions_is_refused():
    with pytest.raises(LocalProtocolError):
        spellings("/".join(["a", "**"] * 5))
    with pytest.raises(InvalidName):
        spellings("A/**")
