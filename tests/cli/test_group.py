"""`polybus group` against a real node."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

import polybus
from polybus.cli import main as cli
from polybus.errors import Conflict, NoSuchGroup, NoSuchTopic, OutOfRange, PolybusError
from polybus.model.record import NewRecord
from tests.cli.processes import ANY_PORT, node


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with node("--listen", ANY_PORT, cwd=tmp_path_factory.mktemp("node")) as (_, where):
        yield where[0]


@pytest.fixture
def group(url):
    def run(*args: str, code: int = 0) -> str:
        result = CliRunner(env={"POLYBUS_URL": url}).invoke(cli.polybus, ["group", *args])
        if isinstance(result.exception, PolybusError):
            raise result.exception
        assert result.exit_code == code, result.output
        return result.output

    return run


@pytest.fixture
def bus(url):
    with polybus.connect_sync(url) as bus:
        yield bus
        for info in bus.topics():
            bus.remove_topic(info.name)


@pytest.fixture
def t(bus):
    bus.declare_topic("t")
    bus.produce_many("t", [NewRecord(b"%d" % n, id=f"id{n}") for n in range(10)])
    return bus


def test_groups_are_listed_with_what_remains(group, t):
    t.declare_group("t", "g")
    t.declare_group("t", "h", start="end", filter="a.*", exclusive=True, ack=False)
    t.declare_topic("u")
    t.declare_group("u", "g")
    head, *rest = group("ls").splitlines()
    assert head == "TOPIC  GROUP  REMAINING  IN FLIGHT  WAITING  MEMBERS  FILTER  MARKS"
    lines = [line.split() for line in rest]
    assert lines[0] == ["t", "g", "10", "0", "0", "0", "-", "-"]
    assert lines[1] == ["t", "h", "0", "0", "0", "0", "a.*", "exclusive,no-ack"]
    assert lines[2][:3] == ["u", "g", "0"]
    rows = json.loads(group("ls", "t", "--json"))
    assert [(row["name"], row["remaining"]) for row in rows] == [("g", 10), ("h", 0)]
    with pytest.raises(NoSuchTopic):
        group("ls", "absent")


def test_a_group_is_shown_with_its_members(group, t):
    t.declare_group("t", "g", window=3, delete_on_exit=True, extra={"mask": "32"})
    shown = group("info", "t", "g")
    assert "window          3\n" in shown
    assert "mask            32\n" in shown
    assert "PEER" not in shown
    with t.consume("t", "g") as records:
        next(iter(records))
        info = json.loads(group("info", "t", "g", "--json"))
        assert (info["in_flight"], len(info["members"])) == (3, 1)
        shown = group("info", "t", "g")
        assert "ID  PEER" in shown
        assert "in flight       3\n" in shown


@pytest.mark.parametrize(
    ("where", "floor"),
    [
        (("--to", "end"), 10),
        (("--to", "beginning"), 0),
        (("--to", "4"), 4),
        (("--to", "4", "--msgid", "id4"), 4),
        (("--time", "2020-01-01"), 0),
        (("--time", "2999-01-01"), 10),
        (("--copy", "other"), 7),
    ],
)
def test_a_group_is_moved_where_it_is_told(group, t, where, floor):
    t.declare_group("t", "g", start=2)
    t.declare_group("t", "other", start=7)
    assert json.loads(group("reset", "t", "g", *where, "--json"))["floor"] == floor
    assert t.group("t", "g").floor == floor


def test_a_group_that_cannot_be_moved_says_why(group, t):
    t.declare_group("t", "g", start=2)
    with pytest.raises(OutOfRange, match="offset 11 of t"):
        group("reset", "t", "g", "--to", "11")
    with pytest.raises(Conflict, match="holds the record 'id3', not 'id4'"):
        group("reset", "t", "g", "--to", "3", "--msgid", "id4")
    with pytest.raises(NoSuchGroup):
        group("reset", "t", "none", "--to", "end")
    assert t.group("t", "g").floor == 2


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ((), "say where to, with one of"),
        (("--to", "end", "--copy", "h"), "say where to, with one of"),
        (("--to", "there"), "'there' is neither"),
        (("--to", "end", "--msgid", "x"), "--msgid needs --to with an offset"),
    ],
)
def test_wrong_usage_says_what_is_wrong(group, args, text):
    assert text in group("reset", "t", "g", *args, code=2)


def test_a_group_is_removed_after_a_yes(group, t):
    t.declare_group("t", "g")
    assert "Say --yes" in group("rm", "t", "g", code=2)
    assert "removed g on t" in group("rm", "t", "g", "--yes")
    assert t.groups("t") == []
    with pytest.raises(NoSuchGroup):
        group("rm", "t", "g", "--yes")
