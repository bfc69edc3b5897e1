"""A power cut at every write, sync, rename and unlink of a 200-operation script, whatever the disk had kept by then."""

from __future__ import annotations

import random
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


@pytest.mark.parametrize("seed", range(40))
async def test_any_script_survives_cuts_at_random_places(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run = await run_script(tmp_path / "run", 50, seed, monkeypatch)
    rng = random.Random(seed)
    places = set(rng.sample(range(len(run.journal)), 8))
    for number, disk in cuts(run, only=lambda number: number in places):
        luck: Luck = rng.choice(("none", "all", "torn"))
        await check_cut(run, number, image(disk, luck, number), tmp_path / "left")
