"""Clients of SQS and SNS that mean harm, or know no better: a right answer, and nothing lost, locked or kept."""

from __future__ import annotations

import contextlib
import json
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from penstock.callers.book import AccessKey, User
from penstock.callers.rights import Rule
from penstock.dialects.sqs.config import SqsConfig
from penstock.dialects.sqs.faults import Fault
from penstock.dialects.sqs.running import Sqs
from penstock.dialects.sqs.sns import policy
from tests.callers.parts import users_in
from tests.served import PATIENCE_S, Served
from tests.sqs.boto import Boto
from tests.sqs.test_query import FORM
from tests.sqs.test_sns import arn, subscribed, topic

JUNK: tuple[Any, ...] = ("", "x", "é\0", "9" * 400, -1, None, True, [], {}, [[]], {"a": {"b": []}}, ["x"] * 2000)


def table(node: Served) -> dict[str, list[str]]:
    """Return every operation and the names of what it may be told."""
    running = node.node.served["sqs"].running
    assert isinstance(running, Sqs)
    return {name: list(operation.kind.__struct_encode_fields__) for name, operation in running.api.operations.items()}


def test_no_operation_fails_inside_whatever_it_is_told(node: Served) -> None:
    port, bugs = node.ports["sqs.port"], node.node.bugs
    for operation, fields in table(node).items():
        headers = {"X-Amz-Target": f"AmazonSQS.{operation}", "Content-Type": "application/x-amz-json-1.0"}
        for junk in JUNK:
            asked = dict.fromkeys(fields, junk)
            told = node.ask("POST", "/", raw=json.dumps(asked), headers=headers, port=port)
            assert told.status < 500, (operation, junk, told)
            form = {"Action": operation, **{field: str(junk) for field in fields}}
            told = node.ask("POST", "/", raw=urlencode(form), headers=FORM, port=port)
            assert told.status < 500, (operation, junk, told)
        for number in ("1", "0", "-1", "x", "9" * 30, "1.1.1"):
            listed = {f"{field}.{part}.{number}": "x" for field in fields for part in ("member", "entry", "Name")}
            told = node.ask("POST", "/", raw=urlencode({"Action": operation, **listed}), headers=FORM, port=port)
            assert told.status < 500, (operation, number, told)
    assert node.node.bugs == bugs


def test_a_batch_of_ten_thousand_is_refused_and_stores_nothing(node: Served, boto: Boto, name: str) -> None:
    url = boto.queue(name)
    entries = [{"Id": str(at), "MessageBody": "x"} for at in range(10_000)]
    error = boto.refused("send_message_batch", QueueUrl=url, Entries=entries)
    assert (error.type, error.status) == ("TooManyEntriesInBatchRequest", 400)
    assert boto.attributes(url)["ApproximateNumberOfMessages"] == "0"


def test_a_signature_that_is_replayed_a_quarter_of_an_hour_later_is_refused(tmp_path: Path) -> None:
    key = AccessKey("PKBOB000000000000001", "bob's own secret")
    users_in(tmp_path, [User("bob", (Rule("admin", "*"),), keys=(key,))])
    with (
        Served(tmp_path, sqs=SqsConfig(port=0), ahead_s=16 * 60) as late,
        Boto(late.ports["sqs.port"], key.id, key.secret) as bob,
    ):
        error = bob.refused("list_queues")
        assert (error.code, error.status) == ("SignatureDoesNotMatch", 403)
        assert error.message.startswith("Signature expired")


def test_requests_that_never_end_keep_nobody_from_sending_and_receiving(node: Served, boto: Boto, name: str) -> None:
    url = boto.queue(name)
    head = (
        b"POST / HTTP/1.1\r\nHost: localhost\r\nX-Amz-Target: AmazonSQS.SendMessage\r\nContent-Length: 100000\r\n\r\n"
    )
    with contextlib.ExitStack() as stack:
        for sent in (head[:30], head, head + b'{"QueueUrl": "' + b"x" * 50_000) * 20:
            sock = socket.create_connection(("127.0.0.1", node.ports["sqs.port"]), PATIENCE_S)
            stack.enter_context(sock)
            sock.sendall(sent)
        boto.send(url, "one")
        (message,) = boto.receive(url)
        boto("delete_message", QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    running = node.node.served["sqs"].running
    assert isinstance(running, Sqs)
    node.until(lambda: node.node.budget.body.used == 0)
    assert boto.attributes(url)["ApproximateNumberOfMessages"] == "0"


def test_who_stops_sending_after_a_message_is_still_answered(node: Served, boto: Boto, name: str) -> None:
    url = boto.queue(name)
    asked = json.dumps({"QueueUrl": url, "MessageBody": "last words"}).encode()
    head = f"POST / HTTP/1.1\r\nHost: localhost\r\nX-Amz-Target: AmazonSQS.SendMessage\r\nContent-Length: {len(asked)}"
    with socket.create_connection(("127.0.0.1", node.ports["sqs.port"]), PATIENCE_S) as sock:
        sock.sendall(head.encode() + b"\r\n\r\n" + asked)
        sock.shutdown(socket.SHUT_WR)
        told = b"".join(iter(lambda: sock.recv(65536), b""))
    assert told.startswith(b"HTTP/1.1 200 ")
    assert [each["Body"] for each in boto.receive(url)] == ["last words"]


def test_a_message_that_filters_would_take_too_long_with_is_refused(node: Served, boto: Boto, name: str) -> None:
    name = name[-50:]
    topic_arn = topic(boto, name)
    rule = json.dumps({"a": [{"prefix": f"p{at}"} for at in range(150)]})
    url, _ = subscribed(
        boto, name, f"{name}-q", FilterPolicy=rule, FilterPolicyScope="MessageBody", RawMessageDelivery="true"
    )
    error = boto.refused("publish", "sns", TopicArn=topic_arn, Message=json.dumps({"a": ["x"] * 50_000}))
    assert (error.code, error.status) == ("InvalidParameter", 400)
    boto("publish", "sns", TopicArn=topic_arn, Message='{"a": ["x", "p7"]}')
    assert [each["Body"] for each in boto.receive(url)] == ['{"a": ["x", "p7"]}']
    assert boto.refused("publish", "sns", TopicArn=arn("none", "sns"), Message="x").code == "NotFound"


def nested(levels: int) -> str:
    found: dict[str, Any] = {"a": ["x"]}
    for _ in range(levels):
        found = {"$or": [found, {"b": ["y"]}]}
    return json.dumps(found)


@pytest.mark.parametrize(
    "text",
    [
        nested(6),
        nested(400),
        json.dumps({"$or": [{"a": ["x"]}] * 200}),
        json.dumps({"a": ["x"] * 20_000}),
        json.dumps({"a": [{"anything-but": ["x"] * 20_000}]}),
        json.dumps({"a": [{"wildcard": "*" * 1000 + "a"}]}),
        json.dumps({"a": [{"prefix": "x" * 300_000}]}),
        json.dumps({"a": [{"numeric": ["=", "1"]}]}),
        json.dumps({"a": [{"anything-but": {"anything-but": {"prefix": "x"}}}]}),
        json.dumps({f"k{at}": ["x"] for at in range(60)}),
    ],
)
def test_a_policy_that_is_deep_or_huge_or_has_patterns_is_refused(text: str) -> None:
    for of_body in (False, True):
        with pytest.raises(Fault):
            policy.read(text, of_body=of_body)


def test_a_policy_of_five_levels_is_taken() -> None:
    assert policy.takes(policy.read(nested(5), of_body=False), {"a": ["x"]})
