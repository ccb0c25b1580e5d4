"""Queues beside the other dialects: one topic, whoever writes and whoever reads."""

from __future__ import annotations

import base64
from typing import Any

from penstock.log.reader import Reader
from tests.proofs.client import Client, fin
from tests.served import Served
from tests.sqs.boto import Boto


def test_what_nsq_publishes_is_received_and_a_body_that_is_no_text_in_base64(
    node: Served, boto: Boto, name: str
) -> None:
    name = name[-60:]
    url = boto.queue(name)
    port = node.ports["nsq.http_port"]
    node.ask("POST", f"/pub?topic={name}", raw=b"from nsq", port=port)
    node.ask("POST", f"/pub?topic={name}", raw=b"\xff\xfe", port=port)
    texts, raw = boto.receive(url)
    assert (texts["Body"], "MessageAttributes" in texts) == ("from nsq", False)
    assert base64.b64decode(raw["Body"]) == b"\xff\xfe"
    assert raw["MessageAttributes"]["penstock.encoding"]["StringValue"] == "base64"


def test_a_topic_that_nsq_made_becomes_a_queue_with_what_it_holds(node: Served, boto: Boto, name: str) -> None:
    name = name[-60:]
    node.ask("POST", f"/pub?topic={name}", raw=b"before", port=node.ports["nsq.http_port"])
    assert boto.refused("get_queue_url", QueueName=name).type == "QueueDoesNotExist"
    assert [each["Body"] for each in boto.receive(boto.queue(name))] == ["before"]


def test_what_is_sent_is_seen_by_a_channel_and_in_the_log_with_its_columns(node: Served, boto: Boto, name: str) -> None:
    name = name[-60:]
    url = boto.queue(name)
    client = Client(node.tcp_port)
    client.subscribe(name, "audit", 10)
    attributes = {"tag": {"DataType": "String", "StringValue": "red"}}
    boto.send(url, "hello", MessageGroupId="customer-7", MessageAttributes=attributes)
    boto.send(url, "later", DelaySeconds=900)
    message = client.message()
    assert message.body == b"hello"
    client.send(fin(message.id))
    client.close()
    assert [each["Body"] for each in boto.receive(url)] == ["hello"]
    number = node.do(lambda: node.node.topics[name].record.number)

    def rows() -> list[dict[str, Any]]:
        return [row for batch in Reader(f"{node.path}/topics/{number}/0").batches() for row in batch.to_pylist()]

    node.until(lambda: len(rows()) == 2)  # readers of files see a row a little later
    first, second = rows()
    assert (first["body"], first["source"], first["key"], first["tag"]) == (b"hello", "sqs", b"customer-7", "red")
    assert first["headers"] == b'{"tag":{"type":"String","value":"red"}}'
    assert (second["body"], second["due"] - second["timestamp"] > 890 * 10**9) == (b"later", True)


def test_deleting_a_queue_leaves_the_topic_to_its_other_readers(node: Served, boto: Boto, name: str) -> None:
    name = name[-60:]
    url = boto.queue(name)
    client = Client(node.tcp_port)
    client.subscribe(name, "audit", 10)
    boto("delete_queue", QueueUrl=url)
    node.ask("POST", f"/pub?topic={name}", raw=b"still here", port=node.ports["nsq.http_port"])
    assert client.message().body == b"still here"
    client.close()
    assert boto.refused("get_queue_url", QueueName=name).type == "QueueDoesNotExist"


def test_a_queue_and_a_topic_of_dynamiq_are_those_of_sqs_and_sns(node: Served, boto: Boto, name: str) -> None:
    name = name[-60:]
    port = node.ports["dynamiq.port"]
    assert node.ask("PUT", f"/v1/queues/{name}", port=port).status == 201
    assert node.ask("PUT", f"/v1/topics/{name}", port=port).status == 201
    assert node.ask("PUT", f"/v1/topics/{name}/queues/{name}", port=port).status == 200
    node.ask("PUT", f"/v1/queues/{name}/message", raw=b"from dynamiq", port=port)
    url = str(boto("get_queue_url", QueueName=name)["QueueUrl"])
    (message,) = boto.receive(url, WaitTimeSeconds=20)
    assert message["Body"] == "from dynamiq"
    boto("delete_message", QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    boto("publish", "sns", TopicArn=f"arn:aws:sns:us-east-1:000000000000:{name}", Message="from sns")
    node.advance(60)  # its partition is locked for a while after it was served
    assert [each["Body"] for each in boto.receive(url, WaitTimeSeconds=20)] == ["from sns"]


def test_a_queue_of_sqs_is_one_of_dynamiq(node: Served, boto: Boto, name: str) -> None:
    name = name[-60:]
    port, url = node.ports["dynamiq.port"], boto.queue(name, VisibilityTimeout="7")
    boto("create_topic", "sns", Name=name)
    assert node.ask("PUT", f"/v1/topics/{name}/queues/{name}", port=port).status == 200
    boto.send(url, "from sqs")
    node.ask("PUT", f"/v1/queues/{name}/message", raw=b"from dynamiq", port=port)
    node.ask("PUT", f"/v1/topics/{name}/message", raw=b"to all", port=port)
    got = node.ask("GET", f"/v1/queues/{name}/messages/2", port=port).json
    assert [each["body"] for each in got] == ["from sqs", "from dynamiq"]
    assert [each["Body"] for each in boto.receive(url)] == ["to all"]  # the others are out, for seven seconds
    node.advance(8)
    again = boto.receive(url)
    assert sorted(each["Body"] for each in again) == ["from dynamiq", "from sqs", "to all"]
    assert node.ask("DELETE", f"/v1/queues/{name}/message/{got[0]['id']}", port=port).status == 200
    node.advance(8)
    assert sorted(each["Body"] for each in boto.receive(url)) == ["from dynamiq", "to all"]
