"""Who answers a name that several systems claim, and where that can be seen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

import polybus
from polybus.client.bus import Bus
from polybus.protocols.gsb.client import GsbClient
from polybus.protocols.gsb.local import Request
from polybus.protocols.rmb.client import MessageBusServer
from polybus.protocols.zbus.broker import Broker
from polybus.protocols.zbus.client import MqClient
from tests.matrix.callers import (
    Caller,
    GsbCaller,
    RmbCaller,
    SdkCaller,
    T2Caller,
    ZbusCaller,
)
from tests.matrix.cells import WORDS
from tests.matrix.services import ZbusService
from tests.matrix.stage import HERE, THERE, Stage
from tests.protocols.rmb.twins import until

pytestmark = pytest.mark.asyncio(loop_scope="module")


@asynccontextmanager
async def gsb_service(stage: Stage, address: str) -> AsyncIterator[None]:
    async def answer(request: Request) -> bytes:
        return b'"gsb"'

    async with GsbClient(stage.address) as client:
        await client.bind(address, answer)
        yield


@asynccontextmanager
async def bus_service(stage: Stage, scheme: str, name: str) -> AsyncIterator[Bus]:
    async with polybus.connect(f"{scheme}://{stage.address}") as bus:
        await bus.serve(name, lambda: scheme)
        yield bus


async def test_the_longest_name_wins_then_the_oldest_and_the_next_inherits(stage: Stage):
    base = stage.new_base()
    async with ZbusCaller(stage) as zbus, RmbCaller(stage) as rmb:

        async def who(method: str = "one") -> list[str]:
            answers = [await caller.call(base, method, b"") for caller in (zbus, rmb)]
            return [msgspec.json.decode(each.body) for each in answers]

        async with gsb_service(stage, f"/{base}"):
            async with bus_service(stage, "polybus", f"{base}/one"):
                assert await who() == ["polybus", "polybus"]
                async with bus_service(stage, "t2", f"{base}/one"):
                    assert await who() == ["polybus", "polybus"]
                    assert await who("two") == ["gsb", "gsb"]
            assert await who() == ["gsb", "gsb"]
            async with (
                bus_service(stage, "t2", f"{base}/one") as older,
                bus_service(stage, "polybus", f"{base}/one"),
            ):
                assert await who() == ["t2", "t2"]
                await older.unserve(f"{base}/one")
                assert await who() == ["polybus", "polybus"]
        assert (await zbus.call(base, "one", b"")).word == "404"


async def test_a_system_asks_its_own_clients_first(stage: Stage):
    base = stage.new_base()
    async with bus_service(stage, "t2", f"{base}/one"), GsbCaller(stage) as gsb:
        assert (await gsb.call(base, "one", b"")).body == b'"t2"'
        async with gsb_service(stage, f"/{base}"):
            assert (await gsb.call(base, "one", b"")).body == b'"gsb"'
            async with polybus.connect(f"t2://{stage.address}") as bus:
                assert await bus.call(f"{base}/one") == b'"t2"'


TWIN_CALLERS = (GsbCaller, T2Caller, SdkCaller)


@pytest.mark.parametrize("kind", TWIN_CALLERS, ids=lambda kind: kind.name)
async def test_another_twin_s_handlers_are_called_by_its_number(kind: type[Caller], stage: Stage):
    base = stage.new_base()
    handlers = MessageBusServer(stage.redis_port(THERE))
    handlers.with_handler(f"{base}.greet", lambda message, payload: f"{message.src} {payload}")
    handlers.with_handler(f"{base}.fail", lambda message, payload: 1 / 0)
    serving = asyncio.create_task(handlers.run())
    async with kind(stage) as caller:
        greeted = await caller.call(f"twin/{THERE}/{base}", "greet", b"hello")
        assert (greeted.word, greeted.body) == (WORDS[kind.name]["ok"], f"{HERE} hello".encode())
        failed = await caller.call(f"twin/{THERE}/{base}", "fail", b"")
        assert (failed.word, failed.text) == (WORDS[kind.name]["error"], "division by zero")
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    handlers.close()


@pytest.mark.parametrize("kind", TWIN_CALLERS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("scheme", ["gsb", "t2", "polybus"])
async def test_a_service_of_another_node_is_called_through_its_twin(
    scheme: str, kind: type[Caller], stage: Stage
):
    base = stage.new_base()
    async with (
        polybus.connect(f"{scheme}://{stage.address_of(THERE)}") as there,
        kind(stage) as caller,
    ):
        await there.serve(f"{base}/echo", lambda body: body)
        answered = await caller.call(f"twin/{THERE}/{base}", "echo", b"\xff\x00")
        assert (answered.word, answered.body) == (WORDS[kind.name]["ok"], b"\xff\x00")
        assert (await caller.call(base, "echo", b"")).word == WORDS[kind.name]["none"]


async def test_the_list_of_services_has_every_claim_and_who_answers(stage: Stage):
    base = stage.new_base()
    zbus = ZbusService(stage, base)
    async with (
        gsb_service(stage, f"/{base}"),
        bus_service(stage, "t2", f"{base}/one"),
        bus_service(stage, "polybus", f"{base}/one") as bus,
        zbus,
    ):
        found = [each for each in await bus.services() if each["shared"].startswith(base)]
        shown = sorted((e["wire"], e["name"], e["prefix"], e["answers"]) for e in found)
        assert shown == [
            ("gsb", f"/{base}", True, True),
            ("native", f"{base}/one", False, False),
            ("t2", f"{base}/one", False, True),
            ("zbus", base, True, False),
        ]


async def test_a_service_of_another_system_is_an_rpc_topic_for_brokers(stage: Stage):
    base = stage.new_base()
    deep = f"{base}x/a/b/c"
    async with Broker(stage.address) as broker, await MqClient.connect(stage.address) as client:
        table = broker.route_table.topic_table
        assert base not in table
        async with bus_service(stage, "t2", f"{base}/one") as bus:
            await bus.serve(deep, lambda: "deep")
            await until(lambda: base in broker.route_table.topic_table)
            listed = (await client.query())["topicTable"]
            (told,) = broker.route_table.topic_table[base]
            for info in (listed[base], await client.query(base), told):
                assert (info["topicName"], info["mask"], info["consumerCount"]) == (base, 2, 1)
            assert f"{base}x/a" in listed
            async with ZbusCaller(stage) as caller:
                assert (await caller.call(base, "one", b"")).body == b'"t2"'
        await until(lambda: base not in broker.route_table.topic_table)
        assert base not in (await client.query())["topicTable"]


async def test_a_topic_of_that_name_is_listed_as_itself(stage: Stage):
    base = stage.new_base()
    async with await MqClient.connect(stage.address) as client:
        await client.declare(base)
        async with bus_service(stage, "t2", f"{base}/one"):
            listed = (await client.query())["topicTable"][base]
            assert (listed["mask"], listed["consumerCount"]) == (0, 0)
