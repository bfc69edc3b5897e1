"""Every captured exchange of the real servers, replayed: the same, or different exactly as listed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from polybus.protocols.zbus import tracker
from tests.protocols.zbus.bus import Bus
from tests.protocols.zbus.replay import VECTORS, Outcome, Replay

NAMES = [vector["name"] for vector in VECTORS]
LISTED: dict[str, dict[str, list[str]]] = json.loads(
    (Path(__file__).parent / "differences.json").read_text()
)
"""Exchange -> reason -> lines `path: the real server's | ours`."""


async def replayed(dialect: str, splits: int = 0) -> dict[str, Outcome]:
    options: dict[str, Any] = {"rpc_urls": "module"} if dialect == "L" else {}
    async with Bus(**options) as bus:
        replay = Replay(dialect, bus, splits)
        await replay.run()
        return replay.outcomes


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracker, "MOMENT", 0.0)


@pytest.mark.parametrize("splits", [0, 1, 7, 100])
@pytest.mark.parametrize("dialect", ["S", "N", "L"])
async def test_every_exchange_is_as_captured_or_as_listed(dialect: str, splits: int):
    outcomes = await replayed(dialect, splits)
    assert list(outcomes) == [name for name in NAMES if name.startswith(dialect)]
    for name, outcome in outcomes.items():
        listed = sorted(line for lines in LISTED.get(name, {}).values() for line in lines)
        assert sorted(outcome.differences()) == listed, name


def test_nothing_is_listed_that_is_no_exchange():
    assert len(NAMES) == 194
    assert set(LISTED) <= set(NAMES)


def test_most_exchanges_are_the_same():
    assert len(LISTED) < len(NAMES) / 3
