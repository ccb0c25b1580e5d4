"""HTTP endpoints of SNS: asked first, sent signed messages, tried again, and told when they are subscribed no more."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import threading
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.callers.book import AccessKey, User
from penstock.callers.rights import Rule
from penstock.config import CallersConfig
from penstock.dialects.sqs.config import SqsConfig
from penstock.dialects.sqs.faults import Fault
from penstock.dialects.sqs.sns import retries
from penstock.dialects.sqs.sns.endpoints import Allowed
from penstock.dialects.sqs.sns.record import OUTBOX
from penstock.errors import ConfigError
from tests.callers.parts import users_in
from tests.served import PATIENCE_S, Served
from tests.sqs.boto import Boto
from tests.sqs.hook import Hook, Posted, visit
from tests.sqs.test_sns import arn, topic

SUBSCRIPTION, NOTIFICATION, CANCELLED = "SubscriptionConfirmation", "Notification", "UnsubscribeConfirmation"


@pytest.fixture
def hook() -> Iterator[Hook]:
    with Hook() as hook:
        yield hook


def subscribed(boto: Boto, name: str, hook: Hook, **attributes: str) -> str:
    """Subscribe an endpoint, confirm that, and return the ARN."""
    made = boto(
        "subscribe",
        "sns",
        TopicArn=topic(boto, name),
        Protocol="http",
        Endpoint=hook.url,
        Attributes=attributes,
        ReturnSubscriptionArn=True,
    )
    visit(hook.wait(SUBSCRIPTION)[-1].json["SubscribeURL"])
    return str(made["SubscriptionArn"])


def publish(boto: Boto, name: str, *texts: str, **more: Any) -> None:
    for text in texts:
        boto("publish", "sns", TopicArn=arn(name, "sns"), Message=text, **more)


def told(posted: list[Posted]) -> list[str]:
    return sorted(each.json["Message"] for each in posted)


def is_signed(document: dict[str, Any], path: Path) -> bool:
    """Verify a message as Amazon says, with a program that shares no code with the node."""
    fields = ("Message", "MessageId", "Subject", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type")
    signed = (
        fields
        if document["Type"] != NOTIFICATION
        else ("Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type")
    )
    (path / "text").write_text("".join(f"{key}\n{document[key]}\n" for key in signed if key in document))
    (path / "signature").write_bytes(b64decode(document["Signature"]))
    (path / "certificate").write_bytes(visit(document["SigningCertURL"]))
    key = subprocess.run(
        ["openssl", "x509", "-in", path / "certificate", "-pubkey", "-noout"], capture_output=True, check=True
    )
    (path / "key").write_bytes(key.stdout)
    digest = {"1": "-sha1", "2": "-sha256"}[document["SignatureVersion"]]
    verified = subprocess.run(
        ["openssl", "dgst", digest, "-verify", path / "key", "-signature", path / "signature", path / "text"],
        capture_output=True,
    )
    return verified.stdout == b"Verified OK\n"


def test_an_endpoint_is_asked_first_and_then_sent_messages_that_are_signed(
    boto: Boto, name: str, hook: Hook, tmp_path: Path
) -> None:
    name = name[-50:]
    topic_arn = topic(boto, name)
    made = boto("subscribe", "sns", TopicArn=topic_arn, Protocol="http", Endpoint=hook.url)
    assert made["SubscriptionArn"] == "pending confirmation"
    publish(boto, name, "too early")
    (asked,) = hook.wait(SUBSCRIPTION)
    assert asked.path == "/hook?a=b"
    assert asked.headers["x-amz-sns-topic-arn"] == asked.json["TopicArn"] == topic_arn
    assert asked.headers["x-amz-sns-message-id"] == asked.json["MessageId"]
    assert asked.headers["content-type"] == "text/plain; charset=UTF-8"
    assert is_signed(asked.json, tmp_path)
    (listed,) = boto("list_subscriptions_by_topic", "sns", TopicArn=topic_arn)["Subscriptions"]
    assert (listed["SubscriptionArn"], listed["Protocol"]) == ("PendingConfirmation", "http")
    wrong = boto.refused("confirm_subscription", "sns", TopicArn=topic_arn, Token="nonsense")
    assert (wrong.code, wrong.status) == ("InvalidParameter", 400)
    confirmed = boto("confirm_subscription", "sns", TopicArn=topic_arn, Token=asked.json["Token"])["SubscriptionArn"]
    assert (
        boto("confirm_subscription", "sns", TopicArn=topic_arn, Token=asked.json["Token"])["SubscriptionArn"]
        == confirmed
    )
    publish(boto, name, "hello", Subject="greeting")
    (sent,) = hook.wait(NOTIFICATION)
    assert (sent.json["Message"], sent.json["Subject"]) == ("hello", "greeting")
    assert sent.headers["x-amz-sns-subscription-arn"] == confirmed
    assert sent.json["SignatureVersion"] == "1"
    assert is_signed(sent.json, tmp_path)
    assert not is_signed({**sent.json, "Message": "forged"}, tmp_path)
    boto("set_topic_attributes", "sns", TopicArn=topic_arn, AttributeName="SignatureVersion", AttributeValue="2")
    publish(boto, name, "hello again")
    sent = hook.wait(NOTIFICATION, 2)[1]
    assert sent.json["SignatureVersion"] == "2"
    assert is_signed(sent.json, tmp_path)
    told_ = boto("get_topic_attributes", "sns", TopicArn=topic_arn)["Attributes"]
    assert (told_["SubscriptionsConfirmed"], told_["SubscriptionsPending"]) == ("1", "0")


def test_queues_get_signed_envelopes_and_the_key_is_its_users_alone(
    node: Served, boto: Boto, name: str, tmp_path: Path
) -> None:
    name = name[-50:]
    url = boto.queue(f"{name}-q")
    boto("subscribe", "sns", TopicArn=topic(boto, name), Protocol="sqs", Endpoint=arn(f"{name}-q"))
    publish(boto, name, "line\nline")
    (message,) = boto.receive(url)
    document = json.loads(message["Body"])
    assert is_signed(document, tmp_path)
    assert (node.path / "sns.pem").stat().st_mode & 0o777 == 0o600
    assert node.ask("GET", "/SimpleNotificationService-0.pem", port=node.ports["sqs.port"]).status == 404


@pytest.mark.parametrize("damage", [b"", b"nonsense", b"flip"])
def test_a_key_that_is_damaged_is_told_of_and_queues_that_need_none_get_their_messages(
    tmp_path: Path, damage: bytes
) -> None:
    sqs = SqsConfig(port=0)
    with Served(tmp_path, sqs=sqs) as node, Boto(node.ports["sqs.port"]) as boto:
        for queue, raw in (("a", "true"), ("b", "false")):
            boto.queue(queue)
            attributes = {"RawMessageDelivery": raw}
            arns = {"TopicArn": topic(boto, queue), "Endpoint": arn(queue)}
            boto("subscribe", "sns", Protocol="sqs", Attributes=attributes, **arns)
        publish(boto, "b", "signed")
    kept = tmp_path / "sns.pem"
    content = bytearray(kept.read_bytes())
    content[len(content) // 3] = ord("!")
    kept.write_bytes(bytes(content) if damage == b"flip" else damage)
    with Served(tmp_path, sqs=sqs) as node, Boto(node.ports["sqs.port"]) as boto:
        publish(boto, "a", "plain")
        error = boto.refused("publish", "sns", TopicArn=arn("b", "sns"), Message="x")
        assert (error.code, error.status) == ("ServiceUnavailable", 503)
        assert "sns.pem" in error.message
        kept.unlink()
        publish(boto, "b", "signed anew")


def test_a_raw_message_is_the_body_and_says_so(boto: Boto, name: str, hook: Hook) -> None:
    name = name[-50:]
    policy = json.dumps({"requestPolicy": {"headerContentType": "application/json"}})
    rule = json.dumps({"kind": ["a"]})
    subscribed(boto, name, hook, RawMessageDelivery="true", DeliveryPolicy=policy, FilterPolicy=rule)
    kinds = [{"kind": {"DataType": "String", "StringValue": kind}} for kind in "ab"]
    publish(boto, name, "no", MessageAttributes=kinds[1])
    publish(
        boto,
        name,
        json.dumps({"default": "d", "sqs": "s", "http": '{"x": 1}'}),
        MessageAttributes=kinds[0],
        MessageStructure="json",
    )
    (sent,) = hook.wait(NOTIFICATION)
    assert sent.body == b'{"x": 1}'
    assert sent.headers["x-amz-sns-rawdelivery"] == "true"
    assert sent.headers["content-type"] == "application/json"


def test_an_endpoint_that_fails_is_tried_again_as_its_policy_says(
    node: Served, boto: Boto, name: str, hook: Hook
) -> None:
    name = name[-50:]
    subscription = subscribed(boto, name, hook)
    hook.statuses[:] = [500, 429, 503]
    publish(boto, name, "at last")
    outbox = OUTBOX + subscription.rpartition(":")[2]
    for count in (1, 2, 3):
        hook.wait(NOTIFICATION, count)
        node.until(lambda: node.node.topics[outbox].subscriptions["endpoint"].waiting() == 1)
        assert len(hook.of(NOTIFICATION)) == count
        node.advance(20)
    hook.wait(NOTIFICATION, 4)
    node.until(lambda: node.node.topics[outbox].subscriptions["endpoint"].counts()["acked"] == 2)
    at_once = json.dumps({"healthyRetryPolicy": {"numRetries": 2, "numNoDelayRetries": 2}})
    boto(
        "set_subscription_attributes",
        "sns",
        SubscriptionArn=subscription,
        AttributeName="DeliveryPolicy",
        AttributeValue=at_once,
    )
    hook.statuses[:] = [500] * 3
    publish(boto, name, "never")
    hook.wait(NOTIFICATION, 7)
    node.until(lambda: node.node.ledger.total("undelivered", outbox) == 1)
    publish(boto, name, "next")
    assert told(hook.wait(NOTIFICATION, 8))[-4:] == ["never", "never", "never", "next"]


def test_what_an_endpoint_does_not_take_goes_to_the_dead_letters(boto: Boto, name: str, hook: Hook) -> None:
    name = name[-50:]
    letters = boto.queue(f"{name}-dead")
    policy = json.dumps({"healthyRetryPolicy": {"numRetries": 1, "numNoDelayRetries": 1}})
    redrive = json.dumps({"deadLetterTargetArn": arn(f"{name}-dead")})
    subscribed(boto, name, hook, DeliveryPolicy=policy, RedrivePolicy=redrive)
    hook.statuses[:] = [404]
    publish(boto, name, "not there")
    (letter,) = boto.receive(letters, WaitTimeSeconds=20)
    assert json.loads(letter["Body"])["Message"] == "not there"
    assert len(hook.of(NOTIFICATION)) == 1
    hook.statuses[:] = [500, 500]
    publish(boto, name, "broken")
    (letter,) = boto.receive(letters, WaitTimeSeconds=20)
    assert json.loads(letter["Body"])["Message"] == "broken"
    assert len(hook.of(NOTIFICATION)) == 3


def test_what_an_endpoint_does_not_take_waits_while_the_queue_of_its_dead_letters_cannot_be_read(
    data: Path, hook: Hook
) -> None:
    with Served(data, sqs=SqsConfig(port=0)) as node, Boto(node.ports["sqs.port"]) as boto:
        boto.queue("dead")
        outbox = (
            OUTBOX
            + subscribed(boto, "t", hook, RedrivePolicy=json.dumps({"deadLetterTargetArn": arn("dead")})).rpartition(
                ":"
            )[2]
        )
        registry, number = node.node.registry, node.node.topics["dead"].record.number
        [key] = registry.list(f"subscription/{number}/")
        node.do(lambda: registry.propose({key: b"of a later version"}).now())
    hook.statuses[:] = [404]
    with Served(data, sqs=SqsConfig(port=0)) as node, Boto(node.ports["sqs.port"]) as boto:
        assert "dead" not in node.node.topics
        publish(boto, "t", "not there")
        hook.wait(NOTIFICATION, 1)
        node.until(lambda: node.node.topics[outbox].subscriptions["endpoint"].waiting() == 1)
        assert node.node.ledger.total("undelivered", outbox) == 0


def test_what_waits_for_two_hours_at_an_endpoint_that_fails_is_undelivered(
    node: Served, boto: Boto, name: str, hook: Hook
) -> None:
    name = name[-50:]
    subscription = subscribed(boto, name, hook)
    outbox = OUTBOX + subscription.rpartition(":")[2]
    waiting = node.node.topics[outbox].subscriptions["endpoint"]
    hook.statuses[:] = [500] * 60
    publish(boto, name, *(f"{number:02}" for number in range(30)))
    hook.wait(NOTIFICATION, 30)  # each is tried once, and waits for its next turn
    node.until(lambda: waiting.waiting() == 30)
    node.advance(2 * 3600 - 600)
    hook.wait(NOTIFICATION, 60)  # not yet
    node.until(lambda: waiting.waiting() == 30)
    assert node.node.ledger.total("undelivered", outbox) == 0
    node.advance(601)
    node.until(lambda: node.node.ledger.total("undelivered", outbox) == 30)
    assert waiting.depth() == waiting.in_flight() == waiting.waiting() == 0
    assert len(hook.of(NOTIFICATION)) == 60


def test_the_old_at_an_endpoint_that_fails_go_at_once_and_the_fresh_are_still_tried(
    node: Served, boto: Boto, name: str, hook: Hook
) -> None:
    name = name[-50:]
    letters = boto.queue(f"{name}-dead")
    redrive = json.dumps({"deadLetterTargetArn": arn(f"{name}-dead")})
    subscription = subscribed(boto, name, hook, RedrivePolicy=redrive)
    outbox = OUTBOX + subscription.rpartition(":")[2]
    waiting = node.node.topics[outbox].subscriptions["endpoint"]
    hook.statuses[:] = [500] * 31
    texts = [f"{number:02}" for number in range(30)]
    publish(boto, name, *texts)
    hook.wait(NOTIFICATION, 30)
    node.until(lambda: waiting.waiting() == 30)
    node.advance(2 * 3600 + 1)
    publish(boto, name, "fresh")
    assert hook.wait(NOTIFICATION, 31)[-1].json["Message"] == "fresh"
    node.until(lambda: node.node.ledger.total("dead_letter", outbox) == 30)
    node.until(lambda: waiting.waiting() == 1)
    got = [each for _ in range(6) for each in boto.receive(letters)]
    assert sorted(json.loads(each["Body"])["Message"] for each in got) == texts
    node.advance(20)
    assert hook.wait(NOTIFICATION, 32)[-1].json["Message"] == "fresh"


def test_what_waited_while_the_node_was_away_comes_however_old_it_is(tmp_path: Path, hook: Hook) -> None:
    sqs = SqsConfig(port=0)
    with Served(tmp_path / "data", sqs=sqs) as node, Boto(node.ports["sqs.port"]) as boto:
        topic(boto, "t")
        subscribed(boto, "t", hook)
        hook.statuses[:] = [500] * 20
        publish(boto, "t", *(f"{number:02}" for number in range(20)))
        hook.wait(NOTIFICATION, 20)
        copy = node.crash_copy(tmp_path / "copy")
    hook.posted.clear()
    hook.statuses.clear()
    with Served(copy, sqs=sqs, ahead_s=3 * 3600):
        assert told(hook.wait(NOTIFICATION, 20)) == [f"{number:02}" for number in range(20)]


def test_an_endpoint_that_is_subscribed_no_more_is_told_and_may_take_it_back(
    node: Served, boto: Boto, name: str, hook: Hook
) -> None:
    name = name[-50:]
    subscription = subscribed(boto, name, hook)
    publish(boto, name, "one")
    (sent,) = hook.wait(NOTIFICATION)
    visit(sent.json["UnsubscribeURL"])
    (cancelled,) = hook.wait(CANCELLED)
    publish(boto, name, "two")
    assert boto("list_subscriptions_by_topic", "sns", TopicArn=arn(name, "sns"))["Subscriptions"] == []
    outbox = OUTBOX + subscription.rpartition(":")[2]
    node.until(lambda: outbox not in node.node.topics)
    visit(cancelled.json["SubscribeURL"])
    publish(boto, name, "three")
    assert told(hook.wait(NOTIFICATION, 2)) == ["one", "three"]
    boto("delete_topic", "sns", TopicArn=arn(name, "sns"))
    node.until(lambda: outbox not in node.node.topics)


def test_who_does_not_confirm_in_time_is_forgotten(tmp_path: Path, hook: Hook) -> None:
    sqs = SqsConfig(port=0)
    with Served(tmp_path, sqs=sqs) as node, Boto(node.ports["sqs.port"]) as boto:
        topic(boto, "t")
        boto("subscribe", "sns", TopicArn=arn("t", "sns"), Protocol="http", Endpoint=hook.url)
        (asked,) = hook.wait(SUBSCRIPTION)
    with Served(tmp_path, sqs=sqs, ahead_s=49 * 3600) as node, Boto(node.ports["sqs.port"]) as boto:
        assert boto("list_subscriptions", "sns")["Subscriptions"] == []
        node.until(lambda: not any(each.startswith(OUTBOX) for each in node.node.topics))
        wrong = boto.refused("confirm_subscription", "sns", TopicArn=arn("t", "sns"), Token=asked.json["Token"])
        assert wrong.code == "InvalidParameter"


def test_what_an_endpoint_did_not_get_comes_after_a_crash(tmp_path: Path, hook: Hook) -> None:
    sqs = SqsConfig(port=0)
    with Served(tmp_path / "data", sqs=sqs) as node, Boto(node.ports["sqs.port"]) as boto:
        topic(boto, "t")
        subscribed(boto, "t", hook)
        hook.statuses[:] = [500] * 3
        publish(boto, "t", "one", "two", "three")
        hook.wait(NOTIFICATION, 3)
        copy = node.crash_copy(tmp_path / "copy")
    hook.posted.clear()
    with Served(copy, sqs=sqs, ahead_s=20):
        assert told(hook.wait(NOTIFICATION, 3)) == ["one", "three", "two"]


@contextmanager
def silent() -> Iterator[str]:
    """An endpoint that accepts, and never says a word."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as deaf:
        yield f"http://127.0.0.1:{deaf.getsockname()[1]}/"


def test_an_endpoint_that_never_answers_delays_nobody_else(node: Served, boto: Boto, name: str, hook: Hook) -> None:
    name = name[-50:]
    subscribed(boto, name, hook)
    with silent() as url:
        made = boto(
            "subscribe", "sns", TopicArn=arn(name, "sns"), Protocol="http", Endpoint=url, ReturnSubscriptionArn=True
        )
        id_ = made["SubscriptionArn"].rpartition(":")[2]
        token = node.do(lambda: node.node.fanouts.get(name).dialects["sns"]["members"][id_]["token"])  # type: ignore[union-attr]
        boto("confirm_subscription", "sns", TopicArn=arn(name, "sns"), Token=token)
        texts = [f"{number:02}" for number in range(20)]
        publish(boto, name, *texts)
        assert told(hook.wait(NOTIFICATION, 20)) == texts
        deaf = node.node.topics[OUTBOX + id_].subscriptions["endpoint"]
        assert node.do(lambda: deaf.in_flight()) <= 8
        boto("delete_topic", "sns", TopicArn=arn(name, "sns"))


def test_a_node_sends_to_no_host_that_nobody_allowed(boto: Boto, name: str) -> None:
    name = name[-50:]
    topic_arn = topic(boto, name)
    for protocol, endpoint in (
        ("http", "http://169.254.169.254/latest/meta-data"),
        ("http", "http://10.0.0.1/"),
        ("http", "http://example.org/"),
        ("http", "https://127.0.0.1/"),
        ("https", "http://127.0.0.1/"),
        ("http", "http://user:secret@127.0.0.1/"),
        ("http", "http://[::1/"),
        ("http", "http://127.0.0.1:99999/"),
        ("http", "http://127.0.0.1/\r\nX: y"),
        ("http", "file:///etc/passwd"),
        ("http", ""),
        ("http", "http://127.0.0.1/" + "x" * 2048),
    ):
        error = boto.refused("subscribe", "sns", TopicArn=topic_arn, Protocol=protocol, Endpoint=endpoint)
        assert (error.code, error.status) == ("InvalidParameter", 400), endpoint
    assert boto("list_subscriptions_by_topic", "sns", TopicArn=topic_arn)["Subscriptions"] == []


def test_links_need_no_signature_and_nothing_else_does_without(tmp_path: Path, hook: Hook) -> None:
    key = AccessKey("PKBOB000000000000001", "bob's own secret")
    users_in(tmp_path, [User("bob", (Rule("manage", "t"), Rule("publish", "t")), keys=(key,))])
    callers = CallersConfig(anonymous="off", audit="off")
    with (
        Served(tmp_path, sqs=SqsConfig(port=0), callers=callers) as node,
        Boto(node.ports["sqs.port"], key.id, key.secret) as bob,
    ):
        subscribed(bob, "t", hook)
        publish(bob, "t", "one")
        (sent,) = hook.wait(NOTIFICATION)
        assert visit(sent.json["SigningCertURL"]).startswith(b"-----BEGIN CERTIFICATE-----")
        port = node.ports["sqs.port"]
        for action in ("ListTopics", "Unsubscribe&SubscriptionArn=" + arn("t:x", "sns")):
            assert node.ask("GET", f"/?Action={action}", port=port).status == 403
        visit(sent.json["UnsubscribeURL"])
        (cancelled,) = hook.wait(CANCELLED)
        url = cancelled.json["SubscribeURL"] + "&AuthenticateOnUnsubscribe=true"
        visit(url)
        refused = node.ask("GET", sent.json["UnsubscribeURL"].partition(f":{port}")[2], port=port)
        assert (refused.status, b"MissingAuthenticationToken" in refused.content) == (403, True)


HERE, ELSEWHERE = "127.0.0.1:5", "192.0.2.7:5"


@pytest.mark.parametrize(
    ("entries", "endpoint", "caller", "verdict"),
    [
        ((), "http://localhost:80/", HERE, True),
        ((), "http://127.0.0.1/", HERE, True),
        ((), "http://127.0.0.1/", ELSEWHERE, False),
        ((), "http://hooks.example.org/", HERE, False),
        (("hooks.example.org",), "http://hooks.example.org/", ELSEWHERE, True),
        (("hooks.example.org",), "http://HOOKS.example.org./", ELSEWHERE, True),
        (("hooks.example.org",), "http://a.hooks.example.org/", ELSEWHERE, False),
        (("hooks.example.org",), "http://127.0.0.1/", HERE, False),
        (("*.example.org",), "http://a.example.org/", ELSEWHERE, True),
        (("*.example.org",), "http://example.org/", ELSEWHERE, False),
        (("10.0.0.0/8",), "http://10.1.2.3/", ELSEWHERE, True),
        (("10.0.0.0/8",), "http://11.1.2.3/", ELSEWHERE, False),
        (("public",), "http://93.184.215.14/", ELSEWHERE, True),
        (("public",), "http://192.168.1.1/", ELSEWHERE, False),
        (("public",), "http://[::ffff:127.0.0.1]/", ELSEWHERE, False),
        (("public",), "http://[64:ff9b::7f00:1]/", ELSEWHERE, False),
    ],
)
def test_hosts_are_allowed_by_name_and_address(
    entries: tuple[str, ...], endpoint: str, caller: str, verdict: bool
) -> None:
    allowed = Allowed(entries)
    if verdict:
        allowed.check(endpoint, "http", caller)
    else:
        with pytest.raises(Fault):
            allowed.check(endpoint, "http", caller)


def test_a_name_that_leads_elsewhere_later_is_not_followed() -> None:
    by_name, public, here = Allowed(("hooks.example.org",)), Allowed(("public",)), Allowed(())
    assert by_name.takes("hooks.example.org", "10.0.0.1")  # whoever named it knows where it is
    assert public.takes("hooks.example.org", "93.184.215.14")
    for address in ("127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "fd00::1", "224.0.0.1", "0.0.0.0", "nonsense"):
        assert not public.takes("hooks.example.org", address)
    assert here.takes("localhost", "::1")
    assert not here.takes("localhost", "10.0.0.1")


@pytest.mark.parametrize("entry", ["*", "a/b", "http://x", "a b", "", "*.*.org"])
def test_what_names_no_host_is_no_setting(entry: str) -> None:
    with pytest.raises(ConfigError, match=r"sqs\.sns_http"):
        Allowed((entry,))


@pytest.mark.parametrize(
    ("policy", "pauses"),
    [
        ({}, [20, 20, 20, None]),
        ({"numRetries": 0}, [None]),
        ({"numRetries": 2, "numNoDelayRetries": 2}, [0, 0, None]),
        (
            {
                "numRetries": 6,
                "numNoDelayRetries": 1,
                "numMinDelayRetries": 1,
                "numMaxDelayRetries": 1,
                "minDelayTarget": 1,
                "maxDelayTarget": 9,
            },
            [0, 1, 1, 5, 9, 9, None],
        ),
        (
            {"numRetries": 4, "minDelayTarget": 2, "maxDelayTarget": 10, "backoffFunction": "exponential"},
            [2, 4, 8, 10, None],
        ),
        (
            {"numRetries": 3, "minDelayTarget": 1, "maxDelayTarget": 100, "backoffFunction": "geometric"},
            [1, 10, 100, None],
        ),
    ],
)
def test_pauses_are_those_of_the_policy(policy: dict[str, Any], pauses: list[float | None]) -> None:
    found = retries.effective("", json.dumps({"healthyRetryPolicy": policy})).healthy_retry_policy
    assert [found.delay_s(retry) for retry in range(1, len(pauses) + 1)] == pytest.approx(pauses)


@pytest.mark.parametrize(
    "text",
    [
        "nonsense",
        "[]",
        '{"healthyRetryPolicy": {"numRetries": 101}}',
        '{"healthyRetryPolicy": {"numRetries": "3"}}',
        '{"healthyRetryPolicy": {"minDelayTarget": 0}}',
        '{"healthyRetryPolicy": {"minDelayTarget": 30, "maxDelayTarget": 20}}',
        '{"healthyRetryPolicy": {"numRetries": 1, "numNoDelayRetries": 2}}',
        '{"healthyRetryPolicy": {"numRetries": 100, "minDelayTarget": 100, "maxDelayTarget": 100}}',
        '{"healthyRetryPolicy": {"backoffFunction": "random"}}',
        '{"requestPolicy": {"headerContentType": "a\\r\\nb: c"}}',
        "[" * 100_000,
    ],
)
def test_a_policy_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(Fault):
        retries.of_subscription(text)


@contextmanager
def babbling(answer: bytes) -> Iterator[str]:
    """An endpoint that says the same to everybody, whatever it is asked."""

    def serve() -> None:
        with contextlib.suppress(OSError):  # it was closed
            while True:
                sock, _ = listener.accept()
                with sock, contextlib.suppress(OSError):
                    sock.recv(65536)
                    sock.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, name="babbling")
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(PATIENCE_S)


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n\0\0",
        b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 100_000,
    ],
    ids=["ssh", "nothing", "upgrade", "redirect", "endless"],
)
def test_an_endpoint_that_says_anything_else_has_not_taken_the_message(
    node: Served, boto: Boto, name: str, answer: bytes
) -> None:
    name, bugs = name[-50:], node.node.bugs
    with babbling(answer) as url:
        policy = json.dumps({"healthyRetryPolicy": {"numRetries": 0}})
        topic_arn = topic(boto, name)
        made = boto(
            "subscribe",
            "sns",
            TopicArn=topic_arn,
            Protocol="http",
            Endpoint=url,
            Attributes={"DeliveryPolicy": policy},
            ReturnSubscriptionArn=True,
        )
        outbox = OUTBOX + made["SubscriptionArn"].rpartition(":")[2]
        node.until(lambda: node.node.ledger.total("undelivered", outbox) == 1)
        boto("delete_topic", "sns", TopicArn=topic_arn)
    assert node.node.bugs == bugs
