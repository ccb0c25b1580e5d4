"""Dead letters, and the way back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.served import Served
from tests.sqs.boto import Boto


def arn(name: str) -> str:
    return f"arn:aws:sqs:us-east-1:000000000000:{name}"


def pair(boto: Boto, name: str, count: int = 1) -> tuple[str, str]:
    """Make a queue and one for its dead letters."""
    dead = boto.queue(f"{name}-dead")
    policy = json.dumps({"deadLetterTargetArn": arn(f"{name}-dead"), "maxReceiveCount": count})
    return boto.queue(name, RedrivePolicy=policy), dead


def fail(boto: Boto, url: str, times: int) -> None:
    """Receive a message so often and never delete it."""
    for _ in range(times):
        (message,) = boto.receive(url, 1, WaitTimeSeconds=20)
        boto("change_message_visibility", QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0)


def moved(node: Served, boto: Boto, name: str) -> dict[str, Any]:
    """Wait for the end of the last move from a queue."""
    node.until(lambda: f"{name}-dead" not in node.node.redrives)
    found: dict[str, Any] = boto("list_message_move_tasks", SourceArn=arn(f"{name}-dead"))["Results"][0]
    return found


def test_a_message_that_fails_too_often_goes_to_the_dead_letter_queue(boto: Boto, name: str) -> None:
    name = name[-60:]
    url, dead = pair(boto, name, 2)
    sent = boto.send(url, "poison", MessageAttributes={"a": {"DataType": "String", "StringValue": "v"}})
    fail(boto, url, 2)
    assert boto.receive(url) == []
    (letter,) = boto.receive(dead, WaitTimeSeconds=20)
    assert letter["Body"] == "poison"
    assert letter["MessageAttributes"] == {"a": {"DataType": "String", "StringValue": "v"}}
    assert letter["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]
    assert letter["Attributes"]["DeadLetterQueueSourceArn"] == arn(name)
    assert boto("list_dead_letter_source_queues", QueueUrl=dead)["queueUrls"] == [url]
    assert json.loads(boto.attributes(url)["RedrivePolicy"]) == {
        "deadLetterTargetArn": arn(f"{name}-dead"),
        "maxReceiveCount": 2,
    }


def test_letters_are_moved_back_and_are_gone_from_the_dead_letter_queue(node: Served, boto: Boto, name: str) -> None:
    name = name[-60:]
    url, dead = pair(boto, name)
    for number in range(3):
        boto.send(url, f"m{number}")
        fail(boto, url, 1)
        assert boto.receive(url) == []
        node.until(lambda: node.node.topics[f"{name}-dead"].subscriptions["queue"].depth() == number + 1)  # noqa: B023
    (kept,) = boto.receive(dead, 1, VisibilityTimeout=600)
    boto("delete_message", QueueUrl=dead, ReceiptHandle=kept["ReceiptHandle"])
    handle = boto("start_message_move_task", SourceArn=arn(f"{name}-dead"))["TaskHandle"]
    task = moved(node, boto, name)
    assert (task["Status"], task["ApproximateNumberOfMessagesMoved"]) == ("COMPLETED", 2)
    assert boto.refused("cancel_message_move_task", TaskHandle=handle).type == "ResourceNotFoundException"
    assert boto.receive(dead) == []
    back = boto.receive(url, WaitTimeSeconds=20)
    assert sorted(each["Body"] for each in back) == ["m1", "m2"]
    assert [each["Attributes"]["ApproximateReceiveCount"] for each in back] == ["1", "1"]
    assert "DeadLetterQueueSourceArn" not in back[0]["Attributes"]


def test_letters_may_be_moved_to_another_queue(node: Served, boto: Boto, name: str) -> None:
    name = name[-60:]
    url, _ = pair(boto, name)
    other = boto.queue(f"{name}-other")
    boto.send(url, "x")
    fail(boto, url, 1)
    assert boto.receive(url) == []
    node.until(lambda: node.node.topics[f"{name}-dead"].subscriptions["queue"].depth() == 1)
    boto("start_message_move_task", SourceArn=arn(f"{name}-dead"), DestinationArn=arn(f"{name}-other"))
    assert moved(node, boto, name)["DestinationArn"] == arn(f"{name}-other")
    assert [each["Body"] for each in boto.receive(other, WaitTimeSeconds=20)] == ["x"]


@pytest.mark.parametrize(
    "policy",
    [
        {"redrivePermission": "byQueue"},
        {"redrivePermission": "byQueue", "sourceQueueArns": [arn(f"q{at}") for at in range(11)]},
        {"redrivePermission": "allowAll", "sourceQueueArns": [arn("q")]},
        {"redrivePermission": "denyAll", "sourceQueueArns": [arn("q")]},
        {"redrivePermission": "sometimes"},
    ],
)
def test_who_may_send_dead_letters_is_all_or_none_or_up_to_ten(boto: Boto, name: str, policy: dict[str, Any]) -> None:
    attributes = {"RedriveAllowPolicy": json.dumps(policy)}
    error = boto.refused("create_queue", QueueName=name, Attributes=attributes)
    assert (error.code, error.status) == ("InvalidParameterValue", 400)


def test_what_cannot_be_a_dead_letter_queue_is_refused(boto: Boto, name: str) -> None:
    name = name[-60:]
    url, dead = pair(boto, name)
    for policy in (
        '{"deadLetterTargetArn": "arn:aws:sqs:us-east-1:000000000000:none", "maxReceiveCount": 1}',
        json.dumps({"deadLetterTargetArn": arn(f"{name}-dead"), "maxReceiveCount": 0}),
        json.dumps({"deadLetterTargetArn": arn(name), "maxReceiveCount": 1}),
        "nonsense",
        "[]",
    ):
        error = boto.refused("set_queue_attributes", QueueUrl=url, Attributes={"RedrivePolicy": policy})
        assert error.code == "InvalidParameterValue"
    denied = {"RedriveAllowPolicy": '{"redrivePermission": "denyAll"}'}
    boto("set_queue_attributes", QueueUrl=dead, Attributes=denied)
    third = json.dumps({"deadLetterTargetArn": arn(f"{name}-dead"), "maxReceiveCount": "3"})
    assert boto.refused("create_queue", QueueName=f"{name}-3", Attributes={"RedrivePolicy": third}).code == (
        "InvalidParameterValue"
    )
    assert boto.refused("start_message_move_task", SourceArn=arn(name)).code == "InvalidParameterValue"
    assert boto.refused("start_message_move_task", SourceArn=arn("none")).type == "ResourceNotFoundException"
    boto("set_queue_attributes", QueueUrl=url, Attributes={"RedrivePolicy": ""})
    assert "RedrivePolicy" not in boto.attributes(url)
