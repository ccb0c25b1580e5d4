"""A Spark session that starts quickly and says little, on this machine or on a cluster.

Owns the settings a pipeline wants. Knows nothing of topics. Invariant: whatever the caller sets wins, and a session
that is already there is returned as it is.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from penstock.pipeline import launch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: What every session gets: times in UTC, and filters that reach the source.
EVERYWHERE = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",
}
#: What a session on this machine gets on top: nothing listens beyond loopback, and a micro-batch forks no programs.
HERE = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
#: Between Java and Python on TCP an answer waits 40 ms for an acknowledgement that is held back.
SOCKETS = "spark.python.unix.domain.socket.enabled"
SOCKETS_PLACE = "spark.python.unix.domain.socket.dir"
#: Processes that make an archive; kept so that nobody waits for them.
_makers: list[subprocess.Popen[bytes]] = []

#: What of Spark looks for Python sources, and warns at length where it finds no Python to look with.
DATA_SOURCES = "org.apache.spark.sql.execution.datasources.DataSourceManager"

#: To tell whether a query was only stopped, Spark looks through the text of the error in its batch with an expression
#: that takes a stack as deep as the text is long.
STACK = "-Xss16m"
#: Which program workers are forked from; ours must be there for it.
DAEMON = "spark.python.daemon.module"

JAVA_OPTIONS = "spark.driver.extraJavaOptions"


def session(
    name: str = "penstock",
    *,
    master: str = "local[*]",
    options: Mapping[str, str] | None = None,
    quick: bool = False,
    archive: bool = True,
) -> SparkSession:
    """Return a Spark session on `local[n]`, `spark://host:port` or, through Spark Connect, `sc://host:port`.

    `options` are Spark settings and win over ours. `quick` suits short runs: Java compiles less, which starts sooner
    and runs slower. The first session on a machine has a class archive made in the background, unless `archive=False`.
    """
    settings = {**EVERYWHERE}
    if master.startswith("local"):
        settings.update(_local(master, quick, archive, options or {}))
    settings.update(options or {})
    from pyspark.sql import SparkSession

    # The attribute is a descriptor that makes a new builder; PySpark's types do not say so.
    builder: SparkSession.Builder = SparkSession.builder
    if master.startswith("sc://"):
        builder = builder.remote(master)
    else:
        builder = builder.master(master).appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def register(spark: SparkSession) -> None:
    """Make `format("penstock")` known to a session that was started otherwise, run by the Python that calls this."""
    from penstock.pipeline.source import PenstockSource

    if type(spark).__module__.startswith("pyspark.sql.connect"):
        spark.dataSource.register(PenstockSource)
        return
    context: Any = spark.sparkContext
    # Spark looks for sources itself, with the python3 on PATH, again for each stream, and warns at length where that
    # one has no packages: in a virtual environment that is not activated, always. This is the source, so let it be.
    log4j = context._jvm.org.apache.logging.log4j
    log4j.core.config.Configurator.setLevel(DATA_SOURCES, log4j.Level.ERROR)
    before = context.pythonExec
    # On a cluster this machine's paths mean nothing, and PYSPARK_PYTHON says which Python workers are.
    if "PYSPARK_PYTHON" not in os.environ and str(context.master).startswith("local"):
        context.pythonExec = sys.executable
    try:
        spark.dataSource.register(PenstockSource)
    finally:
        context.pythonExec = before


def _local(master: str, quick: bool, archive: bool, options: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a session on this machine, and set what its processes inherit."""
    cache = launch.cache_directory(os.environ)
    java = launch.java(os.environ, cache)
    own_home = os.environ.get("SPARK_HOME")
    home = launch.spark_home(cache)
    switches = launch.QUICK if quick else ()
    os.environ["JAVA_HOME"] = java.home
    os.environ.setdefault("SPARK_HOME", str(home))
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # Else workers are whichever python3 is on PATH, which has none of our packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", " ".join(launch.QUICK))
    used: tuple[str, ...] = ()
    if archive and own_home in (None, str(home)) and "spark.jars" not in options:
        classes = launch.Archive(cache, java.program, home, switches)
        used = classes.found()
        if not used:
            _make_archive(quick)
    # It logs every error that PySpark raises, with all of Java's stack.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    daemon = {DAEMON: "penstock.pipeline.daemon"} if os.environ["PYSPARK_PYTHON"] == sys.executable else {}
    java_options = [STACK, f"-Dlog4j2.configurationFile={launch.log4j(cache)}", *switches, *used]
    threads = _threads(master)
    sockets = {SOCKETS: "true", SOCKETS_PLACE: place} if (place := launch.sockets()) else {}
    return {
        **HERE,
        **sockets,
        **daemon,
        "spark.sql.shuffle.partitions": str(threads),
        "spark.default.parallelism": str(threads),
        JAVA_OPTIONS: " ".join(java_options),
    }


def _threads(master: str) -> int:
    """Return how many tasks a local master runs at once."""
    inside = master.removeprefix("local").strip("[]").split(",")[0]
    if inside == "*":
        return launch.cores()
    return int(inside) if inside.isdigit() else 1


def _make_archive(quick: bool) -> None:
    """Have the class archive made by a process of its own."""
    maker = subprocess.Popen(
        [sys.executable, "-m", "penstock.pipeline.classes", *(["--quick"] if quick else [])],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    _makers.append(maker)
