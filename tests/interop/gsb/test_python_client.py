"""The Python client against the original router, over TCP and a Unix socket."""

from __future__ import annotations

import asyncio

import pytest

from polybus.protocols.gsb.client import GsbClient
from tests.interop.gsb.parts import RealRouter
from tests.protocols.gsb.scenarios import SCENARIOS, Scenario, echo

pytestmark = pytest.mark.interop


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_scenario_on_the_real_router(real_router: RealRouter, scenario: Scenario):
    async with GsbClient(real_router.url) as service, GsbClient(real_router.url) as caller:
        await scenario(service, caller)


async def test_the_client_comes_back_when_the_real_router_does(real_router: RealRouter):
    async with GsbClient(real_router.url) as service, GsbClient(real_router.url) as caller:
        await service.bind("/py/back", echo)
        await asyncio.to_thread(real_router.restart)
        await asyncio.gather(service.ready(5), caller.ready(5))
        assert await caller.call("/py/back", b"again", timeout=5) == b"again"
