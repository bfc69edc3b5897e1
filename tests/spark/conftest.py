"""One node and one Spark session for all tests of a process; every test has topics of its own.

Modules that need Spark are only collected where it is installed: the quick suite does without.
"""

from __future__ import annotations

import hashlib
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
                item.add_marker(pytest.mark.timeout(300))
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

    def end(self, topic: str) -> int:
        """The next offset of a topic that other tests may have filled; it is declared if it is missing."""
        return int(self.bus.declare_topic(topic).end)

    def payloads(self, topic: str, start: int = 0) -> list[bytes]:
        """The payloads of a topic from an offset on, in order."""
        at, found = start, []
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


@dataclass
class Secured:
    """A node that speaks TLS only and asks for certificates, and the files for one who may come in."""

    url: str
    options: dict[str, str]


@pytest.fixture(scope="session")
def secured(tmp_path_factory) -> Iterator[Secured]:
    """A node behind TLS."""
    import trustme

    folder = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    issued = {"server": authority.issue_cert("127.0.0.1"), "client": authority.issue_cert("client")}
    for name, cert in issued.items():
        cert.private_key_pem.write_to_path(str(folder / f"{name}.key"))
        cert.cert_chain_pems[0].write_to_path(str(folder / f"{name}.pem"))
    files = f"cert={folder}/server.pem&key={folder}/server.key&ca={folder}/ca.pem"
    with node("--listen", f"tls://127.0.0.1:0?{files}", "--data", str(folder / "data")) as (
        _,
        where,
    ):
        options = {"tlsCa": "ca.pem", "tlsCert": "client.pem", "tlsKey": "client.key"}
        url = "polybus+" + where[0].removeprefix("polybus+").partition("?")[0]
        yield Secured(url, {name: str(folder / file) for name, file in options.items()})


@pytest.fixture(scope="session")
def guarded(tmp_path_factory) -> Iterator[str]:
    """A node that wants the token `secret`."""
    folder = tmp_path_factory.mktemp("guarded")
    digest = hashlib.sha256(b"secret").hexdigest()
    config = f'[policy]\nrules = ["token:spark may *"]\ntokens = ["spark sha256:{digest}"]\n'
    (folder / "node.toml").write_text(config)
    args = ("--listen", ANY_PORT, "--data", str(folder / "data"))
    with node(*args, "--config", str(folder / "node.toml")) as (_, where):
        yield where[0]


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
