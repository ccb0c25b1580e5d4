"""The short way of SQS's requests: whatever is asked, it is answered as on the long way."""

from __future__ import annotations

import re
from collections.abc import Mapping
from random import Random
from typing import Any

import msgspec
import pytest

from penstock.dialects import DIALECTS
from penstock.dialects.sqs.api import Api
from penstock.dialects.sqs.names import Names
from penstock.dialects.sqs.sns.endpoints import Allowed
from penstock.http import Listener
from penstock.node.node import Node
from tests.http.line import Line
from tests.simulation.machine import Machine
from tests.site import PLAIN

SIGNED = (
    "Authorization: AWS4-HMAC-SHA256 Credential=any/20261116/us-east-1/sqs/aws4_request, "
    "SignedHeaders=content-type;host;x-amz-date, Signature=ab12"
)
_ids = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}|(?<=Handle\":\")[^\"]+").sub


class Desk:
    """One queue, and a connection that asks about it."""

    def __init__(self) -> None:
        self.machine = Machine()
        self.machine.start()
        node = Node(PLAIN, self.machine.clock, self.machine.disk, Random(1), dialects=DIALECTS)
        api = Api(node, Names("us-east-1", "000000000000"), 1 << 20, Allowed(()))
        self.listener = Listener("sqs.port", api, node.clock, node.budget, node.gate)
        self.line = Line(self.listener)
        for asked in ({"QueueName": "q"}, {"QueueName": "q.fifo", "Attributes": {"FifoQueue": "true"}}):
            assert self.ask("CreateQueue", asked)[0] == 200

    def send(self, operation: str, body: object, path: str = "/", *headers: str) -> None:
        raw = body if isinstance(body, bytes) else msgspec.json.encode(body)
        lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"X-Amz-Target: AmazonSQS.{operation}", *headers]
        head = "\r\n".join([*lines, f"Content-Length: {len(raw)}", "", ""])
        self.line.send(head.encode() + raw)

    def ask(self, operation: str, body: object, path: str = "/", *headers: str) -> tuple[int, dict[str, str], bytes]:
        self.send(operation, body, path, *headers)
        self.machine.run(2)
        return self.line.answer()

    def asked(self, operation: str, **fields: object) -> Any:
        status, _, content = self.ask(operation, {"QueueUrl": "http://localhost/000000000000/q", **fields})
        assert status == 200
        return msgspec.json.decode(content) if content else None


@pytest.fixture
def desk() -> Desk:
    return Desk()


def batch(*entries: Mapping[str, object], queue: str = "q") -> dict[str, object]:
    return {"QueueUrl": f"http://localhost/000000000000/{queue}", "Entries": list(entries)}


def one(queue: str = "q", **fields: object) -> dict[str, object]:
    return {"QueueUrl": f"http://localhost/000000000000/{queue}", **fields}


VALUE = {"DataType": "String", "StringValue": "v"}

CASES: list[tuple[str, object]] = [
    ("SendMessage", one(MessageBody="plain")),
    ("SendMessage", one(MessageBody="two\nlines, and \U0001f600")),
    ("SendMessage", one(MessageBody="\x01")),
    ("SendMessage", one(MessageBody="￿")),
    ("SendMessage", one(MessageBody="")),
    ("SendMessage", one(MessageBody=7)),
    ("SendMessage", one(MessageBody="x" * 2000)),
    ("SendMessage", one(MessageBody="a", DelaySeconds=5)),
    ("SendMessage", one(MessageBody="a", DelaySeconds=901)),
    ("SendMessage", one(MessageBody="a", MessageAttributes={"a": VALUE})),
    ("SendMessage", one(MessageBody="a", MessageGroupId="g")),
    ("SendMessage", one(MessageBody="a", MessageDeduplicationId="d")),
    ("SendMessage", one("q.fifo", MessageBody="a")),
    ("SendMessage", one("q.fifo", MessageBody="a", MessageGroupId="g", MessageDeduplicationId="d")),
    ("SendMessage", one("none", MessageBody="a")),
    ("SendMessage", {"MessageBody": "a"}),
    ("SendMessage", {"QueueUrl": "", "MessageBody": "a"}),
    ("SendMessage", b"{"),
    ("SendMessage", b"\xff"),
    ("SendMessage", b"[" * 5000),
    ("SendMessageBatch", batch({"Id": "a", "MessageBody": "one"}, {"Id": "b", "MessageBody": "two"})),
    ("SendMessageBatch", batch({"Id": "a", "MessageBody": "one"}, {"Id": "b", "MessageBody": "\x02"})),
    (
        "SendMessageBatch",
        batch({"Id": "a", "MessageBody": "1"}, {"Id": "b", "MessageBody": "2", "MessageAttributes": {"a": VALUE}}),
    ),
    ("SendMessageBatch", batch({"Id": "a", "MessageBody": "one"}, {"Id": "a", "MessageBody": "two"})),
    ("SendMessageBatch", batch({"Id": "?", "MessageBody": "one"})),
    ("SendMessageBatch", batch(*[{"Id": str(number), "MessageBody": "x"} for number in range(11)])),
    ("SendMessageBatch", batch()),
    ("ReceiveMessage", one(MaxNumberOfMessages=11)),
    ("ReceiveMessage", one(WaitTimeSeconds=21)),
    ("ReceiveMessage", one()),  # nothing is there
    ("DeleteMessage", one(ReceiptHandle="no")),
    ("DeleteMessageBatch", batch({"Id": "a", "ReceiptHandle": "no"})),
    ("DeleteMessageBatch", batch()),
]


@pytest.mark.parametrize(("operation", "body"), CASES)
@pytest.mark.parametrize("headers", [(), (SIGNED,)], ids=["bare", "signed"])
def test_both_ways_answer_the_same(operation: str, body: object, headers: tuple[str, ...]) -> None:
    said = []
    for path in ("/", "/?"):
        desk = Desk()
        before = desk.listener.requests
        status, fields, content = desk.ask(operation, body, path, *headers)
        assert (desk.listener.requests == before) == (path == "/" and body != one())
        del fields["x-amzn-requestid"]
        said.append((status, fields, _ids(b"*", content)))
    assert said[0] == said[1]


def test_what_is_sent_the_short_way_is_received_and_deleted_the_short_way(desk: Desk) -> None:
    before = desk.listener.requests
    sent = desk.asked("SendMessageBatch", Entries=[{"Id": str(n), "MessageBody": f"m{n}"} for n in range(10)])
    one_more = desk.asked("SendMessage", MessageBody="m10")
    found = desk.asked("ReceiveMessage", MaxNumberOfMessages=10)["Messages"]
    found += desk.asked("ReceiveMessage", MaxNumberOfMessages=10)["Messages"]
    assert [message["Body"] for message in found] == [f"m{n}" for n in range(11)]
    told = [*sent["Successful"], one_more]
    assert [message["MessageId"] for message in found] == [each["MessageId"] for each in told]
    assert [message["MD5OfBody"] for message in found] == [each["MD5OfMessageBody"] for each in told]
    entries = [{"Id": str(n), "ReceiptHandle": message["ReceiptHandle"]} for n, message in enumerate(found[:10])]
    assert len(desk.asked("DeleteMessageBatch", Entries=entries)["Successful"]) == 10
    desk.asked("DeleteMessage", ReceiptHandle=found[10]["ReceiptHandle"])
    assert desk.listener.requests == before
    desk.machine.run(60)
    assert desk.asked("ReceiveMessage") == {}  # nothing came back


def test_attributes_that_are_asked_for_come_on_the_short_way_too(desk: Desk) -> None:
    desk.asked("SendMessage", MessageBody="a", MessageAttributes={"colour": VALUE})
    before = desk.listener.requests
    asked = desk.asked("ReceiveMessage", MessageAttributeNames=["All"], MessageSystemAttributeNames=["All"])
    assert desk.listener.requests == before
    assert asked["Messages"][0]["MessageAttributes"] == {"colour": VALUE}
    assert asked["Messages"][0]["Attributes"]["ApproximateReceiveCount"] == "1"


def test_a_receive_behind_a_send_of_the_same_read_finds_what_it_sent(desk: Desk) -> None:
    desk.send("SendMessage", one(MessageBody="a"))
    desk.send("SendMessage", one(MessageBody="b"))
    desk.send("ReceiveMessage", one(MaxNumberOfMessages=10))
    desk.machine.run(2)
    desk.line.answer(), desk.line.answer()
    found = msgspec.json.decode(desk.line.answer()[2])["Messages"]
    assert [message["Body"] for message in found] == ["a", "b"]


@pytest.mark.parametrize("wrong", ["Credential=any/sqs", "Signature=ab12", "SignedHeaders=date, Signature=ab12"])
def test_half_a_signature_is_refused_as_ever(desk: Desk, wrong: str) -> None:
    header = f"Authorization: AWS4-HMAC-SHA256 Credential=any/1/r/sqs/aws4_request, {wrong}"
    status, fields, _ = desk.ask("SendMessage", one(MessageBody="a"), "/", header)
    assert (status, fields["x-amzn-query-error"].partition(";")[0]) in (
        (400, "IncompleteSignature"),
        (403, "SignatureDoesNotMatch"),
    )


def test_a_head_that_comes_before_its_body_takes_the_short_way(desk: Desk) -> None:
    before = desk.listener.requests
    raw = msgspec.json.encode(one(MessageBody="a"))
    lines = ["POST / HTTP/1.1", "Host: localhost", "x-amz-target: AmazonSQS.SendMessage", f"Content-Length: {len(raw)}"]
    head = "\r\n".join([*lines, "", ""])
    desk.line.send(head.encode())
    assert desk.line.out == b""
    desk.line.send(raw)
    assert desk.line.answer()[0] == 200
    assert desk.listener.requests == before
