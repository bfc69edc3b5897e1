"""The examples and the guide run as they are printed."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace

import polybus
from tests.client.conftest import start_node

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "howto" / "sdk.md"
BLOCKS = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)

EXAMPLES = {
    "serve_and_call": ["1 + 2 = 3", "counted 0", "counted 1", "counted 2"],
    "publish_and_subscribe": [
        "price/eth reached 1",
        "price/btc reached 1",
        "price/eth 2000",
        "price/btc 60000",
    ],
    "without_event_loop": ["hello ann", "written at offset 0", '{"greeted":"ann"}'],
}

PRINTED = [
    ["3", "[0, 1, 2]", "1201 no such service: calc/sub"],
    ["1", "price/eth {'usd': 2000}"],
    ["0", "1", '0 b\'{"item":"tea"}\'', "1 b'two'", "2 b'three'", "[1, 2]", "0"],
    ["hello ann", "b'none'"],
    ["['call echo', 'serve echo']"],
    ["b'no socket was opened'"],
]


async def run_example(name: str, url: str) -> list[str]:
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, str(ROOT / "examples" / f"{name}.py"), url],
        capture_output=True,
        text=True,
        timeout=15,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("name", EXAMPLES)
async def test_an_example_prints_what_it_promises(tmp_path: Path, name: str):
    bench = await start_node("tcp", tmp_path)
    assert await run_example(name, bench.url) == EXAMPLES[name]
    await bench.node.stop()


async def test_the_example_of_a_group_does_every_job_once(tmp_path: Path):
    bench = await start_node("tcp", tmp_path)
    lines = await run_example("produce_and_consume", bench.url)
    assert lines[0] == "stored from offset 0"
    assert sorted(line.split()[-1].strip('"') for line in lines[1:]) == list("012345")
    await bench.node.stop()


def test_every_block_of_the_guide_is_run():
    assert len(BLOCKS) == len(PRINTED)


@pytest.fixture
def own_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tracer provider that is set counts for this test only; in earnest it is for the life of the process."""

    def take(provider: trace.TracerProvider) -> None:
        monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)

    monkeypatch.setattr(trace, "set_tracer_provider", take)


@pytest.mark.usefixtures("own_provider")
@pytest.mark.parametrize("number", range(len(PRINTED)))
async def test_the_guide_does_what_it_says(tmp_path: Path, capsys, number: int):
    bench = await start_node("tcp", tmp_path)
    names: dict[str, Any] = {"polybus": polybus}
    exec(compile(BLOCKS[number], str(GUIDE), "exec"), names)  # noqa: S102
    main = names["main"]
    if asyncio.iscoroutinefunction(main):
        await main(bench.url)
    else:
        await asyncio.to_thread(main, bench.url)
    assert capsys.readouterr().out.splitlines() == PRINTED[number]
    await bench.node.stop()
