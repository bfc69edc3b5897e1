"""What a client of the Golem bus does, against whatever router it is pointed at.

Each scenario takes two clients of one router; the same run against polybus and against the original.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from polybus.errors import CallTimeout, NameTaken, NoSuchService, Refused, ServiceFailed
from polybus.protocols.gsb.client import GsbClient
from polybus.protocols.gsb.local import Request

Scenario = Callable[[GsbClient, GsbClient], Awaitable[None]]


async def echo(request: Request) -> bytes:
    return request.data


async def a_call_is_answered(service: GsbClient, caller: GsbClient) -> None:
    seen: list[Request] = []

    async def handler(request: Request) -> bytes:
        seen.append(request)
        return b"re: " + request.data

    await service.bind("/py/echo", handler)
    assert await caller.call("/py/echo/below", b"hi", caller="/py/me", timeout=5) == b"re: hi"
    assert seen == [Request("/py/me", "/py/echo/below", b"hi")]


async def an_empty_reply_is_a_reply(service: GsbClient, caller: GsbClient) -> None:
    async def nothing(request: Request) -> bytes:
        return b""

    await service.bind("/py/empty", nothing)
    assert await caller.call("/py/empty", b"", timeout=5) == b""


async def a_streamed_reply_comes_part_by_part(service: GsbClient, caller: GsbClient) -> None:
    async def count(request: Request) -> AsyncIterator[bytes]:
        for number in range(int(request.data)):
            yield str(number).encode()

    await service.bind("/py/count", count)

    async def parts(number: int) -> list[bytes]:
        got = caller.call_streaming("/py/count", str(number).encode(), timeout=5)
        return [part async for part in got]

    assert await parts(3) == [b"0", b"1", b"2"]
    assert await parts(1) == [b"0"]
    assert await parts(0) == [b""]
    with pytest.raises(ServiceFailed, match="stream"):
        await caller.call("/py/count", b"2", timeout=5)


async def errors_are_told_apart(service: GsbClient, caller: GsbClient) -> None:
    async def handler(request: Request) -> bytes:
        raise Refused("no such coin") if request.data == b"coin" else ValueError("broken")

    await service.bind("/py/bad", handler)
    with pytest.raises(NoSuchService) as unknown:
        await caller.call("/py/nobody", b"", timeout=5)
    assert unknown.value.name == "/py/nobody"
    with pytest.raises(ServiceFailed, match="broken"):
        await caller.call("/py/bad", b"", timeout=5)
    with pytest.raises(Refused, match="no such coin"):
        await caller.call("/py/bad", b"coin", timeout=5)


async def a_name_is_given_once(service: GsbClient, caller: GsbClient) -> None:
    await service.bind("/py/one", echo)
    with pytest.raises(NameTaken):
        await caller.bind("/py/one", echo)
    assert await service.unbind("/py/one")
    await caller.bind("/py/one", echo)


async def a_late_answer_is_a_timeout(service: GsbClient, caller: GsbClient) -> None:
    release = asyncio.Event()

    async def handler(request: Request) -> bytes:
        await release.wait()
        return b"late"

    await service.bind("/py/late", handler)
    with pytest.raises(CallTimeout):
        await caller.call("/py/late", b"", timeout=0.05)
    release.set()


async def a_push_arrives_without_an_answer(service: GsbClient, caller: GsbClient) -> None:
    came: asyncio.Queue[bytes] = asyncio.Queue()

    async def handler(request: Request) -> bytes:
        came.put_nowait(request.data)
        return b"unwanted"

    await service.bind("/py/push", handler)
    await caller.push("/py/push", b"one way")
    async with asyncio.timeout(5):
        assert await came.get() == b"one way"


async def a_broadcast_reaches_the_subscribers(first: GsbClient, second: GsbClient) -> None:
    came: asyncio.Queue[tuple[str, str, bytes]] = asyncio.Queue()

    def subscriber(caller: str, topic: str, data: bytes) -> None:
        came.put_nowait((caller, topic, data))

    await first.subscribe("py-news", subscriber)
    await second.broadcast("py-news", b"hot", caller="/py/me")
    async with asyncio.timeout(5):
        assert await came.get() == ("/py/me", "py-news", b"hot")
    await first.unsubscribe("py-news", subscriber)
    await second.broadcast("py-news", b"cold")
    await second.broadcast("py-news", b"cold")
    assert came.empty()


async def sixteen_mebibytes_pass(service: GsbClient, caller: GsbClient) -> None:
    data = bytes(range(256)) * (16 * 4096)
    await service.bind("/py/big", echo)
    assert await caller.call("/py/big", data, timeout=30) == data


async def a_thousand_calls_at_once_are_all_answered(service: GsbClient, caller: GsbClient) -> None:
    await service.bind("/py/many", echo)
    asked = [str(number).encode() for number in range(1000)]
    calls = (caller.call("/py/many", data, timeout=30) for data in asked)
    assert await asyncio.gather(*calls) == asked


SCENARIOS: list[Scenario] = [
    a_call_is_answered,
    an_empty_reply_is_a_reply,
    a_streamed_reply_comes_part_by_part,
    errors_are_told_apart,
    a_name_is_given_once,
    a_late_answer_is_a_timeout,
    a_push_arrives_without_an_answer,
    a_broadcast_reaches_the_subscribers,
    sixteen_mebibytes_pass,
    a_thousand_calls_at_once_are_all_answered,
]
