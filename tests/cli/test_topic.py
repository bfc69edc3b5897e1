"""`polybus topic` against a real node, and offline on a data folder."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

import polybus
from polybus.cli import main as cli
from polybus.cli.durable import need_yes
from polybus.errors import Conflict, FolderInUse, NoSuchTopic, PolybusError
from polybus.model.record import NewRecord
from tests.cli.processes import ANY_PORT, node, running
from tests.cli.processes import run as run_process


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with node("--listen", ANY_PORT, cwd=tmp_path_factory.mktemp("node")) as (_, where):
        yield where[0]


@pytest.fixture
def topic(url):
    def run(*args: str, code: int = 0) -> str:
        result = CliRunner(env={"POLYBUS_URL": url}).invoke(cli.polybus, ["topic", *args])
        if isinstance(result.exception, PolybusError):
            raise result.exception
        assert result.exit_code == code, result.output
        return result.output

    return run


@pytest.fixture
def bus(url):
    with polybus.connect_sync(url) as bus:
        yield bus


def test_a_topic_is_added_shown_edited_and_removed(topic):
    shown = topic("add", "cli/a", "--retain", "7d", "--retain-bytes", "1MiB", "--durability", "os")
    assert "retain           7d\n" in shown
    assert "dedup            2m\n" in shown
    assert "durability       os\n" in shown
    with pytest.raises(Conflict, match="the topic cli/a is there already"):
        topic("add", "cli/a")
    edited = json.loads(topic("edit", "cli/a", "--retain-consumed", "--dedup", "5m", "--json"))
    assert edited["options"]["retain_consumed"] is True
    assert edited["options"]["dedup_ms"] == 300_000
    assert edited["options"]["retain_bytes"] == 1 << 20
    assert "retain consumed  False" in topic("edit", "cli/a", "--no-retain-consumed")
    assert json.loads(topic("info", "cli/a", "--json"))["end"] == 0
    assert "newest           -\n" in topic("info", "cli/a")
    assert "retain           for ever\n" in topic("edit", "cli/a", "--retain", "0")
    assert "removed cli/a" in topic("rm", "cli/a", "--yes")
    with pytest.raises(NoSuchTopic):
        topic("info", "cli/a")


def test_topics_are_listed_with_their_numbers(topic, bus):
    for name in ("cli/z", "cli/y"):
        bus.declare_topic(name)
    bus.produce_many("cli/y", [b"1", b"2"])
    rows = [row for row in json.loads(topic("ls", "--json")) if row["name"] in ("cli/y", "cli/z")]
    assert [(row["name"], row["end"]) for row in rows] == [("cli/y", 2), ("cli/z", 0)]
    lines = topic("ls").splitlines()
    assert lines[0].split() == ["TOPIC", "RECORDS", "FIRST", "END", "BYTES", "NEWEST"]
    assert next(line for line in lines if "cli/y" in line).split()[1:4] == ["2", "0", "2"]


def test_an_emptied_topic_keeps_its_offsets(topic, bus):
    bus.declare_topic("cli/e")
    bus.produce_many("cli/e", [b"1", b"2"])
    assert "emptied cli/e" in topic("empty", "cli/e", "--yes")
    assert (bus.topic("cli/e").first, bus.topic("cli/e").end) == (2, 2)


def test_what_removes_asks_first(topic, monkeypatch):
    assert "Say --yes" in topic("rm", "cli/none", code=2)
    assert "Say --yes" in topic("empty", "cli/none", code=2)
    monkeypatch.setattr("sys.stdin", type("Tty", (), {"isatty": lambda self: True})())
    asked = []

    def confirm(text: str, abort: bool) -> None:
        asked.append((text, abort))

    monkeypatch.setattr("click.confirm", confirm)
    need_yes(False, "Really?")
    assert asked == [("Really?", True)]


def test_tail_prints_the_last_records_and_moves_no_group(topic, bus):
    bus.declare_topic("cli/t")
    bus.produce_many("cli/t", [b"%d" % n for n in range(20)])
    bus.produce("cli/t", b"\xff", key=b"k", tag="x", headers={"h": "v"}, id="one")
    assert [line.split()[0] for line in topic("tail", "cli/t").splitlines()] == [
        str(n) for n in range(11, 21)
    ]
    last = topic("tail", "cli/t", "-n", "1")
    assert last.startswith("20 20")
    assert last.endswith("Z key=k tag=x h=v \\xff\n")
    shown = json.loads(topic("tail", "cli/t", "-n", "1", "--json"))
    assert shown.pop("time_ms") > 0
    assert shown == {
        "offset": 20,
        "key": "k",
        "tag": "x",
        "headers": {"h": "v"},
        "id": "one",
        "payload_base64": "/w==",
    }
    assert len(topic("tail", "cli/t", "--from", "3").splitlines()) == 18
    assert len(topic("tail", "cli/t", "--from", "3", "-n", "2").splitlines()) == 2
    assert len(topic("tail", "cli/t", "--from", "3", "-n", "2", "--follow").splitlines()) == 2
    assert len(topic("tail", "cli/t", "--since", "2020-01-01").splitlines()) == 21
    assert len(topic("tail", "cli/t", "--since", "2h").splitlines()) == 21
    assert topic("tail", "cli/t", "--since", "2999-01-01T00:00:00+01:00") == ""
    assert topic("tail", "cli/t", "-n", "0") == ""
    assert bus.groups("cli/t") == []


def test_tail_follows_until_it_is_stopped(url, bus):
    bus.declare_topic("cli/f")
    bus.produce("cli/f", b"old")
    with running("topic", "tail", "cli/f", "--follow", "--json", "--url", url) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["payload"] == "old"
        bus.produce("cli/f", b"new")
        assert json.loads(process.stdout.readline())["payload"] == "new"
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=15)
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("edit", "x"), "name at least one option"),
        (("add", "x", "--retain", "soon"), "is not a duration"),
        (("add", "x", "--retain-bytes", "many"), "is not a size"),
        (("add", "x", "--durability", "maybe"), "'maybe' is not one of"),
        (("tail", "x", "--since", "yesterday"), "is not a time"),
        (("tail", "x", "--from", "1", "--since", "1h"), "both say where to begin"),
        (("add", "x", "--dedup-ids", "-5"), "-5 is not in the range x>=0"),
    ],
)
def test_wrong_usage_says_what_is_wrong(topic, args, text):
    assert text in topic(*args, code=2)


def test_an_error_of_the_node_is_one_line_and_its_exit_code(url):
    done = run_process("topic", "info", "cli/absent", "--url", url)
    assert (done.returncode, done.stdout) == (3, b"")
    assert done.stderr == b"polybus: no such topic: cli/absent (error 1202)\n"
    assert run_process("topic", "add", "a//b", "--url", url).returncode == 4


def _stored(folder: Path) -> None:
    with (
        node("--listen", ANY_PORT, "--data", str(folder)) as (process, where),
        polybus.connect_sync(where[0]) as bus,
    ):
        bus.declare_topic("t")
        bus.produce_many("t", [NewRecord(b"x" * 100) for _ in range(500)])
        with pytest.raises(FolderInUse):
            CliRunner().invoke(
                cli.polybus, ["topic", "verify", str(folder)], catch_exceptions=False
            )
        bus.close()
        process.send_signal(signal.SIGTERM)
        process.wait(15)


def test_verify_checks_a_folder_offline_and_names_what_is_damaged(tmp_path):
    folder = tmp_path / "data"
    _stored(folder)
    runner = CliRunner()
    good = runner.invoke(cli.polybus, ["topic", "verify", str(folder)])
    assert (good.exit_code, good.output.endswith("0 problems\n")) == (0, True)
    assert "1 topics, 1 segments" in good.output
    segment = next(path for path in folder.rglob("*.seg") if path.stat().st_size > 1000)
    damaged = bytearray(segment.read_bytes())
    damaged[-100] ^= 1
    segment.write_bytes(damaged)
    bad = runner.invoke(cli.polybus, ["topic", "verify", str(folder)])
    assert bad.exit_code == 1
    assert bad.output.startswith(f"{segment.name} at byte ")
    assert "1 problems" in bad.output
    problems = json.loads(
        runner.invoke(cli.polybus, ["topic", "verify", str(folder), "--json"]).output
    )["problems"]
    assert [problem["where"] for problem in problems] == [segment.name]


def test_verify_of_something_else_is_an_error(tmp_path):
    result = CliRunner().invoke(cli.polybus, ["topic", "verify", str(tmp_path)])
    assert "is no data folder" in str(result.exception)
