"""The report as a browser shows it: charts drawn, nothing fetched, text readable."""

from __future__ import annotations

import math
import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from polybus.spark.pipelines.report import Figures, page

pytestmark = [
    pytest.mark.browser,
    pytest.mark.timeout(120),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
START = datetime(2026, 1, 9, tzinfo=UTC)


class Row(dict[str, Any]):
    """A row as Spark gives it: by key and by attribute."""

    __getattr__ = dict.__getitem__


def figures() -> Figures:
    times = [START + timedelta(minutes=10 * i) for i in range(100)]
    edges = [
        Row(caller=f"app{i % 4}", name=f"svc/{i % 5}", calls=10 + 40 * i, rate=0.5 * i,
            error_share=0.02 * (i % 6), p99_ms=3.0 * i)
        for i in range(12)
    ]  # fmt: skip
    return Figures(
        Row(first=times[0], last=times[-1], rows=123_456, calls=100_000, errors=321, bytes=98_765_432, p99_ms=41.5),
        [
            Row(at=t, wire=wire, rate=40 * k + 20 * math.sin(i / (5 + k)))
            for i, t in enumerate(times)
            for k, wire in enumerate(("gsb", "t2", "zbus", "rmb"), 1)
        ],
        [Row(at=t, p50_ms=2.0, p95_ms=9.0 + i % 5, p99_ms=20.0 + i % 11) for i, t in enumerate(times)],
        [Row(day=d, hour=h, count=d * abs(12 - h) * 10) for d in range(1, 8) for h in range(24)],
        [Row(name="svc/1", status=5, error="timed out", times=300, last=times[-1])],
        edges,
        [Row(caller="app0", messages=90_000, bytes=5_000_000)],
    )  # fmt: skip


def test_a_browser_draws_the_report_without_asking_anybody(tmp_path):
    browser = (
        shutil.which("chromium")
        or shutil.which("chromium-browser")
        or shutil.which("google-chrome")
    )
    assert browser, "this test needs Chromium"
    file, picture = tmp_path / "report.html", tmp_path / "report.png"
    file.write_text(page(figures(), "Last week on the bus"), encoding="utf-8")
    common = [
        browser,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--host-resolver-rules=MAP * ~NOTFOUND",
    ]
    common += [f"--user-data-dir={tmp_path / 'profile'}"]
    shown = subprocess.run(
        [*common, "--dump-dom", file.as_uri()], capture_output=True, text=True, timeout=60
    )
    assert shown.stdout.count("<svg") == 4
    assert "Who calls whom" in shown.stdout
    subprocess.run(
        [*common, f"--screenshot={picture}", "--window-size=1000,2600", file.as_uri()],
        capture_output=True,
        timeout=60,
    )
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 50_000  # an empty page is a tenth of that
