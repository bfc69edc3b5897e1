"""The charts of a report, each once for a desk and once for a phone.

Invariant: a chart needs nothing but itself, its text stays text, and its ids are those of no other chart of the page.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDE: Final = 9.6  # inches at 72 points: what a page of 980 pixels shows at its own size
NARROW: Final = 4.4  # the same letters on a phone
DAYS: Final = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
COLOURS: Final = ("#2c6fbb", "#d9822b", "#3d9970", "#b5446e", "#7a5bb0", "#8a8f98")
SPEEDS: Final = (("half of the calls", "p50_ms"), ("95 %", "p95_ms"), ("99 %", "p99_ms"))
SETTINGS: Final[Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "polybus",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#99a",
    "axes.labelcolor": "#445",
    "xtick.color": "#445",
    "ytick.color": "#445",
}
MARGIN: Final = timedelta(seconds=30)  # around a single point
FAR: Final = 30  # times as slow: more does not fit one even scale
Series = Mapping[str, tuple[Sequence[Any], Sequence[Any]]]
_IDS: Final = re.compile(r'(\bid="|href="#|url\(#)')


def utc(value: datetime) -> datetime:
    """A time as Spark gives it, which is that of this machine's zone."""
    return value.astimezone(UTC)


def charts(figures: Any, width: float = WIDE) -> dict[str, Figure]:
    """The charts by name, from the numbers of a report."""
    import matplotlib

    durations = figures.durations
    times = [utc(row["at"]) for row in durations]
    speeds = {name: (times, [row[key] for row in durations]) for name, key in SPEEDS}
    with matplotlib.rc_context(SETTINGS):
        return {
            "rates": _rates(figures.rates, width),
            "latency": _lines(speeds, "milliseconds", width),
            "heat": _heat(figures.hours, width),
        }


def by_wire(rates: Sequence[Any]) -> Series:
    """The rate of every protocol over time, zero where nothing of it came."""
    times = sorted({row["at"] for row in rates})
    wires = sorted({row["wire"] or "?" for row in rates})
    known = {(row["wire"] or "?", row["at"]): row["rate"] for row in rates}
    shown = [utc(time) for time in times]
    return {wire: (shown, [known.get((wire, time), 0.0) for time in times]) for wire in wires}


def unit_of(rate: float) -> tuple[str, int]:
    """The largest unit of time in which a rate per second is no small fraction, and its seconds."""
    return ("second", 1) if rate >= 1 else ("minute", 60) if rate >= 1 / 60 else ("hour", 3600)


def _rates(rates: Sequence[Any], width: float) -> Figure:
    unit, seconds = unit_of(max((row["rate"] for row in rates), default=1.0))
    scaled = {
        wire: (times, [value * seconds for value in values])
        for wire, (times, values) in by_wire(rates).items()
    }
    return _lines(scaled, f"messages per {unit}", width)


def _figure(width: float, height: float) -> tuple[Figure, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


def _lines(series: Series, unit: str, width: float) -> Figure:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    figure, axes = _figure(width, 3.1)
    for number, (name, (times, values)) in enumerate(series.items()):
        style = {"color": COLOURS[number % len(COLOURS)], "marker": "o" if len(times) < 3 else ""}
        axes.plot(times, values, label=name, linewidth=1.8, **style)
    axes.set_ylabel(unit)
    known = [value for _, values in series.values() for value in values if value]
    if unit == "milliseconds" and known and max(known) > FAR * min(known):
        # Else what most calls took would lie on the ground, under the peaks of a few.
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
    else:
        axes.set_ylim(bottom=0)
    axes.grid(axis="y", alpha=0.3)
    if shown := sorted({time for times, _ in series.values() for time in times}):
        if len(shown) == 1:
            axes.set_xlim(shown[0] - MARGIN, shown[0] + MARGIN)
        # matplotlib's dates have no types of their own.
        locate: Any = AutoDateLocator
        label: Any = ConciseDateFormatter
        # With fewer than two it takes a finer unit, of which the most never suffice.
        locator = locate(minticks=2, maxticks=8 if width > NARROW else 5)
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(label(locator))
        # Above the chart: inside it would lie upon some line or other.
        columns = 6 if width > NARROW else max(3, min(len(series), 4))
        figure.legend(loc="outside upper left", frameon=False, ncols=columns, columnspacing=1.2)
    return figure


def _heat(hours: Sequence[Any], width: float) -> Figure:
    # Spark counts days from Sunday, as 1; only days that the period has are shown.
    counts = {((row["day"] + 5) % 7, row["hour"]): row["count"] for row in hours}
    days = sorted({day for day, _ in counts}) or [0]
    cells = [[counts.get((day, hour), 0) for hour in range(24)] for day in days]
    figure, axes = _figure(width, 1.2 + 0.26 * len(days))
    mesh = axes.pcolormesh(
        range(25), range(len(days) + 1), cells, cmap="Blues", vmin=0, edgecolors="white"
    )
    axes.invert_yaxis()
    axes.set_yticks(
        [number + 0.5 for number in range(len(days))],
        [DAYS[day] if width > NARROW else DAYS[day][:3] for day in days],
    )
    step = 2 if width > NARROW else 6
    axes.set_xticks(
        [hour + 0.5 for hour in range(0, 24, step)], [f"{hour:02d}" for hour in range(0, 24, step)]
    )
    axes.tick_params(length=0)
    axes.set_frame_on(False)
    axes.set_xlabel("hour of the day (UTC)")
    bar = figure.colorbar(mesh, label="messages", pad=0.01, format="{x:,.0f}")
    bar.outline.set_visible(False)
    bar.ax.locator_params(nbins=4)
    return figure


def to_svg(figure: Figure, name: str) -> str:
    """A chart as it stands in a page, where ids are prefixed by `name`."""
    import matplotlib

    out = io.StringIO()
    with matplotlib.rc_context(SETTINGS):
        figure.savefig(out, format="svg", metadata={"Date": None}, transparent=True)
    text = out.getvalue()
    return _IDS.sub(rf"\g<1>{name}-", text[text.index("<svg") :])
