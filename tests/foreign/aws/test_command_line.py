"""The `aws` command, version 1, which takes the place of SQS from its arguments alone."""

from __future__ import annotations

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.foreign.aws.programs import program, say, variables
from tests.sqs.boto import REGION


@pytest.fixture
def aws(port: int) -> Any:
    def run(*arguments: str) -> Any:
        text = say([program("aws")], port, "--endpoint-url", f"http://127.0.0.1:{port}", *arguments)
        return json.loads(text) if text else None

    return run


def test_a_message_goes_through_a_queue_and_through_a_topic(aws: Any) -> None:
    # Its start takes longer than what it asks, so what does not depend on each other is asked at once.
    with ThreadPoolExecutor(3) as at_once:
        made = [
            at_once.submit(
                aws, "sqs", "create-queue", "--queue-name", "cli-jobs", "--attributes", "VisibilityTimeout=90"
            ),
            at_once.submit(aws, "sqs", "create-queue", "--queue-name", "cli-copies", "--tags", "team=shop"),
            at_once.submit(aws, "sns", "create-topic", "--name", "cli-sales"),
        ]
        jobs, copies, topic = (each.result() for each in made)
        jobs, copies, topic = jobs["QueueUrl"], copies["QueueUrl"], topic["TopicArn"]
        attribute = json.dumps({"size": {"DataType": "String", "StringValue": "L"}})
        sent = at_once.submit(
            aws,
            "sqs",
            "send-message",
            "--queue-url",
            jobs,
            "--message-body",
            "a shirt",
            "--message-attributes",
            attribute,
        )
        arn = f"arn:aws:sqs:{REGION}:000000000000:cli-copies"
        subscribed = at_once.submit(
            aws, "sns", "subscribe", "--topic-arn", topic, "--protocol", "sqs", "--notification-endpoint", arn
        )
        tags = at_once.submit(aws, "sqs", "list-queue-tags", "--queue-url", copies)
        assert subscribed.result()["SubscriptionArn"].startswith(f"{topic}:")
        assert tags.result() == {"Tags": {"team": "shop"}}
        published = at_once.submit(
            aws, "sns", "publish", "--topic-arn", topic, "--subject", "sale", "--message", "a hat & <more>"
        )
        # First what is waited for: on a slow machine a poll could be over before the other command has begun.
        told = sent.result(), published.result()
        received = at_once.submit(
            aws, "sqs", "receive-message", "--queue-url", jobs, "--wait-time-seconds", "20",
            "--attribute-names", "All", "--message-attribute-names", "All",
        )  # fmt: skip
        copied = at_once.submit(aws, "sqs", "receive-message", "--queue-url", copies, "--wait-time-seconds", "20")
        (message,) = received.result()["Messages"]
        assert (message["Body"], message["MessageId"]) == ("a shirt", told[0]["MessageId"])
        assert message["MessageAttributes"] == json.loads(attribute)
        (copy,) = copied.result()["Messages"]
        envelope = json.loads(copy["Body"])
        assert (envelope["Subject"], envelope["Message"]) == ("sale", "a hat & <more>")
        assert envelope["MessageId"] == told[1]["MessageId"]
        done = [
            at_once.submit(
                aws, "sqs", "delete-message", "--queue-url", jobs, "--receipt-handle", message["ReceiptHandle"]
            ),
            at_once.submit(aws, "sqs", "purge-queue", "--queue-url", copies),
        ]
        assert [each.result() for each in done] == [None, None]
        listed = at_once.submit(aws, "sqs", "list-queues", "--queue-name-prefix", "cli-")
        names = ["ApproximateNumberOfMessagesNotVisible", "VisibilityTimeout"]
        shown = at_once.submit(aws, "sqs", "get-queue-attributes", "--queue-url", jobs, "--attribute-names", *names)
        assert listed.result()["QueueUrls"] == [copies, jobs]
        assert shown.result()["Attributes"] == {names[0]: "0", names[1]: "90"}


def test_a_refusal_is_told_in_its_own_words(port: int) -> None:
    place = ["--endpoint-url", f"http://127.0.0.1:{port}"]
    command = [program("aws"), *place, "sqs", "get-queue-url", "--queue-name", "nobody-made-it"]
    done = subprocess.run(
        command, env=variables(port), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode != 0
    assert "(AWS.SimpleQueueService.NonExistentQueue) when calling the GetQueueUrl operation" in done.stderr
