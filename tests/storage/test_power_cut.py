"""A power cut at sampled operations of a short script; `tests/crash` has every operation of a long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.storage.powercut import check_cut, cuts, image, run_script


@pytest.mark.timeout(60)
async def test_a_short_script_survives_a_cut_at_sampled_operations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run = await run_script(tmp_path / "run", 40, 7, monkeypatch)
    checked = 0
    for number, disk in cuts(run, only=lambda number: number % 9 == 0):
        await check_cut(run, number, image(disk, "torn", number), tmp_path / "left")
        checked += 1
    assert checked > 20
