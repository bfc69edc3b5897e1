"""What happens when the node goes and comes back."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import polybus
from polybus.errors import (
    CallTimeout,
    ConnectionLost,
    NoSuchService,
    NotAuthorized,
    PeerUnavailable,
)
from polybus.server.config import Config
from polybus.server.node import Node


class Restartable:
    """A node on a Unix socket that can be stopped and started again."""

    def __init__(self, folder: Path) -> None:
        self._config = Config(listen=(f"unix://{folder}/bus.sock",), data=folder / "data")
        self.url = f"polybus+unix://{folder}/bus.sock"
        self.node: Node

    async def start(self) -> Restartable:
        self.node = Node(self._config)
        await self.node.start()
        return self

    async def cut(self) -> None:
        """End every connection as a network would."""
        for connection in tuple(self.node.connections.open):
            connection.outbox.abort("cut")
        await asyncio.sleep(0)


@pytest.fixture
async def restartable(tmp_path: Path):
    started = await Restartable(tmp_path).start()
    yield started
    await started.node.stop()


async def again(condition, unit: float) -> float:
    """How long something took to become so."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    async with asyncio.timeout(10 * unit):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    return loop.time() - begun


async def test_a_client_is_back_within_a_second_with_all_it_had(restartable, unit: float):
    async with polybus.connect(restartable.url) as bus, polybus.connect(restartable.url) as other:
        await bus.serve("echo", lambda body: body)
        await bus.declare_topic("t")
        async with bus.subscribe("news/**") as news, bus.consume("t", "g") as records:
            await restartable.node.stop()
            await again(lambda: not bus.connected and not other.connected, unit)
            assert "reconnecting" in repr(bus)
            await restartable.start()
            assert await again(lambda: bus.connected and other.connected, unit) < 1.0 * unit
            assert await other.call("echo", b"x") == b"x"
            assert await other.publish("news/today", b"y") == 1
            assert (await anext(news)).payload == b"y"
            assert await other.produce("t", b"z") == 0
            assert (await anext(records)).payload == b"z"


async def test_what_is_under_way_fails_explicitly_and_is_not_sent_twice(restartable, unit: float):
    async with polybus.connect(restartable.url) as bus, polybus.connect(restartable.url) as other:
        calls = 0
        started = asyncio.Event()

        @bus.serve("slow")
        async def slow() -> None:
            nonlocal calls
            calls += 1
            started.set()
            await asyncio.Event().wait()

        await bus.services()
        call = asyncio.create_task(other.call("slow"))
        stream = asyncio.create_task(anext(other.call_streaming("slow")))
        await started.wait()
        await restartable.cut()
        with pytest.raises(ConnectionLost):
            await call
        with pytest.raises(ConnectionLost):
            await stream
        await again(lambda: bus.connected and other.connected, unit)
        assert calls <= 2


async def test_what_a_consumer_held_comes_again_on_the_new_connection(restartable, unit: float):
    async with polybus.connect(restartable.url) as bus:
        await bus.produce_many("t", [b"a", b"b"], create=True)
        async with bus.consume("t", "g") as records:
            first = await anext(records)
            assert (first.payload, first.attempt) == (b"a", 1)
            await restartable.cut()
            await again(lambda: not bus.connected, unit)
            await again(lambda: bus.connected, unit)
            again_first, second = await anext(records), await anext(records)
            assert (again_first.payload, again_first.attempt) == (b"a", 2)
            assert second.payload == b"b"


async def test_verbs_wait_for_the_connection_as_long_as_they_may(restartable, unit: float):
    async with polybus.connect(restartable.url) as bus:
        await bus.serve("echo", lambda body: body)
        await restartable.node.stop()
        await again(lambda: not bus.connected, unit)
        with pytest.raises(PeerUnavailable, match="not connected for"):
            await bus.call("echo", b"x", timeout=0.02)
        waiting = asyncio.create_task(bus.call("echo", b"x", timeout=10 * unit))
        producing = asyncio.create_task(bus.produce("t", b"x", create=True))
        await restartable.start()
        assert await waiting == b"x"
        assert await producing == 0


@pytest.mark.parametrize("wire", ["polybus", "gsb"])
async def test_a_name_given_while_the_node_is_away_is_answered_when_it_is_back(
    restartable, unit: float, wire: str
):
    url = restartable.url.replace("polybus", wire)
    async with polybus.connect(url) as bus, polybus.connect(restartable.url) as other:
        await restartable.node.stop()
        await again(lambda: not bus.connected and not other.connected, unit)
        serving = asyncio.create_task(bus.serve("late/name", lambda body: body))
        subscription = bus.subscribe("late/news")
        subscribing = asyncio.create_task(subscription.start())
        await asyncio.sleep(0)
        await restartable.start()
        async with asyncio.timeout(10 * unit):
            await serving
            await subscribing
            assert await other.call("late/name", b"x") == b"x"
            assert await other.publish("late/news", b"y") == 1
            assert (await anext(subscription)).payload == b"y"
        await subscription.close()


@pytest.mark.parametrize("wire", ["polybus", "gsb"])
@pytest.mark.parametrize("away", [True, False])
async def test_what_a_program_gave_up_waiting_for_is_taken_back(
    restartable, unit: float, wire: str, away: bool
):
    url = restartable.url.replace("polybus", wire)
    async with polybus.connect(url) as bus:
        await again(lambda: restartable.node.connections.open, unit)
        if away:
            await restartable.node.stop()
            await again(lambda: not bus.connected, unit)
        serving = asyncio.create_task(bus.serve("given/up", lambda body: body))
        subscription = bus.subscribe("given/news")
        subscribing = asyncio.create_task(subscription.start())
        for _ in range(3):  # where there is a connection, the requests are on their way
            await asyncio.sleep(0)
        for task in (serving, subscribing):
            task.cancel()
        await asyncio.gather(serving, subscribing, return_exceptions=True)
        assert serving.cancelled()
        assert subscribing.cancelled()
        if away:
            await restartable.start()
            await again(lambda: bus.connected, unit)
        router = restartable.node.router
        async with asyncio.timeout(10 * unit):
            await bus.serve("given/up", lambda body: body)
            async with bus.subscribe("given/other"):
                assert router.subscribed("native") + router.subscribed("gsb") == 1
            assert await bus.call("given/up", b"x") == b"x"


@pytest.mark.parametrize("wire", ["polybus", "gsb"])
async def test_a_node_that_takes_no_data_costs_a_caller_no_more_than_its_time(
    restartable, unit: float, wire: str
):
    url = restartable.url.replace("polybus", wire)
    async with polybus.connect(url) as bus:
        await again(lambda: restartable.node.connections.open, unit)
        (connection,) = restartable.node.connections.open
        connection.outbox.pause_reading()
        await bus.push("nobody", bytes(8 << 20))  # more than the kernel and the queue take together
        await asyncio.sleep(0.01)
        with pytest.raises(CallTimeout, match="took no data"):
            await bus.call("nobody", b"x", timeout=0.02)
        with pytest.raises(CallTimeout, match="took no data"):
            await anext(bus.call_streaming("nobody", b"x", timeout=0.02))
        connection.outbox.resume_reading()
        with pytest.raises(NoSuchService):
            await bus.call("nobody", b"x")


async def test_a_produce_that_is_lost_on_the_way_fails_and_can_be_tried_again(restartable, unit):
    async with polybus.connect(restartable.url) as bus:
        await bus.declare_topic("t")
        producing = asyncio.create_task(bus.produce("t", b"x", id="one"))
        await asyncio.sleep(0)
        await restartable.cut()
        outcome = (await asyncio.gather(producing, return_exceptions=True))[0]
        assert outcome == 0 or isinstance(outcome, ConnectionLost)
        assert await bus.produce("t", b"x", id="one") == 0
        assert (await bus.topic("t")).end == 1


async def test_a_name_that_another_took_meanwhile_is_taken_back_when_it_is_free(restartable, unit):
    async with polybus.connect(restartable.url) as bus, polybus.connect(restartable.url) as thief:
        await bus.serve("name", lambda: b"mine")
        for connection in tuple(restartable.node.connections.open):
            session = connection.session
            if getattr(session, "registrations", None):
                connection.outbox.abort("cut")
        await again(lambda: not bus.connected, unit)
        await thief.serve("name", lambda: b"stolen")
        await again(lambda: bus.connected, unit)
        assert await thief.call("name") == b"stolen"
        await thief.unserve("name")

        def is_back() -> bool:
            return restartable.node.router.services.owner("native", "name") is not None

        await again(is_back, unit)
        assert await thief.call("name") == b"mine"


async def test_a_client_that_is_closed_while_the_node_is_away_ends(restartable, unit: float):
    async with polybus.connect(restartable.url) as bus:
        await restartable.node.stop()
        await again(lambda: not bus.connected, unit)
        waiting = asyncio.create_task(bus.call("x", timeout=None))
        await asyncio.sleep(0)
        await bus.close()
        with pytest.raises(ConnectionLost, match="closed"):
            await waiting
        await restartable.start()


async def test_a_node_that_wants_a_token_turns_others_away(tmp_path: Path):
    from polybus.core.endpoint import Identity
    from polybus.core.router import Router
    from polybus.core.subscriptions import PATTERNS
    from polybus.model.clock import SystemClock
    from polybus.protocols.native.session import NativeSession
    from polybus.protocols.native.settings import Settings
    from polybus.transports.connection import Connection, Connections
    from polybus.transports.listener import Listener
    from polybus.transports.url import parse_address

    def identify(connection: Connection, token: str) -> Identity:
        if token != "secret":
            raise NotAuthorized("anonymous", "connect", "this node")
        return Identity("token", "ann")

    clock = SystemClock()
    router, connections = Router(clock), Connections(clock)
    router.add_wire("native", PATTERNS)
    settings = Settings(identify=identify)
    listener = Listener(
        parse_address(f"unix://{tmp_path}/s"),
        connections,
        lambda connection: NativeSession(connection, router, settings),
    )
    await listener.start()
    url = f"polybus+unix://{tmp_path}/s"
    with pytest.raises(NotAuthorized):
        await polybus.connect(url, token="guess")
    async with polybus.connect(url, token="secret") as bus:
        await bus.serve("a", lambda: None)
        assert [entry["owner"] for entry in await bus.services()] == ["token:ann"]
    await listener.stop()
