"""What the Python client does on any Zbus server; run against polybus in unit tests and the real one in interop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from polybus.errors import CallTimeout
from polybus.protocols.zbus.broker import Broker
from polybus.protocols.zbus.client import MqClient
from polybus.protocols.zbus.connection import MqError
from polybus.protocols.zbus.producer import Consumer, Producer
from polybus.protocols.zbus.rpc_client import RpcError, RpcInvoker, RpcProcessor
from polybus.protocols.zbus.wire import Message


class Calc:
    """A service."""

    def plus(self, a: int, b: int) -> int:
        return a + b

    async def later(self, text: str) -> str:
        await asyncio.sleep(0)
        return text.upper()

    def boom(self, text: str) -> None:
        raise ValueError(f"boom-{text}")

    def _hidden(self) -> None:
        raise AssertionError("never served")


async def administration(address: str) -> None:
    """Declare, query, produce, consume, remove."""
    async with await MqClient.connect(address) as client:
        assert await client.ping() > 0
        info = await client.declare("PyAdmin")
        assert info["topicName"] == "PyAdmin"
        group = await client.declare("PyAdmin", "second", filter="abc")
        assert group["filter"] == "abc"
        for number in range(3):
            await client.produce("PyAdmin", f"m{number}", tag="abc" if number == 1 else "")
        assert (await client.query("PyAdmin"))["messageDepth"] == 3
        assert [(await client.consume("PyAdmin")).text for _ in range(3)] == ["m0", "m1", "m2"]
        message = await client.consume("PyAdmin", "second")
        assert (message.text, message.get("tag")) == ("m1", "abc")
        assert "PyAdmin" in (await client.query())["topicTable"]
        assert (await client.tracker_info())["serverTable"]
        await client.remove("PyAdmin", "second")
        with pytest.raises(MqError, match=r"ConsumeGroup\(second\) Not Found") as caught:
            await client.query("PyAdmin", "second")
        assert caught.value.status == 404
        await client.remove("PyAdmin")


async def refusals(address: str) -> None:
    """Errors come as the server's own words."""
    async with await MqClient.connect(address) as client:
        with pytest.raises(MqError, match=r"^404: Topic\(PyNone\) Not Found$"):
            await client.produce("PyNone", b"x")
        with pytest.raises(MqError, match=r"^404: Topic\(PyNone\) Not Found$"):
            await client.consume("PyNone")


async def many(address: str, count: int = 500) -> None:
    """Everything that was produced is consumed, in order, through a broker."""
    got: list[str] = []
    done = asyncio.Event()

    def handle(message: Message, client: MqClient) -> None:
        got.append(message.text)
        if len(got) == count:
            done.set()

    async with Broker(address) as broker:
        producer = Producer(broker)
        await producer.declare("PyMany")
        sent = [producer.publish("PyMany", str(number)) for number in range(count)]
        for each in sent:
            await each
        async with Consumer(broker, "PyMany", handle):
            async with asyncio.timeout(30):
                await done.wait()
    assert got == [str(number) for number in range(count)]


async def rpc(address: str) -> None:
    """Calls, results and errors; more callers than connections of the service."""
    async with Broker(address) as broker:
        processor = RpcProcessor(Calc())
        async with Consumer(
            broker, "PyRpc", processor.handle, mask=2, connections=2, selector=_any_server
        ) as service:
            await service.ready()
            invoker = RpcInvoker(broker, "PyRpc")
            assert await invoker.plus(1, 2) == 3
            assert await invoker.later("text") == "TEXT"
            with pytest.raises(RpcError, match="boom-x"):
                await invoker.boom("x")
            with pytest.raises(RpcError, match="not found"):
                await invoker.invoke("_hidden")
            calls = [invoker.plus(number, number) for number in range(50)]
            assert await asyncio.gather(*calls) == [2 * number for number in range(50)]


async def eventually(broker: Broker, topic: str) -> Any:
    """The service needs a moment to be there; until then the real server says nothing at all."""
    invoker = RpcInvoker(broker, topic, timeout=1.0)
    async with asyncio.timeout(20):
        while True:
            try:
                return await invoker.plus(1, 2)
            except (MqError, CallTimeout):
                await asyncio.sleep(0.05)


async def declare_from_start(address: str, topic: str, group: str, filter: str) -> None:
    """A group that sees all there is; without a position it would begin where the others are."""
    async with await MqClient.connect(address) as client:
        await client.declare(topic, group, filter=filter, start_offset=0)


def _any_server(table: Any, topic: str) -> list[str]:
    return list(table.server_table)


ALL = (administration, refusals, many, rpc)


async def becomes(condition: Callable[[], bool]) -> None:
    """Wait for something that another process or task brings about."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
