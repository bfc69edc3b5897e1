"""What the pages about Spark show is done, line by line, and brings what they say."""

from __future__ import annotations

import runpy
import shlex
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from polybus.cli import pipeline as verbs
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
from polybus.spark.pipelines import lake
from polybus.spark.pipelines.running import Bus
from tests.pages import blocks
from tests.spark.week import week

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "spark"


@pytest.fixture(scope="module")
def filled(served):
    """The topics that the pages speak of."""
    orders = [NewRecord(b'{"sum": %d}' % i, tag="vip" if i % 4 == 0 else "") for i in range(40)]
    served.topic(*orders, name="orders")
    served.topic(*orders[:5], name="orders/eu")
    served.topic(b'{"eur": 1.1}', name="prices")
    marks = {"dead-topic": "orders", "dead-group": "billing"}
    letters = [
        NewRecord(b"order %d" % i, headers={**marks, "dead-cause": cause})
        for i, cause in enumerate(["expired", "attempts", "expired", "refused"])
    ]
    served.topic(*letters, name="orders.dead")
    served.topic(*map(encode_row, week()), name=TOPIC)
    asked = {CALL_ID: "1", CALL_NAME: "wallet/pay", CALL_STATUS: "0"}
    served.topic(
        NewRecord(b"?", tag=REQUEST_TAG, headers=asked),
        NewRecord(b"!", tag=REPLY_TAG, headers=asked),
        name="captured",
    )
    return served


@pytest.fixture
def page(spark, filled, tmp_path, monkeypatch):
    """Runs the lines `polybus pipeline …` of a page in this session; the folder it left and what was printed last."""

    @contextmanager
    def session(name, url, token, master):
        yield Bus(spark, filled.url, token)

    monkeypatch.setattr(verbs, "session", session)
    monkeypatch.chdir(tmp_path)

    def run(name: str) -> tuple[Path, str]:
        printed = ""
        for block in blocks(PAGES / f"{name}.md"):
            if block.language != "sh":
                continue
            for line in block.text.splitlines():
                program, group, *args = shlex.split(line)
                assert (program, group) == ("polybus", "pipeline")
                args = [arg.replace("/data", str(tmp_path)) for arg in args]
                done = CliRunner().invoke(verbs.pipeline, args)
                assert done.exit_code == 0, (line, done.output, str(done.exception))
                printed = done.stdout
            if block.printed:
                assert printed == block.printed
        return tmp_path, printed

    return run


def test_archive_keeps_the_topics_in_a_lake(page, spark):
    folder, printed = page("archive")
    assert printed == "folders before: 1, folders after: 1\n"
    found = lake.read(spark, f"{folder}/lake").groupBy("topic").count().collect()
    assert {row.topic: row["count"] for row in found} == {"orders/eu": 5, "prices": 1}


def test_traffic_counts_the_journal(page, spark):
    folder, printed = page("traffic")
    assert printed == f"rows: {len(list(week()))}, late: 0\n"
    assert lake.read(spark, f"{folder}/lake", "traffic").count() > 5000


def test_latency_shows_how_long_calls_took(page):
    _, printed = page("latency")
    assert printed.splitlines()[0].split()[:3] == ["NAME", "REQUESTS", "UNANSWERED"]


def test_graph_prints_the_edges_of_the_page(page):
    page("graph")


def test_deadletters_shows_them_and_puts_some_back(page, filled):
    before = filled.end("orders")
    _, printed = page("deadletters")
    assert printed == "requeued: 2\n"
    assert filled.payloads("orders", before) == [b"order 0", b"order 2"]


def test_replay_publishes_what_was_selected(page, filled):
    _, printed = page("replay")
    assert printed == "replayed: 5\n"
    assert len(filled.payloads("orders-test")) == 10 + 5


def test_report_writes_a_page(page):
    _, printed = page("report")
    assert printed.startswith("rows: ")


def test_the_quick_start_works_word_for_word(spark, served, tmp_path, capsys):
    program, decoding = (b.text for b in blocks(PAGES / "README.md") if b.language == "python")
    served.topic(b"one", b"two", name="quick")
    program = program.replace('"orders"', '"quick"').replace("/tmp", str(tmp_path))
    both = (program + decoding).replace('"prices"', '"quick"')
    exec(both.replace('format("polybus")', f'format("polybus").option("url", "{served.url}")'), {})  # noqa: S102
    assert served.payloads("shouted") == [b"ONE", b"TWO"]
    assert "|     0|" in capsys.readouterr().out


def test_the_examples_run(spark, served, monkeypatch, capsys):
    served.topic(b"to be or", b"not to be", name="lines")
    monkeypatch.setattr(SparkSession, "stop", lambda self: None)
    monkeypatch.setenv("POLYBUS_URL", served.url)
    runpy.run_path(str(ROOT / "examples" / "spark_words.py"))
    assert b'{"word":"be","count":2}' in served.payloads("words")
    monkeypatch.setattr("sys.argv", ["spark_decode.py", "lines"])
    runpy.run_path(str(ROOT / "examples" / "spark_decode.py"))
    assert "no CBOR" in capsys.readouterr().out
