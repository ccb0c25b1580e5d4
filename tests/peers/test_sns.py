"""SNS where queues, outboxes and certificates are on different nodes of a cluster."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

from penstock.config import TopicConfig
from penstock.dialects.sqs.config import SqsConfig
from penstock.dialects.sqs.sns.record import OUTBOX
from tests.peers.pair import Pair
from tests.peers.test_http import sqs
from tests.served import Answer, Served
from tests.sqs.hook import Hook, visit

SUBSCRIPTION, NOTIFICATION, CANCELLED = "SubscriptionConfirmation", "Notification", "UnsubscribeConfirmation"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with Pair(tmp_path_factory.mktemp("sns"), sqs=SqsConfig(port=0)) as found:
        yield found


@pytest.fixture
def hook() -> Iterator[Hook]:
    with Hook() as hook:
        yield hook


def arn(name: str, service: str = "sns") -> str:
    return f"arn:aws:{service}:us-east-1:000000000000:{name}"


def sns(node: Served, action: str, **asked: str) -> Answer:
    headers = {"content-type": "application/x-www-form-urlencoded"}
    raw = urlencode({"Action": action, **asked})
    return node.ask("POST", "/", raw=raw, headers=headers, port=node.ports["sqs.port"])


def done(node: Served, action: str, **asked: str) -> Answer:
    answer = sns(node, action, **asked)
    assert answer.status == 200, answer
    return answer


def attributes(**given: str) -> dict[str, str]:
    """Return attributes as parameters."""
    return {
        f"Attributes.entry.{number}.{part}": text
        for number, (name, value) in enumerate(given.items(), 1)
        for part, text in (("key", name), ("value", value))
    }


def queue(node: Served, name: str, **given: str) -> str:
    """Make a queue on a node and return its address."""
    made = sqs(node, "CreateQueue", QueueName=name, Attributes=given)
    assert made.status == 200, made
    url: str = made.json["QueueUrl"]
    return url


def received(node: Served, url: str) -> list[str]:
    found = sqs(node, "ReceiveMessage", QueueUrl=url, MaxNumberOfMessages=10).json.get("Messages", [])
    return sorted(each["Body"] for each in found)


def endpoint(node: Served, name: str, hook: Hook, **given: str) -> str:
    """Make a topic with an endpoint that is confirmed, and return the last part of its subscription's ARN."""
    done(node, "CreateTopic", Name=name)
    asked = {"TopicArn": arn(name), "Protocol": "http", "Endpoint": hook.url, "ReturnSubscriptionArn": "true"}
    made = done(node, "Subscribe", **asked, **attributes(**given))
    visit(hook.wait(SUBSCRIPTION)[-1].json["SubscribeURL"])
    found = re.search(rb"<SubscriptionArn>(.*)</SubscriptionArn>", made.content)
    assert found is not None
    return found[1].decode().rpartition(":")[2]


def test_an_endpoint_is_served_by_whichever_node_has_its_outbox(tmp_path: Path, hook: Hook) -> None:
    with Pair(tmp_path, sqs=SqsConfig(port=0), topic=TopicConfig(log="kafka")) as pair:
        here, there = pair.n1, pair.n2
        there.until(lambda: there.node.share is not None and bool(there.node.share.holdings.ready))
        outbox = OUTBOX + endpoint(there, "t", hook)
        texts = ["one", "two", "three"]
        done(here, "Publish", TopicArn=arn("t"), Message=texts[0])
        hook.wait(NOTIFICATION)
        for text, leaves, comes in zip(texts[1:], (there, here), (here, there), strict=True):
            assert here.post("cluster/undrain", {"node": pair.name(comes)}).status == 200
            assert here.post("cluster/drain", {"node": pair.name(leaves)}).status == 200
            comes.until(lambda comes=comes: outbox in comes.node.topics)  # type: ignore[misc]
            done(leaves, "Publish", TopicArn=arn("t"), Message=text)
            hook.wait(NOTIFICATION, texts.index(text) + 1)
        assert [each.json["Message"] for each in hook.of(NOTIFICATION)] == texts


def test_nothing_is_published_while_a_subscriber_cannot_be_reached(pair: Pair, hook: Hook) -> None:
    here, there = pair.n1, pair.n2
    wanted = attributes(RawMessageDelivery="true", FilterPolicy='{"size": ["L"]}')
    size = {"MessageAttributes.entry.1.Name": "size", "MessageAttributes.entry.1.Value.DataType": "String"}
    large, small = ({**size, "MessageAttributes.entry.1.Value.StringValue": text} for text in "LS")
    outbox = OUTBOX + endpoint(there, "both", hook, FilterPolicy='{"size": ["L"]}')
    near, away = queue(here, "near"), queue(there, "away")
    raw = attributes(RawMessageDelivery="true")
    for name, given in (("near", raw), ("away", wanted)):
        done(here, "Subscribe", TopicArn=arn("both"), Protocol="sqs", Endpoint=arn(name, "sqs"), **given)
    for name in (outbox, "away"):
        pair.told(here).leaving.add(name)
        try:
            refused = sns(here, "Publish", TopicArn=arn("both"), Message="large", **large)
            assert (refused.status, b"ServiceUnavailable" in refused.content) == (503, True), refused
            assert received(here, near) == []
            done(here, "Publish", TopicArn=arn("both"), Message="small", **small)  # it does not get this one
            assert received(here, near) == ["small"]
        finally:
            pair.told(here).leaving.clear()
    done(here, "Publish", TopicArn=arn("both"), Message="large", **large)
    assert (received(here, near), received(there, away)) == (["large"], ["large"])
    assert hook.wait(NOTIFICATION)[0].json["Message"] == "large"


def test_what_an_endpoint_does_not_take_goes_to_dead_letters_on_another_node(pair: Pair, hook: Hook) -> None:
    here, there = pair.n1, pair.n2
    letters = queue(there, "letters-there")
    redrive = json.dumps({"deadLetterTargetArn": arn("letters-there", "sqs")})
    outbox = OUTBOX + endpoint(here, "dead", hook, RawMessageDelivery="true", RedrivePolicy=redrive)
    hook.statuses[:] = [404]
    done(here, "Publish", TopicArn=arn("dead"), Message="not there")
    hook.wait(NOTIFICATION)
    here.until(lambda: here.node.topics[outbox].subscriptions["endpoint"].in_flight() == 0)
    assert received(there, letters) == ["not there"]


def test_who_subscribed_no_more_is_told_whichever_node_is_asked(pair: Pair, hook: Hook) -> None:
    here, there = pair.n1, pair.n2
    id_ = endpoint(there, "left", hook)
    done(here, "Unsubscribe", SubscriptionArn=arn(f"left:{id_}"))
    (cancelled,) = hook.wait(CANCELLED)
    visit(cancelled.json["SubscribeURL"].replace(f":{there.ports['sqs.port']}/", f":{here.ports['sqs.port']}/"))
    done(here, "Publish", TopicArn=arn("left"), Message="again")
    assert hook.wait(NOTIFICATION)[0].json["Message"] == "again"


def test_a_subscription_stays_as_it_is_where_its_end_cannot_be_told(pair: Pair, hook: Hook) -> None:
    here, there = pair.n1, pair.n2
    id_ = endpoint(there, "kept", hook)
    pair.told(here).gone.add("n2")
    try:
        refused = sns(here, "Unsubscribe", SubscriptionArn=arn(f"kept:{id_}"))
        assert refused.status == 503, refused
        listed = done(here, "ListSubscriptionsByTopic", TopicArn=arn("kept"))
        assert arn(f"kept:{id_}").encode() in listed.content
    finally:
        pair.told(here).gone.clear()


def test_a_deduplication_id_holds_for_five_minutes_also_in_a_queue_of_another_node(tmp_path: Path) -> None:
    with Pair(tmp_path, sqs=SqsConfig(port=0)) as pair:
        here, there = pair.n1, pair.n2
        url = queue(there, "q.fifo", FifoQueue="true")
        done(here, "CreateTopic", Name="t.fifo", **attributes(FifoTopic="true"))
        raw = attributes(RawMessageDelivery="true")
        done(there, "Subscribe", TopicArn=arn("t.fifo"), Protocol="sqs", Endpoint=arn("q.fifo", "sqs"), **raw)
        said = {"TopicArn": arn("t.fifo"), "MessageGroupId": "g", "MessageDeduplicationId": "d"}
        for text in ("one", "the same again"):
            done(here, "Publish", Message=text, **said)
        for node in (here, there):
            node.advance(301)
        done(here, "Publish", Message="two", **said)
        assert received(there, url) == ["one", "two"]


def test_any_node_shows_the_certificate_of_whoever_signed(pair: Pair) -> None:
    here, there = pair.n1, pair.n2
    url = queue(there, "signed")
    done(there, "CreateTopic", Name="signed")
    done(there, "Subscribe", TopicArn=arn("signed"), Protocol="sqs", Endpoint=arn("signed", "sqs"))
    for signs, other in ((here, there), (there, here)):
        done(signs, "Publish", TopicArn=arn("signed"), Message="x")
        (body,) = received(there, url)
        path = "/" + json.loads(body)["SigningCertURL"].rpartition("/")[2]
        own = signs.ask("GET", path, port=signs.ports["sqs.port"])
        shown = other.ask("GET", path, port=other.ports["sqs.port"])
        assert shown.status == 200, shown
        assert shown.content == own.content
        assert shown.content.startswith(b"-----BEGIN CERTIFICATE-----")
        unknown = other.ask("GET", path.replace(".pem", "0.pem"), port=other.ports["sqs.port"])
        assert unknown.status == 404
