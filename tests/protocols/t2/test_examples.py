"""The document's programs in Python run, and so does what the page prints."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from polybus import __version__

ROOT = Path(__file__).parents[3]

OUTPUTS = {
    "t2_server": "memory reaches 0 subscribers\nunix reaches 0 subscribers\ntcp reaches 0 subscribers\nstopped\n",
    "t2_publish_subscribe": "hello/alice: Hello Alice (1 receiver)\nthen 0 receivers\n",
    "t2_request_response": "Hello Alice\n",
}


def output_of(*command: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, capture_output=True, text=True, timeout=15
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", OUTPUTS)
def test_an_example_prints_what_it_should(name, tmp_path):
    assert output_of(str(ROOT / "examples" / f"{name}.py"), folder=tmp_path) == OUTPUTS[name]


def test_every_example_of_this_wire_is_run():
    assert {path.stem for path in (ROOT / "examples").glob("t2_*.py")} == OUTPUTS.keys()


def test_the_program_on_the_page_runs(tmp_path):
    page = (ROOT / "docs" / "protocols" / "t2.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    output = output_of("-c", code, folder=tmp_path)
    assert output == "('price/eth/eur', Price(bid=1.5, ask=1.6))\nHELLO\n"


def test_the_distribution_of_the_program_points_at_it():
    package = ROOT / "packages" / "polybus-t2"
    project = tomllib.loads((package / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == __version__
    entry = EntryPoint("t2", project["scripts"]["t2"], "console_scripts")
    assert callable(entry.load())
    assert (package / project["readme"]).exists()
