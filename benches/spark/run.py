"""Measures the Spark connector against its goals in one run; `python benches/spark/run.py [--quick]` prints a table.

What happens meanwhile goes to the error output. Ratios are of rates taken in turns within the run, the best of each;
a goal with a star must be met.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
PAYLOAD = 200
TOPIC = "bench"
STEPS = ("read", "triggers", "calls", "archive")


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table; `least` and `most` are the goal, of which a figure has one or none."""

    name: str
    value: float
    unit: str = ""
    least: float | None = None
    most: float | None = None
    must: bool = False

    @property
    def goal(self) -> str:
        if self.least is None and self.most is None:
            return ""
        text = f"≥ {self.least:g}" if self.least is not None else f"≤ {self.most:g}"
        return text + (" ★" if self.must else "")

    @property
    def verdict(self) -> str:
        if not self.goal:
            return ""
        enough = self.least is None or self.value >= self.least
        return "met" if enough and (self.most is None or self.value <= self.most) else "missed"

    def __str__(self) -> str:
        shown = f"{self.value:,.0f}" if self.value >= 100 else f"{self.value:.2f}"
        return f"| {self.name} | {shown}{self.unit and ' ' + self.unit} | {self.goal} | {self.verdict} |"


def start_node(folder: str) -> tuple[subprocess.Popen[str], str]:
    program = Path(sys.executable).with_name("polybus")
    process = subprocess.Popen(
        [str(program), "serve", "--listen", "tcp://127.0.0.1:0", "--data", folder],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    url = process.stdout.readline().split()[1]
    assert process.stdout.readline().strip() == "ready"
    return process, url


def payloads(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Noise of the right size, which no format can make smaller."""
    for batch in batches:
        rows = batch.num_rows
        ends = pa.array(range(0, PAYLOAD * (rows + 1), PAYLOAD), pa.int32())
        noise = pa.Array.from_buffers(
            pa.binary(), rows, [None, ends.buffers()[1], pa.py_buffer(os.urandom(PAYLOAD * rows))]
        )
        yield pa.RecordBatch.from_arrays([noise], ["payload"])


def timed(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def cpu_of(process: psutil.Process) -> float:
    spent = process.cpu_times()
    return float(spent.user + spent.system + spent.children_user + spent.children_system)


def cpu_of_executors(node: psutil.Process) -> float:
    """The JVM and the Python workers under it, living and dead."""
    children = psutil.Process().children(recursive=True)
    return sum(cpu_of(p) for p in children if p.pid != node.pid and p.is_running())


def noop(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


class Bench:
    """One run; figures are collected in order."""

    def __init__(self, spark: Any, url: str, node: psutil.Process, folder: Path, rows: int) -> None:
        self.spark, self.url, self.node, self.folder, self.rows = spark, url, node, folder, rows
        self.figures: list[Figure] = []

    def say(self, name: str, value: float, unit: str = "", **goal: Any) -> None:
        self.figures.append(Figure(name, value, unit, **goal))
        print(self.figures[-1], file=sys.stderr, flush=True)

    def table(self) -> str:
        """What the run found, for the page of benchmarks."""
        size = f"{self.rows / 1e6:g} million records of {PAYLOAD} bytes"
        head = (f"| Spark, {size} | figure | goal | |", "|---|---:|---:|---|")
        return "\n".join((*head, *map(str, self.figures)))

    def read(self, topic: str = TOPIC, **options: object) -> Any:
        reader = self.spark.read.format("polybus").option("url", self.url).option("topics", topic)
        return reader.options(**options).load()

    def fill(self) -> None:
        """The rows as Parquet, then from there into the node: what is timed is write and acknowledgement."""
        raw = str(self.folder / "raw")
        frame = self.spark.range(self.rows, numPartitions=10).mapInArrow(payloads, "payload binary")
        self.plain(frame).parquet(raw)
        source = self.spark.read.parquet(raw)
        # What Spark does once per session is not the writing of rows.
        self.write(source.limit(10_000), "warm")
        seconds = timed(lambda: self.write(source, TOPIC))
        self.say("write, acknowledged", self.rows / seconds / 1e6, "M rows/s", least=0.3, must=True)

    def write(self, frame: Any, topic: str) -> None:
        writer = frame.write.format("polybus").option("url", self.url).option("topic", topic)
        writer.mode("append").save()

    @staticmethod
    def plain(frame: Any) -> Any:
        return (
            frame.write.mode("overwrite")
            .option("compression", "none")
            .option("parquet.enable.dictionary", "false")
        )

    def read_all(self, tries: int) -> None:
        """The same rows, all columns, from everywhere."""
        rows = self.read()
        self.plain(rows).parquet(str(self.folder / "parquet"))
        texts = rows.selectExpr("* except (payload)", "base64(payload) as payload")
        texts.write.mode("overwrite").json(str(self.folder / "json"))
        naive = (
            self.spark.read.format("naive").option("url", self.url).option("topics", TOPIC).load()
        )
        sources = {
            "parquet": lambda: self.spark.read.parquet(str(self.folder / "parquet")),
            "polybus": self.read,
            "json": lambda: self.spark.read.schema(texts.schema).json(str(self.folder / "json")),
            "naive": lambda: naive,
        }
        rates: dict[str, list[float]] = {}
        share = 0.0
        for number in range(tries):
            for name, load in sources.items():
                if name == "naive" and number:
                    continue
                frame = load()
                before, node = cpu_of_executors(self.node), cpu_of(self.node)
                begin = time.perf_counter()
                noop(frame)
                seconds = time.perf_counter() - begin
                if name == "polybus":
                    share = (cpu_of(self.node) - node) / (cpu_of_executors(self.node) - before)
                rates.setdefault(name, []).append(self.rows / seconds / 1e6)
        ours = rates.pop("polybus")
        self.say("batch read", statistics.median(ours), "M rows/s")
        goals = {"parquet": 0.5, "json": 1.5, "naive": 2.5}
        words = {
            "parquet": "uncompressed plain Parquet",
            "json": "JSON lines",
            "naive": "a Python source of tuples",
        }
        for name, theirs in rates.items():
            told = f"batch read / {words[name]} ({statistics.median(theirs):.2f} M rows/s)"
            ratio = statistics.median(
                mine / other for mine, other in zip(ours, theirs, strict=False)
            )
            self.say(told, ratio, least=goals[name], must=True)
        self.say("CPU of the node / of the executors", share, most=0.33)

    def triggers(self, count: int = 15) -> None:
        """How long a trigger takes that reads a little, above one that reads nothing."""
        stop = threading.Event()

        def produce() -> None:
            import polybus

            with polybus.connect_sync(self.url) as bus:
                bus.declare_topic("ticks")
                while not stop.is_set():
                    bus.produce("ticks", b"tick")
                    stop.wait(0.02)

        thread = threading.Thread(target=produce)
        thread.start()
        time.sleep(1)
        ticks = self.spark.readStream.format("polybus").option("url", self.url)
        ticks = ticks.option("topics", "ticks").load()
        spent = {}
        for name, frame in (
            ("empty", self.spark.readStream.format("empty").load()),
            ("polybus", ticks),
        ):
            query = frame.writeStream.format("noop").start()
            while len([p for p in query.recentProgress if p["batchId"] > 2]) < count:
                time.sleep(0.1)
            times = [
                p["durationMs"]["triggerExecution"]
                for p in query.recentProgress
                if p["batchId"] > 2
            ]
            query.stop()
            spent[name] = statistics.median(times)
        stop.set()
        thread.join()
        self.say("stream trigger of an empty source", float(spent["empty"]), "ms")
        above = float(spent["polybus"] - spent["empty"])
        self.say("stream trigger above that", above, "ms", most=50)

    def calls(self) -> None:
        """Live calls through the same node, idle and during a scan of eight tasks."""
        idle = measure_calls(self.url)
        done = threading.Event()

        def scan() -> None:
            while not done.is_set():
                noop(self.read(rowsPerPartition=max(self.rows // 8, 1)))

        thread = threading.Thread(target=scan)
        thread.start()
        time.sleep(1)
        busy = measure_calls(self.url)
        done.set()
        thread.join()
        self.say("p99 of live calls, idle", idle, "ms")
        self.say("p99 of live calls during a scan of eight tasks / idle", busy / idle, most=2)

    def archive(self) -> None:
        """The whole pipeline, against copying the same rows from Parquet to Parquet."""
        from polybus.spark.pipelines.archive import archive
        from polybus.spark.pipelines.running import Bus

        lake = str(self.folder / "lake")
        bus = Bus(self.spark, self.url)
        seconds = timed(lambda: archive(bus, TOPIC, lake, max_rows=self.rows))
        rows = self.spark.read.parquet(str(self.folder / "parquet"))
        dated = rows.selectExpr("*", "date_format(timestamp, 'yyyy-MM-dd') as date")
        writer = dated.write.partitionBy("topic", "date").mode("overwrite")
        copy = timed(lambda: writer.parquet(str(self.folder / "copy")))
        self.say("archive into the lake", self.rows / seconds / 1e6, "M rows/s")
        self.say("archive / copy from Parquet to Parquet", copy / seconds)


def measure_calls(url: str) -> float:
    """p99 in ms, from a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__, "--caller", url], capture_output=True, text=True, check=True
    )
    return float(done.stdout)


async def call_for_a_while(url: str) -> float:
    import polybus

    times = []
    async with polybus.connect(url) as bus:

        @bus.serve(f"echo/{os.getpid()}")
        async def echo(body: bytes) -> bytes:
            return body

        await bus.call(f"echo/{os.getpid()}", b"warm")
        for _ in range(400):
            begin = time.perf_counter()
            await bus.call(f"echo/{os.getpid()}", b"x" * 100)
            times.append(time.perf_counter() - begin)
            await asyncio.sleep(0.005)
    return sorted(times)[int(len(times) * 0.99)] * 1000


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--quick", action="store_true", help="fewer rows, one try")
    parser.add_argument("--caller", help=argparse.SUPPRESS)
    parser.add_argument("--only", default=",".join(STEPS), help="steps, joined by commas")
    args = parser.parse_args()
    if args.caller:
        print(asyncio.run(call_for_a_while(args.caller)))
        return
    rows = 500_000 if args.quick else args.rows
    steps = args.only.split(",")
    from sources import Empty, Naive

    import polybus.spark

    os.environ["PYTHONPATH"] = os.pathsep.join((str(HERE), os.environ.get("PYTHONPATH", "")))
    with tempfile.TemporaryDirectory(prefix="polybus-bench-") as folder:
        process, url = start_node(f"{folder}/node")
        try:
            conf = {"spark.driver.memory": "3g", "spark.sql.files.maxPartitionBytes": "128m"}
            spark = polybus.spark.session("bench", "local[2]", conf)
            spark.sparkContext.setLogLevel("ERROR")
            for source in (Naive, Empty):
                spark.dataSource.register(source)
            bench = Bench(spark, url, psutil.Process(process.pid), Path(folder), rows)
            bench.fill()
            if "read" in steps:
                bench.read_all(1 if args.quick else 5)
            if "triggers" in steps:
                bench.triggers()
            if "calls" in steps:
                bench.calls()
            if "archive" in steps:
                bench.archive()
            spark.stop()
            print(bench.table())
        finally:
            process.terminate()
            process.wait()


if __name__ == "__main__":
    main()
