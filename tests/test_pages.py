"""The pages that lead somebody by the hand do what they say, word for word."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

import polybus
from tests.cli.processes import node
from tests.pages import blocks, run_page

ROOT = Path(__file__).parent.parent
START = ROOT / "docs" / "start.md"


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        free: int = probe.getsockname()[1]
    return free


@pytest.mark.timeout(120)
def test_the_five_minute_start_works_word_for_word(tmp_path, port):
    assert run_page(START, tmp_path, port) == 10


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("page", "count"),
    [("backup", 3), ("install", 1), ("sizing", 2), ("upgrade", 0), ("watch", 4)],
)
def test_the_pages_for_operators_do_what_they_say(page, count, tmp_path, port):
    assert run_page(ROOT / "docs" / "operate" / f"{page}.md", tmp_path, port) == count


@pytest.mark.timeout(120)
def test_the_page_about_the_journal_and_captures_does_what_it_says(tmp_path, port):
    assert run_page(ROOT / "docs" / "concepts" / "recording.md", tmp_path, port) == 8


@pytest.mark.timeout(120)
def test_the_page_about_permissions_does_what_it_says(tmp_path, port):
    assert run_page(ROOT / "docs" / "concepts" / "permissions.md", tmp_path, port) == 5


@pytest.mark.timeout(120)
def test_the_page_about_the_monitor_asks_a_node_as_it_says(tmp_path, port):
    with (
        node("--listen", f"tcp://127.0.0.1:{port}", cwd=tmp_path) as (_, where),
        polybus.connect_sync(where[0]) as bus,
    ):
        bus.declare_topic("orders/eu")
        bus.produce("orders/eu", b"{}", tag="orders.paid")
        bus.serve("calc/add", add)
        assert run_page(ROOT / "docs" / "monitor.md", tmp_path, port) == 3


def add(numbers: list[int]) -> int:
    return sum(numbers)


def test_the_start_installs_with_verbs_of_the_makefile():
    (install,) = [block for block in blocks(START) if block.word == "install"]
    targets = re.findall(r"^make (\w+)$", install.text, re.MULTILINE)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert targets == ["setup"]
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)


def test_a_page_that_prints_something_else_is_noticed(tmp_path, port):
    page = tmp_path / "page.md"
    page.write_text("```sh\necho one\n```\n```text\ntwo\n```\n")
    with pytest.raises(AssertionError, match="echo one"):
        run_page(page, tmp_path, port)
    page.write_text("```sh\nfalse\n```\n")
    with pytest.raises(AssertionError, match="false"):
        run_page(page, tmp_path, port)
