"""`report`: one self-contained page over a period of the journal, for people who do not read tables.

Invariant: the page needs nothing but itself: no script, no font, no picture from elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from html import escape
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from polybus.spark.pipelines.charts import NARROW, WIDE, charts, to_svg, unit_of, utc
from polybus.spark.pipelines.graph import NARROW as NARROW_DRAWING
from polybus.spark.pipelines.graph import draw, edges
from polybus.spark.pipelines.journal import failed, percentiles

HOUR = timedelta(hours=1)
UNITS = ("B", "kB", "MB", "GB", "TB")
QUICK = "How long calls took: half of them, 95 % and 99 % were at least as quick as their line."
STYLE = """body{font:16px/1.5 system-ui,sans-serif;margin:0;color:#223;background:#fff}
main{max-width:980px;margin:auto;padding:1.5em 1em 4em}
h1{margin:.2em 0 0;line-height:1.2}h2{margin:2em 0 .4em;padding-bottom:.2em;border-bottom:1px solid #ccd}
.note{color:#556;margin:.3em 0 .8em}svg{display:block;width:100%;height:auto}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(140px,1fr));gap:.8em}
.card{background:#f1f4fa;border-radius:8px;padding:.7em 1em;line-height:1.3;color:#445}
.card b{display:block;font-size:1.5em;color:#223;white-space:nowrap}
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:.93em}
td,th{padding:.35em .7em;text-align:left;border-bottom:1px solid #e4e6ee;white-space:nowrap}
th{color:#556;font-weight:600}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
.narrow{display:none}@media(max-width:640px){.wide{display:none}.narrow{display:block}}
@media(prefers-color-scheme:dark){body{background:#15171c;color:#dde1ea}h2{border-color:#3a3f4b}
.note,th{color:#a9b0c0}.card{background:#22262f;color:#b9c0d0}.card b{color:#eef1f7}td,th{border-color:#2d323d}
svg text{fill:#cdd2de!important}}"""


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
        *percentiles(),
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


def page(figures: Figures, title: str = "Traffic on the bus") -> str:
    """The whole report as HTML."""
    wide, narrow = charts(figures, WIDE), charts(figures, NARROW)
    drawn = {
        name: _both(to_svg(figure, f"wide-{name}"), to_svg(narrow[name], f"narrow-{name}"))
        for name, figure in wide.items()
    }
    parts = [
        f"<h1>{escape(title)}</h1>{_summary(figures)}",
        "<h2>How much</h2><p class=note>Messages by protocol. Times are UTC.</p>",
        drawn["rates"],
        f"<h2>How quick</h2><p class=note>{QUICK}</p>",
        drawn["latency"],
        "<h2>When</h2><p class=note>Messages by day and hour; darker is busier.</p>",
        drawn["heat"],
        "<h2>What went wrong</h2>",
        _table(ERRORS, figures.errors, "Nothing did."),
        "<h2>Who calls whom</h2><p class=note>Thicker is busier, redder fails more.</p>",
        _both(draw(figures.calls), draw(figures.calls, NARROW_DRAWING)) if figures.calls else "",
        _table(CALLS, figures.calls[:15], "Nobody did."),
        "<h2>Who talks most</h2>",
        _table(TALKERS, figures.talkers, "Nobody did."),
    ]
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width,initial-scale=1"><style>{STYLE}</style>'
        f"<main>{''.join(parts)}</main></html>"
    )


def _summary(figures: Figures) -> str:
    totals = figures.totals
    if not totals["rows"]:
        return "<p class=note>There were no messages in this period.</p>"
    share, p50, p99 = (
        totals["errors"] / totals["rows"],
        totals["p50_ms"] or 0,
        totals["p99_ms"] or 0,
    )
    cards = (
        (f"{totals['rows']:,}", "messages"),
        (f"{totals['calls']:,}", "of them calls"),
        (f"{share:.2%}", "went wrong"),
        (_ms(p50), "half of the calls were quicker"),
        (_ms(p99), "99 of 100 calls were quicker"),
        (_size(totals["bytes"] or 0), "moved"),
    )
    first, last = utc(totals["first"]), utc(totals["last"])
    clock = "%H:%M" if last - first >= HOUR else "%H:%M:%S"
    period = f"{first:%-d %B %Y {clock}} to {last:%-d %B %Y {clock}} UTC"
    told = "".join(f"<div class=card><b>{value}</b>{label}</div>" for value, label in cards)
    return f"<p class=note>{period}</p><div class=cards>{told}</div>"


def _both(wide: str, narrow: str) -> str:
    return f"<div class=wide>{wide}</div><div class=narrow>{narrow}</div>"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _ms(value: float) -> str:
    return f"{_short(value / 1000)} s" if value >= 1000 else f"{_short(value)} ms"


def _rate(value: float) -> str:
    unit, seconds = unit_of(value)
    return f"{_short(value * seconds)} per {unit}"


def _size(value: float) -> str:
    power = min(int(math.log10(value)) // 3, len(UNITS) - 1) if value >= 1 else 0
    return f"{_short(value / 1000**power)} {UNITS[power]}"


def _text(value: Any) -> str:
    return str(value or "–")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: what stands above it, where it is from, and how it is shown."""

    head: str
    key: str
    show: Callable[[Any], str] = _text
    number: bool = True


ERRORS = (
    Column("name", "name", number=False),
    Column("error", "error", number=False),
    Column("times", "times", "{:,}".format),
    Column("last (UTC)", "last", lambda time: f"{utc(time):%Y-%m-%d %H:%M:%S}"),
)
CALLS = (
    Column("who calls", "caller", number=False),
    Column("who answers", "name", number=False),
    Column("calls", "calls", "{:,}".format),
    Column("how often", "rate", _rate),
    Column("went wrong", "error_share", "{:.2%}".format),
    Column("99 of 100 within", "p99_ms", lambda value: _ms(value or 0)),
)
TALKERS = (
    Column("who", "caller", number=False),
    Column("messages", "messages", "{:,}".format),
    Column("bytes", "bytes", lambda value: _size(value or 0)),
)


def _table(columns: Sequence[Column], rows: Sequence[Any], nothing: str) -> str:
    if not rows:
        return f"<p>{nothing}</p>"
    marks = ["<{} class=n>" if column.number else "<{}>" for column in columns]
    head = "".join(
        f"{mark.format('th')}{column.head}</th>"
        for mark, column in zip(marks, columns, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(
            f"{mark.format('td')}{escape(column.show(row[column.key]))}</td>"
            for mark, column in zip(marks, columns, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    return f"<div class=scroll><table><tr>{head}</tr>{body}</table></div>"


def write_report(rows: DataFrame, file: Path, title: str, pictures: Path | None = None) -> Figures:
    """Measure, draw and write; pictures as PNG into a folder if one is named."""
    figures = measure(rows)
    file.write_text(page(figures, title), encoding="utf-8")
    if pictures is not None:
        pictures.mkdir(parents=True, exist_ok=True)
        for name, figure in charts(figures).items():
            figure.savefig(pictures / f"{name}.png", dpi=150)
    return figures
