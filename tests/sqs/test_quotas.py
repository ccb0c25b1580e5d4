"""The quota of a user who signs its requests: Amazon's words for it, which SDKs try again later."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import pytest

from penstock.callers.book import AccessKey, User
from penstock.callers.quota import NO_QUOTA, UserQuota
from penstock.callers.rights import Rule
from penstock.dialects.sqs import receiver
from penstock.dialects.sqs.config import SqsConfig
from tests.callers.parts import users_in
from tests.served import Served
from tests.sqs.boto import Boto

KEY = AccessKey("PKBOB000000000000001", "bob's own secret")


@pytest.mark.parametrize("wait_s", [0, 20])
def test_a_queue_with_too_many_messages_in_flight_gives_no_more_until_some_are_deleted(
    node: Served, boto: Boto, name: str, monkeypatch: pytest.MonkeyPatch, wait_s: int
) -> None:
    assert receiver.IN_FLIGHT_MAX == 120_000
    monkeypatch.setattr(receiver, "IN_FLIGHT_MAX", 10)
    standard, fifo = boto.queue(name), boto.queue(f"{name}.fifo", FifoQueue="true", ContentBasedDeduplication="true")
    for number in range(12):
        boto.send(standard, str(number))
        boto.send(fifo, str(number), MessageGroupId=f"g{number}")
    got = {url: boto.receive(url) for url in (standard, fifo)}
    assert [len(each) for each in got.values()] == [10, 10]
    error = boto.refused("receive_message", QueueUrl=standard, WaitTimeSeconds=wait_s)
    assert (error.type, error.code, error.status) == ("OverLimit", "OverLimit", 403)
    assert boto.receive(fifo, WaitTimeSeconds=wait_s) == []  # Amazon returns no error here
    for url, found in got.items():
        boto("delete_message", QueueUrl=url, ReceiptHandle=found[0]["ReceiptHandle"])
        assert [each["Body"] for each in boto.receive(url, 1, WaitTimeSeconds=wait_s)] == ["10"]


def test_a_signer_is_kept_to_its_quota(tmp_path: Path) -> None:
    quota = UserQuota(messages_per_second=1, connections=2, topics=1)
    users_in(tmp_path, [User("bob", (Rule("admin", "*"),), keys=(KEY,), quota=quota)])
    with Served(tmp_path, sqs=SqsConfig(port=0)) as node:
        account = node.do(lambda: node.node.gate.accounts.named("bob"))
        with Boto(node.ports["sqs.port"], KEY.id, KEY.secret) as bob:
            url = bob.queue("one")
            assert node.do(lambda: node.node.topic("one").record.owner) == "bob"
            over = bob.refused("create_queue", QueueName="two")
            assert (over.code, over.status) == ("OverLimit", 403)
            assert "the quota of user bob is 1 topics" in over.message
            began = time.monotonic()
            entries = [{"Id": str(number), "MessageBody": "x"} for number in range(10)]
            assert len(bob("send_message_batch", QueueUrl=url, Entries=entries)["Successful"]) == 10
            assert time.monotonic() - began > 0.9
            node.do(lambda: account.take(1000, 0, node.clock.monotonic(), is_begun=True))
            fast = bob.refused("send_message", QueueUrl=url, MessageBody="x")
            assert fast.code == "Throttling"
            assert "the quota of user bob is 1 messages a second" in fast.message
            arn = bob("create_topic", "sns", Name="copies")["TopicArn"]
            queue = bob.attributes(url)["QueueArn"]
            bob("subscribe", "sns", TopicArn=arn, Protocol="sqs", Endpoint=queue)
            copied = bob.refused("publish", "sns", TopicArn=arn, Message="x")
            assert "the quota of user bob is 1 messages a second" in copied.message
            assert len(bob.receive(url)) == 10
            for each in (NO_QUOTA, quota):  # all debts are paid
                node.do(partial(account.configure, each))
            began = time.monotonic()
            entries = [{"Id": str(number), "Message": "x"} for number in range(5)]
            sent = bob("publish_batch", "sns", TopicArn=arn, PublishBatchRequestEntries=entries)
            assert len(sent["Successful"]) == 5
            assert time.monotonic() - began > 0.9
            with Boto(node.ports["sqs.port"], KEY.id, KEY.secret) as second:
                many = second.refused("list_queues")
                assert "the quota of user bob is 2 connections" in many.message
            with Boto(node.ports["sqs.port"]) as anybody:
                assert anybody("list_queues")["QueueUrls"]
        node.until(lambda: account.connections == 0)
