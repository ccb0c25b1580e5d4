"""A channel whose messages are dealt by buckets: they have none, so that of their id counts."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from penstock.dealing.buckets import of_ids
from penstock.settings import Dealer, SubscriptionSettings
from tests.nsq.parts import Broker, Client, dpub

BUCKETS = 12


def broker_with(path: Path, dealer: Dealer) -> Broker:
    broker = Broker(path)
    topic = broker.node.create_topic("t").now()
    topic.create_subscription("ch", SubscriptionSettings(policy="buckets", dealer=dealer, buckets=BUCKETS)).now()
    return broker


def joined(broker: Broker, zone: str = "", rdy: int = 2500) -> Client:
    client = broker.client()
    client.identify(client_id="host", topology_zone=zone)
    client.sub("t", "ch", rdy)
    return client


def publish(broker: Broker, *bodies: bytes) -> None:
    client = broker.client()
    client.mpub("t", list(bodies))
    assert client.replies() == ["OK"]
    client.hang_up()


def buckets_of(ids: list[bytes]) -> set[int]:
    return set(of_ids(np.array([int(id_, 16) for id_ in ids], np.int64), BUCKETS).tolist())


def test_two_consumers_share_a_channel_by_bucket_and_the_one_who_stays_gets_all(tmp_path: Path) -> None:
    broker = broker_with(tmp_path, "simple")
    first, second = joined(broker), joined(broker)
    publish(broker, *(b"%d" % number for number in range(1000)))
    here, there = first.messages(), second.messages()
    assert buckets_of([message.id for message in here]) == set(range(6))
    assert buckets_of([message.id for message in there]) == set(range(6, 12))
    assert len(here) + len(there) == 1000
    first.fin(*here)
    second.fin(*there[:100])
    second.hang_up()
    again = first.messages()
    assert sorted(message.body for message in again) == sorted(message.body for message in there[100:])
    assert {message.attempts for message in again} == {2}
    publish(broker, *(b"%d" % number for number in range(100)))
    assert len(first.messages()) == 100


def test_a_zone_lost_under_load_is_served_by_the_other_at_once(tmp_path: Path) -> None:
    broker = broker_with(tmp_path, "rack")
    here = [joined(broker, "zone-a", rdy=50) for _ in range(2)]
    there = [joined(broker, "zone-b", rdy=50) for _ in range(2)]
    publish(broker, *(b"%d" % number for number in range(1000)))
    done: list[bytes] = []
    for client in (*here, *there):
        messages = client.messages()
        assert len(messages) == 50
        done += [message.body for message in messages[:25]]
        client.fin(*messages[:25])
    before_ns = broker.clock.monotonic()
    for client in there:
        client.hang_up()
    while rest := [(client, client.messages()) for client in here if client.out]:
        for client, some in rest:
            client.fin(*some)
            done += [message.body for message in some]
    assert broker.clock.monotonic() == before_ns
    # What the two still hold is all that is missing.
    missing = broker.node.topic("t").subscription("ch").in_flight()
    assert missing == 2 * 25
    assert len(done) == len(set(done)) == 1000 - missing


def test_messages_that_were_due_first_come_first_whatever_their_bucket(tmp_path: Path) -> None:
    broker = broker_with(tmp_path, "simple")
    client = joined(broker, rdy=0)
    for delay_ms in (300, 100, 400, 200):
        broker.client().send(dpub("t", delay_ms, b"%d" % delay_ms))
    broker.advance(1)
    client.send(b"RDY 3\n")
    assert [message.body for message in client.messages()] == [b"100", b"200", b"300"]
