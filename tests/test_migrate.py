"""The pages about moving over do what they say, with the configurations that they name, on other ports and folders."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from polybus.protocols.rmb.embedded import find_server
from tests.pages import blocks, environment, run_page, swapped

ROOT = Path(__file__).parent.parent
PAGES = ROOT / "docs" / "migrate"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    return port


@pytest.fixture
def swaps(tmp_path: Path) -> dict[str, str]:
    """Other ports and folders for those of the pages, in copies of the configurations too."""
    words = {port: str(free_port()) for port in ("15555", "7464", "4242", "8051", "6379")}
    for name in ("/tmp/yagna.sock", "/run/polybus", "/etc/polybus", "/var/lib/polybus"):
        words[name] = str(tmp_path / name.strip("/").replace("/", "-"))
    # What the tests open is for this machine only.
    words |= {"[::]": "127.0.0.1", "0.0.0.0": "127.0.0.1"}
    shutil.copytree(ROOT / "deploy" / "config", tmp_path / "deploy" / "config")
    for file in tmp_path.glob("deploy/config/*.toml"):
        file.write_text(swapped(file.read_text(), words))
    (tmp_path / "run-polybus").mkdir()
    return words


@pytest.fixture
def redis(swaps: dict[str, str], tmp_path: Path) -> Iterator[None]:
    """The Redis that the twin's clients have already."""
    port = swaps["6379"]
    command = [find_server(), "--port", port, "--bind", "127.0.0.1", "--save", ""]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert any("Ready to accept connections" in line for line in process.stdout)
        yield
        process.terminate()


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("page", "count"), [("gsb", 3), ("central-net", 5), ("t2", 4), ("zbus", 4)]
)
def test_a_page_about_moving_over_does_what_it_says(page, count, swaps, tmp_path):
    port = int(swaps.pop("15555"))
    ran = run_page(PAGES / f"{page}.md", tmp_path, port, swaps, own_addresses=True)
    assert ran == count


@pytest.mark.timeout(120)
@pytest.mark.parametrize("page", ["rmb-first", "rmb-second"])
@pytest.mark.usefixtures("redis")
def test_a_page_about_moving_a_twin_does_what_it_says(page, swaps, tmp_path):
    # `polybus twin` finds the Redis on its usual port; here it has another.
    port = int(swaps.pop("15555"))
    swaps["polybus twin call"] = f"polybus twin call --redis redis://127.0.0.1:{swaps['6379']}"
    ran = run_page(PAGES / f"{page}.md", tmp_path, port, swaps, own_addresses=True)
    assert ran == 4


@pytest.mark.timeout(120)
def test_the_page_of_gsb_does_what_it_says(swaps, tmp_path):
    port = int(swaps.pop("15555"))
    assert run_page(ROOT / "docs" / "protocols" / "gsb.md", tmp_path, port, swaps) == 2


@pytest.mark.timeout(120)
@pytest.mark.usefixtures("redis")
def test_the_page_of_rmb_does_what_it_says(swaps, tmp_path):
    (tmp_path / "twin.key").write_text("0x" + "01" * 32)
    account = "5CcyqxXnJucaCnQQvvUg5EPzj1uoNAxACZvzArHw5aVDvgNH"
    address = f"127.0.0.1:{swaps['8051']}"
    twin = f'[[twin]]\nid = 1\naddress = "{address}"\naccount = "{account}"\n'
    (tmp_path / "twins.toml").write_text(twin)
    port = int(swaps.pop("15555"))
    page = ROOT / "docs" / "protocols" / "rmb.md"
    assert run_page(page, tmp_path, port, swaps, own_addresses=True) == 3


def test_every_page_about_moving_over_is_run():
    pages = {page.stem for page in PAGES.glob("*.md")} - {"README"}
    assert pages == {"gsb", "central-net", "t2", "zbus", "rmb-first", "rmb-second"}


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("page", "place", "count"), [("t2", "8000", 2), ("zbus", "15555", 2)])
def test_every_server_that_the_page_of_a_wire_shows_starts(page, place, count, swaps, tmp_path):
    # The tracker of the page is another machine; here nobody is at its address, and the node goes on asking.
    words = {**swaps, "10.0.0.1": "127.0.0.2", "/run/my_bus": str(tmp_path / "bus")}
    words.setdefault(place, str(free_port()))
    env = environment(0, tmp_path / "config")
    del env["POLYBUS_LISTEN"]
    shown = [b for b in blocks(ROOT / "docs" / "protocols" / f"{page}.md") if b.language == "sh"]
    commands = [line for block in shown for line in block.text.splitlines()]
    for command in commands:
        line = f"exec {swapped(command, words)}"
        with subprocess.Popen(["bash", "-c", line], cwd=tmp_path, env=env) as process:
            try:
                until_accepting(int(words[place]), process)
            finally:
                process.terminate()
        assert process.returncode == 0, line
    assert len(commands) == count


def until_accepting(port: int, process: subprocess.Popen[bytes]) -> None:
    """Not every server says when it is ready: the program t2 is silent, as the original is."""
    with socket.socket() as probe:
        while probe.connect_ex(("127.0.0.1", port)):
            assert process.poll() is None, "it ended by itself"
            time.sleep(0.05)
