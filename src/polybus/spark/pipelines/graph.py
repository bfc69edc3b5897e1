"""`graph`: who calls whom, across systems, as a table and as a drawing.

Invariant: an edge is a caller and the name that answered; its numbers are those of the rows in the period.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from polybus.spark.pipelines.journal import failed, percentiles

WIDTH, HEIGHT, RADIUS = 860, 620, 240
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
        "rate", F.round(F.col("calls") / F.col("seconds"), 3)
    )
    return found.drop("seconds").orderBy(F.desc("calls"), "caller", "name")


def draw(found: Sequence[Any]) -> str:
    """Edges as an SVG drawing: names on a circle, lines as thick as they are busy, red as they fail."""
    shown = list(found)[:MAX_EDGES]
    names = sorted({edge.caller or "?" for edge in shown} | {edge.name for edge in shown})
    at = {}
    for number, name in enumerate(names):
        angle = 2 * math.pi * number / max(len(names), 1) - math.pi / 2
        at[name] = (
            WIDTH / 2 + RADIUS * 1.25 * math.cos(angle),
            HEIGHT / 2 + RADIUS * math.sin(angle),
        )
    busiest = max((edge.calls for edge in shown), default=1)
    lines = [_line(edge, at, busiest) for edge in shown]
    nodes = [_node(name, *at[name]) for name in names]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        'font-family="sans-serif" font-size="13"><title>Who calls whom</title>'
        '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="13" markerHeight="13" '
        'markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0L10 5L0 10z" fill="#667"/></marker></defs>'
        f"{''.join(lines)}{''.join(nodes)}</svg>"
    )


def _line(edge: Any, at: dict[str, tuple[float, float]], busiest: int) -> str:
    (x1, y1), (x2, y2) = at[edge.caller or "?"], at[edge.name]
    length = math.hypot(x2 - x1, y2 - y1) or 1.0
    # It ends at the rim of the circle that stands for the name.
    x2, y2 = x2 - (x2 - x1) / length * 12, y2 - (y2 - y1) / length * 12
    width = 1 + 6 * math.sqrt(edge.calls / busiest)
    red = min(int(255 * math.sqrt(edge.error_share)), 255)
    told = (
        f"{edge.caller or '?'} → {edge.name}: {edge.calls} calls, {edge.rate:g}/s, "
        f"{edge.error_share:.1%} errors, p99 {edge.p99_ms or 0:.1f} ms"
    )
    bend_x, bend_y = (x1 + x2) / 2 + (y2 - y1) * 0.12, (y1 + y2) / 2 - (x2 - x1) * 0.12
    return (
        f'<path d="M{x1:.0f} {y1:.0f}Q{bend_x:.0f} {bend_y:.0f} {x2:.0f} {y2:.0f}" fill="none" '
        f'stroke="rgb({80 + red * 140 // 255},{110 - red // 4},{170 - red // 2})" stroke-width="{width:.1f}" '
        f'stroke-opacity="0.75" marker-end="url(#tip)"><title>{escape(told)}</title></path>'
    )


def _node(name: str, x: float, y: float) -> str:
    side = "start" if x >= WIDTH / 2 else "end"
    shift = 14 if side == "start" else -14
    return (
        f'<circle cx="{x:.0f}" cy="{y:.0f}" r="8" fill="#2c6fbb"/>'
        f'<text x="{x + shift:.0f}" y="{y + 5:.0f}" text-anchor="{side}">{escape(name)}</text>'
    )
