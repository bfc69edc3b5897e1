"""`polybus bench`: the figures are right, and the verbs measure a real node."""

from __future__ import annotations

import csv
import io
import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

import polybus
from polybus.cli import bench
from polybus.cli.bench_figures import Figures, Tally, figures, percentile_ms, show_bytes, write_csv
from polybus.cli.bench_load import Load, Pace
from polybus.errors import PeerUnavailable
from tests.cli.processes import ANY_PORT, node, run


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with node("--listen", ANY_PORT, cwd=tmp_path_factory.mktemp("node")) as (_, where):
        yield where[0]


def measured(*args: str) -> list[dict[str, Any]]:
    done = run("bench", *args, "--json")
    assert (done.returncode, done.stderr) == (0, b""), done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def test_figures_are_those_of_all_clients_together():
    slow, fast = Tally(), Tally()
    slow.add(1, 10, began=0.0, ended=0.5)
    slow.add(1, 10, began=0.5, ended=1.0)
    for number in range(8):
        fast.add(1, 10, began=1.0 + number / 8, ended=1.125 + number / 8)
    found = figures("x", [slow, fast], lost=3)
    assert (found.msgs, found.bytes, found.seconds, found.lost) == (10, 100, 2.0, 3)
    assert (found.msgs_per_s, found.bytes_per_s) == (5.0, 50.0)
    assert (found.p50_ms, found.p90_ms, found.p99_ms, found.max_ms) == (125, 500, 500, 500)
    assert (found.client_min, found.client_avg, found.client_max) == (2.0, 5.0, 8.0)
    assert found.client_stddev == 3.0


def test_a_client_that_did_nothing_divides_nothing_by_zero():
    found = figures("x", [Tally()])
    assert (found.msgs_per_s, found.p50_ms, found.client_max) == (0.0, None, 0.0)


@pytest.mark.parametrize(
    ("share", "wanted"), [(0.0, 1), (0.5, 50), (0.501, 51), (0.99, 99), (1, 100)]
)
def test_a_percentile_is_one_of_the_times(share, wanted):
    times = [number / 1000 for number in range(1, 101)]
    assert percentile_ms(times, share) == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1536, "1.5 KiB"), (5 << 20, "5 MiB"), (3 << 30, "3.00 GiB")],
)
def test_sizes_have_units(count, text):
    assert show_bytes(count) == text


def test_csv_has_a_line_per_phase_under_the_names():
    stream = io.StringIO()
    write_csv(stream, [figures("a", [Tally()]), figures("b", [Tally()])])
    rows = list(csv.DictReader(io.StringIO(stream.getvalue())))
    assert [row["bench"] for row in rows] == ["a", "b"]
    assert set(rows[0]) == set(Figures.__slots__)


async def test_messages_are_shared_out_so_that_none_is_left_over():
    load = Load("", clients=3, msgs=10, size=1, batch=1)
    turns = [Pace(load, client) for client in range(3)]
    assert [[await pace.turn(3), await pace.turn(3), await pace.turn(3)] for pace in turns] == [
        [3, 1, 0],
        [3, 0, 0],
        [3, 0, 0],
    ]


async def test_time_that_is_over_ends_the_turns():
    pace = Pace(Load("", clients=1, msgs=None, size=1, batch=1, duration=0.0), 0)
    assert await pace.turn(1) == 0


@pytest.mark.parametrize("acks", ["explicit", "none"])
def test_pub_counts_each_message_of_each_client(url, acks):
    (found,) = measured(
        "pub", "--url", url, "--clients", "3", "--msgs", "100", "--size", "1KiB", "--acks", acks
    )
    assert (found["clients"], found["msgs"], found["bytes"]) == (3, 100, 102_400)
    assert 0 < found["p50_ms"] <= found["p90_ms"] <= found["p99_ms"] <= found["max_ms"]
    assert found["msgs_per_s"] > 0


def test_sub_counts_what_every_subscriber_got(url):
    (found,) = measured("sub", "--url", url, "--clients", "2", "--msgs", "50")
    assert (found["msgs"], found["lost"], found["bytes"]) == (100, 0, 12_800)
    assert found["p50_ms"] > 0


def test_call_calls_a_service_of_its_own_or_the_one_named(url):
    (found,) = measured("call", "--url", url, "--msgs", "50", "--batch", "7")
    assert (found["bench"], found["msgs"]) == ("call", 50)
    with polybus.connect_sync(url) as bus:
        calls = []
        bus.serve("bench-target", lambda body: calls.append(body))
        measured("call", "--url", url, "--service", "bench-target", "--msgs", "5", "--size", "3")
    assert calls == [bytes(3)] * 5
    absent = run("bench", "call", "--url", url, "--service", "absent")
    assert (absent.returncode, absent.stderr) == (
        3,
        b"polybus: no such service: absent (error 1201)\n",
    )


@pytest.mark.parametrize("flags", [(), ("--acks", "all", "--dedup")])
def test_durable_stores_then_consumes_and_leaves_nothing_behind(url, flags):
    produced, consumed = measured("durable", "--url", url, "--clients", "2", "--msgs", "99", *flags)
    assert (produced["bench"], produced["msgs"]) == ("produce", 99)
    assert (consumed["bench"], consumed["msgs"], consumed["lost"]) == ("consume", 99, 0)
    assert consumed["p50_ms"] is None
    with polybus.connect_sync(url) as bus:
        assert bus.topics() == []


def test_durable_into_a_topic_of_the_users_keeps_it(url):
    command = ("durable", "--url", url, "--topic", "mine", "--msgs", "10", "--no-consume")
    assert run("bench", *command).returncode == 3
    measured(*command, "--create")
    measured(*command)
    with polybus.connect_sync(url) as bus:
        assert len(bus.fetch("mine")) == 20
        measured(*command, "--purge")
        info = bus.topic("mine")
        assert (info.first, info.end, bus.groups("mine")) == (20, 30, [])
        bus.remove_topic("mine")


def test_duration_ends_a_bench_and_throughput_and_sleep_slow_it(url):
    (found,) = measured(
        "pub", "--url", url, "--duration", "300ms", "--throughput", "100", "--sleep", "1ms"
    )
    assert 1 <= found["msgs"] <= 150
    assert found["msgs_per_s"] < 250


def test_a_csv_file_that_cannot_be_written_is_told_before_anything_is_measured(url, tmp_path):
    file = tmp_path / "absent" / "figures.csv"
    done = run("bench", "call", "--url", url, "--duration", "1h", "--csv", str(file))
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.decode() == f"polybus: {file}: No such file or directory\n"


def test_figures_go_to_a_csv_file_or_to_stdout(url, tmp_path):
    file = tmp_path / "figures.csv"
    done = run("bench", "pub", "--url", url, "--msgs", "10", "--clients", "2", "--csv", str(file))
    assert done.stdout.startswith(b"BENCH")
    assert b"pub, each client: min " in done.stdout
    assert file.read_text().startswith("bench,clients,msgs")
    piped = run("bench", "pub", "--url", url, "--msgs", "10", "--csv", "-")
    assert piped.stdout.startswith(b"bench,clients,msgs")
    assert piped.stdout.count(b"\n") == 2


@pytest.mark.parametrize(
    "args",
    [("pub", "--json", "--csv", "-"), ("durable", "--purge"), ("pub", "--clients", "0"), ("fly",)],
)
def test_what_makes_no_sense_is_a_usage_error(args):
    assert run("bench", *args).returncode == 2


def test_a_node_that_was_named_and_is_not_there_is_not_replaced():
    assert run("bench", "pub", "--url", "tcp://127.0.0.1:1").returncode == 3


def test_without_a_node_one_is_started_for_the_run_and_gone_afterwards(tmp_path, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        free = probe.getsockname()[1]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bench, "DEFAULT_PORT", free)
    # uvloop warns of transports that are still closing when its loop ends, and here a warning is an error.
    monkeypatch.setattr(bench, "loop_factory", lambda: None)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("POLYBUS_LIMITS_MAX_FRAME", "not a size")  # which a real node would refuse
    done = CliRunner().invoke(bench.bench, ["durable", "--msgs", "20", "--json"])
    assert done.exit_code == 0, done.output
    assert done.stderr == f"nobody listens on port {free}: measuring a node of its own\n"
    assert [row["msgs"] for row in json.loads(done.stdout)] == [20, 20]
    assert list(tmp_path.iterdir()) == []


def test_a_node_that_does_not_start_is_an_error(monkeypatch):
    monkeypatch.setattr(bench, "SERVE", "raise SystemExit(1)")
    with pytest.raises(PeerUnavailable, match="did not start"), bench.own_node(stores=False):
        pass
