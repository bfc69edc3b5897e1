"""A real standalone cluster of one master and two workers, and spark-submit with nothing but the zip."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

import polybus
from polybus.model.journal import Row, encode_row
from polybus.spark.java import find_java_home
from polybus.spark.pipelines import lake
from tests.cli.processes import POLYBUS
from tests.spark.test_spark_crash import free_port, until

pytestmark = pytest.mark.timeout(700)
SPARK_HOME = Path(str(find_spec("pyspark").origin)).parent  # type: ignore[union-attr]
# What an executor may need beside the standard library; pandas and numpy are Spark's own.
EXECUTOR_PACKAGES = (
    "pyspark", "py4j", "pyarrow", "numpy", "numpy.libs", "pandas", "pandas.libs", "pytz", "dateutil", "tzdata",
)  # fmt: skip

JOB = """
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
from polybus.spark.source import PolybusSource

spark.dataSource.register(PolybusSource)
url, source, target = sys.argv[1:]
frame = spark.read.format("polybus").option("url", url).option("topics", source)
frame = frame.option("minPartitions", 4).load()
frame.drop("topic").write.format("polybus").option("url", url).option("topic", target).mode("append").save()
print("rows", frame.count())
spark.stop()
"""


def environment(**more: str) -> dict[str, str]:
    return {
        **os.environ,
        "JAVA_HOME": find_java_home() or "",
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        **more,
    }


@contextmanager
def spark_class(log: Path, *args: str) -> Iterator[Path]:
    """One of Spark's own servers, until the end of the block."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            [str(SPARK_HOME / "bin" / "spark-class"), *args],
            env=environment(),
            stdout=out,
            stderr=out,
        )
        try:
            yield log
        finally:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("cluster")
    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    where = ("--host", "127.0.0.1", "--webui-port", "0")
    with ExitStack() as stack:
        master = stack.enter_context(
            spark_class(folder / "master.log", "org.apache.spark.deploy.master.Master",
                        *where, "--port", str(port))
        )  # fmt: skip
        until(lambda: b"I have been elected leader" in master.read_bytes())
        for name in ("one", "two"):
            stack.enter_context(
                spark_class(folder / f"{name}.log", "org.apache.spark.deploy.worker.Worker",
                            *where, "--cores", "1", "--memory", "1g", "-d", str(folder / name), url)
            )  # fmt: skip
        until(lambda: master.read_bytes().count(b"Registering worker") == 2)
        yield url


def pipeline(served, cluster, *args: str) -> dict[str, object]:
    """What a pipeline says."""
    done = subprocess.run(
        [POLYBUS, "pipeline", *args, "--url", served.url, "--master", cluster, "--json"],
        env=environment(),
        capture_output=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr.decode()
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_archive_and_traffic_run_on_a_cluster_of_two_workers(served, cluster, spark, tmp_path):
    rows = [Row(i * 1_000_000, "call", "", "gsb", "gsb", "a", "b", 1, 1, 0, 5) for i in range(500)]
    topic = served.topic(*map(encode_row, rows))
    where = str(tmp_path / "lake")
    assert pipeline(served, cluster, "archive", topic, "--lake", where, "--once") == {
        "archived": 500
    }
    assert sorted(r.offset for r in lake.read(spark, where).select("offset").collect()) == [
        *range(500)
    ]
    pipeline(served, cluster, "traffic", "--topic", topic, "--lake", where, "--once")
    windows = lake.read(spark, where, "traffic").collect()
    assert sum(row.calls for row in windows) >= 300  # the last minutes are still open


def bare_python(folder: Path) -> Path:
    """An interpreter that sees the standard library and what an executor may need, and no polybus."""
    packages = folder / "packages"
    packages.mkdir()
    site = SPARK_HOME.parent
    for name in (*EXECUTOR_PACKAGES, "six.py"):
        if (site / name).exists():
            (packages / name).symlink_to(site / name)
    program = folder / "python"
    program.write_text(
        f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{packages}" exec "{sys.executable}" -S "$@"\n'
    )
    program.chmod(0o755)
    return program


def test_spark_submit_needs_only_the_zip_of_the_package(served, cluster, tmp_path):
    python = bare_python(tmp_path)
    hidden = subprocess.run([str(python), "-c", "import polybus"], env=environment(PYTHONPATH=""))
    assert hidden.returncode != 0
    source, target = served.topic(*(b"%d" % i for i in range(5000))), served.topic()
    package = Path(polybus.__file__).parent
    with zipfile.ZipFile(tmp_path / "polybus.zip", "w") as archive:
        for file in package.rglob("*.py"):
            archive.write(file, Path("polybus") / file.relative_to(package))
    (tmp_path / "job.py").write_text(JOB)
    done = subprocess.run(
        [
            *(str(SPARK_HOME / "bin" / "spark-submit"), "--master", cluster),
            *("--conf", "spark.driver.host=127.0.0.1"),
            *("--py-files", str(tmp_path / "polybus.zip"), str(tmp_path / "job.py")),
            *(served.url, source, target),
        ],
        env=environment(PYSPARK_PYTHON=str(python), PYTHONPATH=""),
        capture_output=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert b"rows 5000" in done.stdout
    assert sorted(served.payloads(target)) == sorted(b"%d" % i for i in range(5000))
