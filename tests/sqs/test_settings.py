"""What a node's settings say of addresses and ARNs, and a queue's of how long messages are kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.config import Config
from penstock.dialects.sqs.config import SqsConfig, check
from penstock.errors import ConfigError
from tests.served import Served
from tests.sqs.boto import Boto
from tests.sqs.test_sns import topic

PUBLIC = "https://queues.example:8443/aws"


def test_addresses_and_arns_are_as_the_settings_say(tmp_path: Path) -> None:
    chosen = SqsConfig(port=0, public_url=PUBLIC + "/", region="eu-north-1", account_id="123456789012")
    with Served(tmp_path, sqs=chosen) as node, Boto(node.ports["sqs.port"]) as boto:
        url = boto.queue("jobs")
        assert url == f"{PUBLIC}/123456789012/jobs"
        assert boto("list_queues")["QueueUrls"] == [url]
        assert boto.attributes(url)["QueueArn"] == "arn:aws:sqs:eu-north-1:123456789012:jobs"
        # Whoever follows the address comes by that name, through a proxy.
        headers = {"x-amz-target": "AmazonSQS.SendMessage", "host": "queues.example:8443"}
        asked = {"QueueUrl": url, "MessageBody": "by its address"}
        assert (
            node.ask("POST", "/aws/123456789012/jobs", asked, headers=headers, port=node.ports["sqs.port"]).status
            == 200
        )
        (message,) = boto.receive(url)
        assert (message["Body"], message["Attributes"]["SenderId"]) == ("by its address", "123456789012")
        owner = {"QueueName": "jobs", "QueueOwnerAWSAccountId": "123456789012"}
        assert boto("get_queue_url", **owner)["QueueUrl"] == url
        assert boto.refused("get_queue_url", **{**owner, "QueueOwnerAWSAccountId": "000000000000"}).status == 400
        policy = {"deadLetterTargetArn": "arn:aws:sqs:us-east-1:000000000000:jobs", "maxReceiveCount": 1}
        wrong = boto.refused("create_queue", QueueName="other", Attributes={"RedrivePolicy": json.dumps(policy)})
        assert wrong.code == "InvalidParameterValue"


def test_topics_and_envelopes_name_them_too(tmp_path: Path) -> None:
    chosen = SqsConfig(port=0, public_url=PUBLIC, region="eu-north-1", account_id="123456789012")
    with Served(tmp_path, sqs=chosen) as node, Boto(node.ports["sqs.port"]) as boto:
        url, head = boto.queue("q"), "arn:aws:sns:eu-north-1:123456789012:"
        topic_arn = topic(boto, "t")
        assert topic_arn == head + "t"
        queue_arn = boto.attributes(url)["QueueArn"]
        made = boto("subscribe", "sns", TopicArn=topic_arn, Protocol="sqs", Endpoint=queue_arn)
        assert made["SubscriptionArn"].startswith(head + "t:")
        boto("publish", "sns", TopicArn=topic_arn, Message="x")
        (message,) = boto.receive(url)
        envelope = json.loads(message["Body"])
        assert envelope["TopicArn"] == topic_arn
        for link in ("SigningCertURL", "UnsubscribeURL"):
            assert envelope[link].startswith(PUBLIC + "/"), link
        assert (
            boto.refused("publish", "sns", TopicArn="arn:aws:sns:us-east-1:000000000000:t", Message="x").status == 400
        )


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (SqsConfig(public_url="queues.example"), "public_url"),
        (SqsConfig(public_url="http://queues.example/?a=b"), "public_url"),
        (SqsConfig(region="EU north"), "region"),
        (SqsConfig(region=""), "region"),
        (SqsConfig(account_id="12345678901"), "account_id"),
        (SqsConfig(account_id="12345678901x"), "account_id"),
    ],
)
def test_what_is_no_address_region_or_account_is_no_setting(wrong: SqsConfig, why: str) -> None:
    with pytest.raises(ConfigError, match=rf"sqs\.{why} = "):
        check(Config(parts=(wrong,)))


def test_a_message_is_gone_when_its_retention_period_is_over(node: Served, boto: Boto, name: str) -> None:
    url = boto.queue(name, MessageRetentionPeriod="60", VisibilityTimeout="3600")
    boto.send(url, "old")
    boto.send(url, "taken")
    node.advance(30)
    boto.send(url, "young")
    (first,) = boto.receive(url, 1)
    assert first["Body"] == "old"
    node.advance(29)
    assert boto.attributes(url)["ApproximateNumberOfMessages"] == "2"
    node.advance(2)
    assert [each["Body"] for each in boto.receive(url)] == ["young"]
    boto("change_message_visibility", QueueUrl=url, ReceiptHandle=first["ReceiptHandle"], VisibilityTimeout=0)
    assert boto.receive(url) == []  # it came back too late
    node.advance(60)
    boto("set_queue_attributes", QueueUrl=url, Attributes={"MessageRetentionPeriod": "120"})
    boto.send(url, "longer")
    node.advance(119)
    assert [each["Body"] for each in boto.receive(url)] == ["longer"]
