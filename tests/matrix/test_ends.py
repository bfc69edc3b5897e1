"""What is left of a call when its caller or its service dies in the middle: nothing, and one row of the journal.

The invariant: both are seen from outside the tables, by what is still in memory and by what was written.
"""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any, Final, Literal

import pytest
import pytest_asyncio

import polybus
from polybus.core.watch import Watched
from polybus.model import journal
from polybus.model.journal import parse_row
from polybus.model.message import Call
from polybus.protocols.gsb.party import Rewritten
from polybus.protocols.rmb.party import RmbParty
from polybus.protocols.rmb.pending import Waiting
from polybus.protocols.zbus.relay import RpcCall
from tests.matrix.callers import (
    CALLERS,
    EXP,
    Caller,
    GsbCaller,
    SdkCaller,
    T2Caller,
    WebSocketCaller,
    ZbusCaller,
)
from tests.matrix.play import FIXED_DEADLINE_S, GREETING
from tests.matrix.services import SERVICES, Service
from tests.matrix.stage import HERE, THERE, Stage
from tests.protocols.rmb.twins import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

KEPT: Final = (Call, RpcCall, Rewritten, Waiting, Watched)
"""What the tables of the core and of the rooms hold for a call that is under way."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def noted_stage() -> AsyncIterator[Stage]:
    async with Stage(journal=True) as made:
        yield made


def in_memory() -> dict[int, Any]:
    gc.collect()
    return {id(each): each for each in gc.get_objects() if type(each) in KEPT}


def tick(stage: Stage) -> None:
    for node in stage.nodes.values():
        node.router.tick(stage.clock.monotonic())
        node.recording.tick()
        room = next(e for e in node.router.endpoints if isinstance(e, RmbParty)).room
        for _ in range(10):  # what other twins asked is looked through at every fiftieth
            room.tick()


async def rows(stage: Stage, twin: int) -> Counter[str]:
    """How many calls of each name the journal of a node has."""
    topics = stage.nodes[twin].topics
    assert topics is not None
    found: Counter[str] = Counter()
    start = 0
    while records := await topics.engine.read(journal.TOPIC, start, 1000, 1 << 24):
        start = records[-1].offset + 1
        read = (parse_row(record.payload) for record in records)
        found.update(row.name for row in read if row.kind == "call")
    return found


@pytest.mark.timeout(60)
@pytest.mark.parametrize("dies", ["caller", "service"])
@pytest.mark.parametrize("kind", SERVICES, ids=lambda kind: kind.name)
@pytest.mark.parametrize("calling", CALLERS, ids=lambda calling: calling.name.replace("/", ""))
async def test_a_call_that_is_cut_leaves_one_row_and_nothing_else(
    calling: type[Caller],
    kind: type[Service],
    dies: Literal["caller", "service"],
    noted_stage: Stage,
):
    stage = noted_stage
    before = in_memory()
    base = stage.new_handlers() if kind.name == "RMB" else stage.new_base()
    caller, service = calling(stage), kind(stage, base)
    await caller.start()
    await service.start()
    call = asyncio.create_task(caller.call(base, "hold", GREETING))
    await service.held.wait()
    if dies == "service":
        await service.vanish()
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    await caller.stop()
    if dies == "caller":
        await service.vanish()
    # What has a deadline may wait for it; both clocks jump, as twins count in seconds of the day.
    stage.clock.skip(FIXED_DEADLINE_S)
    names = {HERE: f"{base}/hold", THERE: f"twin/{HERE}/{base}/hold"}
    sides = (HERE, THERE) if calling.name == "RMB other twin" else (HERE,)
    with stage.clock.wall_ahead(EXP + 2):

        def is_over() -> bool:
            tick(stage)
            return not in_memory().keys() - before.keys()

        await until(is_over, within=30)
        for node in stage.nodes.values():
            assert node.router.calls.pending == 0
        for twin in sides:
            while not (found := await rows(stage, twin))[names[twin]]:
                tick(stage)
                await asyncio.sleep(0.02)
            assert found[names[twin]] == 1


# A request in a queue cannot be called back: whoever asked is not seen to leave.
# And that of a URL is a thread of ours, which waits on as no browser would.
SEEN_TO_LEAVE: Final = [GsbCaller, T2Caller, ZbusCaller, WebSocketCaller, SdkCaller]


@pytest.mark.parametrize("calling", SEEN_TO_LEAVE, ids=lambda each: each.name.replace("/", ""))
async def test_a_service_is_told_when_its_caller_of_another_system_leaves(
    calling: type[Caller], stage: Stage
):
    began, told = asyncio.Event(), asyncio.Event()

    async def hold(payload: bytes) -> bytes:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            told.set()
            raise
        return b""

    base = stage.new_base()
    async with polybus.connect(f"polybus://{stage.address}") as bus, asyncio.timeout(20):
        await bus.serve(f"{base}/hold", hold)
        caller = calling(stage)
        await caller.start()
        call = asyncio.create_task(caller.call(base, "hold", GREETING))
        await began.wait()
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await caller.stop()
        await told.wait()
