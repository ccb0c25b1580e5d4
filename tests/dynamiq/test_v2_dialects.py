"""Version 2 beside the other dialects: what one sets, the others see."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from penstock.config import CallersConfig
from penstock.dialects.sqs.config import SqsConfig
from tests.proofs.client import Client, fin
from tests.served import PATIENCE_S, Answer, Served


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path / "data", sqs=SqsConfig(port=0)) as node:
        yield node
        assert node.do(lambda: node.node.bugs) == 0


def v2(served: Served, method: str, path: str, body: object = None, **more: Any) -> Any:
    """Ask for what must work and return what is in the envelope."""
    answer = asked(served, method, path, body, **more)
    assert answer.status < 300, answer
    return answer.json["data"]


def asked(served: Served, method: str, path: str, body: object = None, **more: Any) -> Answer:
    return served.ask(method, f"/v2/{path}", body, port=served.ports["dynamiq.port"], **more)


def sqs(served: Served, operation: str, **body: object) -> Any:
    headers = {"X-Amz-Target": f"AmazonSQS.{operation}", "Content-Type": "application/x-amz-json-1.0"}
    answer = served.ask("POST", "/", {**body}, headers=headers, port=served.ports["sqs.port"])
    assert answer.status == 200, answer
    return answer.json


def read(sock: socket.socket) -> Any:
    """Read one answer."""
    head = b""
    while b"\r\n\r\n" not in head:
        head += sock.recv(65536)
    head, _, content = head.partition(b"\r\n\r\n")
    size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    while len(content) < size:
        content += sock.recv(65536)
    return json.loads(content)


def test_what_version_2_publishes_is_seen_by_nsq_sqs_and_the_log(served: Served) -> None:
    v2(served, "POST", "queues", {"name": "jobs"})
    audit = Client(served.tcp_port)
    audit.subscribe("jobs", "audit", 10)
    message = {"body": "shirt", "tag": "red", "key": "customer-7", "headers": {"size": "L"}, "dedup": "d1"}
    later = {"body": "hat", "delay": 3600}
    told = v2(served, "POST", "queues/jobs/messages", {"messages": [message, later]})
    assert told["stored"] == 2
    frame = audit.message()
    assert frame.body == b"shirt"
    audit.send(fin(frame.id))
    audit.close()
    url = sqs(served, "GetQueueUrl", QueueName="jobs")["QueueUrl"]
    counts = sqs(served, "GetQueueAttributes", QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert (counts["ApproximateNumberOfMessages"], counts["ApproximateNumberOfMessagesDelayed"]) == ("1", "1")
    (found,) = sqs(
        served,
        "ReceiveMessage",
        QueueUrl=url,
        MessageAttributeNames=["All"],
        AttributeNames=["All"],
        VisibilityTimeout=0,
    )["Messages"]
    assert (found["Body"], found["Attributes"]["MessageGroupId"]) == ("shirt", "customer-7")
    assert found["MessageAttributes"]["size"] == {"DataType": "String", "StringValue": "L"}
    rows = served.get("topics/jobs/messages?limit=10").json["messages"]
    assert [(row["body"], row["source"], row.get("tag"), row.get("key")) for row in rows] == [
        ("shirt", "dynamiq", "red", "customer-7"),
        ("hat", "dynamiq", None, None),
    ]
    assert rows[1]["due"] > rows[1]["timestamp"]


def test_what_others_publish_is_received_with_its_columns(served: Served) -> None:
    v2(served, "POST", "queues", {"name": "jobs"})
    served.publish("jobs", "from the api", tag="red", key="k", headers={"a": 1}, due="1h")
    served.ask("POST", "/pub?topic=jobs", raw=b"\xff\xfe", port=served.ports["nsq.http_port"])
    url = sqs(served, "GetQueueUrl", QueueName="jobs")["QueueUrl"]
    attributes = {"tag": {"DataType": "String", "StringValue": "blue"}}
    sqs(served, "SendMessage", QueueUrl=url, MessageBody="from sqs", MessageGroupId="g", MessageAttributes=attributes)
    assert v2(served, "GET", "queues/jobs/counts") == {"ready": 2, "in_flight": 0, "delayed": 1, "total": 3}
    served.advance(3601)
    found = {
        message["source"]: message
        for message in v2(served, "POST", "queues/jobs/leases", {"max": 10, "wait": 20})["messages"]
    }
    if "api" not in found:  # it is due a moment later than the others were there
        found |= {each["source"]: each for each in v2(served, "POST", "queues/jobs/leases", {"wait": 20})["messages"]}
    assert found["nsq"]["body_base64"] == "//4="
    assert (found["sqs"]["body"], found["sqs"]["tag"], found["sqs"]["key"]) == ("from sqs", "blue", "g")
    assert found["sqs"]["headers"] == {"tag": {"type": "String", "value": "blue"}}
    assert (found["api"]["tag"], found["api"]["headers"]) == ("red", {"a": 1})
    held = [message["receipt"] for message in found.values()]
    assert v2(served, "POST", "queues/jobs/leases/delete", {"receipts": held})["held"] == 3
    assert sqs(served, "ReceiveMessage", QueueUrl=url).get("Messages", []) == []


def test_a_fifo_queue_of_sqs_keeps_its_order_here_and_an_expired_receipt_deletes_nothing(served: Served) -> None:
    name = "jobs.fifo"
    attributes = {"FifoQueue": "true", "ContentBasedDeduplication": "true", "VisibilityTimeout": "30"}
    sqs(served, "CreateQueue", QueueName=name, Attributes=attributes)
    told = v2(served, "POST", f"queues/{name}/messages", {"messages": [{"body": body, "key": "k"} for body in "abc"]})
    assert told["stored"] == 3
    first, second = v2(served, "POST", f"queues/{name}/leases", {"max": 2, "wait": 20})["messages"]
    assert (first["body"], second["body"]) == ("a", "b")
    assert v2(served, "POST", f"queues/{name}/leases", {"max": 2})["messages"] == []
    served.advance(31)
    served.until(lambda: served.node.topics[name].subscriptions["queue"].in_flight() == 0)
    answer = asked(served, "DELETE", f"queues/{name}/leases/{first['receipt']}")
    assert (answer.status, answer.code) == (409, "not_leased")
    (again,) = v2(served, "POST", f"queues/{name}/leases", {"wait": 20})["messages"]
    assert (again["body"], again["attempts"]) == ("a", 2)


def test_redrives_are_those_that_sqs_lists(served: Served) -> None:
    v2(served, "POST", "queues", {"name": "dead"})
    v2(served, "POST", "queues", {"name": "jobs", "settings": {"max_receives": 1, "dead_letter_queue": "dead"}})
    v2(served, "POST", "queues/jobs/messages", {"messages": [{"body": "a"}]})
    (message,) = v2(served, "POST", "queues/jobs/leases", {"wait": 20})["messages"]
    v2(served, "POST", f"queues/jobs/leases/{message['receipt']}/release")
    v2(served, "POST", "queues/jobs/leases", {"wait": 0})
    served.until(lambda: served.node.topics["dead"].subscriptions["queue"].depth() == 1)
    begun = v2(served, "POST", "queues/dead/redrives", {})
    served.until(lambda: "dead" not in served.node.redrives)
    arn = "arn:aws:sqs:us-east-1:000000000000:dead"
    (task,) = sqs(served, "ListMessageMoveTasks", SourceArn=arn)["Results"]
    shown = v2(served, "GET", f"queues/dead/redrives/{begun['id']}")
    assert (shown["status"], shown["moved"], task["ApproximateNumberOfMessagesMoved"]) == ("completed", 1, 1)


def test_hundreds_of_long_polls_over_sockets_get_a_message_each(served: Served) -> None:
    v2(served, "POST", "queues", {"name": "jobs"})
    port = served.ports["dynamiq.port"]
    ask = b'POST /v2/queues/jobs/leases HTTP/1.1\r\nHost: localhost\r\nContent-Length: 12\r\n\r\n{"wait": 60}'
    sockets = []
    try:
        for _ in range(400):
            sockets.append(socket.create_connection(("127.0.0.1", port), PATIENCE_S))
            sockets[-1].sendall(ask)
        subscription = served.node.topics["jobs"].subscriptions["queue"]
        served.until(lambda: len(subscription.looks) == 400)
        v2(served, "POST", "queues/jobs/messages", {"messages": [{"body": str(number)} for number in range(400)]})
        found = [read(sock) for sock in sockets]
        assert sorted(int(each["data"]["messages"][0]["body"]) for each in found) == list(range(400))
    finally:
        for sock in sockets:
            sock.close()
    assert v2(served, "GET", "queues/jobs/counts")["in_flight"] == 400


def test_rights_and_quotas_are_the_nodes(tmp_path: Path) -> None:
    with Served(tmp_path / "data", callers=CallersConfig(audit="off", anonymous="off"), token="s3cret") as served:
        answer = asked(served, "GET", "queues")
        assert (answer.status, answer.code) == (401, "unauthorized")
        known = {"Authorization": "Bearer s3cret"}
        assert asked(served, "POST", "queues", {"name": "jobs"}, headers=known).status == 201
        assert asked(served, "GET", "queues", headers=known).status == 200
        for path in ("", "docs", "openapi.json", "nowhere"):
            assert asked(served, "GET", path).status in (401, 404)


def test_many_clients_at_once_share_a_queue_exactly(served: Served) -> None:
    v2(served, "POST", "queues", {"name": "jobs", "settings": {"min_partitions": 4}})

    def work(number: int) -> list[str]:
        bodies = [f"{number}-{each}" for each in range(50)]
        v2(served, "POST", "queues/jobs/messages", {"messages": [{"body": body} for body in bodies]})
        got: list[str] = []
        while found := v2(served, "POST", "queues/jobs/leases", {"max": 20})["messages"]:
            told = v2(served, "POST", "queues/jobs/leases/delete", {"receipts": [each["receipt"] for each in found]})
            assert told["refused"] == 0
            got += [each["body"] for each in found]
        return got

    with ThreadPoolExecutor(8) as pool:
        got = [body for bodies in pool.map(work, range(8)) for body in bodies]
    assert sorted(got) == sorted(f"{number}-{each}" for number in range(8) for each in range(50))
    assert v2(served, "GET", "queues/jobs/counts")["total"] == 0
