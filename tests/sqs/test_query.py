"""The older form, parameters and XML, and what is wrong in either form."""

from __future__ import annotations

import http.client
import json
import resource
import selectors
import socket
import xml.etree.ElementTree as ElementTree
from hashlib import md5
from typing import Any, cast
from urllib.parse import urlencode

import pytest

from penstock.http.incoming import HEAD_BYTES_MAX
from tests.served import PATIENCE_S, Answer, Served
from tests.sqs.boto import Boto

NAMESPACE = "{http://queue.amazonaws.com/doc/2012-11-05/}"
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


def ask(node: Served, path: str = "/", **params: str) -> Answer:
    raw = urlencode({name.replace("__", "."): value for name, value in params.items()})
    return node.ask("POST", path, raw=raw, headers=FORM, port=node.ports["sqs.port"])


def tree(answer: Answer) -> ElementTree.Element:
    return ElementTree.fromstring(answer.content)


def texts(answer: Answer, path: str) -> list[str | None]:
    return [each.text for each in tree(answer).findall("/".join(NAMESPACE + part for part in path.split("/")))]


def code(answer: Answer) -> tuple[int, str | None]:
    (found,) = texts(answer, "Error/Code")
    return answer.status, found


def test_a_message_goes_round_trip_in_xml(node: Served, name: str) -> None:
    made = ask(node, Action="CreateQueue", QueueName=name, Attribute__1__Name="DelaySeconds", Attribute__1__Value="0")
    assert tree(made).tag == f"{NAMESPACE}CreateQueueResponse"
    (url,) = texts(made, "CreateQueueResult/QueueUrl")
    assert url == f"http://127.0.0.1:{node.ports['sqs.port']}/000000000000/{name}"
    attribute = {
        "MessageAttribute__1__Name": "kind",
        "MessageAttribute__1__Value__DataType": "String",
        "MessageAttribute__1__Value__StringValue": "<&>",
        "MessageAttribute__2__Name": "raw",
        "MessageAttribute__2__Value__DataType": "Binary",
        "MessageAttribute__2__Value__BinaryValue": "AP8=",
    }
    sent = ask(node, f"/000000000000/{name}", Action="SendMessage", MessageBody="a <b> &\r\nc", **attribute)
    assert texts(sent, "SendMessageResult/MD5OfMessageBody") == [md5(b"a <b> &\r\nc").hexdigest()]
    got = ask(
        node,
        f"/000000000000/{name}",
        Action="ReceiveMessage",
        AttributeName__1="All",
        MessageAttributeName__1="All",
        MaxNumberOfMessages="10",
    )
    message = "ReceiveMessageResult/Message"
    assert texts(got, f"{message}/Body") == ["a <b> &\r\nc"]
    assert texts(got, f"{message}/MessageAttribute/Name") == ["kind", "raw"]
    assert texts(got, f"{message}/MessageAttribute/Value/StringValue") == ["<&>"]
    assert texts(got, f"{message}/MessageAttribute/Value/BinaryValue") == ["AP8="]
    assert "ApproximateReceiveCount" in texts(got, f"{message}/Attribute/Name")
    (handle,) = texts(got, f"{message}/ReceiptHandle")
    assert handle is not None
    entry = {"DeleteMessageBatchRequestEntry__1__Id": "a", "DeleteMessageBatchRequestEntry__1__ReceiptHandle": handle}
    gone = ask(node, Action="DeleteMessageBatch", QueueUrl=str(url), **entry)
    assert texts(gone, "DeleteMessageBatchResult/DeleteMessageBatchResultEntry/Id") == ["a"]
    left = ask(node, Action="GetQueueAttributes", QueueUrl=str(url), AttributeName__1="All")
    told = dict(
        zip(
            texts(left, "GetQueueAttributesResult/Attribute/Name"),
            texts(left, "GetQueueAttributesResult/Attribute/Value"),
            strict=True,
        )
    )
    assert (told["ApproximateNumberOfMessages"], told["ApproximateNumberOfMessagesNotVisible"]) == ("0", "0")
    assert ask(node, Action="DeleteQueue", QueueUrl=str(url)).status == 200


def test_a_permission_in_xml_is_a_statement_of_the_policy(node: Served, boto: Boto, name: str) -> None:
    url = boto.queue(name)
    numbered = {"AWSAccountId__1": "123456789012", "ActionName__1": "SendMessage", "ActionName__2": "GetQueueUrl"}
    added = ask(node, Action="AddPermission", QueueUrl=url, Label="senders", **numbered)
    assert tree(added).tag == f"{NAMESPACE}AddPermissionResponse"
    (statement,) = json.loads(boto.attributes(url)["Policy"])["Statement"]
    assert statement["Action"] == ["SQS:SendMessage", "SQS:GetQueueUrl"]
    assert ask(node, Action="RemovePermission", QueueUrl=url, Label="senders").status == 200
    assert "Policy" not in boto.attributes(url)


def test_a_batch_in_xml_names_what_failed(node: Served, boto: Boto, name: str) -> None:
    url = boto.queue(name)
    entry = "SendMessageBatchRequestEntry"
    sent = ask(
        node,
        Action="SendMessageBatch",
        QueueUrl=url,
        **{f"{entry}__2__Id": "b", f"{entry}__2__MessageBody": "y", f"{entry}__2__DelaySeconds": "9999"},
        **{f"{entry}__1__Id": "a", f"{entry}__1__MessageBody": "x"},
    )
    assert texts(sent, "SendMessageBatchResult/SendMessageBatchResultEntry/Id") == ["a"]
    assert texts(sent, "SendMessageBatchResult/BatchResultErrorEntry/Id") == ["b"]
    assert texts(sent, "SendMessageBatchResult/BatchResultErrorEntry/SenderFault") == ["true"]


def test_errors_in_xml_have_their_older_names(node: Served, name: str) -> None:
    missing = ask(node, Action="GetQueueUrl", QueueName=name)
    assert code(missing) == (400, "AWS.SimpleQueueService.NonExistentQueue")
    assert code(ask(node, Action="Dance")) == (400, "InvalidAction")
    assert code(ask(node, QueueName=name)) == (400, "MissingParameter")
    assert code(ask(node, Action="GetQueueUrl")) == (400, "MissingParameter")
    assert code(ask(node, Action="CreateQueue", QueueName=name, Attribute__x__Name="a"))[0] == 404
    assert code(ask(node, Action="CreateQueue", QueueName=name, Attribute__1__Value="a")) == (400, "MissingParameter")
    deep = ask(node, Action="CreateQueue", QueueName=name, **{"a" + "__a" * 50: "x"})
    assert code(deep) == (404, "MalformedQueryString")
    many = ask(node, Action="CreateQueue", QueueName=name, **{f"p{i}": "x" for i in range(2100)})
    assert code(many) == (404, "MalformedQueryString")


def tell(node: Served, operation: str, raw: bytes) -> tuple[int, str, str]:
    headers = {"X-Amz-Target": f"AmazonSQS.{operation}", "Content-Type": "application/x-amz-json-1.0"}
    answer = node.ask("POST", "/", raw=raw, headers=headers, port=node.ports["sqs.port"])
    return answer.status, answer.json["__type"], answer.headers["x-amzn-query-error"]


SERIALIZATION = (400, "com.amazonaws.sqs#SerializationException", "SerializationException;Sender")


@pytest.mark.parametrize(
    "raw",
    [
        b"{",
        b"[]",
        b'{"QueueUrl": 7, "MessageBody": "x"}',
        b'{"QueueUrl": "u", "MessageBody": "x", "DelaySeconds": "soon"}',
        b'{"QueueUrl": "u", "MessageBody": "\xff"}',
        b'{"QueueUrl": "u", "MessageBody": "x", "MessageAttributes": {"a": {"DataType": "Binary", "BinaryValue": 1}}}',
        b"[" * 100_000,
    ],
)
def test_what_is_no_request_in_json_is_told_so(node: Served, raw: bytes) -> None:
    assert tell(node, "SendMessage", raw) == SERIALIZATION


def test_what_is_left_out_is_named(node: Served) -> None:
    answer = tell(node, "SendMessage", b"{}")
    assert answer == (400, "com.amazonaws.sqs#MissingParameter", "MissingParameter;Sender")
    assert tell(node, "Dance", b"{}")[1].endswith("#InvalidAction")


def test_a_body_that_is_too_large_is_refused_before_it_is_read(node: Served) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", node.ports["sqs.port"], timeout=PATIENCE_S)
    try:
        connection.putrequest("POST", "/")
        connection.putheader("X-Amz-Target", "AmazonSQS.SendMessage")
        connection.putheader("Content-Length", str(5 << 20))
        connection.endheaders()
        response = connection.getresponse()
        assert (response.status, json.loads(response.read())["__type"]) == (
            413,
            "com.amazonaws.sqs#RequestEntityTooLarge",
        )
    finally:
        connection.close()


def long_poll(url: str) -> bytes:
    asked = json.dumps({"QueueUrl": url, "WaitTimeSeconds": 20, "VisibilityTimeout": 3600}).encode()
    head = ("POST / HTTP/1.1", "Host: localhost", "X-Amz-Target: AmazonSQS.ReceiveMessage")
    return "\r\n".join((*head, f"Content-Length: {len(asked)}", "", "")).encode() + asked


def test_a_receiver_that_hangs_up_takes_nothing_with_it(node: Served, boto: Boto, name: str) -> None:
    url = boto.queue(name)
    topic = node.node.topics[name]
    for half in (False, True):
        with socket.create_connection(("127.0.0.1", node.ports["sqs.port"]), PATIENCE_S) as sock:
            sock.sendall(long_poll(url))
            node.until(lambda: len(topic.subscriptions["queue"].looks) == 1)
            if half:
                sock.shutdown(socket.SHUT_WR)
                assert sock.recv(1) == b""
        node.until(lambda: not topic.subscriptions["queue"].looks)
    boto.send(url, "still there")
    assert [each["Attributes"]["ApproximateReceiveCount"] for each in boto.receive(url)] == ["1"]


def test_a_thousand_long_polls_wait_at_once_and_one_message_is_for_one_of_them(
    node: Served, boto: Boto, name: str
) -> None:
    url = boto.queue(name)
    subscription = node.node.topics[name].subscriptions["queue"]
    request = long_poll(url)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    socks: list[socket.socket] = []
    try:
        for _ in range(1000):
            socks.append(socket.create_connection(("127.0.0.1", node.ports["sqs.port"]), PATIENCE_S))
            socks[-1].sendall(request)
        node.until(lambda: len(subscription.looks) == 1000)
        boto.send(url, "one")
        node.until(lambda: len(subscription.looks) == 999)
        with selectors.DefaultSelector() as selector:
            for sock in socks:
                selector.register(sock, selectors.EVENT_READ)
            ((told, _),) = selector.select(PATIENCE_S)
        assert b'"Body":"one"' in cast(socket.socket, told.fileobj).recv(HEAD_BYTES_MAX)
    finally:
        for sock in socks:
            sock.close()
    node.until(lambda: not subscription.looks)
    assert boto.attributes(url)["ApproximateNumberOfMessagesNotVisible"] == "1"


def test_handles_of_other_queues_and_forged_ones_are_refused(boto: Boto, name: str) -> None:
    one, other = boto.queue(f"{name}-1"), boto.queue(f"{name}-2")
    boto.send(one, "x")
    (message,) = boto.receive(one)
    handle: Any = message["ReceiptHandle"]
    for url, wrong in ((other, handle), (one, handle[:-4] + "AAAA"), (one, "é"), (one, ""), (one, "A" * 5000)):
        error = boto.refused("delete_message", QueueUrl=url, ReceiptHandle=wrong)
        assert (error.type, error.status) == ("ReceiptHandleIsInvalid", 404)
