"""A power cut at every write, sync, rename and unlink of a 200-operation script, whatever the disk had kept by then."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.storage.powercut import check_cut, cuts, image, run_script
from tests.storage.simdisk import Luck

pytestmark = [pytest.mark.crash, pytest.mark.timeout(600)]


@pytest.mark.parametrize("luck", ["none", "all", "torn"])
async def test_no_cut_loses_or_invents_anything(
    luck: Luck, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run = await run_script(tmp_path / "run", 200, 11, monkeypatch)
    checked = 0
    for number, disk in cuts(run, only=lambda number: True):
        await check_cut(run, number, image(disk, luck, number), tmp_path / "left")
        checked += 1
    assert checked > 500
