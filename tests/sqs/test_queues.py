"""Queues and their messages over JSON, as boto3 uses them."""

from __future__ import annotations

import json
from hashlib import md5
from typing import Any

import pytest

from penstock.dialects.sqs.permissions import ACTIONS
from tests.served import Served
from tests.sqs.boto import Boto


def test_dynamiq_case_34_a_message_goes_round_trip_and_a_missing_queue_is_told_so(boto: Boto, name: str) -> None:
    url = boto.queue(name)
    sent = boto.send(url, "hello", MessageAttributes={"n": {"DataType": "Number", "StringValue": "7"}})
    assert sent["MD5OfMessageBody"] == md5(b"hello").hexdigest()
    (first,) = boto.receive(url, VisibilityTimeout=600)
    assert (first["Body"], first["MD5OfBody"], first["MessageId"]) == (
        "hello",
        md5(b"hello").hexdigest(),
        sent["MessageId"],
    )
    assert first["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]
    assert first["MessageAttributes"] == {"n": {"DataType": "Number", "StringValue": "7"}}
    assert first["Attributes"]["ApproximateReceiveCount"] == "1"
    assert boto.receive(url) == []
    boto("change_message_visibility", QueueUrl=url, ReceiptHandle=first["ReceiptHandle"], VisibilityTimeout=0)
    (again,) = boto.receive(url)
    assert again["Attributes"]["ApproximateReceiveCount"] == "2"
    assert again["ReceiptHandle"] != first["ReceiptHandle"]
    boto("delete_message", QueueUrl=url, ReceiptHandle=again["ReceiptHandle"])
    assert boto.attributes(url)["ApproximateNumberOfMessagesNotVisible"] == "0"
    error = boto.refused("get_queue_url", QueueName="nobody-made-it")
    assert (error.type, error.code, error.status) == (
        "QueueDoesNotExist",
        "AWS.SimpleQueueService.NonExistentQueue",
        400,
    )


def test_what_was_sent_as_a_batch_is_received_and_deleted_as_one(boto: Boto, name: str) -> None:
    url = boto.queue(name)
    entries = [{"Id": f"m{i}", "MessageBody": f"body {i}"} for i in range(10)]
    sent = boto("send_message_batch", QueueUrl=url, Entries=entries)
    assert [each["Id"] for each in sent["Successful"]] == [f"m{i}" for i in range(10)]
    received = boto.receive(url)
    assert [each["Body"] for each in received] == [f"body {i}" for i in range(10)]
    assert [each["MessageId"] for each in received] == [each["MessageId"] for each in sent["Successful"]]
    handles = [{"Id": str(i), "ReceiptHandle": each["ReceiptHandle"]} for i, each in enumerate(received)]
    changed = boto(
        "change_message_visibility_batch",
        QueueUrl=url,
        Entries=[{**handle, "VisibilityTimeout": 100 + i % 2} for i, handle in enumerate(handles)],
    )
    assert len(changed["Successful"]) == 10
    deleted = boto(
        "delete_message_batch", QueueUrl=url, Entries=[*handles[:9], {"Id": "bad", "ReceiptHandle": "nonsense"}]
    )
    assert len(deleted["Successful"]) == 9
    assert [(each["Id"], each["Code"], each["SenderFault"]) for each in deleted["Failed"]] == [
        ("bad", "ReceiptHandleIsInvalid", True)
    ]
    assert boto.attributes(url)["ApproximateNumberOfMessagesNotVisible"] == "1"


def test_one_bad_entry_fails_alone(boto: Boto, name: str) -> None:
    url = boto.queue(name)
    entries = [{"Id": "good", "MessageBody": "x"}, {"Id": "late", "MessageBody": "y", "DelaySeconds": 901}]
    sent = boto("send_message_batch", QueueUrl=url, Entries=entries)
    assert [each["Id"] for each in sent["Successful"]] == ["good"]
    assert [(each["Id"], each["Code"]) for each in sent["Failed"]] == [("late", "InvalidParameterValue")]


def test_a_wrong_batch_is_refused_as_a_whole(boto: Boto, name: str) -> None:
    url = boto.queue(name)

    def code(entries: list[dict[str, str]]) -> str:
        return boto.refused("send_message_batch", QueueUrl=url, Entries=entries).code

    old = "AWS.SimpleQueueService."
    assert code([]) == f"{old}EmptyBatchRequest"
    assert code([{"Id": "a", "MessageBody": "x"}] * 2) == f"{old}BatchEntryIdsNotDistinct"
    assert code([{"Id": "a b", "MessageBody": "x"}]) == f"{old}InvalidBatchEntryId"
    assert code([{"Id": str(i), "MessageBody": "x"} for i in range(11)]) == f"{old}TooManyEntriesInBatchRequest"
    big = [{"Id": str(i), "MessageBody": "x" * 150_000} for i in range(8)]
    assert code(big) == f"{old}BatchRequestTooLong"


def test_a_message_that_is_not_deleted_in_time_comes_again(node: Served, boto: Boto, name: str) -> None:
    url = boto.queue(name, VisibilityTimeout="5")
    boto.send(url, "again")
    (first,) = boto.receive(url)
    node.advance(6)
    (second,) = boto.receive(url, WaitTimeSeconds=20)
    assert second["Attributes"]["ApproximateReceiveCount"] == "2"
    # The first handle is stale: it deletes nothing, and changes nothing.
    boto("delete_message", QueueUrl=url, ReceiptHandle=first["ReceiptHandle"])
    error = boto.refused(
        "change_message_visibility", QueueUrl=url, ReceiptHandle=first["ReceiptHandle"], VisibilityTimeout=10
    )
    assert (error.type, error.code) == ("MessageNotInflight", "AWS.SimpleQueueService.MessageNotInflight")
    assert boto.attributes(url)["ApproximateNumberOfMessagesNotVisible"] == "1"


def test_a_handle_deletes_its_message_after_its_time_while_nobody_else_had_it(
    node: Served, boto: Boto, name: str
) -> None:
    url = boto.queue(name, VisibilityTimeout="5")
    boto.send(url, "slow")
    (first,) = boto.receive(url)
    node.advance(6)
    node.until(lambda: node.node.topics[name].subscriptions["queue"].in_flight() == 0)
    boto("delete_message", QueueUrl=url, ReceiptHandle=first["ReceiptHandle"])
    boto("delete_message", QueueUrl=url, ReceiptHandle=first["ReceiptHandle"])
    assert boto.receive(url) == []
    assert boto.attributes(url)["ApproximateNumberOfMessages"] == "0"


def test_a_batch_may_name_a_message_by_a_stale_handle_and_by_its_last_one_twice(boto: Boto, name: str) -> None:
    url = boto.queue(name)
    boto.send(url, "again")
    (stale,) = boto.receive(url)
    boto("change_message_visibility", QueueUrl=url, ReceiptHandle=stale["ReceiptHandle"], VisibilityTimeout=0)
    (last,) = boto.receive(url)
    entries = [
        {"Id": id_, "ReceiptHandle": handle["ReceiptHandle"], "VisibilityTimeout": 0}
        for id_, handle in (("stale", stale), ("last", last), ("twice", last))
    ]
    told = boto("change_message_visibility_batch", QueueUrl=url, Entries=entries)
    assert [each["Id"] for each in told["Successful"]] == ["last", "twice"]
    assert [(each["Id"], each["Code"]) for each in told["Failed"]] == [
        ("stale", "AWS.SimpleQueueService.MessageNotInflight")
    ]
    assert [each["Body"] for each in boto.receive(url)] == ["again"]


def test_a_long_poll_is_answered_by_the_message_it_waits_for(node: Served, boto: Boto, name: str) -> None:
    url = boto.queue(name)
    waiting = boto.begin("receive_message", QueueUrl=url, WaitTimeSeconds=20)
    node.until(lambda: len(node.node.topics[name].subscriptions["queue"].looks) == 1)
    boto.send(url, "at last")
    assert [each["Body"] for each in waiting.result(60)["Messages"]] == ["at last"]


def test_a_receive_that_fails_says_so_and_not_that_there_is_no_queue(
    node: Served, boto: Boto, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = boto.queue(name)
    boto.send(url, "kept")
    (cursor,) = node.do(lambda: node.node.topics[name].subscriptions["queue"].cursors)

    def broken(*_: object) -> None:
        raise OSError("the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr(cursor.states.journal._journal, "append", broken)
        error = boto.refused("receive_message", QueueUrl=url, WaitTimeSeconds=20)
        assert (error.code, error.status) == ("ServiceUnavailable", 503)
    assert [each["Body"] for each in boto.receive(url, WaitTimeSeconds=20)] == ["kept"]


@pytest.mark.parametrize("text", ["-1", "18446744073709551616", "1.5"])
def test_traffic_types_are_64_bits(boto: Boto, name: str, text: str) -> None:
    url = boto.queue(name)
    attributes = {"traffic_types": {"DataType": "Number", "StringValue": text}}
    error = boto.refused("send_message", QueueUrl=url, MessageBody="x", MessageAttributes=attributes)
    assert error.code == "InvalidParameterValue"
    assert "64 bits" in error.message
    attributes["traffic_types"]["StringValue"] = "18446744073709551615"
    boto.send(url, "all of them", MessageAttributes=attributes)


def test_a_long_poll_that_finds_nothing_ends(boto: Boto, name: str) -> None:
    url = boto.queue(name, ReceiveMessageWaitTimeSeconds="1")
    assert boto.receive(url) == []


def test_a_delayed_message_is_counted_and_comes_in_time(node: Served, boto: Boto, name: str) -> None:
    url = boto.queue(name, DelaySeconds="60")
    boto.send(url, "later")
    boto.send(url, "now", DelaySeconds=0)
    assert [each["Body"] for each in boto.receive(url, VisibilityTimeout=600)] == ["now"]
    told = boto.attributes(url)
    assert (told["ApproximateNumberOfMessages"], told["ApproximateNumberOfMessagesDelayed"]) == ("0", "1")
    node.advance(61)
    assert [each["Body"] for each in boto.receive(url, WaitTimeSeconds=20)] == ["later"]


def test_attributes_are_kept_shown_and_checked(boto: Boto, name: str) -> None:
    url = boto.queue(name, VisibilityTimeout="0", MessageRetentionPeriod="120", Policy="{}", KmsMasterKeyId="k")
    told = boto.attributes(url)
    expected = {"VisibilityTimeout": "0", "MessageRetentionPeriod": "120", "Policy": "{}", "KmsMasterKeyId": "k"}
    assert {key: told[key] for key in expected} == expected
    assert told["QueueArn"] == f"arn:aws:sqs:us-east-1:000000000000:{name}"
    assert (told["MaximumMessageSize"], told["DelaySeconds"]) == ("1048576", "0")
    boto("set_queue_attributes", QueueUrl=url, Attributes={"VisibilityTimeout": "43200", "MaximumMessageSize": "1024"})
    assert boto.attributes(url)["VisibilityTimeout"] == "43200"
    assert boto.refused("send_message", QueueUrl=url, MessageBody="x" * 1025).code == "InvalidParameterValue"
    for wrong in ({"VisibilityTimeout": "43201"}, {"DelaySeconds": "-1"}, {"MaximumMessageSize": "a"}):
        error = boto.refused("set_queue_attributes", QueueUrl=url, Attributes=wrong)
        assert error.type == "InvalidAttributeValue"
    for wrong in ({"QueueArn": "x"}, {"FifoQueue": "true"}):
        assert boto.refused("set_queue_attributes", QueueUrl=url, Attributes=wrong).type.startswith("InvalidAttribute")
    named = boto("get_queue_attributes", QueueUrl=url, AttributeNames=["VisibilityTimeout"])["Attributes"]
    assert named == {"VisibilityTimeout": "43200"}


def test_a_queue_may_be_asked_for_again_only_as_it_is(boto: Boto, name: str) -> None:
    url = boto.queue(name, VisibilityTimeout="7")
    assert boto.queue(name) == boto.queue(name, VisibilityTimeout="7") == url
    error = boto.refused("create_queue", QueueName=name, Attributes={"VisibilityTimeout": "8"})
    assert (error.type, error.code) == ("QueueNameExists", "QueueAlreadyExists")
    assert boto.refused("create_queue", QueueName="no spaces").code == "InvalidParameterValue"
    assert boto.refused("create_queue", QueueName="a" * 81).code == "InvalidParameterValue"


def test_queues_are_listed_by_prefix_in_pages(boto: Boto, name: str) -> None:
    urls = [boto.queue(f"page-{number}") for number in range(5)]
    assert boto("list_queues", QueueNamePrefix="page-")["QueueUrls"] == urls
    first = boto("list_queues", QueueNamePrefix="page-", MaxResults=3)
    rest = boto("list_queues", QueueNamePrefix="page-", MaxResults=3, NextToken=first["NextToken"])
    assert (first["QueueUrls"], rest["QueueUrls"]) == (urls[:3], urls[3:])
    assert "NextToken" not in rest
    assert "QueueUrls" not in boto("list_queues", QueueNamePrefix="nothing-is-called-so")


def test_a_deleted_queue_is_gone_and_its_name_free_a_minute_later(node: Served, boto: Boto, name: str) -> None:
    url = boto.queue(name)
    boto.send(url, "lost")
    waiting = boto.begin("receive_message", QueueUrl=boto.queue(f"{name}-2"), WaitTimeSeconds=20)
    (handle,) = [each["ReceiptHandle"] for each in boto.receive(url)]
    boto("delete_queue", QueueUrl=url)
    assert boto.refused("send_message", QueueUrl=url, MessageBody="x").type == "QueueDoesNotExist"
    assert boto.refused("create_queue", QueueName=name).type == "QueueDeletedRecently"
    boto("delete_queue", QueueUrl=f"{url}-2")
    error = waiting.exception(60)
    assert "QueueDoesNotExist" in str(error)
    node.advance(61)
    assert boto.queue(name) == url
    assert boto.receive(url) == []
    error = boto.refused("delete_message", QueueUrl=url, ReceiptHandle=handle)
    assert error.type == "ReceiptHandleIsInvalid"


def test_purging_takes_everything_once_a_minute(node: Served, boto: Boto, name: str) -> None:
    url = boto.queue(name)
    for more in ({}, {}, {"DelaySeconds": 900}):
        boto.send(url, "x", **more)
    boto.receive(url, 1)
    boto("purge_queue", QueueUrl=url)
    told = boto.attributes(url)
    assert {value for key, value in told.items() if key.startswith("ApproximateNumber")} == {"0"}
    error = boto.refused("purge_queue", QueueUrl=url)
    assert (error.type, error.status) == ("PurgeQueueInProgress", 403)
    node.advance(61)
    boto("purge_queue", QueueUrl=url)


def test_tags_come_and_go(boto: Boto, name: str) -> None:
    url = str(boto("create_queue", QueueName=name, tags={"team": "shop"})["QueueUrl"])
    boto("tag_queue", QueueUrl=url, Tags={"stage": "test"})
    assert boto("list_queue_tags", QueueUrl=url)["Tags"] == {"team": "shop", "stage": "test"}
    boto("untag_queue", QueueUrl=url, TagKeys=["team"])
    assert boto("list_queue_tags", QueueUrl=url)["Tags"] == {"stage": "test"}


def test_permissions_are_statements_of_the_queues_policy(boto: Boto, name: str) -> None:
    url = boto.queue(name)
    arn = boto.attributes(url)["QueueArn"]
    accounts = ["123456789012", "210987654321"]
    one: dict[str, Any] = {
        "QueueUrl": url,
        "Label": "senders",
        "AWSAccountIds": accounts[:1],
        "Actions": ["SendMessage"],
    }
    boto("add_permission", **one)
    both = ["ReceiveMessage", "DeleteMessage"]
    boto("add_permission", QueueUrl=url, Label="receivers", AWSAccountIds=accounts, Actions=both)
    root = "arn:aws:iam::{}:root"
    senders = {"AWS": root.format(accounts[0])}
    receivers = {"AWS": [root.format(account) for account in accounts]}
    assert json.loads(boto.attributes(url)["Policy"]) == {
        "Version": "2012-10-17",
        "Id": f"{arn}/SQSDefaultPolicy",
        "Statement": [
            {"Sid": sid, "Effect": "Allow", "Principal": principal, "Action": action, "Resource": arn}
            for sid, principal, action in (
                ("senders", senders, "SQS:SendMessage"),
                ("receivers", receivers, ["SQS:ReceiveMessage", "SQS:DeleteMessage"]),
            )
        ],
    }
    for wrong, fault in (
        ({}, "InvalidParameterValue"),  # the label is taken
        ({"Label": "no label"}, "InvalidParameterValue"),
        ({"Label": "x", "AWSAccountIds": ["nobody"]}, "InvalidParameterValue"),
        ({"Label": "x", "Actions": ["Fly"]}, "InvalidParameterValue"),
        ({"Label": "x", "Actions": sorted(ACTIONS)[:8]}, "OverLimit"),
    ):
        assert boto.refused("add_permission", **{**one, **wrong}).code == fault
    for label in ("senders", "receivers"):
        boto("remove_permission", QueueUrl=url, Label=label)
        assert boto.refused("remove_permission", QueueUrl=url, Label=label).code == "InvalidParameterValue"
    assert "Policy" not in boto.attributes(url)


def test_a_policy_that_was_set_whole_takes_a_statement_if_it_is_one(boto: Boto, name: str) -> None:
    whole = {"Version": "2008-10-17", "Statement": {"Sid": "mine", "Effect": "Deny"}}
    url = boto.queue(name, Policy=json.dumps(whole))
    add: dict[str, Any] = {"QueueUrl": url, "AWSAccountIds": ["123456789012"], "Actions": ["*"]}
    boto("add_permission", Label="all", **add)
    policy = json.loads(boto.attributes(url)["Policy"])
    assert [(each["Sid"], each["Effect"]) for each in policy["Statement"]] == [("mine", "Deny"), ("all", "Allow")]
    for text in ("no policy", "[]"):
        error = boto.refused("set_queue_attributes", QueueUrl=url, Attributes={"Policy": text})
        assert (error.code, error.status) == ("InvalidAttributeValue", 400)
    for text in ('{"Statement": 7}', '{"Statement": ["x"]}'):
        boto("set_queue_attributes", QueueUrl=url, Attributes={"Policy": text})
        assert boto.refused("add_permission", Label="more", **add).code == "InvalidAttributeValue"
        assert boto.attributes(url)["Policy"] == text


def test_message_attributes_of_every_kind_come_back_as_asked_for(boto: Boto, name: str) -> None:
    url = boto.queue(name)
    given = {
        "text": {"DataType": "String.mine", "StringValue": "ü"},
        "shop.number": {"DataType": "Number", "StringValue": "-1.5e3"},
        "shop.bytes": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
    }
    trace = {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1-5759e988-bd862e3fe1be46a994272793"}}
    boto.send(url, "all", MessageAttributes=given, MessageSystemAttributes=trace)
    (found,) = boto.receive(url, VisibilityTimeout=0)
    assert found["MessageAttributes"] == given
    assert found["Attributes"]["AWSTraceHeader"] == trace["AWSTraceHeader"]["StringValue"]
    (some,) = boto.receive(url, MessageAttributeNames=["shop.*"], AttributeNames=["SentTimestamp"], WaitTimeSeconds=20)
    assert set(some["MessageAttributes"]) == {"shop.number", "shop.bytes"}
    assert set(some["Attributes"]) == {"SentTimestamp"}


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"DataType": "Binary", "BinaryValue": b"Root=1"}, "InvalidParameterValue"),
        ({"DataType": "String", "StringValue": ""}, "InvalidParameterValue"),
        ({"DataType": "String", "StringValue": "\x01"}, "InvalidMessageContents"),
    ],
)
def test_the_header_of_a_trace_is_a_text(boto: Boto, name: str, wrong: dict[str, Any], code: str) -> None:
    url = boto.queue(name)
    trace = {"AWSTraceHeader": wrong}
    error = boto.refused("send_message", QueueUrl=url, MessageBody="x", MessageSystemAttributes=trace)
    assert (error.code, error.status) == (code, 400)
    entries = [{"Id": "1", "MessageBody": "x", "MessageSystemAttributes": trace}, {"Id": "2", "MessageBody": "good"}]
    done = boto("send_message_batch", QueueUrl=url, Entries=entries)
    assert [(each["Id"], each["Code"]) for each in done["Failed"]] == [("1", code)]
    assert [each["Body"] for each in boto.receive(url)] == ["good"]


def test_parameters_outside_their_bounds_are_refused(boto: Boto, name: str) -> None:
    url = boto.queue(name)
    wrong: list[dict[str, Any]] = [{"MaxNumberOfMessages": 11}, {"MaxNumberOfMessages": 0}, {"WaitTimeSeconds": 21}]
    for more in wrong:
        assert boto.refused("receive_message", QueueUrl=url, **more).code == "InvalidParameterValue"
    for attributes in (
        {"AWS.x": {"DataType": "String", "StringValue": "v"}},
        {"n": {"DataType": "Number", "StringValue": "seven"}},
        {"e": {"DataType": "String", "StringValue": ""}},
        {"t": {"DataType": "Text", "StringValue": "v"}},
        {str(i): {"DataType": "String", "StringValue": "v"} for i in range(11)},
    ):
        error = boto.refused("send_message", QueueUrl=url, MessageBody="x", MessageAttributes=attributes)
        assert error.code == "InvalidParameterValue"
    error = boto.refused("send_message", QueueUrl=url, MessageBody="\x01")
    assert error.type == "InvalidMessageContents"
    assert boto.refused("send_message", QueueUrl="http://h/1/none", MessageBody="x").type == "QueueDoesNotExist"
