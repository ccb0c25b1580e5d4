"""Groups of a standard queue share it fairly, from the first message that has one."""

from __future__ import annotations

from tests.served import Served
from tests.sqs.boto import Boto


def policy(node: Served, name: str) -> str:
    return node.do(lambda: node.node.topics[name].subscriptions["queue"].settings.policy)


def test_a_tenant_with_ten_messages_does_not_wait_for_one_with_ten_thousand(
    node: Served, boto: Boto, name: str
) -> None:
    url = boto.queue(name)
    node.publish(name, *["noisy"] * 10_000, key="noisy")
    assert policy(node, name) == "shared"
    entries = [{"Id": str(at), "MessageBody": "quiet", "MessageGroupId": "quiet"} for at in range(10)]
    boto("send_message_batch", QueueUrl=url, Entries=entries)
    assert policy(node, name) == "fair"
    seen = [each["Body"] for _ in range(4) for each in boto.receive(url)]
    assert seen.count("quiet") == 10
    assert seen.count("noisy") == 30


def test_a_queue_stays_fair_when_its_attributes_change_and_one_without_groups_never_is(
    node: Served, boto: Boto, name: str
) -> None:
    url, plain = boto.queue(f"{name}-a"), boto.queue(f"{name}-b")
    boto.send(url, "x", MessageGroupId="g")
    boto.send(plain, "x")
    boto("set_queue_attributes", QueueUrl=url, Attributes={"VisibilityTimeout": "5"})
    assert boto.queue(f"{name}-a") == url
    assert (policy(node, f"{name}-a"), policy(node, f"{name}-b")) == ("fair", "shared")
    assert [each["Attributes"]["MessageGroupId"] for each in boto.receive(url)] == ["g"]


def test_fifo_queues_keep_their_order(node: Served, boto: Boto, name: str) -> None:
    name = name[-60:] + ".fifo"
    url = boto.queue(name, FifoQueue="true", ContentBasedDeduplication="true")
    for body in "123":
        boto.send(url, body, MessageGroupId="g")
    assert policy(node, name) == "shared"
    assert [each["Body"] for each in boto.receive(url)] == ["1", "2", "3"]
