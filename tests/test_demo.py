"""`make demo` does what it shows: five systems call each other, what is left tells of it, and nobody stays behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

import polybus
from examples.demo.habits import SOLD_OUT
from polybus.model.journal import CALL_FROM, CALL_TO, TOPIC, Row, parse_row
from polybus.model.record import Record
from polybus.server.config import Config
from polybus.server.node import Node

ROOT = Path(__file__).parents[1]
WIRES = {"gsb", "t2", "zbus", "rmb", "native"}


@contextmanager
def demo(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The demo as a process, without the real programs, which are interop's matter; it is killed if it lasts."""
    process = subprocess.Popen(
        [sys.executable, "-m", "examples.demo", "--data", str(folder), *arguments],
        cwd=ROOT,
        env=os.environ | {"POLYBUS_CACHE": str(folder / "no-cache")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def left_behind(folder: Path) -> list[list[str]]:
    """Processes that have to do with a data folder."""
    commands = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    return [words for words in commands if any(str(folder) in word for word in words)]


async def records(folder: Path, *topics: str) -> list[list[Record]]:
    """What the demo has left in topics."""
    node = Node(Config(listen=(), data=folder / "node-1"), name="demo")
    async with node, polybus.connect("memory:demo") as bus:
        found: list[list[Record]] = []
        for topic in topics:
            found.append([])
            while more := await bus.fetch(topic, len(found[-1])):
                found[-1] += more
        return found


def check_journal(rows: list[Row]) -> None:
    calls = [row for row in rows if row.kind == "call"]
    assert {row.wire_in for row in calls} == WIRES
    assert {row.wire_out for row in calls} == WIRES
    pairs = {(row.wire_in, row.wire_out) for row in calls}
    assert {(one, other) for one in WIRES for other in WIRES if one != other} <= pairs
    assert [row for row in rows if row.status and SOLD_OUT not in row.error] == []
    assert {row.wire_in for row in rows if row.kind == "publish"} >= {"gsb", "t2", "native"}
    for kind in ("produce", "deliver"):
        assert {row.wire_in for row in rows if row.kind == kind} >= {"zbus", "native"}


@pytest.mark.timeout(90)
async def test_five_systems_call_each_other_and_the_journal_tells_of_it(tmp_path: Path):
    with demo(tmp_path, "--seconds", "2", "--no-spark") as process:
        said, complaints = process.communicate(timeout=80)
    assert (process.returncode, complaints) == (0, "")
    lines = said.splitlines()
    assert lines[1] == "take part: GSB, T2, Zbus, RMB and SDK in Python"
    assert lines[2].count("(not built; --real does)") == 4
    assert lines[-1] == f"polybus pipeline report {tmp_path}/report.html"
    assert left_behind(tmp_path) == []
    journal, captured, publications = await records(tmp_path, TOPIC, "calls", "publications")
    check_journal([parse_row(record.payload) for record in journal])
    assert {record.headers[CALL_FROM] for record in captured} == WIRES
    assert {record.headers[CALL_TO] for record in captured} == WIRES
    assert {record.tag.split("/")[0] for record in publications} == {"market", "plant", "shop"}


@pytest.mark.timeout(60)
def test_ctrl_c_ends_it_and_all_that_it_started(tmp_path: Path):
    with demo(tmp_path, "--seconds", "600") as process:
        assert process.stdout is not None
        while not process.stdout.readline().startswith("take part"):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        said, complaints = process.communicate(timeout=50)
    assert (process.returncode, complaints) == (0, "")
    assert said.splitlines()[-1] == f"polybus pipeline report {tmp_path}/report.html"
    assert left_behind(tmp_path) == []


@pytest.mark.browser
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_the_demo_ends_with_a_report_that_a_browser_shows(tmp_path: Path):
    with demo(tmp_path, "--seconds", "5") as process:
        said, complaints = process.communicate(timeout=580)
    assert (process.returncode, complaints) == (0, ""), complaints
    assert said.splitlines()[-1] == f"report: {tmp_path}/report.html"
    assert left_behind(tmp_path) == []
    assert list((tmp_path / "lake" / "traffic").rglob("*.parquet"))
    assert "market/price" in (tmp_path / "graph.svg").read_text(encoding="utf-8")
    text, fetched, drawn = shown(tmp_path / "report.html")
    for word in ("Five systems on one bus", "shop/order", "twin:2", SOLD_OUT):
        assert word in text
    assert fetched == [(tmp_path / "report.html").as_uri()]
    assert drawn >= 4


def shown(page: Path) -> tuple[str, list[str], int]:
    """A page in headless Chromium: its text, the addresses that it asked for, and its visible drawings."""
    from playwright.sync_api import sync_playwright

    browser_program = shutil.which("chromium")
    assert browser_program, "this test needs Chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=browser_program, args=["--no-sandbox", "--disable-gpu"]
        )
        window = browser.new_page()
        asked: list[str] = []
        window.on("request", lambda request: asked.append(request.url))
        window.goto(page.as_uri())
        text = window.inner_text("body")
        drawn = window.locator("svg:visible").count()
        browser.close()
    return text, asked, drawn
