"""The shards that a command reads the log of: in a data directory, or on the Kafka of a cluster.

Takes no lock, asks no node and writes nothing. What is on Kafka comes into a folder that is gone behind the command.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from penstock.cli.config import flags
from penstock.cli.data import StoppedClock, data_directory, places, topics
from penstock.cli.failure import UNREACHABLE, USAGE, Failure

if TYPE_CHECKING:
    from penstock.config import Config
    from penstock.log.kafka.store import Store
    from penstock.log.reader import Reader
    from penstock.log.verify import ShardReport


class Shard(NamedTuple):
    """One shard; what it offers is good until the next one is asked for."""

    topic: str
    number: int
    report: Callable[[], ShardReport]
    reader: Callable[[], Reader]


class Where(NamedTuple):
    """What the command line says about where logs are."""

    data: str | None = None
    shared: bool = False
    file: str | None = None
    settings: list[str] | None = None


def shards(where: Where, topic: str | None) -> Iterator[Shard]:
    """Yield the shards of one topic, or of all that are there."""
    from penstock.cli.table import load

    config = load(where.file, flags(where.settings)).config
    if where.shared or (where.data is None and topic is not None and _is_shared(config, topic)):
        yield from _shared(config, topic)
        return
    from penstock.log.reader import Reader, ReadOnlyDisk
    from penstock.log.verify import verify_shard

    for name, number, directory in places(data_directory(where.data or config.data_dir), topic):
        yield Shard(name, number, partial(verify_shard, ReadOnlyDisk(), directory), partial(Reader, directory))


def _is_shared(config: Config, topic: str) -> bool:
    """Tell whether a topic is to be looked for on Kafka: there is a cluster, and it is not on this node's disk."""
    if not config.cluster.name:
        return False
    try:
        return topic not in topics(data_directory(config.data_dir))
    except Failure:  # there is no node here
        return True


def _shared(config: Config, topic: str | None) -> Iterator[Shard]:
    from penstock.log.kafka.librdkafka import KafkaStore

    if not config.cluster.name:
        text = "there is no topic on Kafka: the configuration here is of no cluster"
        raise Failure(f"{text}. Name that of a node with --config, or set cluster.name and shared_log.brokers.", USAGE)
    with closing(KafkaStore(config.shared_log, config.cluster.name)) as store:
        try:
            for found, name in _named(store, topic, config.cluster.name).items():
                yield from _looked_at(store, found, name)
        except OSError as error:
            brokers = ", ".join(config.shared_log.brokers)
            raise Failure(f"Kafka at {brokers} cannot be read: {error}", UNREACHABLE) from error


def _named(store: Store, topic: str | None, cluster: str) -> dict[str, str]:
    """Return the topics that are meant, by what they are called after in Kafka; what has no label is all it has."""
    from penstock.log.kafka.look import labels

    known = list(labels(store))
    newest: dict[str, tuple[int, str]] = {}
    for found, label in known:
        if label is not None:  # of a name that was deleted and made again, the rest of the former may be there
            newest[label.name] = max(newest.get(label.name, (0, "")), (label.number, found))
    if topic is None:
        nameless = {found: found for found, label in known if label is None}
        return {found: name for name, (_, found) in sorted(newest.items())} | nameless
    if topic not in newest:
        some = ", ".join(sorted(newest)[:10]) or "none"
        raise Failure(f"there is no topic {topic!r} on the Kafka of cluster {cluster}; there are: {some}")
    return {newest[topic][1]: topic}


def _looked_at(store: Store, found: str, name: str) -> Iterator[Shard]:
    from penstock.errors import CorruptionError
    from penstock.log.kafka.look import Look
    from penstock.log.verify import ShardReport

    with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
        try:
            look = Look(store, found, folder, StoppedClock())
        except CorruptionError as error:
            problem = str(error)

            def unread() -> Reader:
                raise Failure(problem)

            yield Shard(name, 0, lambda: ShardReport(directory=found, problems=[problem]), unread)
            return
        with closing(look):
            for number in look.shards:
                yield Shard(name, number, partial(look.report, number), partial(look.reader, number))
