"""A batch of several topics of a cluster: one decision, which the nodes that have the topics carry out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.clock import SECOND
from penstock.errors import Refusal
from penstock.node.node import Node
from tests.node.test_share import LEASE_NS, Cluster, Consumer, made

Wanted = dict[str, list[str]]


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    found = Cluster(tmp_path)
    one, two = found.start("one"), found.start("two")
    found.run()
    made(found, one, "a")
    made(found, two, "b")
    return found


def stage(cluster: Cluster, topic: str, attempt: str, *bodies: bytes, batch: int = 0) -> None:
    """Stage rows where their topic is, as a task does."""
    node = cluster.owner(topic)
    rows = pa.record_batch({"body": pa.array(bodies, pa.binary())})
    writer = node.staging.writer("q", batch, attempt, topic, rows.schema)
    writer.write(rows)
    writer.finish()
    node.staging.add("q", batch, attempt, node.clock.now())


def decide(cluster: Cluster, node: Node, wanted: Wanted, batch: int = 0, *, any_rows: bool = False) -> str:
    """Decide, and let nothing else happen; return how it was refused."""
    told: list[str] = []
    answer = node.transactions.decisions.decide("q", batch, wanted, any_rows=any_rows)
    answer.then(lambda _, error: told.append(error.code if isinstance(error, Refusal) else ""))
    while not told:
        cluster.run(SECOND // 1000)
    return told[0]


def commit(
    cluster: Cluster, topic: str, attempts: list[str], batch: int = 0, decided: Sequence[str] = ()
) -> tuple[int, bool] | str:
    told: list[tuple[int, bool] | str] = []

    def done(found: tuple[int, bool] | None, error: BaseException | None) -> None:
        told.append(found if found is not None else str(error))

    cluster.owner(topic).transactions.commit("q", batch, attempts, done, decided=decided)
    cluster.run(20 * SECOND)
    return told[0]


def bodies(cluster: Cluster, topic: str) -> list[bytes]:
    return Consumer(cluster, cluster.owner(topic).topic(topic)).bodies


def test_every_owner_carries_out_its_part_though_nobody_asks_again(cluster: Cluster) -> None:
    stage(cluster, "a", "a1", b"1", b"3")
    stage(cluster, "b", "b1", b"2")
    assert decide(cluster, cluster.nodes["one"], {"a": ["a1"], "b": ["b1"]}) == ""
    cluster.run()
    assert (bodies(cluster, "a"), bodies(cluster, "b")) == ([b"1", b"3"], [b"2"])
    assert commit(cluster, "b", ["b1"]) == (1, True), "a driver that comes late hears that it is there"
    assert [len(node.staging) for node in cluster.nodes.values()] == [0, 0]


@pytest.mark.parametrize("killed", ["one", "two"])
def test_a_part_of_a_node_that_is_killed_is_carried_out_by_the_next(cluster: Cluster, killed: str) -> None:
    stage(cluster, "a", "a1", b"1")
    stage(cluster, "b", "b1", b"2")
    cluster.stop("two")
    assert decide(cluster, cluster.nodes["one"], {"a": ["a1"], "b": ["b1"]}) == ""
    if killed == "one":
        cluster.stop("one")
        cluster.clocks["two"].go_on()
    cluster.run(LEASE_NS + 10 * SECOND)
    left = next(node for name, node in cluster.nodes.items() if name != killed)
    for topic, body in (("a", b"1"), ("b", b"2")):
        assert Consumer(cluster, left.topic(topic)).bodies == [body]


def test_a_batch_that_is_repeated_adds_nothing_and_is_what_was_decided(cluster: Cluster) -> None:
    stage(cluster, "a", "a1", b"1")
    stage(cluster, "b", "b1", b"2")
    cluster.stop("two")  # so that b is decided, and not begun
    assert decide(cluster, cluster.nodes["one"], {"a": ["a1"], "b": ["b1"]}) == ""
    stage(cluster, "b", "b2", b"2")
    assert decide(cluster, cluster.nodes["one"], {"a": ["a1"], "b": ["b2"]}) == "", "the first one stands"
    assert decide(cluster, cluster.nodes["one"], {"a": ["a1"], "c": ["c1"]}) == "conflict", "this is another batch"
    assert decide(cluster, cluster.nodes["one"], {"a": ["a1"], "c": ["c1"]}, any_rows=True) == ""
    assert decide(cluster, cluster.nodes["one"], {"a": ["a2"], "b": ["b3"]}, 1) == "unavailable", "b is not begun"
    cluster.nodes["one"].transactions.abort("q", 0, ["a1", "b1"])
    cluster.clocks["two"].go_on()
    assert commit(cluster, "b", ["b2"], decided=["b1"]) == (1, True), "also where its owner has not heard yet"
    assert commit(cluster, "b", ["b2"], decided=["b1"]) == (1, True)
    consumers = [Consumer(cluster, cluster.owner(topic).topic(topic)) for topic in ("a", "b")]
    assert [consumer.bodies for consumer in consumers] == [[b"1"], [b"2"]]
    stage(cluster, "a", "a2", b"3", batch=1)
    stage(cluster, "b", "b3", b"4", batch=1)
    assert decide(cluster, cluster.nodes["two"], {"a": ["a2"], "b": ["b3"]}, 1) == ""
    assert commit(cluster, "a", ["a2"], 1) in ((1, False), (1, True))
    assert [consumer.bodies for consumer in consumers] == [[b"1", b"3"], [b"2", b"4"]]


def test_what_is_not_staged_is_told_before_anything_is_decided(cluster: Cluster) -> None:
    told: list[BaseException | None] = []
    cluster.nodes["one"].transactions.prepare("q", 0, ["a1"], lambda _, error: told.append(error))
    stage(cluster, "a", "a1", b"1")
    cluster.nodes["one"].transactions.prepare("q", 0, ["a1"], lambda _, error: told.append(error))
    cluster.run()
    assert isinstance(told[0], Refusal)
    assert told[1] is None
