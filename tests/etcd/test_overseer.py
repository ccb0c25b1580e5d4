"""Brokers that agree on topics by a real etcd."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from penstock.cluster.denial import Denial
from penstock.cluster.entries import Settings
from penstock.cluster.overseer import Overseer
from penstock.registry.answer import Answer
from tests.etcd.servers import Cluster
from tests.etcd.test_conformance import EtcdPlace

SETTINGS: Settings = {"bucket_count": 16}


class Store:
    """A storage that all brokers share."""

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}
        #: Answered by nobody: the broker dies over it.
        self.stuck: Answer[bool] | None = None

    def provision(self, ident: str, incarnation: str, settings: Settings) -> Answer[None]:
        self.rows[incarnation] = 3
        return Answer.of(None)

    def fence(self, ident: str, incarnation: str) -> Answer[None]:
        return Answer.of(None)

    def purge(self, ident: str, incarnation: str, step: int) -> Answer[bool]:
        self.rows[incarnation] -= 1
        if self.stuck is not None and step == 1:
            return self.stuck
        if self.rows[incarnation] <= 0:
            del self.rows[incarnation]
        return Answer.of(incarnation not in self.rows)


@pytest.fixture
def places(one: Cluster, prefix: str) -> Iterator[list[EtcdPlace]]:
    """Two brokers: each has its own way to etcd, and both the same keys there."""
    places = [EtcdPlace(one, prefix) for _ in range(2)]
    yield places
    for place in places:
        place.close()


def test_two_brokers_agree_on_topics_by_etcd_and_one_finishes_what_the_other_began(places: list[EtcdPlace]) -> None:
    store = Store()
    first, second = places
    one, two = (
        Overseer(place.registry, place.clock, Random(number), "blue", f"broker-{number}", store)
        for number, place in enumerate(places)
    )

    def kind(ident: str) -> int:
        try:
            two.find(ident)
        except Denial as denial:
            return denial.kind
        return 0

    gone: list[str] = []
    two.watch(lambda what, entry: gone.append(entry.incarnation) if what == "gone" else None)
    old = first.answered(one.create("a/b", SETTINGS))
    second.until(lambda: kind("a/b") == 0)
    assert second.answered(two.create("a/b", SETTINGS)) == old
    with pytest.raises(Denial, match="bucket_count 16, not 17"):
        second.answered(two.create("a/b", {"bucket_count": 17}))
    store.stuck = Answer()
    first.answered(one.delete("a/b"))
    first.until(lambda: store.rows[old.incarnation] == 1)
    second.until(lambda: gone == [old.incarnation] and kind("a/b") == 401)
    store.stuck = None
    first.answered(one.close())  # its lock goes with its lease
    second.until(lambda: not two.masters())
    two.scan()
    second.until(lambda: not two.deletions())
    assert store.rows == {}
    new = second.answered(two.create("a/b", SETTINGS))
    assert new.incarnation != old.incarnation
    assert two.topics() == [new]
    second.answered(two.close())
