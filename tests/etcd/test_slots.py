"""Nodes that share slots by a real etcd."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.clock import SECOND
from penstock.cluster.orders import Orders
from penstock.cluster.slots import Slots
from penstock.config import ClusterConfig
from penstock.errors import ConfigError
from penstock.registry.answer import Answer
from tests.etcd.servers import Cluster
from tests.etcd.test_conformance import EtcdPlace

COUNT = 12


class Node:
    """A node with its own way to etcd; it may stop without a word."""

    def __init__(self, place: EtcdPlace, name: str, life: str, cluster: str = "blue") -> None:
        self.place = place
        self.serves: dict[int, int] = {}
        self.lost: list[int] = []
        self.slots = Slots(
            place.registry,
            place.clock,
            ClusterConfig(name=cluster, node=name, slots=COUNT, lease_ns=3 * SECOND),
            life,
            self.serves.__setitem__,
            self._lost,
            self._give_up,
        )

    def _lost(self, slot: int) -> None:
        assert not self.slots.is_mine(slot)
        del self.serves[slot]
        self.lost.append(slot)

    def _give_up(self, slot: int) -> Answer[None]:
        assert self.slots.is_mine(slot)
        del self.serves[slot]
        return Answer.of(None)

    def die(self) -> None:
        """Do nothing more; etcd is told nothing."""
        self.slots.presence.stop()
        self.slots._closed = True
        assert self.slots._timer is not None
        self.slots._timer.cancel()


@pytest.fixture
def place(one: Cluster, prefix: str) -> Iterator[EtcdPlace]:
    """One loop for all nodes; each has leases of its own."""
    place = EtcdPlace(one, prefix)
    yield place
    place.close()


def test_nodes_share_slots_by_etcd_through_joins_drains_and_deaths(place: EtcdPlace) -> None:
    def joined(name: str, life: str) -> Node:
        node = Node(place, name, life)
        place.answered(node.slots.start())
        return node

    def until_shared(*nodes: Node) -> None:
        def shared() -> bool:
            owners = sorted(slot for node in nodes for slot in node.slots.mine)
            counts = [len(node.serves) for node in nodes]
            return owners == list(range(COUNT)) and max(counts) - min(counts) <= 1

        place.until(shared)

    first, second = joined("a", "1"), joined("b", "2")
    until_shared(first, second)
    with pytest.raises(ConfigError, match="the registry holds cluster blue"):
        place.answered(Node(place, "d", "3", cluster="red").slots.start())
    third = joined("c", "4")
    until_shared(first, second, third)
    place.answered(Orders(third.slots).drain("b"))
    place.until(lambda: not second.serves)
    until_shared(first, third)
    place.answered(Orders(third.slots).undrain("b"))
    until_shared(first, second, third)
    first.die()
    until_shared(second, third)
    again = joined("a", "5")  # its predecessor is dead
    until_shared(again, second, third)
    place.answered(again.slots.drain())
    assert not again.serves
    until_shared(second, third)
    for node in (again, second, third):
        place.answered(node.slots.close())
    assert list(place.registry.list("cluster/")) == ["cluster/about"]


def test_a_lease_that_etcd_ends_is_lost_here_and_what_it_held_is_taken_anew(
    one: Cluster, place: EtcdPlace, prefix: str
) -> None:
    node = Node(place, "a", "1")
    place.answered(node.slots.start())
    place.until(lambda: len(node.serves) == COUNT)
    epochs = dict(node.serves)
    for line in one.ctl("lease", "list").splitlines()[1:]:
        if place.registry.get(f"lease/{int(line, 16):x}") is not None:  # etcdctl pads with zeros
            one.ctl("lease", "revoke", line)
    place.until(lambda: len(node.lost) >= COUNT)
    place.until(lambda: len(node.serves) == COUNT)
    assert all(node.serves[slot] > epochs[slot] for slot in epochs)
    one.ctl("put", f"{prefix}/cluster/slot/3", "garbage")
    place.until(lambda: 3 not in node.slots.mine and node.slots.places.unreadable == 1)
    one.ctl("del", f"{prefix}/cluster/slot/3")
    place.until(lambda: len(node.serves) == COUNT)
    place.answered(node.slots.close())
