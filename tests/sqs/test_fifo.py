"""FIFO queues: order within a group, one receiver of a group at a time, each message once."""

from __future__ import annotations

from typing import Any

import pytest

from tests.served import Served
from tests.sqs.boto import Boto


@pytest.fixture
def url(boto: Boto, name: str) -> str:
    return boto.queue(f"{name}.fifo", FifoQueue="true", ContentBasedDeduplication="true")


def bodies(messages: list[dict[str, Any]]) -> list[str]:
    return [each["Body"] for each in messages]


def test_a_group_is_received_in_order_and_by_one_receiver_at_a_time(boto: Boto, url: str) -> None:
    for number in range(6):
        boto.send(url, f"a{number}", MessageGroupId="a")
    boto.send(url, "b0", MessageGroupId="b")
    first = boto.receive(url, 3)
    assert bodies(first) == ["a0", "a1", "a2"]
    assert [each["Attributes"]["MessageGroupId"] for each in first] == ["a"] * 3
    numbers = [int(each["Attributes"]["SequenceNumber"]) for each in first]
    assert numbers == sorted(numbers)
    assert bodies(boto.receive(url, 10)) == ["b0"]
    handles = [{"Id": str(i), "ReceiptHandle": each["ReceiptHandle"]} for i, each in enumerate(first)]
    boto("delete_message_batch", QueueUrl=url, Entries=handles[:2])
    assert boto.receive(url, 10) == []
    boto("delete_message_batch", QueueUrl=url, Entries=handles[2:])
    assert bodies(boto.receive(url, 10)) == ["a3", "a4", "a5"]


def test_what_is_made_visible_again_comes_before_what_is_behind_it(boto: Boto, url: str) -> None:
    for number in range(3):
        boto.send(url, f"m{number}", MessageGroupId="g")
    (first,) = boto.receive(url, 1)
    assert boto.receive(url) == []
    boto("change_message_visibility", QueueUrl=url, ReceiptHandle=first["ReceiptHandle"], VisibilityTimeout=0)
    (again,) = boto.receive(url, 10)
    assert again["Body"] == "m0"
    boto("delete_message", QueueUrl=url, ReceiptHandle=again["ReceiptHandle"])
    assert bodies(boto.receive(url, 10)) == ["m1", "m2"]


def test_a_message_is_stored_once_within_five_minutes_and_again_after_them(node: Served, boto: Boto, url: str) -> None:
    first = boto.send(url, "same", MessageGroupId="g")
    again = boto.send(url, "same", MessageGroupId="g")
    assert (again["MessageId"], again["SequenceNumber"]) == (first["MessageId"], first["SequenceNumber"])
    other = boto.send(url, "same", MessageGroupId="g", MessageDeduplicationId="another")
    assert other["MessageId"] != first["MessageId"]
    assert boto.attributes(url)["ApproximateNumberOfMessages"] == "2"
    node.advance(5 * 60 + 1)
    assert boto.send(url, "same", MessageGroupId="g")["MessageId"] != first["MessageId"]
    assert boto.attributes(url)["ApproximateNumberOfMessages"] == "3"


def test_deduplication_may_be_by_group(boto: Boto, name: str) -> None:
    url = boto.queue(
        f"{name}.fifo",
        FifoQueue="true",
        ContentBasedDeduplication="true",
        DeduplicationScope="messageGroup",
        FifoThroughputLimit="perMessageGroupId",
    )
    ids = [boto.send(url, "same", MessageGroupId=group)["MessageId"] for group in ("a", "b", "a")]
    assert ids[0] == ids[2] != ids[1]
    message = boto.receive(url)[0]
    assert len(message["Attributes"]["MessageDeduplicationId"]) == 64


def test_throughput_by_group_goes_with_deduplication_by_group_only(boto: Boto, name: str) -> None:
    by_group = {"FifoQueue": "true", "FifoThroughputLimit": "perMessageGroupId"}
    error = boto.refused("create_queue", QueueName=f"{name}.fifo", Attributes=by_group)
    assert (error.code, error.status) == ("InvalidAttributeValue", 400)
    url = boto.queue(f"{name}.fifo", **by_group, DeduplicationScope="messageGroup")
    narrower = {"DeduplicationScope": "queue"}
    assert boto.refused("set_queue_attributes", QueueUrl=url, Attributes=narrower).code == "InvalidAttributeValue"
    boto("set_queue_attributes", QueueUrl=url, Attributes={**narrower, "FifoThroughputLimit": "perQueue"})
    assert boto.attributes(url)["DeduplicationScope"] == "queue"


def test_a_batch_may_repeat_itself(boto: Boto, url: str) -> None:
    entries = [{"Id": str(i), "MessageBody": body, "MessageGroupId": "g"} for i, body in enumerate(["x", "y", "x"])]
    sent = boto("send_message_batch", QueueUrl=url, Entries=entries)["Successful"]
    assert sent[0]["MessageId"] == sent[2]["MessageId"] != sent[1]["MessageId"]
    assert bodies(boto.receive(url)) == ["x", "y"]


def test_a_fifo_queue_asks_for_what_it_needs(boto: Boto, name: str) -> None:
    url = boto.queue(f"{name}.fifo", FifoQueue="true")
    assert boto.refused("send_message", QueueUrl=url, MessageBody="x").code == "MissingParameter"
    error = boto.refused("send_message", QueueUrl=url, MessageBody="x", MessageGroupId="g")
    assert error.code == "InvalidParameterValue"
    assert "ContentBasedDeduplication" in error.message
    late = boto.refused(
        "send_message", QueueUrl=url, MessageBody="x", MessageGroupId="g", MessageDeduplicationId="d", DelaySeconds=5
    )
    assert late.code == "InvalidParameterValue"
    assert boto.refused("create_queue", QueueName=f"{name}2.fifo").code == "InvalidParameterValue"
    plain = boto.queue(name)
    wrong = boto.refused("send_message", QueueUrl=plain, MessageBody="x", MessageDeduplicationId="d")
    assert wrong.code == "InvalidParameterValue"
    told = boto.attributes(url)
    assert (told["FifoQueue"], told["ContentBasedDeduplication"], told["DeduplicationScope"]) == (
        "true",
        "false",
        "queue",
    )
