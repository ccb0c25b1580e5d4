"""Three real nodes on a real Kafka and a real etcd, with the SDK and with what Spark's tasks and drivers do."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from penstock.client import Client
from penstock.pipeline.stage import Line
from penstock.pipeline.target import parsed
from tests.cluster.trio import PATIENCE_S, Trio
from tests.etcd.servers import Cluster as Etcds
from tests.kafka.brokers import Brokers

ROWS = [pa.record_batch({"body": [b"1", b"2"], "key": [b"a", b"b"]})]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, shared_one: Brokers) -> Iterator[Trio]:
    etcd = Etcds(tmp_path_factory.mktemp("etcd"))
    trio = Trio(tmp_path_factory.mktemp("trio"), "trio", etcd, shared_one)
    try:
        trio.start()
        yield trio
    finally:
        trio.close()
        etcd.close()


@pytest.fixture
def trio(shared: Trio) -> Iterator[Trio]:
    """Return three nodes that run; those that a test kills run again behind it."""
    yield shared
    shared.heal()


def bodies(client: Client, topic: str) -> list[bytes]:
    found = client.topic(topic).shards
    batches = [batch for each in found for batch in client.read(topic, shard=each.shard, columns=["body"])]
    return sorted(body for batch in batches for body in batch.column("body").to_pylist())


def test_program_goes_on_when_the_node_that_has_its_topic_is_killed(trio: Trio, name: Callable[[str], str]) -> None:
    topic = name("orders")
    with trio.client(patience=PATIENCE_S) as client:
        client.publish(topic, b"1")
        owner = trio.owner(topic)
        with client.subscribe(topic, "billing") as subscription:
            first = subscription.take(PATIENCE_S)
            assert first is not None
            first.ack()  # perhaps in vain, and not shown again then
            owner.kill()
            client.publish(topic, [b"2", b"3"])
            came: list[bytes] = []
            while len(came) < 2:
                batch = subscription.take(PATIENCE_S)
                assert batch is not None
                came += [message.body for message in batch]
                batch.ack()
        assert came == [b"2", b"3"]
        assert bodies(client, topic) == [b"1", b"2", b"3"]
        assert trio.owner(topic) is not owner
        assert topic in {info.name for info in client.topics() if info.shards}


@pytest.mark.parametrize("is_decided", [False, True])
def test_what_spark_staged_is_written_once_whichever_node_dies(
    trio: Trio, name: Callable[[str], str], is_decided: bool
) -> None:
    topic = name("copies")
    target = parsed({"url": trio.members[0].url, "topic": topic})
    with (
        trio.client(patience=PATIENCE_S) as maker,
        Line(target, PATIENCE_S) as task,
        Line(target, PATIENCE_S) as driver,
    ):
        maker.create_topic(topic, shards=2)
        attempts, rows = task.stage("q", 0, iter(ROWS))
        assert rows == 2
        if is_decided:
            driver.commit("q", 0, list(attempts))
        owner = trio.owner(topic)
        owner.kill()
        survivors = [member.url for member in trio.members if member is not owner]
    target = parsed({"url": ",".join(survivors), "topic": topic})
    with Line(target, PATIENCE_S) as driver, Client(",".join(survivors), patience=PATIENCE_S) as client:
        driver.commit("q", 0, list(attempts))
        driver.commit("q", 0, list(attempts))
        assert bodies(client, topic) == [b"1", b"2"]
        attempts, _ = driver.stage("q", 1, iter(ROWS))
        driver.commit("q", 1, list(attempts))
        assert bodies(client, topic) == [b"1", b"1", b"2", b"2"]
