"""Clients of SQS and SNS that mean harm, or know no better: a right answer, and nothing lost, locked or kept."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from penstock.callers.book import AccessKey, User
from penstock.callers.rights import Rule
from penstock.config import CallersConfig
from penstock.dialects.sqs.codec.signature import signed
from penstock.dialects.sqs.config import SqsConfig
from penstock.dialects.sqs.faults import Fault
from penstock.dialects.sqs.running import Sqs
from penstock.dialects.sqs.sns import policy
from penstock.dialects.sqs.sns.conditions import EFFORT_MAX, Effort
from tests.callers.parts import users_in
from tests.served import PATIENCE_S, Served
from tests.sqs.boto import Boto
from tests.sqs.test_query import FORM
from tests.sqs.test_sns import arn, subscribed, topic

#: Addresses and texts among them that something takes apart.
TEXTS = (
    "",
    "x",
    "é\0",
    "9" * 400,
    "²",
    "http://[::1/kk",
    "http://[",
    "://",
    "http://x:y/%ff",
    "arn:aws:sqs:::",
    "{",
    "[]",
)
JUNK: tuple[Any, ...] = (*TEXTS, -1, None, True, [], {}, [[]], {"a": {"b": []}}, ["x"] * 2000)


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


KEY = AccessKey("PKBOB000000000000001", "bob's own secret")

NOW = datetime.now(UTC)

#: What is said of a signature, by the name it has in an address; here it is one that is only wrong.
SAID = {
    "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
    "X-Amz-Credential": f"{KEY.id}/{NOW:%Y%m%d}/us-east-1/sqs/aws4_request",
    "X-Amz-Date": f"{NOW:%Y%m%dT%H%M%SZ}",
    "X-Amz-Expires": "60",
    "X-Amz-SignedHeaders": "host",
    "X-Amz-Signature": "0",
}


def odd_queries() -> Iterator[str]:
    """Return queries that say odd things of a signature."""
    yield urlencode(SAID)
    yield urlencode(SAID) + "&a" * 2100
    yield urlencode(SAID) + "&a=%ff;%zz&=&=="
    yield "a=X-Amz-Signature="
    yield "aX-Amz-Signature=1"
    for name in SAID:
        yield urlencode({known: value for known, value in SAID.items() if known != name})
        for junk in (*TEXTS, "host;é", "host;☃", "-1", "99999999", f"{KEY.id}/²/é/☃/aws4_request"):
            yield urlencode({**SAID, name: junk})
        yield urlencode(SAID) + f"&{name}=%ed%a0%80"


def test_no_request_fails_inside_whatever_its_signature_says(tmp_path: Path) -> None:
    users_in(tmp_path, [User("bob", (Rule("admin", "*"),), keys=(KEY,))])
    form = {**FORM, "X-Amz-Date": SAID["X-Amz-Date"]}
    asked = {"X-Amz-Target": "AmazonSQS.ListQueues", "Content-Type": "application/x-amz-json-1.0"}
    with Served(tmp_path, sqs=SqsConfig(port=0), callers=CallersConfig(anonymous="off", audit="off")) as node:
        port = node.ports["sqs.port"]
        for query in odd_queries():
            for headers, body in ((asked, "{}"), (form, "Action=ListQueues")):
                told = node.ask("POST", f"/?{query}", raw=body, headers=headers, port=port)
                assert 400 <= told.status < 500, (query, told)
        for name in ("Credential", "SignedHeaders", "Signature"):
            for junk in (*TEXTS, "host;é"):
                parts = {"Credential": SAID["X-Amz-Credential"], "SignedHeaders": "host", "Signature": "0", name: junk}
                shown = SAID["X-Amz-Algorithm"] + " " + ", ".join(f"{key}={value}" for key, value in parts.items())
                signed = {"Authorization": shown.encode().decode("latin-1"), "X-Amz-Date": SAID["X-Amz-Date"]}
                told = node.ask("POST", "/?a" + "&a" * 2100, raw="{}", headers={**asked, **signed}, port=port)
                assert 400 <= told.status < 500, (junk, told)
        assert node.node.bugs == 0


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ({"X-Amz-Expires": "²"}, "IncompleteSignature"),
        ({"X-Amz-SignedHeaders": "host;☃"}, "IncompleteSignature"),
        ({f"a{at}": "" for at in range(2100)}, "MalformedQueryString"),
    ],
)
def test_what_cannot_be_said_of_a_signature_is_refused_by_amazons_name(said: dict[str, str], name: str) -> None:
    with pytest.raises(Fault) as refused:
        signed(b"", urlencode({**SAID, **said}).encode(), [])
    assert refused.value.name == name


def test_an_address_that_is_none_is_refused_by_amazons_name(boto: Boto) -> None:
    for url in ("http://[::1/kk", "http://[", "http://x/"):
        error = boto.refused("get_queue_attributes", QueueUrl=url)
        assert (error.type, error.status) == ("InvalidAddress", 404), url


def test_a_batch_of_ten_thousand_is_refused_and_stores_nothing(node: Served, boto: Boto, name: str) -> None:
    url = boto.queue(name)
    entries = [{"Id": str(at), "MessageBody": "x"} for at in range(10_000)]
    error = boto.refused("send_message_batch", QueueUrl=url, Entries=entries)
    assert (error.type, error.status) == ("TooManyEntriesInBatchRequest", 400)
    assert boto.attributes(url)["ApproximateNumberOfMessages"] == "0"


def test_a_signature_that_is_replayed_a_quarter_of_an_hour_later_is_refused(tmp_path: Path) -> None:
    users_in(tmp_path, [User("bob", (Rule("admin", "*"),), keys=(KEY,))])
    with (
        Served(tmp_path, sqs=SqsConfig(port=0), ahead_s=16 * 60) as late,
        Boto(late.ports["sqs.port"], KEY.id, KEY.secret) as bob,
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


def test_a_long_anything_but_stops_nobody_however_many_values_a_message_has(
    node: Served, boto: Boto, name: str
) -> None:
    name = name[-50:]
    topic_arn = topic(boto, name)
    rule = json.dumps({"a": [{"anything-but": [*range(2, 151), 1]}]})
    url, _ = subscribed(
        boto, name, f"{name}-q", FilterPolicy=rule, FilterPolicyScope="MessageBody", RawMessageDelivery="true"
    )
    many = json.dumps({"a": [1] * 120_000}, separators=(",", ":"))
    error = boto.refused("publish", "sns", TopicArn=topic_arn, Message=many)
    assert (error.code, error.status) == ("InvalidParameter", 400)
    boto("publish", "sns", TopicArn=topic_arn, Message='{"a": [150, 151]}')
    assert [each["Body"] for each in boto.receive(url)] == ['{"a": [150, 151]}']


class Counted(int):
    """A number that counts what it is compared with."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return int(self) == other

    __hash__ = int.__hash__


@pytest.mark.parametrize(("wanted", "taken"), [([{"anything-but": [*range(150)]}], False), ([*range(150)], True)])
def test_literals_of_a_policy_are_looked_up_and_not_compared_one_by_one(wanted: Any, taken: bool) -> None:
    Counted.compared = 0
    document = {"a": [*[Counted(149)] * 1000, 149]}
    assert policy.takes(policy.read(json.dumps({"a": wanted}), of_body=True), document) is taken
    assert Counted.compared <= 1000


def effort(wanted: Any, document: Any) -> int:
    """Return what it takes to look at a document, whatever that is."""
    spent = Effort(1000)
    policy.takes(policy.read(json.dumps(wanted), of_body=True), document, spent)
    return 1000 * EFFORT_MAX - spent.left


LONG = "Y" * 250_000


@pytest.mark.parametrize(
    ("wanted", "document"),
    [
        pytest.param([{"anything-but": ["x"] * 150}], [1] * 120_000, id="literals"),
        pytest.param([{"anything-but": [{"prefix": "x" * at} for at in range(1, 151)]}], ["x"] * 2000, id="prefixes"),
        pytest.param([{"numeric": [">", at]} for at in range(150)], [0] * 2000, id="bounds"),
        pytest.param([{"equals-ignore-case": LONG}], ["Ÿ" * 125_000] * 30, id="case"),
        pytest.param([{"prefix": "Y" * 1_000 + str(at)} for at in range(150)], [LONG] * 400, id="lengths"),
        pytest.param([{"wildcard": "*" + "a" * 49 + "b" + "a" * 49 + "*"}], ["a" * 250_000] * 8, id="stars"),
        pytest.param([{"cidr": "10.0.0.0/8"}], ["1::"] * 43_000, id="addresses"),
        pytest.param([{"cidr": f"10.0.{at}.0/24"} for at in range(150)], ["10.1.0.0"] * 2_000, id="networks"),
    ],
)
def test_what_takes_long_counts_for_what_it_takes(wanted: Any, document: Any) -> None:
    assert effort({"a": wanted}, {"a": document}) > EFFORT_MAX


def test_a_long_value_is_not_brought_to_lower_case_for_shorter_ones() -> None:
    assert effort({"a": [{"equals-ignore-case": f"x{at}"} for at in range(150)]}, {"a": LONG}) < 10


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
