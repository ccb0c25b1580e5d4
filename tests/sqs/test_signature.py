"""Signature Version 4, held against requests that botocore signed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.callers.book import AccessKey, User
from penstock.callers.quota import UserQuota
from penstock.callers.rights import Rule
from penstock.config import CallersConfig
from penstock.dialects.sqs.codec.signature import signature_of, signed
from penstock.dialects.sqs.config import SqsConfig
from penstock.dialects.sqs.faults import Fault
from tests.callers.parts import users_in
from tests.served import Served
from tests.sqs.boto import AwsError, Boto

FIXTURE = json.loads((Path(__file__).parents[1] / "fixtures" / "sqs" / "signed.json").read_text())
REQUESTS = FIXTURE["requests"]
#: 2026-01-02T03:04:05Z.
SIGNED_NS = 1_767_323_045 * 10**9


def parts(request: dict[str, Any]) -> tuple[str, str, bytes, list[tuple[bytes, bytes]], bytes]:
    headers = [(name.lower().encode(), value.encode()) for name, value in request["headers"].items()]
    return request["method"], request["path"], request["query"].encode(), headers, request["body"].encode()


@pytest.mark.parametrize("request_", REQUESTS, ids=[each["name"] for each in REQUESTS])
def test_a_request_of_botocore_has_the_signature_it_must_have(request_: dict[str, Any]) -> None:
    method, path, query, headers, body = parts(request_)
    found = signed(dict(headers).get(b"authorization", b""), query, headers)
    assert found is not None
    assert found.key_id == FIXTURE["key"]
    assert signature_of(found, FIXTURE["secret"], method, path, query, headers, body) == found.signature
    for wrong in (
        signature_of(found, "another", method, path, query, headers, body),
        signature_of(found, FIXTURE["secret"], "PUT", path, query, headers, body),
        signature_of(found, FIXTURE["secret"], method, path + "x", query, headers, body),
        signature_of(found, FIXTURE["secret"], method, path, query + b"&a=b", headers, body),
        signature_of(found, FIXTURE["secret"], method, path, query, headers, body + b" "),
    ):
        assert wrong != found.signature


def test_a_signature_counts_for_a_while_and_a_presigned_one_as_long_as_it_says() -> None:
    for request, lasts_s in ((REQUESTS[0], 15 * 60), (REQUESTS[3], 3600)):
        _, _, query, headers, _ = parts(request)
        found = signed(dict(headers).get(b"authorization", b""), query, headers)
        assert found is not None
        for late_s in (-15 * 60, 0, lasts_s):
            found.check_time(SIGNED_NS + late_s * 10**9)
        for late_s in (-15 * 60 - 1, lasts_s + 1):
            with pytest.raises(Fault, match="Signature expired"):
                found.check_time(SIGNED_NS + late_s * 10**9)


@pytest.mark.parametrize(
    "authorization",
    [
        "AWS4-HMAC-SHA256 nonsense",
        "AWS4-HMAC-SHA256 Credential=a/b, SignedHeaders=host, Signature=0",
        "AWS4-HMAC-SHA256 Credential=k/20260102/r/sqs/aws4_request, SignedHeaders=x-amz-date, Signature=0",
    ],
)
def test_half_a_signature_is_refused(authorization: str) -> None:
    with pytest.raises(Fault):
        signed(authorization.encode(), b"", [])


KEY = AccessKey("PKBOB000000000000001", "bob's own secret")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    path = tmp_path_factory.mktemp("signed")
    rules = (Rule("manage", "shop-*"), Rule("publish", "shop-*"), Rule("consume", "shop-*"))
    users_in(path, [User("bob", rules, keys=(KEY,))])
    with Served(path, sqs=SqsConfig(port=0), callers=CallersConfig(anonymous="off", audit="off")) as served:
        yield served


def test_a_user_signs_with_its_access_key_and_may_what_it_may(node: Served) -> None:
    with Boto(node.ports["sqs.port"], KEY.id, KEY.secret) as bob:
        url = bob.queue("shop-orders")
        bob.send(url, "a shirt")
        assert [each["Body"] for each in bob.receive(url)] == ["a shirt"]
        error = bob.refused("create_queue", QueueName="other")
        assert (error.code, error.status) == ("AccessDenied", 403)


def test_quotas_of_a_user_hold_here_too(tmp_path: Path) -> None:
    quota = UserQuota(messages_per_second=1, topics=1)
    users_in(tmp_path, [User("bob", (Rule("admin", "*"),), keys=(KEY,), quota=quota)])
    with (
        Served(tmp_path, sqs=SqsConfig(port=0)) as bounded,
        Boto(bounded.ports["sqs.port"], KEY.id, KEY.secret) as bob,
    ):
        url = bob.queue("one")
        assert bob.refused("create_queue", QueueName="two").code == "OverLimit"
        topic = bob("create_topic", "sns", Name="sales")["TopicArn"]
        endpoint = "arn:aws:sqs:us-east-1:000000000000:one"
        bob("subscribe", "sns", TopicArn=topic, Protocol="sqs", Endpoint=endpoint)
        entries = [{"Id": str(i), "MessageBody": "x"} for i in range(10)]
        published = [{"Id": str(i), "Message": "x"} for i in range(10)]
        ways: list[tuple[str, str, dict[str, Any]]] = [
            ("send_message_batch", "sqs", {"QueueUrl": url, "Entries": entries}),
            ("publish_batch", "sns", {"TopicArn": topic, "PublishBatchRequestEntries": published}),
        ]
        for operation, service, params in ways:
            codes = set()
            for _ in range(20):  # two hundred messages, and it may send one a second
                try:
                    bob(operation, service, **params)
                except AwsError as error:
                    codes.add(error.code)
            assert codes == {"Throttling"}


def test_a_wrong_secret_and_an_unknown_key_are_told_apart(node: Served) -> None:
    with Boto(node.ports["sqs.port"], KEY.id, "wrong") as bob:
        error = bob.refused("list_queues")
        assert (error.code, error.status) == ("SignatureDoesNotMatch", 403)
    with Boto(node.ports["sqs.port"], "PKNOBODY", "wrong") as nobody:
        assert nobody.refused("list_queues").code == "InvalidClientTokenId"
    asked = node.ask("GET", "/?Action=ListQueues", port=node.ports["sqs.port"])
    assert (asked.status, b"<Code>MissingAuthenticationToken</Code>" in asked.content) == (403, True)


def test_a_known_key_with_a_wrong_signature_is_refused_also_where_nobody_has_to_sign(tmp_path: Path) -> None:
    users_in(tmp_path, [User("bob", (Rule("admin", "*"),), keys=(KEY,))])
    with Served(tmp_path, sqs=SqsConfig(port=0)) as open_to_all:
        with Boto(open_to_all.ports["sqs.port"], KEY.id, "wrong") as bob:
            assert bob.refused("list_queues").code == "SignatureDoesNotMatch"
        with Boto(open_to_all.ports["sqs.port"]) as anybody:
            assert anybody("list_queues") == {}
