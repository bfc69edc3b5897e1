"""What is killed in mid-batch, comes back and leaves every record in its place exactly once."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

import polybus
from polybus.spark.pipelines import archive, lake
from polybus.spark.pipelines.running import Bus, start, wait
from tests.cli.processes import lines_until, running

pytestmark = pytest.mark.timeout(300)
RECORDS = 40_000
PAYLOAD = bytes(1000)  # a task then needs several fetches, and the node for as long as it runs

DRIVER = """
import os, signal, sys
import polybus.spark
from polybus.spark.pipelines.lake import write_batch
from polybus.spark.pipelines.running import Bus, sink_of, start, wait

url, source, target, folder, deadly = sys.argv[1:]
bus = Bus(polybus.spark.session("crash", "local[2]"), url)

def take(batch, number):
    write_batch(batch, folder + "/records", number)
    bus.write(batch.drop("topic"), target, sink_of("crash", batch), number)
    if deadly == "yes" and number == 1:
        # Written and published, but Spark does not know it yet.
        os.kill(os.getpid(), signal.SIGKILL)

stream = bus.stream(source, maxRowsPerTrigger=300)
wait([start(stream, folder + "/_checkpoint", True, take)])
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def node_at(port: int, folder):
    with running("serve", "--listen", f"tcp://127.0.0.1:{port}", "--data", str(folder)) as process:
        lines_until(process.stdout, "ready")
        yield process


def fill(bus, topic: str) -> None:
    for _ in range(10):
        bus.produce_many(topic, [PAYLOAD] * (RECORDS // 10), create=True)


def archive_slowly(bus: Bus, topic: str, where: Path) -> threading.Thread:
    """An archive of four tasks in a thread, each of which leaves its worker's number in `where/at_work` and lingers."""
    marks = where / "at_work"
    marks.mkdir(parents=True)

    def slowly(batches):
        for number, batch in enumerate(batches):
            if number == 0:
                (marks / str(os.getpid())).touch()
                time.sleep(1)
            yield batch

    def take(batch, number):
        slow = batch.mapInArrow(slowly, batch.schema)
        lake.write_batch(archive.with_date(slow), f"{where}/records", number, archive.PARTITIONS)

    stream = bus.stream(topic, minPartitions=4)
    errors: list[BaseException] = []

    def run() -> None:
        try:
            wait([start(stream, f"{where}/_checkpoint", True, take)])
        except BaseException as exc:
            errors.append(exc)

    thread = threading.Thread(target=run)
    thread.errors = errors  # type: ignore[attr-defined]
    thread.start()
    until(lambda: any(marks.iterdir()))
    return thread


def finish(thread: threading.Thread) -> None:
    thread.join(240)
    assert not thread.is_alive()
    assert thread.errors == []  # type: ignore[attr-defined]


def offsets_in(spark, where: Path) -> list[int]:
    return sorted(row.offset for row in lake.read(spark, str(where)).select("offset").collect())


def until(condition, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.02)


def test_a_node_that_is_killed_in_mid_batch_costs_nothing(spark, tmp_path):
    port = free_port()
    url, where = f"polybus://127.0.0.1:{port}", tmp_path / "lake"
    with node_at(port, tmp_path / "data") as process:
        with polybus.connect_sync(url) as bus:
            fill(bus, "t")
        thread = archive_slowly(Bus(spark, url), "t", where)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert thread.is_alive()
    with node_at(port, tmp_path / "data"):
        finish(thread)
        assert offsets_in(spark, where) == list(range(RECORDS))


def test_python_workers_that_are_killed_in_mid_batch_cost_nothing(spark, served, tmp_path):
    topic = served.topic()
    fill(served.bus, topic)
    where = tmp_path / "lake"
    thread = archive_slowly(Bus(spark, served.url), topic, where)
    killed = os.listdir(where / "at_work")
    for worker in killed:
        os.kill(int(worker), signal.SIGKILL)
    finish(thread)
    assert set(os.listdir(where / "at_work")) > set(killed)  # others went on with the work
    assert offsets_in(spark, where) == list(range(RECORDS))


def test_a_driver_that_is_killed_between_write_and_commit_repeats_without_a_trace(
    spark, served, tmp_path
):
    source = served.topic(*(b"%d" % i for i in range(1000)))
    target = served.topic()
    where = tmp_path / "lake"
    command = [sys.executable, "-c", DRIVER, served.url, source, target, str(where)]
    died = subprocess.run([*command, "yes"], capture_output=True, timeout=200)
    assert died.returncode == -signal.SIGKILL, died.stderr
    assert len(served.payloads(target)) == 600
    done = subprocess.run([*command, "no"], capture_output=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert offsets_in(spark, where) == list(range(1000))
    assert sorted(served.payloads(target)) == sorted(b"%d" % i for i in range(1000))
