"""Our Python client against the real server, and the published Python client against polybus."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from polybus.protocols.zbus.broker import Broker
from polybus.protocols.zbus.producer import Consumer
from polybus.protocols.zbus.rpc_client import RpcError, RpcInvoker, RpcProcessor
from tests.interop.zbus.build import install_zbuspy
from tests.interop.zbus.parts import Program, Server
from tests.protocols.zbus import client_scenarios

pytestmark = pytest.mark.interop


@pytest.mark.parametrize("scenario", client_scenarios.ALL)
async def test_our_client_does_the_same_on_the_real_server(
    scenario: Callable[[str], Awaitable[None]], real_server: Server
):
    await scenario(real_server.address)


async def test_our_client_calls_a_java_service_and_gets_its_exception(
    peer: list[str], node: Server
):
    service = Program([*peer, "service", node.address, "JavaCalc"], node.folder / "service.log")
    try:
        service.wait_for("ready")
        async with Broker(node.address) as broker:
            invoker = RpcInvoker(broker, "JavaCalc")
            assert await client_scenarios.eventually(broker, "JavaCalc") == 3
            with pytest.raises(RpcError, match="boom-x"):
                await invoker.boom("x")
    finally:
        service.stop()


async def test_the_published_python_client_works_on_polybus(node: Server):
    script = Path(__file__).parent / "zbuspy_peer.py"
    command = [sys.executable, str(script), str(install_zbuspy()), node.address]
    processor = RpcProcessor(client_scenarios.Calc())
    async with Broker(node.address) as broker:
        servers = lambda table, topic: list(table.server_table)  # noqa: E731
        async with Consumer(broker, "PyCalc", processor.handle, mask=2, selector=servers):
            await client_scenarios.eventually(broker, "PyCalc")
            done = await asyncio.to_thread(
                subprocess.run, command, capture_output=True, text=True, timeout=120, check=False
            )
    assert done.stdout.endswith("ok\n"), done.stderr[-3000:]
