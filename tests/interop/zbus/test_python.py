"""Our Python client against the real server, and the published Python client against polybus."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

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
    from polybus.protocols.zbus.broker import Broker
    from polybus.protocols.zbus.rpc_client import RpcError, RpcInvoker

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
