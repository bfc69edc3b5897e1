"""The clients in other languages work against a real node, and the page about them prints what they print."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import polybus
from tests.cli.processes import ANY_PORT, node

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "howto" / "write-a-client.md").read_text(encoding="utf-8")
CACHE = Path(os.environ.get("POLYBUS_CACHE") or Path.home() / ".cache" / "polybus")


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    with node("--listen", ANY_PORT, cwd=tmp_path) as (_, where):
        yield where[0].removeprefix("tcp://")


def output(*command: str) -> list[str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=15)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_client_in_curl_stores_consumes_reads_and_calls(address):
    with polybus.connect_sync(f"tcp://{address}") as bus:

        @bus.serve("calc/add")
        def add(numbers: list[int | str]) -> int:
            return sum(map(int, numbers))

        lines = output("sh", str(ROOT / "examples" / "client_curl.sh"), f"http://{address}")
    consumed, record, answer, result = map(json.loads, lines)
    assert consumed == {"item": "tea"}
    assert (record["offset"], json.loads(record["payload"])) == (0, {"item": "tea"})
    assert (answer["status"], answer["payload"]) == ("OK", "3")
    assert result == {"result": 3}


@pytest.fixture(scope="module")
def go_client(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The program, built without the network; a first build compiles Go's own library too."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("no go")
    program = tmp_path_factory.mktemp("go") / "client"
    done = subprocess.run(
        [go, "build", "-o", str(program), "."],
        cwd=ROOT / "examples" / "client_go",
        env={**os.environ, "GOCACHE": str(CACHE / "go"), "GOPROXY": "off"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return str(program)


@pytest.mark.timeout(600)
def test_the_client_in_go_prints_what_the_page_says(go_client, address):
    lines = output(go_client, address)
    assert "\n".join(lines) in PAGE
    assert lines[0] == "called: HELLO"
    with polybus.connect_sync(f"tcp://{address}") as bus:
        assert [record.payload for record in bus.fetch("go-orders")] == [b"tea"]


@pytest.mark.timeout(600)
def test_the_client_in_go_says_when_there_is_no_node(go_client):
    done = subprocess.run([go_client, "127.0.0.1:1"], capture_output=True, text=True, timeout=15)
    assert (done.returncode, "connection refused" in done.stderr) == (1, True)
