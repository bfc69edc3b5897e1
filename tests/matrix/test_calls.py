"""Every system calls every other: success, errors, absence, ends, deadlines and payloads, cell by cell."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

import polybus
from polybus.errors import ServiceFailed
from tests.matrix.callers import CALLERS, Caller, GsbCaller
from tests.matrix.cells import CASES, CELLS, WORDS, Cell
from tests.matrix.play import ENDING, payload_of, play
from tests.matrix.services import FAILURE, ZbusService
from tests.matrix.stage import NARROWED, Narrow, Stage

pytestmark = pytest.mark.asyncio(loop_scope="module")

PLAYED = [cell for cell in CELLS if not cell.impossible]
ENDS = [cell for cell in PLAYED if cell.case in ENDING]
ORDINARY = [cell for cell in PLAYED if cell.case not in (*ENDING, "too large")]
TOO_LARGE = [cell for cell in PLAYED if cell.case == "too large"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def jumping_stage() -> AsyncIterator[Stage]:
    """One whose clock may jump: connections that stay would be taken for silent."""
    async with Stage() as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def narrow_stages() -> AsyncIterator[dict[Narrow, Stage]]:
    stages: dict[Narrow, Stage] = {"": Stage(), "gsb": Stage("gsb"), "zbus": Stage("zbus")}
    stages["rmb"] = Stage("rmb")
    for made in stages.values():
        await made.__aenter__()
    yield stages
    for made in stages.values():
        await made.__aexit__()


@pytest.mark.parametrize("cell", ORDINARY, ids=lambda cell: cell.id)
async def test_a_call_ends_in_the_words_of_its_caller(cell: Cell, stage: Stage):
    ended, _service = await play(cell, stage)
    word, text = cell.expected
    assert ended.word == word, ended.text[:300]
    assert text in ended.text
    if cell.case in ("success", "512 KiB", "not UTF-8"):
        assert ended.body == payload_of(cell)


@pytest.mark.parametrize("cell", ENDS, ids=lambda cell: cell.id)
async def test_a_call_ends_when_its_service_or_its_time_is_gone(cell: Cell, jumping_stage: Stage):
    ended, _service = await play(cell, jumping_stage)
    word, text = cell.expected
    assert ended.word == word, ended.text[:300]
    assert text in ended.text


@pytest.mark.parametrize("cell", TOO_LARGE, ids=lambda cell: cell.id)
async def test_a_payload_beyond_the_target_s_frame_never_reaches_it(
    cell: Cell, narrow_stages: dict[Narrow, Stage]
):
    ended, service = await play(cell, narrow_stages[NARROWED[cell.service.name]])
    word, text = cell.expected
    assert ended.word == word, ended.text[:300]
    assert text in ended.text
    assert service.seen == []


@pytest.mark.parametrize("caller", CALLERS, ids=lambda caller: caller.name.replace("/", ""))
@pytest.mark.parametrize("scheme", ["gsb", "polybus"])
async def test_a_reply_in_parts_reaches_systems_without_streams_in_one_piece(
    scheme: str, caller: type[Caller], stage: Stage
):
    async def parts() -> AsyncIterator[bytes]:
        yield b'"one '
        yield b"and "
        yield b'two"'

    async def broken() -> AsyncIterator[bytes]:
        yield b'"one '
        raise ServiceFailed(FAILURE)

    base = stage.new_base()
    words = WORDS[caller.name]
    async with polybus.connect(f"{scheme}://{stage.address}") as bus, caller(stage) as calling:
        await bus.serve(f"{base}/parts", parts)
        await bus.serve(f"{base}/broken", broken)
        if not isinstance(calling, GsbCaller):  # which has a verb of its own for streams
            whole = await calling.call(base, "parts", b'"x"')
            assert (whole.word, whole.body) == (words["ok"], b'"one and two"')
        failed = await calling.call(base, "broken", b'"x"')
        assert (failed.word, FAILURE in failed.text) == (words["error"], True)
        again = await calling.call(base, "broken", b'"x"')
        assert again == failed


@pytest.mark.parametrize("caller", CALLERS, ids=lambda caller: caller.name.replace("/", ""))
async def test_an_answer_beyond_the_service_s_own_frame_ends_its_call(
    caller: type[Caller], narrow_stages: dict[Narrow, Stage]
):
    """Zbus answers are requests, and one that is too large is not taken: its caller must not wait for it."""
    stage = narrow_stages["zbus"]
    service = await stage.service(ZbusService)
    async with caller(stage) as calling:
        ended = await calling.call(service.base, "swell", b'"more"')
        assert ended.word == WORDS[caller.name]["large"]
        assert "larger" in ended.text
        again = await calling.call(service.base, "echo", b'"more"')
        assert (again.word, again.body) == (WORDS[caller.name]["ok"], b'"more"')


async def test_every_cell_is_played_or_has_a_reason():
    assert len(CELLS) == 5 * 8 * 8
    reasons = {cell.id: cell.impossible for cell in CELLS if cell.impossible}
    assert len(PLAYED) + len(reasons) == len(CELLS)
    # What is left out is what the wires cannot say, and no more: of each pair at least half is played.
    for cell in CELLS:
        same = [c for c in PLAYED if (c.caller, c.service) == (cell.caller, cell.service)]
        assert len(same) >= len(CASES) // 2
