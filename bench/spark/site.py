"""What the Spark rows share: a node, a Kafka broker, a Spark session, and the messages in all of them.

Owns the setting up and tearing down. Invariant: what cannot be had is in `missing` with its reason.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench import measure, supply
from bench.peers import Kafka, Penstock, Server, fleet
from bench.spark import messages
from bench.spark.engine import Engine, engine
from bench.supply import Missing

CORES = 2
#: Enough for some dozens of tiny micro-batches.
FEW_ROWS = 40_000

_numbers = itertools.count(1)


class Site:
    """A place to run jobs at."""

    def __init__(self, place: Path, node: Penstock, spark: Engine, rows: int, missing: dict[str, str]) -> None:
        self.place = place
        self.node = node
        self.spark = spark
        self.rows = rows
        self.missing = missing
        #: None where Kafka or its connector is missing.
        self.kafka: Kafka | None = None
        #: The messages in Parquet.
        self.files = str(place / "parquet")

    def fresh(self) -> str:
        """Return a directory that nobody used yet."""
        return str(self.place / f"fresh{next(_numbers)}")


@contextlib.contextmanager
def site(rows: int, *, with_kafka: bool) -> Iterator[Site]:
    """Set everything up; Missing without a node or Spark."""
    kinds: list[type[Server]] = [Penstock, Kafka] if with_kafka else [Penstock]
    with fleet(*kinds) as made, _directory() as place:
        node, kafka, missing = made.servers.get("penstock"), made.servers.get("kafka"), dict(made.missing)
        if not isinstance(node, Penstock):
            raise Missing(missing["penstock"])
        jars: list[Path] = []
        if kafka is not None:
            try:
                jars = supply.kafka_connector()
            except Missing as reason:
                missing["kafka"] = str(reason)
        with engine(place, cores=CORES, jars=jars) as spark:
            found = Site(place, node, spark, rows, missing)
            messages.fill_topic(node, messages.TOPIC, rows)
            messages.fill_topic(node, messages.FEW, FEW_ROWS)
            messages.fill_files(spark, node, found.files)
            if jars and isinstance(kafka, Kafka):
                messages.fill_kafka(spark, node, kafka, messages.TOPIC)
                messages.fill_kafka(spark, node, kafka, messages.FEW)
                found.kafka = kafka
            for server in made.servers.values():
                measure.settle(server.pid)
            yield found


@contextlib.contextmanager
def _directory() -> Iterator[Path]:
    data = supply.BUILD / "data"
    data.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(prefix="spark-", dir=data))
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)
