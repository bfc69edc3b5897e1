"""`report`: one self-contained page over a period of the journal, for people who do not read tables.

Invariant: the page needs nothing but itself: no script, no font, no picture from elsewhere.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from polybus.spark.pipelines.graph import draw, edges
from polybus.spark.pipelines.journal import failed, percentiles

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
STYLE = """body{font:16px/1.5 system-ui,sans-serif;max-width:980px;margin:2em auto;padding:0 1em;color:#223}
h1{margin-bottom:0}h2{margin-top:2em;border-bottom:1px solid #ccd}table{border-collapse:collapse;width:100%}
td,th{padding:.3em .6em;text-align:left;border-bottom:1px solid #e4e6ee}td.n,th.n{text-align:right}
.cards{display:flex;gap:1em;flex-wrap:wrap}.card{background:#f3f5fa;border-radius:8px;padding:.8em 1.2em}
.card b{display:block;font-size:1.6em}svg{width:100%;height:auto}p.note{color:#667}"""


@dataclass(frozen=True, slots=True)
class Figures:
    """The numbers of a report, small enough for one page."""

    totals: Any
    rates: Sequence[Any]
    durations: Sequence[Any]
    hours: Sequence[Any]
    errors: Sequence[Any]
    calls: Sequence[Any]
    talkers: Sequence[Any]


def measure(rows: DataFrame, points: int = 120) -> Figures:
    """All the numbers of a report from journal rows."""
    totals = rows.agg(
        F.min("time").alias("first"),
        F.max("time").alias("last"),
        F.count("*").alias("rows"),
        F.count_if(F.col("kind") == "call").alias("calls"),
        F.count_if(failed()).alias("errors"),
        F.sum(F.col("bytes_in") + F.col("bytes_out")).alias("bytes"),
        percentiles()[2],
    ).first()
    assert totals is not None
    seconds = (totals["last"] - totals["first"]).total_seconds() if totals["rows"] else 0
    step = max(int(seconds / points), 1)
    at = F.window("time", f"{step} seconds")["start"].alias("at")
    rates = rows.groupBy(at, F.col("wire_in").alias("wire")).agg(
        (F.count("*") / step).alias("rate")
    )
    durations = rows.where(F.col("kind") == "call").groupBy(at).agg(*percentiles())
    hours = rows.groupBy(F.dayofweek("time").alias("day"), F.hour("time").alias("hour")).count()
    errors = rows.where(failed()).groupBy(
        "name", "status", F.coalesce("error", F.lit("")).alias("error")
    )
    talkers = rows.groupBy(F.coalesce("caller", F.lit("")).alias("caller"))
    size = F.sum(F.col("bytes_in") + F.col("bytes_out")).alias("bytes")
    return Figures(
        totals,
        rates.orderBy("at", "wire").collect(),
        durations.orderBy("at").collect(),
        hours.collect(),
        errors.agg(F.count("*").alias("times"), F.max("time").alias("last"))
        .orderBy(F.desc("times"), "name")
        .limit(20)
        .collect(),
        edges(rows).limit(60).collect(),
        talkers.agg(F.count("*").alias("messages"), size)
        .orderBy(F.desc("messages"), "caller")
        .limit(15)
        .collect(),
    )


def charts(figures: Figures) -> dict[str, Figure]:
    """The charts by name."""
    return {
        "rates": _lines(_by_wire(figures.rates), "messages per second"),
        "latency": _lines(
            {
                name: (
                    [row["at"] for row in figures.durations],
                    [row[key] for row in figures.durations],
                )
                for name, key in (("p50", "p50_ms"), ("p95", "p95_ms"), ("p99", "p99_ms"))
            },
            "milliseconds",
        ),
        "heat": _heat(figures.hours),
    }


def _by_wire(rates: Sequence[Any]) -> dict[str, tuple[list[Any], list[Any]]]:
    found: dict[str, tuple[list[Any], list[Any]]] = {}
    for row in rates:
        times, values = found.setdefault(row["wire"] or "?", ([], []))
        times.append(row["at"])
        values.append(row["rate"])
    return found


def _figure(height: float) -> tuple[Figure, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.6, height), layout="constrained")
    return figure, figure.add_subplot()


def _lines(series: dict[str, tuple[list[Any], list[Any]]], unit: str) -> Figure:
    figure, axes = _figure(3.2)
    for name, (times, values) in series.items():
        axes.plot(times, values, label=name, linewidth=1.6, marker="." if len(times) < 3 else "")
    axes.set_ylabel(unit)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    if series:
        axes.legend(frameon=False, ncols=min(len(series), 6))
    figure.autofmt_xdate(rotation=20)
    return figure


def _heat(hours: Sequence[Any]) -> Figure:
    cells = [[0] * 24 for _ in DAYS]
    for row in hours:
        cells[row["day"] - 1][row["hour"]] = row["count"]
    figure, axes = _figure(2.8)
    image = axes.imshow(cells, aspect="auto", cmap="YlGnBu")
    axes.set_yticks(range(7), DAYS)
    axes.set_xticks(range(0, 24, 2), [f"{hour:02d}" for hour in range(0, 24, 2)])
    axes.set_xlabel("hour of the day (UTC)")
    figure.colorbar(image, label="messages")
    return figure


def to_svg(figure: Figure) -> str:
    """A chart as it stands in a page."""
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue()
    return text[text.index("<svg") :]


def page(figures: Figures, title: str = "Traffic on the bus") -> str:
    """The whole report as HTML."""
    totals = figures.totals
    drawn = {name: to_svg(figure) for name, figure in charts(figures).items()}
    period = (
        f"{totals['first']:%Y-%m-%d %H:%M} to {totals['last']:%Y-%m-%d %H:%M} UTC"
        if totals["rows"]
        else "no messages"
    )
    share = totals["errors"] / totals["rows"] if totals["rows"] else 0
    cards = (
        (f"{totals['rows']:,}", "messages"),
        (f"{totals['calls']:,}", "calls"),
        (f"{share:.2%}", "went wrong"),
        (f"{totals['p99_ms'] or 0:,.1f} ms", "99 of 100 calls were quicker"),
        (f"{(totals['bytes'] or 0) / 1e6:,.1f} MB", "moved"),
    )
    parts = [
        f"<h1>{escape(title)}</h1><p class=note>{period}</p><div class=cards>",
        *(f"<div class=card><b>{value}</b>{label}</div>" for value, label in cards),
        "</div><h2>How much</h2>",
        drawn["rates"],
        "<h2>How quick</h2><p class=note>Half of the calls were quicker than p50, 99 of 100 quicker than p99.</p>",
        drawn["latency"],
        "<h2>When</h2>",
        drawn["heat"],
        "<h2>What went wrong</h2>",
        _table(("name", "error", "times", "last"), figures.errors, "Nothing did."),
        "<h2>Who calls whom</h2><p class=note>Thicker is busier, redder fails more.</p>",
        draw(figures.calls),
        _table(
            ("caller", "name", "calls", "rate", "error_share", "p99_ms"),
            figures.calls[:15],
            "Nobody did.",
        ),
        "<h2>Who talks most</h2>",
        _table(("caller", "messages", "bytes"), figures.talkers, "Nobody did."),
    ]
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style>{"".join(parts)}</html>'
    )


def _table(columns: Sequence[str], rows: Sequence[Any], nothing: str) -> str:
    if not rows:
        return f"<p>{nothing}</p>"
    head = "".join(f"<th>{escape(column.replace('_', ' '))}</th>" for column in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(_cell(row[column]))}</td>" for column in columns) + "</tr>"
        for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.3g}"
    return f"{value:%Y-%m-%d %H:%M:%S}" if hasattr(value, "strftime") else str(value or "–")


def write_report(rows: DataFrame, file: Path, title: str, pictures: Path | None = None) -> Figures:
    """Measure, draw and write; pictures as PNG into a folder if one is named."""
    figures = measure(rows)
    file.write_text(page(figures, title), encoding="utf-8")
    if pictures is not None:
        pictures.mkdir(parents=True, exist_ok=True)
        for name, figure in charts(figures).items():
            figure.savefig(pictures / f"{name}.png", dpi=150)
    return figures
