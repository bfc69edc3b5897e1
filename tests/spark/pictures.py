"""Draws the pictures of docs/spark/img anew from what pipelines find in a real node: `python -m tests.spark.pictures`.

Invariant: every picture shows what a pipeline made; the rows of the journal are those of `week`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random
from typing import Any

import matplotlib
from matplotlib.figure import Figure

import polybus
import polybus.spark
from polybus.model.journal import (
    CALL_ID,
    CALL_NAME,
    CALL_STATUS,
    REPLY_TAG,
    REQUEST_TAG,
    TOPIC,
    encode_row,
)
from polybus.model.record import NewRecord
from polybus.spark.pipelines import (
    archive,
    deadletters,
    graph,
    lake,
    latency,
    replay,
    report,
    traffic,
)
from polybus.spark.pipelines.charts import COLOURS, SETTINGS
from polybus.spark.pipelines.journal import journal_rows
from polybus.spark.pipelines.running import Bus
from tests.cli.processes import ANY_PORT, node
from tests.spark.week import CALLS, week

IMAGES = Path(__file__).parents[2] / "docs" / "spark" / "img"
SECONDS = 5  # a topic takes times from its declaration until now, so calls must fit in there


def fill(bus: Any) -> None:
    """All that the pipelines are to find."""
    random = Random(3)
    bus.produce_many(TOPIC, [encode_row(row) for row in week()], create=True)
    declared = bus.declare_topic("captured").created_ms
    bus.declare_topic("orders")
    time.sleep(SECONDS + 1)
    halves = []
    for number in range(3000):
        _, name, _, _, _, ms = random.choice(CALLS)
        asked = declared + random.uniform(0, SECONDS - 2) * 1000
        headers = {CALL_ID: str(number), CALL_NAME: name, CALL_STATUS: "0"}
        halves.append((asked, NewRecord(b"?", b"", REQUEST_TAG, headers, "", int(asked))))
        if random.random() > 0.02:
            done = asked + min(random.lognormvariate(0, 0.6) * ms, 900)
            halves.append((done, NewRecord(b"!", b"", REPLY_TAG, headers, "", int(done))))
    halves.append((1 << 50, NewRecord(b"", time_ms=declared + (SECONDS + 1) * 1000)))
    halves.sort(key=lambda half: half[0])
    bus.produce_many("captured", [record for _, record in halves])
    for topic, count in (("orders", 1500), ("orders/eu", 640), ("prices", 2210)):
        bus.declare_topic(topic)
        for _ in range(0, count, count // 10):
            bus.produce_many(topic, [b"{}"] * (count // 10))
            time.sleep(0.05)
    causes = random.choices(("attempts", "expired", "refused"), (6, 3, 1), k=180)
    for topic, some in (("orders", causes[:130]), ("prices", causes[130:])):
        marks = {"dead-topic": topic, "dead-group": "billing"}
        letters = [NewRecord(b"{}", headers={**marks, "dead-cause": cause}) for cause in some]
        bus.produce_many(f"{topic}.dead", letters, create=True)


def chart(height: float, **labels: str) -> tuple[Figure, Any]:
    figure = Figure(figsize=(9.6, height), layout="constrained")
    axes = figure.add_subplot()
    axes.set(**labels)
    return figure, axes


def bars(counts: dict[str, float], label: str) -> Figure:
    figure, axes = chart(0.8 + 0.4 * len(counts), xlabel=label)
    drawn = axes.barh(list(counts), list(counts.values()), color=COLOURS[0], height=0.6)
    axes.bar_label(drawn, fmt="{:,.0f}", padding=4)
    axes.invert_yaxis()
    return figure


def draw_archive(bus: Bus, folder: str) -> Figure:
    archive.archive(bus, "orders,orders/eu,prices", folder)
    found = lake.read(bus.spark, folder).groupBy("topic").count().orderBy("topic").collect()
    return bars({row.topic: row["count"] for row in found}, "records in the lake")


def draw_traffic(bus: Bus, folder: str) -> Figure:
    traffic.run_traffic(bus, folder, window="30 minutes")
    rows = lake.read(bus.spark, folder, "traffic")
    found = rows.groupBy("start", "protocol").sum("calls").orderBy("start").collect()
    figure, axes = chart(3.2, ylabel="calls in half an hour")
    for number, wire in enumerate(sorted({row.protocol for row in found})):
        points = [row for row in found if row.protocol == wire]
        values = [row["sum(calls)"] for row in points]
        axes.plot([row.start for row in points], values, label=wire, color=COLOURS[number])
    figure.legend(loc="outside upper left", frameon=False, ncols=4)
    return figure


def draw_latency(bus: Bus, folder: str) -> Figure:
    latency.run_latency(bus, "captured", folder, patience="1 second", lateness="0 seconds")
    found = latency.latency(lake.read(bus.spark, folder, "calls")).orderBy("p50_ms").collect()
    figure, axes = chart(3.6, xlabel="milliseconds: half, 95 % and 99 % of the calls were quicker")
    for number, row in enumerate(found):
        axes.plot([row.p50_ms, row.p99_ms], [number, number], color="#ccd", zorder=1, linewidth=3)
    for key, colour in zip(("p50_ms", "p95_ms", "p99_ms"), COLOURS, strict=False):
        axes.scatter([row[key] for row in found], range(len(found)), color=colour, label=key[:3])
    axes.set_yticks(
        range(len(found)),
        [f"{row.name}, {row.unanswered} of {row.requests} unanswered" for row in found],
    )
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.legend(frameon=False, loc="lower right")
    return figure


def draw_deadletters(bus: Bus, folder: str) -> Figure:
    found = deadletters.run_deadletters(bus).collect()
    return bars({f"{row.source}: {row.cause}": row.letters for row in found}, "dead letters")


def draw_replay(bus: Bus, folder: str) -> Figure:
    replay.replay(bus, bus.read("orders"), "orders-again", rate=100)
    figure, axes = chart(3.2, xlabel="seconds", ylabel="records so far")
    for topic, colour in (("orders", COLOURS[0]), ("orders-again", COLOURS[1])):
        rows = bus.read(topic).selectExpr("unix_millis(timestamp) AS at").orderBy("at").collect()
        seconds = [(row.at - rows[0].at) / 1000 for row in rows]
        axes.step(seconds, range(1, len(rows) + 1), color=colour, label=topic, where="post")
    axes.legend(frameon=False)
    return figure


def draw_pages(bus: Bus, folder: str) -> None:
    """The report and the drawing of the graph, as a browser shows them."""
    rows = journal_rows(bus.read(TOPIC)).persist()
    report.write_report(rows, Path(folder) / "report.html", "A week on the bus")
    drawing = graph.draw(graph.edges(rows).collect())
    page = f'<meta charset="utf-8"><body style="margin:0;background:#fff">{drawing}'
    (Path(folder) / "graph.html").write_text(page, encoding="utf-8")
    browser = shutil.which("chromium") or "google-chrome"
    flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}/profile"]
    for name, size in (("report", "1000,2620"), ("graph", "860,260")):
        picture = f"--screenshot={IMAGES / name}.png"
        where = (Path(folder) / f"{name}.html").as_uri()
        command = [browser, *flags, "--hide-scrollbars", f"--window-size={size}", picture, where]
        subprocess.run(command, check=True, capture_output=True)


DRAWN = (draw_archive, draw_traffic, draw_latency, draw_deadletters, draw_replay)


def main(names: list[str]) -> None:
    """Draw those of some pipelines, or all."""
    with tempfile.TemporaryDirectory() as folder:
        running = node("--listen", ANY_PORT, "--data", f"{folder}/node")
        with running as (_, where), polybus.connect_sync(where[0]) as client:
            fill(client)
            bus = Bus(polybus.spark.session("pictures", "local[2]"), where[0])
            with matplotlib.rc_context(SETTINGS):
                for draw in DRAWN:
                    name = draw.__name__.removeprefix("draw_")
                    if not names or name in names:
                        draw(bus, f"{folder}/{name}").savefig(IMAGES / f"{name}.png", dpi=100)
            if not names or "report" in names:
                draw_pages(bus, folder)
            bus.spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
