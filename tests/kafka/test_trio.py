"""Three real nodes on a real Kafka and a real etcd, with the SDK and with what Spark's tasks and drivers do."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from http.client import HTTPConnection
from typing import Any

import pyarrow as pa
import pytest

from penstock.client import Client
from penstock.pipeline.stage import Line
from penstock.pipeline.target import parsed
from tests.cluster.trio import PATIENCE_S, Member, Trio

ROWS = [pa.record_batch({"body": [b"1", b"2"], "key": [b"a", b"b"]})]


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


def ask(member: Member, method: str, path: str, body: bytes | None = None) -> tuple[int, Any]:
    """Ask a node as a client of Dynamiq does, until its cluster has sorted itself out."""
    end = time.monotonic() + PATIENCE_S
    while True:
        connection = HTTPConnection("127.0.0.1", member.ports["dynamiq.port"], timeout=PATIENCE_S)
        try:
            connection.request(method, path, body)
            answer = connection.getresponse()
            said = answer.read()
        finally:
            connection.close()
        if answer.status != 503:
            return answer.status, json.loads(said) if said else None
        assert time.monotonic() < end, said
        time.sleep(0.05)


def test_dynamiq_case_31_any_node_gives_what_another_has_and_goes_on_when_that_one_is_gone(
    trio: Trio, name: Callable[[str], str]
) -> None:
    # A node holds whole queues, so whoever is asked, the one that has the queue answers (decision 020).
    queue = name("jobs")
    path = f"/v1/queues/{queue}"
    assert ask(trio.members[0], "PUT", path)[0] == 201
    owner = trio.owner(queue)
    first, second = (member for member in trio.members if member is not owner)
    status, answered = ask(first, "PUT", f"{path}/message", b"one")
    assert status == 200
    one = str(answered)
    assert ask(second, "GET", f"{path}/message/{one}") == (200, {"messages": [{"id": one, "body": "one"}]})
    owner.kill()
    assert ask(second, "PUT", f"{path}/message", b"two")[0] == 200
    seen: dict[str, str] = {}
    end = time.monotonic() + PATIENCE_S
    while {"one", "two"} - set(seen.values()):  # a publish that was tried again may be there twice
        assert time.monotonic() < end, seen
        for each in ask(first, "GET", f"{path}/messages/10")[1]:
            seen[each["id"]] = each["body"]
            assert ask(second, "DELETE", f"{path}/message/{each['id']}")[0] == 200
    assert seen[one] == "one"
