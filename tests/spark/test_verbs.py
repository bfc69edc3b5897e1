"""What `polybus pipeline` says when something is wrong: one line that names it."""

from __future__ import annotations

import sys

import pytest

from polybus.cli.pipeline import own_error, session
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
