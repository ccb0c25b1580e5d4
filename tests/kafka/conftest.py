"""One real Kafka, and a cluster of three, for all tests below this directory that leave them well.

Each is started when the first test asks for it, once in a run. A test has topics of its own there.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from bench import supply
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


@pytest.fixture
def name() -> Callable[[str], str]:
    """Return what makes a topic's name that no other test of this run has."""
    return lambda word: f"{word}.{next(_names)}"
