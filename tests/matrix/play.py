"""Plays one cell of the matrix.

The invariant: a cell leaves nothing behind that another one could notice.
"""

from __future__ import annotations

import asyncio
from typing import Final

from tests.matrix.callers import EXP, Caller, Ended, RmbCaller
from tests.matrix.cells import Cell
from tests.matrix.services import Service
from tests.matrix.stage import NARROW, Stage
from tests.protocols.rmb.twins import until

GREETING: Final = b'"hello"'
HALF_MIB: Final = b'"' + b"x" * (512 * 1024 - 2) + b'"'
BYTES: Final = b"\xff\xfe\x00binary\x80"
BEYOND: Final = {
    "T2": 1_100_000
}  # a payload that a T2 frame does not hold; the others are narrowed
ENDING: Final = (
    "gone",
    "timeout",
)  # cells with a service of their own, on a stage whose clock jumps
FIXED_DEADLINE_S: Final = 31.0  # T2 gives up after 30 s, and so does a Zbus call to another wire


def payload_of(cell: Cell) -> bytes:
    match cell.case:
        case "512 KiB":
            return HALF_MIB
        case "too large":
            return b'"' + b"x" * BEYOND.get(cell.service.name, NARROW + 1000) + b'"'
        case "not UTF-8":
            return BYTES
        case _:
            return GREETING


async def play(cell: Cell, stage: Stage) -> tuple[Ended, Service]:
    """The end of the cell's call, and the service as it was left."""
    async with cell.caller(stage) as caller:
        if cell.case in ENDING:
            handlers = cell.service.name == "RMB"
            base = stage.new_handlers() if handlers else stage.new_base()
            async with cell.service(stage, base) as own:
                return await _hold(caller, own, gone=cell.case == "gone"), own
        service = await stage.service(cell.service)
        service.seen.clear()
        match cell.case:
            case "no such service":
                return await _call_nobody(caller), service
            case case:
                method = "fail" if case == "error" else "echo"
                return await caller.call(service.base, method, payload_of(cell)), service


async def _hold(caller: Caller, service: Service, *, gone: bool) -> Ended:
    """Let the service, or the time, end while a call waits."""
    # A handler that pops a queue is not seen to leave, so that its callers need a deadline as well.
    hasty = not gone or service.name == "RMB"
    calling = asyncio.create_task(caller.call(service.base, "hold", GREETING, hasty))
    held = asyncio.create_task(service.held.wait())
    # On a busy machine a short deadline may be over before the service was reached; then it has ended as it must.
    await asyncio.wait((held, calling), return_when=asyncio.FIRST_COMPLETED)
    held.cancel()
    if gone:
        await service.vanish()
    if not hasty or caller.name == "SDK":
        return await calling
    if isinstance(caller, RmbCaller):
        return await _expired(caller, calling)
    caller.stage.clock.skip(FIXED_DEADLINE_S)
    return await calling


async def _call_nobody(caller: Caller) -> Ended:
    calling = asyncio.create_task(caller.call(caller.stage.new_base(), "echo", GREETING))
    if not isinstance(caller, RmbCaller):
        return await calling
    # A queue may get its handler at any time, so that its requests wait until they expire (DESIGN 3).
    await until(lambda: caller.stage.waiting(caller.twin) > 0)
    return await _expired(caller, calling)


async def _expired(caller: RmbCaller, calling: asyncio.Task[Ended]) -> Ended:
    with caller.stage.clock.wall_ahead(EXP + 2):
        return await calling
