"""What `polybus pipeline` says when something is wrong: one line that names it."""

from __future__ import annotations

import sys

import pytest
from click.testing import CliRunner

from polybus.cli.pipeline import Interval, Time, own_error, pipeline, session
from polybus.errors import ConfigError, NoSuchTopic, PolybusError

JAVA = """[PYTHON_DATA_SOURCE_ERROR] Failed to plan Python data source in Python: Traceback (most recent call last):
  File "offsets.py", line 58, in find_topics
polybus.errors.PeerUnavailable: option url: no node answers at tcp://127.0.0.1:1: refused

During handling of the above exception, another exception occurred:

polybus.errors.NoSuchTopic: no such topic: orders

\tat org.apache.spark.sql.errors.QueryCompilationErrors$.pythonDataSourceError
"""


def test_an_error_of_ours_comes_out_of_a_java_trace_as_itself():
    error = own_error(RuntimeError(JAVA))
    assert isinstance(error, NoSuchTopic)
    assert error.text == str(error) == "no such topic: orders"


@pytest.mark.parametrize("text", ["", "\n", "Job aborted.\n\tat java.lang.Thread"])
def test_any_other_error_is_told_by_its_first_line(text):
    error = own_error(RuntimeError(text))
    assert type(error) is PolybusError
    assert error.text == f"Spark failed: {text.strip().partition(chr(10))[0] or 'RuntimeError'}"


def test_without_spark_the_extra_is_named(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyspark"]:
        monkeypatch.delitem(sys.modules, name)
    for name in [name for name in sys.modules if name.startswith("polybus.spark.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyspark", None)
    missing = pytest.raises(ConfigError, match=r"install the extra polybus\[spark\]")
    with missing, session("archive", None, "", None):
        raise AssertionError("there is no Spark")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ("traffic --lake x --window banana", "'--window': 'banana'"),
        ("traffic --lake x --lateness 0s", "'--lateness': '0s' is no time at all"),
        ("latency calls --lake x --patience=-1s", "'--patience': '-1s'"),
        ("replay a b --since yesterday", "'--since': 'yesterday' is not a time"),
        ("report x.html --until 12x", "'--until': '12x' is not a time"),
        ("replay a b --rate -1", "'--rate': -1.0 is not in the range"),
        ("archive a --lake x --max-rows 0", "'--max-rows': 0 is not in the range"),
    ],
)
def test_what_an_option_cannot_be_is_refused_before_spark_is_started(args, message):
    done = CliRunner().invoke(pipeline, args.split())
    assert done.exit_code == 2
    assert message in done.output


def test_spans_and_times_are_spelt_as_for_the_other_verbs_or_as_in_sql():
    assert Interval().convert("30s", None, None) == "30000 milliseconds"
    assert Interval().convert("10 minutes", None, None) == "10 minutes"
    assert Time().convert("2026-01-31", None, None) == "2026-01-31T00:00:00+00:00"
    assert Time().convert("2026-01-31T12:00:00+02:00", None, None) == "2026-01-31T10:00:00+00:00"
