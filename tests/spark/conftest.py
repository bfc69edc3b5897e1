"""One node and one Spark session for all tests of a process; every test has topics of its own.

Modules that need Spark are only collected where it is installed: the quick suite does without.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import polybus
from tests.cli.processes import ANY_PORT, node

collect_ignore_glob = [] if find_spec("pyspark") else ["test_spark_*.py", "test_browser_*.py"]

# Warnings are errors here, and Spark's own Python code leaves sockets to the garbage collector.
SPARK_WARNINGS = ("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.name.startswith("test_spark_") and item.path.parent == Path(__file__).parent:
            item.add_marker("spark")
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(180))
            for text in SPARK_WARNINGS:
                item.add_marker(pytest.mark.filterwarnings(text))


@dataclass
class Served:
    """A running node."""

    url: str
    bus: Any

    def topic(self, *payloads: object, name: str = "") -> str:
        """A new topic with these records."""
        name = name or f"t{uuid4().hex[:8]}"
        if payloads:
            self.bus.produce_many(name, list(payloads), create=True)
        else:
            self.bus.declare_topic(name)
        return name

    def payloads(self, topic: str) -> list[bytes]:
        """All payloads of a topic, in order."""
        at, found = 0, []
        while records := self.bus.fetch(topic, at):
            found += [record.payload for record in records]
            at = records[-1].offset + 1
        return found


@pytest.fixture(scope="session")
def served(tmp_path_factory) -> Iterator[Served]:
    """A node with durable topics."""
    folder = str(tmp_path_factory.mktemp("node"))
    running = node("--listen", ANY_PORT, "--data", folder)
    with running as (_, where), polybus.connect_sync(where[0]) as bus:
        yield Served(where[0], bus)


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    """A local session with two cores."""
    import polybus.spark

    # Workers must find the modules of the tests whose functions they are sent.
    os.environ["PYTHONPATH"] = os.pathsep.join(
        (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", ""))
    )
    conf = {
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        "spark.sql.shuffle.partitions": "2",
        "spark.python.worker.reuse": "true",
    }
    session = polybus.spark.session("tests", "local[2,4]", conf)  # two cores, four tries
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture
def read(spark, served):
    """A frame over topics: `read("a,b", endingOffsets=…)`."""

    def load(topics: str, **options: object):
        reader = spark.read.format("polybus").option("url", served.url).option("topics", topics)
        return reader.options(**options).load()

    return load


@pytest.fixture
def stream(spark, served):
    """A stream over topics from their beginning."""

    def load(topics: str, **options: object):
        reader = spark.readStream.format("polybus").option("url", served.url)
        given = {"startingOffsets": "earliest", **options}
        return reader.option("topics", topics).options(**given).load()

    return load
