"""`polybus top`: rates are differences, the busiest comes first, and a real node is shown."""

from __future__ import annotations

import io
import json

from rich.console import Console

import polybus
from polybus.cli.top import ROWS, Sample, Service, render, view
from polybus.core.engine import TopicInfo, TopicOptions
from tests.cli.processes import ANY_PORT, node, run, running


def topic(name: str, end: int, first: int = 0) -> TopicInfo:
    return TopicInfo(name, TopicOptions(), first, end, 100, 0, 0, 0, 0)


def test_the_first_look_has_no_rates():
    shown = view(Sample(1.0, (Service("a", "gsb", "x", 100),), (topic("t", 5),)), None)
    assert (shown.services[0].calls_per_s, shown.topics[0].records_per_s) == (0.0, 0.0)


def test_rates_are_what_came_between_two_looks():
    before = Sample(
        10.0,
        (Service("a", "gsb", "x", 100), Service("b", "t2", "y", 0), Service("c", "t2", "y", 50)),
        (topic("quiet", 5), topic("busy", 0)),
    )
    now = Sample(
        12.0,
        (
            Service("a", "gsb", "x", 110),
            Service("b", "t2", "y", 40),
            Service("c", "t2", "y", 3),  # restarted
            Service("d", "t2", "z", 9),  # new
        ),
        (topic("quiet", 5), topic("busy", 8, first=6)),
    )
    shown = view(now, before)
    assert [(s.name, s.calls_per_s) for s in shown.services] == [
        ("b", 20.0),
        ("a", 5.0),
        ("d", 0.0),
        ("c", 0.0),
    ]
    assert [(t.topic, t.records, t.records_per_s) for t in shown.topics] == [
        ("busy", 2, 4.0),
        ("quiet", 5, 0.0),
    ]
    assert [(w.wire, w.services, w.connections, w.calls_per_s) for w in shown.wires] == [
        ("gsb", 1, 1, 5.0),
        ("t2", 3, 2, 20.0),
    ]


def test_only_the_busiest_rows_are_drawn():
    services = tuple(Service(f"s{n}", "t2", "x", n) for n in range(ROWS + 3))
    drawn = io.StringIO()
    Console(width=100, file=drawn).print(render("tcp://here", view(Sample(1.0, services), None)))
    text = drawn.getvalue()
    assert f"s{ROWS + 2} " in text
    assert "s2 " not in text
    assert "… 3 more" in text


def test_top_shows_services_topics_and_groups_of_a_node(tmp_path):
    with (
        node("--listen", ANY_PORT, cwd=tmp_path) as (_, where),
        polybus.connect_sync(where[0]) as bus,
    ):
        bus.serve("calc/add", lambda body: body)
        bus.call("calc/add", b"")
        bus.produce("orders", b"tea", create=True)
        with bus.consume("orders", "billing") as records:
            next(iter(records))
            done = run("top", "--count", "2", "--interval", "10ms", "--json", "--url", where[0])
            drawn = run("top", "--count", "1", "--url", where[0])
    looks = [json.loads(line) for line in done.stdout.splitlines()]
    assert (done.returncode, len(looks)) == (0, 2)
    assert [(row["name"], row["calls"]) for row in looks[1]["services"]] == [("calc/add", 1)]
    (shown,) = looks[1]["topics"]
    assert (shown["topic"], shown["records"]) == ("orders", 1)
    assert (shown["groups"], shown["in_flight"]) == (1, 1)
    (wire,) = looks[1]["wires"]
    assert (wire["wire"], wire["connections"], wire["members"]) == ("native", 1, 1)
    for word in (b"calc/add", b"orders", b"native", f"polybus at {where[0]}".encode()):
        assert word in drawn.stdout


def test_top_of_a_node_without_topics_shows_the_rest(tmp_path):
    with node("--listen", ANY_PORT, "--data", "", cwd=tmp_path) as (_, where):
        done = run("top", "--count", "1", "--json", "--url", where[0])
    assert json.loads(done.stdout) == {"wires": [], "services": [], "topics": []}


def test_top_ends_quietly_when_nobody_reads_on(tmp_path):
    with (
        node("--listen", ANY_PORT, "--data", "", cwd=tmp_path) as (_, where),
        running("top", "--count", "50", "--interval", "10ms", "--url", where[0]) as shown,
    ):
        assert shown.stdout is not None
        assert shown.stderr is not None
        assert shown.stdout.readline().startswith("polybus at ")
        shown.stdout.close()
        assert (shown.wait(15), shown.stderr.read()) == (1, "")
        shown.stdout = None


def test_top_of_no_node_ends_with_code_3():
    assert run("top", "--url", "tcp://127.0.0.1:1").returncode == 3
