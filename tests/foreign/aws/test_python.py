"""aiobotocore, and boto3 as people who like objects use it."""

from __future__ import annotations

import pytest

from penstock.dialects.sqs.sns import topics
from tests.foreign.aws.programs import ask, module

NONE = {"ApproximateNumberOfMessages": "0", "ApproximateNumberOfMessagesNotVisible": "0"}


def test_fifty_consumers_of_one_process_share_a_queue_and_each_message_comes_once(port: int) -> None:
    assert ask(module("crowd"), port, "crowd", "50", "1000") == {
        "bodies": 1000,
        "received": 1000,
        "wrong": [],
        "left": NONE,
    }


def test_resources_and_paginators_of_boto3_work(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "PAGE", 3)
    told = ask(module("resources"), port, "boto3")
    assert told["queues"] == {
        "url": True,
        "sent": ["0", "1", "2", "3", "4"],
        "first": ["one", {"colour": {"StringValue": "blue", "DataType": "String"}}, "1"],
        "others": [f"many {at}" for at in range(5)],
        "sources": True,
        "filtered": ["boto3-letters"],
        "again": ["one", True, "2"],
        "deleted": 5,
        "attributes": {"DelaySeconds": "7", "VisibilityTimeout": "60"},
        "left": "0",
        "purged": "0",
        "gone": "AWS.SimpleQueueService.NonExistentQueue",
    }
    assert told["topics"] == {
        "copy": ["a shirt", {"size": {"StringValue": "L", "DataType": "String"}}],
        "display": "Sales",
        "confirmed": "1",
        "raw": "true",
        "listed": True,
        "everywhere": True,
        "topic": True,
        "after": 0,
        "topic after": False,
    }
    assert told["pages"] == {
        "queues": [3, 3, 1],
        "same": True,
        "sources": [3, 3, 1],
        "topics": [True, True, True],
        "members": [2, 5, 5],
    }
