"""The report as a browser shows it, at a desk and on a phone: charts drawn, nothing fetched, no text over another."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from polybus.model.journal import encode_row
from polybus.spark.pipelines import journal, report
from polybus.spark.pipelines.charts import NARROW, WIDE, charts, to_svg
from tests.spark.week import MONDAY, SECOND, week

PHONE, DESK = 390, 1280
# Within a frame of the window's width, since a browser's own window does not get as narrow as a phone.
FRAME = '<body style="margin:0"><iframe style="border:0;width:{width}px;height:{height}px" srcdoc="{page}"></iframe>'
LAYOUT, CONTRAST = (
    (Path(__file__).parent / name).read_text(encoding="utf-8")
    for name in ("layout.js", "contrast.js")
)
READABLE = 4.5  # of normal text, by WCAG 2.1, 1.4.3


@pytest.fixture(scope="module")
def page(spark, tmp_path_factory):
    payloads = [(encode_row(row),) for row in week()]
    frame = spark.createDataFrame(payloads, "payload binary").selectExpr("0L AS offset", "payload")
    file = tmp_path_factory.mktemp("report") / "week.html"
    report.write_report(journal.journal_rows(frame).persist(), file, "A week on the bus")
    return file.read_text(encoding="utf-8")


@pytest.fixture
def chromium(tmp_path):
    """Runs the browser without any name being resolved."""
    names = ("chromium", "chromium-browser", "google-chrome")
    browser = next((found for name in names if (found := shutil.which(name))), None)
    assert browser, "this test needs Chromium"
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"]
    flags += ["--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={tmp_path / 'profile'}"]

    def run(*args: str) -> str:
        done = subprocess.run([browser, *flags, *args], capture_output=True, text=True, timeout=90)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def framed(page: str, width: int, folder: Path) -> str:
    """The page in a window of that width, with the faults of its layout written into the outer page."""
    script = f"<script>onload=()=>parent.document.body.dataset.faults=JSON.stringify(({LAYOUT})())</script>"
    inner = (page + script).replace("&", "&amp;").replace('"', "&quot;")
    file = folder / f"{width}.html"
    file.write_text(FRAME.format(width=width, height=5000, page=inner), encoding="utf-8")
    return file.as_uri()


@pytest.mark.parametrize("width", [PHONE, DESK])
def test_a_browser_shows_all_of_the_report_and_no_text_lies_over_another(
    page, chromium, width, tmp_path
):
    shown = chromium("--dump-dom", f"--window-size={DESK},5000", framed(page, width, tmp_path))
    found = re.search(r'data-faults="(.*?)"', shown)
    assert found is not None
    seen = json.loads(found[1].replace("&quot;", '"').replace("&amp;", "&"))
    assert seen["faults"] == []
    assert seen["drawings"] == 4
    assert seen["smallest"] >= 9  # pixels: still read without a glass
    picture = tmp_path / "page.png"
    size = f"--window-size={max(width, 500)},5000"
    chromium(f"--screenshot={picture}", size, framed(page, width, tmp_path))
    assert picture.stat().st_size > 50_000  # an empty page is a tenth of that


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_every_text_stands_out_by_day_and_by_night(page, chromium, scheme, tmp_path):
    dark = "matchMedia('(prefers-color-scheme:dark)').matches"
    script = f"<script>onload=()=>document.title=[{dark},({CONTRAST})()]</script>"
    file = tmp_path / "page.html"
    file.write_text(page + script, encoding="utf-8")
    number = ("dark", "light").index(scheme)
    shown = chromium("--dump-dom", f"--blink-settings=preferredColorScheme={number}", file.as_uri())
    found = re.search(r"<title>(true|false),([\d.]+)</title>", shown)
    assert found is not None
    assert found[1] == ("true" if scheme == "dark" else "false")
    assert float(found[2]) >= READABLE


def test_the_report_tells_the_bad_afternoon(page):
    text = re.sub(r"<svg.*?</svg>", "", page, flags=re.S)
    times = sorted(row.time_us for row in week())
    first, last = (datetime.fromtimestamp(t / 1e6, UTC) for t in (times[0], times[-1]))
    assert f"{first:%-d %B %Y %H:%M} to {last:%-d %B %Y %H:%M} UTC" in text
    rows = re.findall(r"<tr><td>wallet/(?:pay|balance)</td><td>the call timed out</td>", text)
    assert len(rows) == 2
    assert "<td>app</td><td>stock/search</td>" in text
    assert "Nothing did." not in text


def test_a_period_without_messages_is_a_page_too(spark):
    empty = spark.createDataFrame([], "offset bigint, payload binary")
    page = report.page(report.measure(journal.journal_rows(empty)))
    assert "There were no messages in this period." in page
    assert "Nobody did." in page


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_charts_of_any_period_are_drawn_without_a_warning(width):
    for seconds in (
        0,
        1,
        90,
        3600,
        7000,
        86_400,
        180_000,
        250_000,
        3_000_000,
        9_000_000,
        90_000_000,
    ):
        times = [datetime.fromtimestamp(MONDAY / SECOND + seconds * i / 9, UTC) for i in range(10)]
        figures = SimpleNamespace(
            durations=[{"at": at, "p50_ms": 0.3, "p95_ms": None, "p99_ms": 90.0} for at in times],
            rates=[{"at": at, "wire": "t2", "rate": 0.001} for at in times],
            hours=[],
        )
        drawn = {name: to_svg(chart, name) for name, chart in charts(figures, width).items()}
        assert "messages per hour" in drawn["rates"]
