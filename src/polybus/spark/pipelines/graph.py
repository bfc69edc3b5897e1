"""`graph`: who calls whom, across systems, as a table and as a drawing.

Invariant: an edge is a caller and the name that answered; its numbers are those of the rows in the period.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from html import escape
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from polybus.spark.pipelines.journal import failed, percentiles

WIDE, NARROW = 860, 420  # of a drawing for a desk and one for a phone
LABELS = 0.33  # the part of the width that the names of each side have
ROW, TOP = 30, 44  # pixels from name to name, and above the first
LETTER = 7.6  # the width of a letter
MAX_EDGES = 60  # more cannot be told apart on one page


def edges(rows: DataFrame) -> DataFrame:
    """Calls of journal rows by caller and name: rate per second over the period, share of errors, p99."""
    calls = rows.where(F.col("kind") == "call")
    grouped = calls.groupBy(F.coalesce("caller", F.lit("")).alias("caller"), "name").agg(
        F.first("wire_in").alias("wire_in"),
        F.first("wire_out").alias("wire_out"),
        F.count("*").alias("calls"),
        (F.count_if(failed()) / F.count("*")).alias("error_share"),
        percentiles()[2],
    )
    period = calls.agg(
        F.greatest(
            (F.unix_micros(F.max("time")) - F.unix_micros(F.min("time"))) / 1_000_000, F.lit(1.0)
        ).alias("seconds")
    )
    found = grouped.crossJoin(F.broadcast(period)).withColumn(
        "rate", F.round(F.col("calls") / F.col("seconds"), 6)
    )
    return found.drop("seconds").orderBy(F.desc("calls"), "caller", "name")


def draw(found: Sequence[Any], width: int = WIDE) -> str:
    """Edges as an SVG drawing: callers at the left, who answers at the right, the busiest above.

    A line is as thick as it is busy, and as red as it fails.
    """
    shown = list(found)[:MAX_EDGES]
    callers, names = (_busiest_first(shown, side) for side in ("caller", "name"))
    left = {name: TOP + ROW * number for number, name in enumerate(callers)}
    right = {name: TOP + ROW * number for number, name in enumerate(names)}
    height = TOP + ROW * max(len(left), len(right), 1)
    most = max((edge.calls for edge in shown), default=1)
    margin = width * LABELS
    # Thin ones last, so that thick ones do not hide them.
    lines = [_line(edge, left, right, (margin, width - margin), most) for edge in shown]
    nodes = [_node(name, margin, y, "end") for name, y in left.items()]
    nodes += [_node(name, width - margin, y, "start") for name, y in right.items()]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        'font-family="system-ui,sans-serif" font-size="14"><title>Who calls whom</title><g fill="#667">'
        f'<text x="{margin - 12:.0f}" y="18" text-anchor="end">who calls</text>'
        f'<text x="{width - margin + 12:.0f}" y="18">who answers</text></g>'
        f"{''.join(lines)}{''.join(nodes)}</svg>"
    )


def _busiest_first(shown: Sequence[Any], side: str) -> list[str]:
    calls: Counter[str] = Counter()
    for edge in shown:
        calls[getattr(edge, side) or "?"] += edge.calls
    return [name for name, _ in calls.most_common()]


def _line(
    edge: Any, left: dict[str, int], right: dict[str, int], ends: tuple[float, float], most: int
) -> str:
    (x1, x2), y1, y2 = ends, left[edge.caller or "?"], right[edge.name]
    middle = (x1 + x2) / 2
    told = (
        f"{edge.caller or '?'} → {edge.name}: {edge.calls:,} calls, {edge.rate:g}/s, "
        f"{edge.error_share:.1%} errors, p99 {edge.p99_ms or 0:.1f} ms"
    )
    # A few errors in a hundred must be seen: half of the way to red is at 5 %.
    red = min(math.sqrt(edge.error_share * 5), 1.0)
    colour = ",".join(str(round(a + (b - a) * red)) for a, b in ((90, 214), (130, 40), (180, 40)))
    return (
        f'<path d="M{x1:.0f} {y1}C{middle:.0f} {y1} {middle:.0f} {y2} {x2:.0f} {y2}" fill="none" '
        f'stroke="rgb({colour})" stroke-width="{1.5 + 9 * math.sqrt(edge.calls / most):.1f}" '
        f'stroke-opacity="0.6"><title>{escape(told)}</title></path>'
    )


def _node(name: str, x: float, y: int, side: str) -> str:
    room = int((x if side == "end" else x / (1 - LABELS) * LABELS) / LETTER) - 1
    short = name if len(name) <= room else f"{name[: room // 2]}…{name[-((room - 1) // 2) :]}"
    return (
        f'<circle cx="{x:.0f}" cy="{y}" r="5" fill="#2c6fbb"/>'
        f'<text x="{x + (-12 if side == "end" else 12):.0f}" y="{y + 5}" text-anchor="{side}">'
        f"{escape(short)}<title>{escape(name)}</title></text>"
    )
