"""SNS: what is published to a topic comes to its queues, raw or in an envelope, as filters say."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.dialects.sqs.faults import Fault
from penstock.dialects.sqs.sns import policy, subscriptions
from tests.served import Served
from tests.sqs.boto import Boto


def arn(name: str, service: str = "sqs") -> str:
    return f"arn:aws:{service}:us-east-1:000000000000:{name}"


def topic(boto: Boto, name: str, **attributes: str) -> str:
    return str(boto("create_topic", "sns", Name=name, Attributes=attributes)["TopicArn"])


def subscribed(boto: Boto, name: str, queue: str, **attributes: str) -> tuple[str, str]:
    """Make a queue that gets copies; return its address and the subscription's ARN."""
    more = {"FifoQueue": "true"} if queue.endswith(".fifo") else {}
    url = boto.queue(queue, **more)
    made = boto(
        "subscribe", "sns", TopicArn=arn(name, "sns"), Protocol="sqs", Endpoint=arn(queue), Attributes=attributes
    )
    return url, str(made["SubscriptionArn"])


def text(value: str) -> dict[str, str]:
    return {"DataType": "String", "StringValue": value}


def test_a_message_comes_to_every_queue_raw_or_in_an_envelope(boto: Boto, name: str) -> None:
    name = name[-50:]
    topic_arn = topic(boto, name)
    assert topic_arn == arn(name, "sns") == topic(boto, name)
    raw, _ = subscribed(boto, name, f"{name}-raw", RawMessageDelivery="true")
    wrapped, subscription = subscribed(boto, name, f"{name}-env")
    sent = boto(
        "publish",
        "sns",
        TopicArn=topic_arn,
        Message="hello",
        Subject="greeting",
        MessageAttributes={"kind": text("a"), "raw": {"DataType": "Binary", "BinaryValue": b"\x00"}},
    )
    (plain,) = boto.receive(raw)
    assert (plain["Body"], plain["MessageAttributes"]["kind"]) == ("hello", text("a"))
    (message,) = boto.receive(wrapped)
    envelope = json.loads(message["Body"])
    assert "MessageAttributes" not in message
    assert {key: envelope[key] for key in ("Type", "MessageId", "TopicArn", "Subject", "Message")} == {
        "Type": "Notification",
        "MessageId": sent["MessageId"],
        "TopicArn": topic_arn,
        "Subject": "greeting",
        "Message": "hello",
    }
    assert envelope["MessageAttributes"] == {
        "kind": {"Type": "String", "Value": "a"},
        "raw": {"Type": "Binary", "Value": "AA=="},
    }
    boto("unsubscribe", "sns", SubscriptionArn=subscription)
    boto("publish", "sns", TopicArn=topic_arn, Message="again")
    assert [each["Body"] for each in boto.receive(raw)] == ["again"]
    assert boto.receive(wrapped) == []


def test_a_batch_is_filtered_message_by_message(boto: Boto, name: str) -> None:
    name = name[-50:]
    topic(boto, name)
    rule = json.dumps({"kind": ["a", {"prefix": "b"}], "n": [{"numeric": [">", 1]}]})
    url, subscription = subscribed(boto, name, f"{name}-q", RawMessageDelivery="true", FilterPolicy=rule)
    number = {"DataType": "Number", "StringValue": "2"}
    entries: list[dict[str, Any]] = [
        {"Id": "1", "Message": "takes", "MessageAttributes": {"kind": text("a"), "n": number}},
        {"Id": "2", "Message": "prefix", "MessageAttributes": {"kind": text("bb"), "n": number}},
        {"Id": "3", "Message": "other", "MessageAttributes": {"kind": text("c"), "n": number}},
        {"Id": "4", "Message": "lacks", "MessageAttributes": {"kind": text("a")}},
    ]
    done = boto("publish_batch", "sns", TopicArn=arn(name, "sns"), PublishBatchRequestEntries=entries)
    assert [each["Id"] for each in done["Successful"]] == ["1", "2", "3", "4"]
    assert [each["Body"] for each in boto.receive(url)] == ["takes", "prefix"]
    boto(
        "set_subscription_attributes",
        "sns",
        SubscriptionArn=subscription,
        AttributeName="FilterPolicyScope",
        AttributeValue="MessageBody",
    )
    boto(
        "set_subscription_attributes",
        "sns",
        SubscriptionArn=subscription,
        AttributeName="FilterPolicy",
        AttributeValue='{"order": {"state": ["paid"]}}',
    )
    for body in ('{"order": {"state": "paid"}}', '{"order": {"state": "new"}}', "no json"):
        boto("publish", "sns", TopicArn=arn(name, "sns"), Message=body)
    assert [each["Body"] for each in boto.receive(url)] == ['{"order": {"state": "paid"}}']
    for wrong in ("nonsense", "[]", '{"a": "b"}', '{"a": [{"regex": ".*"}]}', '{"a": [{"numeric": ["~", 1]}]}'):
        error = boto.refused(
            "set_subscription_attributes",
            "sns",
            SubscriptionArn=subscription,
            AttributeName="FilterPolicy",
            AttributeValue=wrong,
        )
        assert (error.code, error.status) == ("InvalidParameter", 400)


def test_topics_subscriptions_and_tags_are_listed(boto: Boto, name: str) -> None:
    name = name[-50:]
    topic_arn = topic(boto, name, DisplayName="shop")
    _, subscription = subscribed(boto, name, f"{name}-q")
    assert {"TopicArn": topic_arn} in boto("list_topics", "sns")["Topics"]
    told = boto("get_topic_attributes", "sns", TopicArn=topic_arn)["Attributes"]
    assert (told["DisplayName"], told["SubscriptionsConfirmed"]) == ("shop", "1")
    (member,) = boto("list_subscriptions_by_topic", "sns", TopicArn=topic_arn)["Subscriptions"]
    assert (member["SubscriptionArn"], member["Endpoint"]) == (subscription, arn(f"{name}-q"))
    assert member in boto("list_subscriptions", "sns")["Subscriptions"]
    held = boto("get_subscription_attributes", "sns", SubscriptionArn=subscription)["Attributes"]
    assert (held["Protocol"], held["RawMessageDelivery"], held["PendingConfirmation"]) == ("sqs", "false", "false")
    boto("tag_resource", "sns", ResourceArn=topic_arn, Tags=[{"Key": "team", "Value": "a"}])
    assert boto("list_tags_for_resource", "sns", ResourceArn=topic_arn)["Tags"] == [{"Key": "team", "Value": "a"}]
    boto("untag_resource", "sns", ResourceArn=topic_arn, TagKeys=["team"])
    assert boto("list_tags_for_resource", "sns", ResourceArn=topic_arn)["Tags"] == []
    boto("delete_topic", "sns", TopicArn=topic_arn)
    boto("delete_topic", "sns", TopicArn=topic_arn)
    error = boto.refused("publish", "sns", TopicArn=topic_arn, Message="x")
    assert (error.type, error.code, error.status) == ("NotFoundException", "NotFound", 404)


def test_a_queue_that_was_deleted_and_made_again_gets_messages_again(node: Served, boto: Boto, name: str) -> None:
    name = name[-50:]
    topic_arn = topic(boto, name)
    url, subscription = subscribed(boto, name, f"{name}-q", RawMessageDelivery="true")
    letters = boto.queue(f"{name}-dead")
    boto(
        "set_subscription_attributes",
        "sns",
        SubscriptionArn=subscription,
        AttributeName="RedrivePolicy",
        AttributeValue=json.dumps({"deadLetterTargetArn": arn(f"{name}-dead")}),
    )
    boto("delete_queue", QueueUrl=url)
    boto("publish", "sns", TopicArn=topic_arn, Message="nobody is there")
    assert [each["Body"] for each in boto.receive(letters)] == ["nobody is there"]
    node.advance(61)
    assert boto.queue(f"{name}-q") == url
    boto("publish", "sns", TopicArn=topic_arn, Message="hello again")
    assert [each["Body"] for each in boto.receive(url)] == ["hello again"]
    assert node.do(lambda: [each.name for each in node.node.fanouts.topics(name)]) == [f"{name}-q"]


def test_a_topic_that_another_dialect_deleted_leaves_no_subscriptions_behind(
    node: Served, boto: Boto, name: str
) -> None:
    name = name[-50:]
    topic_arn = topic(boto, name)
    subscribed(boto, name, f"{name}-q")
    node.do(lambda: node.node.fanouts.delete(name).now())
    assert topic(boto, name) == topic_arn
    assert boto("list_subscriptions_by_topic", "sns", TopicArn=topic_arn)["Subscriptions"] == []


def test_what_cannot_be_is_refused(boto: Boto, name: str) -> None:
    name = name[-50:]
    topic_arn = topic(boto, name)
    for params in (
        {"Protocol": "email", "Endpoint": "a@example.org"},
        {"Protocol": "sqs", "Endpoint": arn("none")},
        {"Protocol": "sqs", "Endpoint": "nonsense"},
    ):
        assert boto.refused("subscribe", "sns", TopicArn=topic_arn, **params).code == "InvalidParameter"
    assert boto.refused("create_topic", "sns", Name="a b").code == "InvalidParameter"
    assert boto.refused("publish", "sns", TopicArn=topic_arn, Message="x" * 262_145).code == "InvalidParameter"
    assert boto.refused("publish", "sns", TopicArn="nonsense", Message="x").code == "InvalidParameter"
    wrong = boto.refused("publish", "sns", TopicArn=topic_arn, Message='{"sqs": "x"}', MessageStructure="json")
    assert wrong.code == "InvalidParameter"


def test_a_fifo_topic_keeps_groups_and_forgets_what_repeats(boto: Boto, name: str) -> None:
    name = name[-50:] + ".fifo"
    topic_arn = topic(boto, name, FifoTopic="true", ContentBasedDeduplication="true")
    url, _ = subscribed(boto, name, f"q-{name}", RawMessageDelivery="true")
    for body in ("1", "2", "1"):
        boto("publish", "sns", TopicArn=topic_arn, Message=body, MessageGroupId="g")
    received = boto.receive(url)
    assert [(each["Body"], each["Attributes"]["MessageGroupId"]) for each in received] == [("1", "g"), ("2", "g")]
    assert boto.refused("publish", "sns", TopicArn=topic_arn, Message="x").code == "InvalidParameter"


def test_what_repeats_at_a_fifo_topic_does_not_come_to_its_standard_queues(boto: Boto, name: str) -> None:
    name = name[-50:]
    topic_arn = topic(boto, f"{name}.fifo", FifoTopic="true")
    url, _ = subscribed(boto, f"{name}.fifo", name, RawMessageDelivery="true")
    for body, group, dedup in (("1", "g", "a"), ("2", "g", "b"), ("again", "g", "a"), ("other group", "h", "a")):
        boto(
            "publish",
            "sns",
            TopicArn=topic_arn,
            Message=body,
            MessageGroupId=group,
            MessageDeduplicationId=dedup,
        )
    received = boto.receive(url)
    assert [each["Body"] for each in received] == ["1", "2"]
    assert "MessageDeduplicationId" not in received[0]["Attributes"]
    boto.send(url, "1")
    assert [each["Body"] for each in boto.receive(url)] == ["1"]


def test_what_repeats_may_be_told_by_group(boto: Boto, name: str) -> None:
    name = name[-50:]
    topic_arn = topic(boto, f"{name}.fifo", FifoTopic="true", FifoThroughputScope="MessageGroup")
    boto.queue(f"{name}-g.fifo", FifoQueue="true", DeduplicationScope="messageGroup")
    urls = [
        subscribed(boto, f"{name}.fifo", queue, RawMessageDelivery="true")[0]
        for queue in (f"{name}-g.fifo", f"{name}-q.fifo", name)
    ]
    for group in ("a", "b", "a"):
        boto("publish", "sns", TopicArn=topic_arn, Message=group, MessageGroupId=group, MessageDeduplicationId="same")
    seen = [[each["Body"] for each in boto.receive(url)] for url in urls]
    assert seen == [["a", "b"], ["a"], ["a", "b"]]


def test_permissions_are_statements_of_the_topics_policy(boto: Boto, name: str) -> None:
    name = name[-50:]
    topic_arn = topic(boto, name)
    one: dict[str, Any] = {
        "TopicArn": topic_arn,
        "Label": "writers",
        "AWSAccountId": ["123456789012"],
        "ActionName": ["Publish", "GetTopicAttributes"],
    }

    def statements() -> list[dict[str, Any]]:
        told = boto("get_topic_attributes", "sns", TopicArn=topic_arn)["Attributes"]
        found: list[dict[str, Any]] = json.loads(told["Policy"])["Statement"]
        return found

    boto("add_permission", "sns", **one)
    assert [each["Sid"] for each in statements()] == ["__default_statement_ID", "writers"]
    assert statements()[1] == {
        "Sid": "writers",
        "Effect": "Allow",
        "Principal": {"AWS": "arn:aws:iam::123456789012:root"},
        "Action": ["SNS:Publish", "SNS:GetTopicAttributes"],
        "Resource": topic_arn,
    }
    for wrong in (
        {},  # the label is taken
        {"Label": "no label"},
        {"Label": "x", "AWSAccountId": ["nobody"]},
        {"Label": "x", "ActionName": ["SendMessage"]},
    ):
        assert boto.refused("add_permission", "sns", **{**one, **wrong}).code == "InvalidParameter"
    assert boto.refused("add_permission", "sns", **{**one, "TopicArn": f"{topic_arn}-not"}).code == "NotFound"
    boto("remove_permission", "sns", TopicArn=topic_arn, Label="writers")
    assert [each["Sid"] for each in statements()] == ["__default_statement_ID"]
    assert boto.refused("remove_permission", "sns", TopicArn=topic_arn, Label="writers").code == "InvalidParameter"


def test_attributes_that_no_topic_and_no_subscription_can_have_are_refused(boto: Boto, name: str) -> None:
    name = name[-50:]
    topic_arn = topic(boto, name)
    _, subscription = subscribed(boto, name, f"{name}-q")
    for key, value in {
        "Owner": "123456789012",
        "TopicArn": "arn",
        "SubscriptionsConfirmed": "7",
        "Policy": "no policy",
        "DisplayName": "x" * 101,
        "ContentBasedDeduplication": "true",
        "FifoThroughputScope": "Topic",
        "SignatureVersion": "3",
        "TracingConfig": "Sometimes",
    }.items():
        params = {"TopicArn": topic_arn, "AttributeName": key, "AttributeValue": value}
        error = boto.refused("set_topic_attributes", "sns", **params)
        assert (error.code, error.status) == ("InvalidParameter", 400), key
        assert boto.refused("create_topic", "sns", Name=f"{name}-2", Attributes={key: value}).code == "InvalidParameter"
    for key in ("Endpoint", "Owner", "PendingConfirmation"):
        params = {"SubscriptionArn": subscription, "AttributeName": key, "AttributeValue": "x"}
        assert boto.refused("set_subscription_attributes", "sns", **params).code == "InvalidParameter"
    told = boto("get_topic_attributes", "sns", TopicArn=topic_arn)["Attributes"]
    assert (told["Owner"], told["SubscriptionsConfirmed"]) == ("000000000000", "1")
    set_display_name = {"TopicArn": topic_arn, "AttributeName": "DisplayName"}
    for value in ("shop", ""):
        boto("set_topic_attributes", "sns", AttributeValue=value, **set_display_name)
        assert boto("get_topic_attributes", "sns", TopicArn=topic_arn)["Attributes"]["DisplayName"] == value
    assert boto.refused("create_topic", "sns", Name=f"{'x' * 252}.fifo", Attributes={"FifoTopic": "true"}).code == (
        "InvalidParameter"
    )


def test_a_topic_has_so_many_filter_policies(boto: Boto, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "POLICIES_MAX", 1)
    name = name[-50:]
    topic(boto, name)
    rule = {"FilterPolicy": '{"a": ["x"]}'}
    _, first = subscribed(boto, name, f"{name}-1", **rule)
    _, other = subscribed(boto, name, f"{name}-2")
    boto.queue(f"{name}-3")
    third = {"TopicArn": arn(name, "sns"), "Protocol": "sqs", "Endpoint": arn(f"{name}-3"), "Attributes": rule}
    error = boto.refused("subscribe", "sns", **third)
    assert (error.type, error.code) == ("FilterPolicyLimitExceededException", "FilterPolicyLimitExceeded")
    change = {"AttributeName": "FilterPolicy", "AttributeValue": '{"a": ["y"]}'}
    error = boto.refused("set_subscription_attributes", "sns", SubscriptionArn=other, **change)
    assert (error.code, error.status) == ("FilterPolicyLimitExceeded", 403)
    boto("set_subscription_attributes", "sns", SubscriptionArn=first, **change)
    assert subscribed(boto, name, f"{name}-1", **{"FilterPolicy": '{"a": ["y"]}'})[1] == first


def test_tags_have_limits_and_a_topic_that_is_not_there_is_no_resource(boto: Boto, name: str) -> None:
    name = name[-50:]
    topic_arn = topic(boto, name)
    many = [{"Key": str(at), "Value": ""} for at in range(50)]
    boto("tag_resource", "sns", ResourceArn=topic_arn, Tags=many)
    error = boto.refused("tag_resource", "sns", ResourceArn=topic_arn, Tags=[{"Key": "one more", "Value": ""}])
    assert (error.type, error.code, error.status) == ("TagLimitExceededException", "TagLimitExceeded", 400)
    boto("tag_resource", "sns", ResourceArn=topic_arn, Tags=[{"Key": "49", "Value": "again"}])
    gone = {"ResourceArn": f"{topic_arn}-not"}
    for operation, more in (
        ("tag_resource", {"Tags": many[:1]}),
        ("untag_resource", {"TagKeys": ["1"]}),
        ("list_tags_for_resource", {}),
    ):
        error = boto.refused(operation, "sns", **gone, **more)
        assert (error.type, error.code, error.status) == ("ResourceNotFoundException", "ResourceNotFound", 404)


@pytest.mark.parametrize("wrong", ["", " ", "a b", "é", "x" * 129])
def test_ids_of_groups_and_duplicates_that_amazon_would_refuse_are_refused(boto: Boto, name: str, wrong: str) -> None:
    name = name[-50:] + ".fifo"
    topic_arn = topic(boto, name, FifoTopic="true", ContentBasedDeduplication="true")
    url, _ = subscribed(boto, name, f"q-{name}", RawMessageDelivery="true")
    good = {"MessageGroupId": "g", "MessageDeduplicationId": "d"}
    for field in good:
        error = boto.refused("publish", "sns", TopicArn=topic_arn, Message="x", **{**good, field: wrong})
        assert (error.code, error.status) == ("InvalidParameter", 400), field
        assert field in error.message
    entries = [
        {"Id": "1", "Message": "x", **good, "MessageDeduplicationId": wrong},
        {"Id": "2", "Message": "x", **good, "MessageGroupId": wrong},
        {"Id": "3", "Message": "good", **good},
    ]
    done = boto("publish_batch", "sns", TopicArn=topic_arn, PublishBatchRequestEntries=entries)
    assert [(each["Id"], each["Code"]) for each in done["Failed"]] == [
        ("1", "InvalidParameter"),
        ("2", "InvalidParameter"),
    ]
    assert [each["Body"] for each in boto.receive(url)] == ["good"]


def test_a_batch_is_as_large_as_its_texts_and_attributes(boto: Boto, name: str) -> None:
    topic_arn = topic(boto, name[-50:])
    # Six parts of 50,000 bytes, most of it in attributes, are more than 262,144.
    entries = [
        {"Id": str(number), "Message": "x" * 10_000, "MessageAttributes": {"a": text("y" * 40_000)}}
        for number in range(6)
    ]
    error = boto.refused("publish_batch", "sns", TopicArn=topic_arn, PublishBatchRequestEntries=entries)
    assert (error.code, error.status) == ("BatchRequestTooLong", 400)
    assert len(boto("publish_batch", "sns", TopicArn=topic_arn, PublishBatchRequestEntries=entries[:5])["Successful"])


def test_topics_and_their_subscriptions_outlive_the_node(node: Served, boto: Boto, name: str) -> None:
    name = name[-50:]
    topic(boto, name)
    subscribed(boto, name, f"{name}-q", RawMessageDelivery="true")
    kept = node.do(lambda: node.node.fanouts.get(name))
    assert kept is not None
    assert [member["queue"] for member in kept.dialects["sns"]["members"].values()] == [f"{name}-q"]
    assert node.do(lambda: [each.name for each in node.node.fanouts.topics(name)]) == [f"{name}-q"]


TAKES: list[tuple[dict[str, Any], dict[str, Any], bool]] = [
    ({"a": ["x"]}, {"a": ["x"]}, True),
    ({"a": ["x"]}, {"a": ["y"]}, False),
    ({"a": ["x"]}, {}, False),
    ({"a": [{"exists": False}]}, {}, True),
    ({"a": [{"exists": True}]}, {"a": ["x"]}, True),
    ({"a": [{"anything-but": ["x", "y"]}]}, {"a": ["z"]}, True),
    ({"a": [{"anything-but": ["x", "y"]}]}, {"a": ["y"]}, False),
    ({"a": [{"anything-but": {"prefix": "x"}}]}, {"a": ["xy"]}, False),
    ({"a": [{"suffix": "z"}]}, {"a": ["xyz"]}, True),
    ({"a": [{"equals-ignore-case": "ABC"}]}, {"a": ["abc"]}, True),
    ({"a": [{"numeric": [">", 0, "<=", 5]}]}, {"a": [5.0]}, True),
    ({"a": [{"numeric": [">", 0, "<=", 5]}]}, {"a": [6]}, False),
    ({"a": [{"numeric": ["=", 1]}]}, {"a": ["1"]}, False),
    ({"a": [1]}, {"a": [1.0]}, True),
    ({"a": [True]}, {"a": [1]}, False),
    ({"a": [{"cidr": "10.0.0.0/24"}]}, {"a": ["10.0.0.255"]}, True),
    ({"a": [{"cidr": "10.0.0.0/24"}]}, {"a": ["10.0.1.0"]}, False),
    ({"a": [{"wildcard": "*/SITE/*"}]}, {"a": ["x/SITE/"]}, True),
    ({"a": [{"wildcard": "*/SITE/*"}]}, {"a": ["x/OTHER/SITE"]}, False),
    ({"a": [{"wildcard": "ab*ba"}]}, {"a": ["aba"]}, False),
    ({"a": [{"wildcard": "a*b*c"}]}, {"a": ["axbxbc"]}, True),
    ({"a": [{"wildcard": "a*b*c"}]}, {"a": ["abxc."]}, False),
    ({"a": [{"wildcard": "a.*"}]}, {"a": ["ab"]}, False),
    ({"a": [{"anything-but": {"wildcard": "x*"}}]}, {"a": ["xy"]}, False),
    ({"a": [{"anything-but": {"wildcard": "x*"}}]}, {"a": ["y"]}, True),
    ({"$or": [{"a": ["x"]}, {"b": ["y"]}]}, {"b": ["y"]}, True),
    ({"$or": [{"a": ["x"]}, {"b": ["y"]}]}, {"c": ["y"]}, False),
]


@pytest.mark.parametrize(("wanted", "document", "verdict"), TAKES)
def test_a_policy_takes_what_amazon_says(wanted: dict[str, Any], document: dict[str, Any], verdict: bool) -> None:
    assert policy.takes(policy.read(json.dumps(wanted), of_body=False), document) is verdict


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"a":' * 2000 + "1" + "}" * 2000,
        json.dumps({str(i): ["x"] for i in range(6)}),
        json.dumps({"a": ["x"] * 151}),
        '{"a": [{"prefix": "a", "suffix": "b"}]}',
        '{"a": [{"cidr": "10.0.0.0/99"}]}',
        '{"a": [[1]]}',
        '{"a": []}',
        '{"$or": [{"a": ["x"]}]}',
        '{"a": [{"wildcard": "a"}]}',
        '{"a": [{"wildcard": "a**b"}]}',
        '{"a": [{"wildcard": "*a*b*c*"}]}',
        '{"a": [{"numeric": ["<", 1, ">", 0]}]}',
        '{"a": [{"numeric": [">", 1, "<", 1]}]}',
        '{"a": [{"numeric": ["=", 1, "<", 2]}]}',
        '{"a": [{"numeric": [">", 1000000001]}]}',
    ],
)
def test_a_hostile_policy_is_refused(text: str) -> None:
    with pytest.raises(Fault) as refused:
        policy.read(text, of_body=False)
    assert refused.value.sns_code == "InvalidParameter"


def values(count: int) -> list[str]:
    return [str(at) for at in range(count)]


@pytest.mark.parametrize(
    ("wanted", "of_body", "taken"),
    [
        pytest.param({"a": values(15), "b": values(10)}, False, True, id="15 x 10"),
        pytest.param({"a": values(4), "b": values(4), "c": values(10)}, False, False, id="4 x 4 x 10"),
        pytest.param({"a": {"b": values(3)}, "c": {"d": values(3)}}, True, True, id="(3 x 2) x (3 x 2)"),
        # Amazon's own example: 4 values three deep, 3 two deep, 3 of one: 4 x 3 x 3 x 2 x 3 x 1 = 216.
        pytest.param(
            {"a": {"b": {"c": values(4)}}, "d": {"e": values(3)}, "f": values(3)}, True, False, id="levels count"
        ),
        pytest.param({"$or": [{"a": values(75)}, {"b": values(75)}]}, False, True, id="75 + 75"),
        pytest.param({"$or": [{"a": values(76)}, {"b": values(75)}]}, False, False, id="76 + 75"),
        pytest.param({"a": {f"k{at}": ["x"] for at in range(6)}}, True, True, id="six keys within one"),
        pytest.param({f"k{at}": ["x"] for at in range(6)}, True, False, id="six keys"),
    ],
)
def test_values_of_a_policy_combine_in_at_most_150_ways(wanted: dict[str, Any], of_body: bool, taken: bool) -> None:
    text = json.dumps(wanted)
    if taken:
        assert policy.read(text, of_body=of_body)
    else:
        with pytest.raises(Fault, match=r"too complex|more than 5 keys"):
            policy.read(text, of_body=of_body)
