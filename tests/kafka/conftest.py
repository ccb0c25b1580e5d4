"""One real Kafka, a cluster of three, and three nodes on the first: for all tests here that leave them well.

Each is started when the first test asks for it, once in a run. A test has topics of its own there.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from bench import supply
from tests.cluster.trio import Trio
from tests.etcd.servers import Cluster as Etcds
from tests.kafka.brokers import Brokers

_names = itertools.count(1)


def _started(folders: pytest.TempPathFactory, count: int) -> Brokers:
    try:
        supply.java()
        jars = supply.kafka()
    except supply.Missing as missing:
        pytest.skip(str(missing))
    return Brokers(jars, folders.mktemp("kafka"), count)


@pytest.fixture(scope="session")
def shared_one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    brokers = _started(tmp_path_factory, 1)
    yield brokers
    brokers.close()


@pytest.fixture(scope="session")
def shared_three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    brokers = _started(tmp_path_factory, 3)
    yield brokers
    brokers.close()


@pytest.fixture
def one(shared_one: Brokers) -> Iterator[Brokers]:
    """Return a Kafka of one broker that runs; a test may kill it, it is started again behind it."""
    yield shared_one
    shared_one.heal()


@pytest.fixture
def three(shared_three: Brokers) -> Iterator[Brokers]:
    """Return a Kafka of three brokers that run; those that a test kills or pauses run again behind it."""
    yield shared_three
    shared_three.heal()


@pytest.fixture(scope="package")
def shared_trio(tmp_path_factory: pytest.TempPathFactory, shared_one: Brokers) -> Iterator[Trio]:
    etcd = Etcds(tmp_path_factory.mktemp("etcd"))
    trio = Trio(tmp_path_factory.mktemp("trio"), "trio", etcd, shared_one)
    try:
        trio.start()
        yield trio
    finally:
        trio.close()
        etcd.close()


@pytest.fixture
def trio(shared_trio: Trio) -> Iterator[Trio]:
    """Return three nodes that run, each with its share; those that a test kills or pauses run again behind it."""
    shared_trio.settle()
    yield shared_trio
    shared_trio.heal()


@pytest.fixture
def name() -> Callable[[str], str]:
    """Return what makes a topic's name that no other test of this run has."""
    return lambda word: f"{word}.{next(_names)}"
