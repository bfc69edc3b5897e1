"""Measures the Spark connector against its goals, all in one run on one machine.

    python benches/spark/run.py [--rows 5000000] [--quick]

Goals marked * must be met: read at least 0.5 of plain Parquet*, 1.5 of JSON*, 2.5 of a naive source*; node CPU at most
a third of the executors'; write at least 0.3 M rows/s*; a trigger at most 50 ms above an empty source; p99 of live
calls during a scan of eight tasks at most twice its idle value.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
PAYLOAD = 200
TOPIC = "bench"


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


def cpu_of_executors() -> float:
    """The JVM and the Python workers under it, living and dead."""
    return sum(cpu_of(p) for p in psutil.Process().children(recursive=True) if p.is_running())


def noop(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


class Bench:
    """One run; results are collected by name."""

    def __init__(self, spark: Any, url: str, node: psutil.Process, folder: Path, rows: int) -> None:
        self.spark, self.url, self.node, self.folder, self.rows = spark, url, node, folder, rows
        self.found: dict[str, Any] = {"rows": rows, "payload_bytes": PAYLOAD}

    def say(self, name: str, value: Any) -> None:
        self.found[name] = value
        print(
            f"{name:42} {value:,.3f}" if isinstance(value, float) else f"{name:42} {value}",
            flush=True,
        )

    def read(self, topic: str = TOPIC, **options: object) -> Any:
        reader = self.spark.read.format("polybus").option("url", self.url).option("topics", topic)
        return reader.options(**options).load()

    def fill(self) -> None:
        """The rows as Parquet, then from there into the node: what is timed is write and acknowledgement."""
        raw = str(self.folder / "raw")
        frame = self.spark.range(self.rows, numPartitions=10).mapInArrow(payloads, "payload binary")
        self.plain(frame).parquet(raw)
        source = self.spark.read.parquet(raw)
        writer = source.write.format("polybus").option("url", self.url).option("topic", TOPIC)
        seconds = timed(lambda: writer.mode("append").save())
        self.say("write M rows/s (goal 0.3*)", self.rows / seconds / 1e6)

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
        best: dict[str, float] = {}
        for number in range(tries):
            for name, load in sources.items():
                if name == "naive" and number:
                    continue
                before, node = cpu_of_executors(), cpu_of(self.node)
                seconds = timed(lambda load=load: noop(load()))
                if name == "polybus":
                    spent = cpu_of_executors() - before
                    self.found["node cpu share"] = (cpu_of(self.node) - node) / spent
                best[name] = max(best.get(name, 0.0), self.rows / seconds / 1e6)
        for name, rate in best.items():
            self.say(f"read {name} M rows/s", rate)
        self.say("read / parquet (goal 0.5*, hoped 0.7)", best["polybus"] / best["parquet"])
        self.say("read / json (goal 1.5*)", best["polybus"] / best["json"])
        self.say("read / naive (goal 2.5*)", best["polybus"] / best["naive"])
        self.say("node cpu / executors cpu (goal 0.33)", float(self.found.pop("node cpu share")))

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
            self.say(f"trigger of {name} ms", float(spent[name]))
        stop.set()
        thread.join()
        self.say("trigger above empty ms (goal 50)", float(spent["polybus"] - spent["empty"]))

    def calls(self) -> None:
        """Live calls through the same node, idle and during a scan of eight tasks."""
        idle = measure_calls(self.url)
        frame = self.read(rowsPerPartition=max(self.rows // 8, 1))
        scan = threading.Thread(target=lambda: noop(frame))
        scan.start()
        time.sleep(1)
        busy = measure_calls(self.url)
        scan.join()
        self.say("call p99 idle ms", idle)
        self.say("call p99 during scan ms", busy)
        self.say("call p99 ratio (goal 2)", busy / idle)

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
        self.say("archive M rows/s", self.rows / seconds / 1e6)
        self.say("archive / parquet copy", copy / seconds)


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
    parser.add_argument("--only", help="steps, joined by commas: read,triggers,calls,archive")
    parser.add_argument("--json", type=Path, help="file for the results")
    args = parser.parse_args()
    if args.caller:
        print(asyncio.run(call_for_a_while(args.caller)))
        return
    rows = 500_000 if args.quick else args.rows
    steps = (args.only or "read,triggers,calls,archive").split(",")
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
                bench.read_all(1 if args.quick else 3)
            if "triggers" in steps:
                bench.triggers()
            if "calls" in steps:
                bench.calls()
            if "archive" in steps:
                bench.archive()
            spark.stop()
            if args.json:
                args.json.write_text(json.dumps(bench.found, indent=2) + "\n")
        finally:
            process.terminate()
            process.wait()


if __name__ == "__main__":
    main()
