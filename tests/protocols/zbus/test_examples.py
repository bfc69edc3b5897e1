"""The documented URLs and programs run, and so does what the page prints."""

from __future__ import annotations

import asyncio
import re
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from polybus.server.node import Node
from tests.protocols.zbus import client_scenarios
from tests.protocols.zbus.test_client import address_of, make_node

pytestmark = pytest.mark.timeout(60)

ROOT = Path(__file__).parents[3]
RUN = {"zbus_urls", "zbus_producer", "zbus_consumer", "zbus_rpc_service", "zbus_rpc_caller"}


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with make_node(tmp_path) as node:
        yield node


@asynccontextmanager
async def started(*arguments: str) -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, stdout=PIPE, stderr=PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def example(name: str) -> str:
    return str(ROOT / "examples" / f"{name}.py")


async def output_of(*arguments: str) -> list[str]:
    async with started(*arguments) as process:
        out, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    return out.decode().splitlines()


async def test_the_documented_urls(node: Node):
    assert await output_of(example("zbus_urls"), address_of(node)) == [
        "topic MyTopic with the group MyTopic",
        "group group1 with the filter abc",
        "stored at 13 digits of milliseconds",
        "messages 2",
        "left for group1 2",
        "consumed by its tag: abc hello",
        "consumed: world",
        "the later form: MyTopic",
        "topics ['MyTopic']",
        "tracked 1 server",
        "/empty/MyTopic True",
        "/remove/MyTopic/group1 True",
        "/remove/MyTopic True",
    ]


async def test_what_the_producer_sent_the_consumer_gets(node: Node):
    address = address_of(node)
    said = await output_of(example("zbus_producer"), address, "Demo", "6")
    assert said == ["6 messages are safe in Demo"]
    got = await output_of(example("zbus_consumer"), address, "Demo", "", "", "6")
    parts = [line.split(" ", 1) for line in got]
    assert [text for _, text in parts] == [f"message {number}" for number in range(6)]
    await client_scenarios.declare_from_start(address, "Demo", "odd", "demo.odd")
    got = await output_of(example("zbus_consumer"), address, "Demo", "odd", "demo.odd", "3")
    assert got == ["demo.odd message 1", "demo.odd message 3", "demo.odd message 5"]


async def test_the_caller_reaches_the_service(node: Node):
    address = address_of(node)
    async with started(example("zbus_rpc_service"), address) as service:
        assert service.stdout is not None
        assert await service.stdout.readline() == b"serving MyRpc\n"
        assert await output_of(example("zbus_rpc_caller"), address) == [
            "1 + 2 = 3",
            "9900",
            "ZeroDivisionError: division by zero",
            "/rpc/MyRpc/plus/1/2?module=Calculator&&appid=me {'error': None, 'result': 3}",
        ]


def test_every_example_of_this_wire_is_run():
    assert {path.stem for path in (ROOT / "examples").glob("zbus_*")} == RUN


async def test_the_program_on_the_page_runs(node: Node):
    page = (ROOT / "docs" / "protocols" / "zbus.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    code = code.replace("localhost:15555", address_of(node))
    assert await output_of("-c", code) == ["first", "3", "ValueError: not today"]
