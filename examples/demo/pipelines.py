"""After the show: the pipelines traffic, graph and report over the journal that it left.

Invariant: Spark runs in a process of its own, `python -m examples.demo.pipelines URL FOLDER SINCE`, which is ended like
any other; what Spark has to say is in `spark.log`.
"""

from __future__ import annotations

import subprocess
import sys
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from examples.demo.stage import NodeProcess

ROOT: Final = Path(__file__).parents[2]
WINDOW: Final = "5 seconds"  # the pipeline's own is a minute, which is longer than the demo
TITLE: Final = "Five systems on one bus"


class SparkFailed(Exception):
    """The pipelines did not come to their end."""


def missing() -> str:
    """What Spark needs and is not there; empty when it can run."""
    for module in ("pyspark", "matplotlib", "pyarrow"):
        if find_spec(module) is None:
            return module
    from polybus.spark.java import find_java_home

    return "" if find_java_home() else "Java"


def how_to(folder: Path) -> str:
    """The commands that do it by hand."""
    return (
        f"polybus serve --config {folder / 'node-1.toml'} --listen tcp://127.0.0.1:15555\n"
        f"polybus pipeline report {folder / 'report.html'}"
    )


def run(folder: Path, since: datetime) -> Path:
    """Run them against a node that is started again on the data; the report's file.

    Raises:
        SparkFailed.
    """
    node = NodeProcess(folder / "node-1.toml", "--listen", "tcp://127.0.0.1:0")
    try:
        where = (node.value("listening"), str(folder), since.isoformat())
        with (folder / "spark.log").open("ab") as log:
            spark = subprocess.Popen(
                [sys.executable, "-m", "examples.demo.pipelines", *where],
                cwd=ROOT,
                stderr=log,
                start_new_session=True,
            )
            try:
                if spark.wait():
                    raise SparkFailed(f"Spark failed; see {log.name}")
            finally:
                spark.terminate()
                spark.wait()
    finally:
        node.stop()
    return folder / "report.html"


def work(url: str, folder: Path, since: str) -> None:
    """What the process does; each line is what `polybus pipeline` does by hand."""
    from polybus.model.journal import TOPIC
    from polybus.spark import session
    from polybus.spark.pipelines.graph import draw, edges
    from polybus.spark.pipelines.journal import journal_rows
    from polybus.spark.pipelines.replay import select
    from polybus.spark.pipelines.report import write_report
    from polybus.spark.pipelines.running import Bus
    from polybus.spark.pipelines.traffic import run_traffic

    spark = session("polybus demo")
    spark.sparkContext.setLogLevel("ERROR")
    bus = Bus(spark, url)
    done = run_traffic(bus, str(folder / "lake"), window=WINDOW, lateness="1 second")
    print(f"traffic: {done.rows:,} records of the journal into {folder / 'lake'}", flush=True)
    rows = journal_rows(select(bus.read(TOPIC), since)).persist()
    found = edges(rows).collect()
    (folder / "graph.svg").write_text(draw(found), encoding="utf-8")
    print(f"graph: {len(found)} pairs of caller and service in {folder / 'graph.svg'}", flush=True)
    write_report(rows, folder / "report.html", TITLE)
    spark.stop()


if __name__ == "__main__":
    work(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
