"""NSQ publishers over their quota, on a clock in the test's hand: slowed, then refused; nobody else notices."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.callers.quota import UserQuota
from tests.callers.parts import TOKEN, user, users_in
from tests.nsq.parts import SECOND, Broker, Client, dpub, mpub_ext, mpub_trace, pub, pub_ext, pub_trace, sized

TEN = UserQuota(messages_per_second=10)
TOO_MUCH = "PUB failed the quota of user anonymous is 10 messages a second; try again in "


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    users_in(tmp_path, [user("bob", ("admin", "*"), token=TOKEN)], TEN)
    return Broker(tmp_path)


def stored(broker: Broker) -> int:
    return broker.node.topic("t").intake.published


def exhaust(broker: Broker, seconds: int = 20) -> None:
    """Let somebody else of the same user publish more than it may."""
    client = broker.client()
    client.mpub("t", [b"x"] * 10 * seconds)
    assert client.replies() == ["OK"]
    client.hang_up()


def test_a_lone_publisher_is_slowed_to_its_rate_and_never_refused(broker: Broker) -> None:
    client = broker.client()
    began_ns = broker.clock.monotonic()
    for batch in range(1, 11):
        client.pub("t", *[b"x"] * 10)
        while not (told := client.replies()):
            broker.advance(0.01)
        assert told == ["OK"] * 10
        assert stored(broker) <= 10 * ((broker.clock.monotonic() - began_ns) / SECOND + 2)
        assert stored(broker) == 10 * batch
    account = broker.node.gate.accounts.named("anonymous")
    assert (account.refused["messages"], account.slowed_ns > 0) == (0, True)


def test_commands_behind_a_publish_that_is_too_fast_wait_and_keep_their_order(broker: Broker) -> None:
    client = broker.client()
    client.mpub("t", [b"x"] * 15)
    client.send(b"NOP\nBAD\n")
    assert client.replies() == ["OK"]
    assert not client.closed
    broker.advance(0.4)
    assert client.replies() == []
    broker.advance(0.2)
    assert client.replies()[0].startswith("E_INVALID")


COMMANDS = {
    "PUB": pub("t", b"x"),
    "DPUB": dpub("t", 5, b"x"),
    "MPUB": b"MPUB t\n" + sized(b"\x00\x00\x00\x01" + sized(b"x")),
    "PUB_EXT": pub_ext("t", {}, b"x"),
    "MPUB_EXT": mpub_ext("t", [({}, b"x")]),
    "PUB_TRACE": pub_trace("t", 5, b"x"),
    "MPUB_TRACE": mpub_trace("t", [(5, b"x")]),
}


@pytest.mark.parametrize("word", COMMANDS)
def test_whoever_is_far_over_its_rate_hears_an_error_and_stays_connected(broker: Broker, word: str) -> None:
    client = broker.client()
    client.send(pub_ext("t", {}, b"first"))
    assert client.replies() == ["OK"]
    exhaust(broker)
    before = stored(broker)
    client.send(COMMANDS[word])
    (told,) = client.replies()
    code = "E_MPUB_FAILED" if word[0] == "M" else "E_DPUB_FAILED" if word == "DPUB" else "E_PUB_FAILED"
    assert told.startswith(f"{code} {word} failed the quota of user anonymous is 10 messages a second; try again in ")
    assert stored(broker) == before
    assert broker.node.ledger.total("rate_limited", "t") == 1
    broker.advance(20)
    client.send(COMMANDS["PUB"])
    assert client.replies() == ["OK"]


def test_each_of_a_run_of_publishes_is_refused(broker: Broker) -> None:
    exhaust(broker)
    client = broker.client()
    client.pub("t", b"a", b"b", b"c")
    told = client.replies()
    assert len(told) == 3
    assert all(each.startswith("E_PUB_FAILED " + TOO_MUCH) for each in told)


def test_a_consumer_that_publishes_too_is_not_kept_from_finishing(broker: Broker) -> None:
    client = broker.client()
    client.sub("t", "c", rdy=100)
    client.send(b"".join([pub("t", b"x")] * 15))
    frames = client.frames()
    assert [data for kind, data in frames if kind == 0] == [b"OK"] * 15
    ids = [data[10:26] for kind, data in frames if kind == 2]
    client.send(pub("t", b"y") + b"".join(b"FIN " + each + b"\n" for each in ids))
    assert client.replies()[0].startswith("E_PUB_FAILED " + TOO_MUCH)
    assert broker.node.topic("t").subscription("c").in_flight() == 0


def test_consumers_of_somebody_over_its_rate_get_everything(broker: Broker) -> None:
    consumer = broker.client()
    consumer.sub("t", "c", rdy=2000)
    exhaust(broker, 100)
    assert len(consumer.messages()) == 1000


def authenticated(broker: Broker) -> Client:
    client = broker.client()
    client.send(b"AUTH\n" + sized(TOKEN.encode()))
    assert "bob" in client.replies()[0]
    return client


def test_others_are_not_slowed(broker: Broker) -> None:
    exhaust(broker)
    client = authenticated(broker)
    client.mpub("t", [b"x"] * 1000)
    client.pub("t", b"x")
    assert client.replies() == ["OK", "OK"]


def test_a_quota_comes_and_goes_while_connections_are_open(broker: Broker, tmp_path: Path) -> None:
    nobody, bob = broker.client(), authenticated(broker)
    bob.pub("t", b"x")
    users_in(tmp_path, [user("bob", ("admin", "*"), token=TOKEN, quota=TEN)])
    broker.node.gate.reload()
    bob.mpub("t", [b"x"] * 1000)
    broker.advance(1)
    bob.pub("t", b"x")
    assert [told.split(" ")[0] for told in bob.replies()] == ["OK", "OK", "E_PUB_FAILED"]
    nobody.mpub("t", [b"x"] * 1000)
    nobody.pub("t", b"x")
    assert nobody.replies() == ["OK", "OK"]
    users_in(tmp_path, [user("bob", ("admin", "*"), token=TOKEN)], TEN)
    broker.node.gate.reload()
    bob.pub("t", b"x")
    assert bob.replies() == ["OK"]
    nobody.mpub("t", [b"x"] * 1000)
    broker.advance(1)
    nobody.pub("t", b"x")
    assert [told.split(" ")[0] for told in nobody.replies()] == ["OK", "E_PUB_FAILED"]


def test_a_connection_that_ends_while_it_is_slowed_leaves_nothing_behind(broker: Broker) -> None:
    client = broker.client()
    client.mpub("t", [b"x"] * 100)
    client.hang_up()
    broker.advance(5)
    assert broker.node.gate.accounts.named("anonymous").connections == 0
    assert broker.node.bugs == 0


def test_bytes_count_bodies_and_what_stands_beside_them(tmp_path: Path) -> None:
    users_in(tmp_path, [], UserQuota(bytes_per_second=1000))
    broker = Broker(tmp_path)
    client, other = broker.client(), broker.client()
    client.send(pub_ext("t", {"k": "v" * 1500}, b"x" * 1500))
    assert client.replies() == ["OK"]
    other.pub("t", b"x")
    (told,) = other.replies()
    assert told.startswith("E_PUB_FAILED PUB failed the quota of user anonymous is 1KB a second; try again in 2s")
