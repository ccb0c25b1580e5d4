"""Three real nodes on a real Kafka and a real etcd, with the SDK and with what Spark's tasks and drivers do."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPConnection
from typing import Any

import pyarrow as pa
import pytest

from penstock.client import Client
from penstock.log.kafka.engine import topic_of
from penstock.pipeline.stage import Line
from penstock.pipeline.target import parsed
from tests.cluster.trio import PATIENCE_S, Member, Trio, wait_for

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


def at(member: Member, port: str, method: str, path: str, body: bytes | None = None) -> int:
    """Ask a node over HTTP, and return the status."""
    request = urllib.request.Request(f"http://{member.host}:{member.ports[port]}{path}", body, method=method)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def said(member: Member) -> str:
    """Return what a node says of itself."""
    found = member.ready()
    return str(found["text"]) if found is not None else ""


def test_what_is_done_to_topics_in_kafka_costs_those_topics_alone_and_each_has_a_way_out(
    trio: Trio, name: Callable[[str], str]
) -> None:
    gone, small, *well = [name(word) for word in ("gone", "small", *["well"] * 12)]
    first, other = trio.members[:2]
    with Client(first.url, patience=PATIENCE_S) as client:
        in_kafka = {}
        for topic in (gone, small, *well):
            in_kafka[topic] = topic_of("trio", client.create_topic(topic).incarnation)
            client.publish(topic, b"1")
        assert trio.owner(gone) is trio.owner(small) is first
        trio.kafka.delete(f"{in_kafka[gone]}.log")
        trio.kafka.configure(f"{in_kafka[small]}.log", "max.message.bytes", "3000000")
        large = b"\n".join([b"x" * 400_000] * 11)  # one record
        assert at(first, "nsq.http_port", "POST", f"/mpub?topic={gone}", b"2") >= 500
        wait_for(
            lambda: at(first, "nsq.http_port", "POST", f"/mpub?topic={small}", large) >= 500,
            "Kafka to know its new limit",
        )
        wait_for(lambda: "delete the topic in Penstock" in said(first), "the one to be missed")
        wait_for(lambda: "Set max.message.bytes=100000000" in said(first), "the other to be refused")
        for topic in well:
            client.publish(topic, b"2")
        trio.kafka.configure(f"{in_kafka[small]}.log", "max.message.bytes", "100000000")
        client.publish(small, [b"2"])  # it heals by itself
        found = bodies(client, small)
        assert {b"1", b"2"} <= set(found) <= {b"1", b"2", b"x" * 400_000}
        assert at(other, "api.port", "DELETE", f"/api/v1/topics/{gone}") == 204
        wait_for(
            lambda: f"{in_kafka[gone]}.state" not in trio.kafka.admin.list_topics(timeout=9).topics, "the rest to go"
        )
        trio.wait()
        client.publish(gone, b"3")
        assert bodies(client, gone) == [b"3"]
        for topic in well:
            assert bodies(client, topic) == [b"1", b"2"]
