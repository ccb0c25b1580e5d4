"""When messages go out again, and when owners of replicated shards begin and cease to get them, to the nanosecond."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from penstock.clock import SECOND
from penstock.m3.placement import Shard
from penstock.relays.m3msg import connection
from penstock.relays.m3msg.retry import Retry
from penstock.relays.m3msg.wire import Framed, framed
from tests.cli.program import inside
from tests.m3msg.consumers import Way, placed, service, topic


def test_m3msg_case_24_pauses_may_be_a_list_whose_last_one_repeats() -> None:
    way = Way()
    way.config = msgspec.structs.replace(way.config, retry_pauses=("60s", "10s", "5s"))
    way.restart()
    one = way.consumer()
    one.acks = False
    way.topology.placements = {"s": placed({one: (0, 1, 2, 3)})}
    way.topology.say(topic(service("s")))
    way.run()
    way.publish(b"a")
    came: list[int] = []
    for second in range(90):
        way.run(1)
        came += [second] * (one.got[b"a"] - len(came))
    # To a second, as this looks: the first one began before.
    pauses = [later - earlier for earlier, later in pairwise(came)]
    assert (pauses[0] in (59, 60), pauses[1:]) == (True, [10, 5, 5, 5, 5])


@pytest.mark.parametrize("pause", ["0s", "soon"])
def test_pauses_that_are_none_are_refused(tmp_path: Path, pause: str) -> None:
    (tmp_path / "c.toml").write_text(f'[m3msg_relay]\nretry_pauses = ["1s", "{pause}"]\n')
    done = inside("config", "check", "--config", "c.toml", cwd=tmp_path)
    assert (done.code, "m3msg_relay.retry_pauses" in done.error) == (2, True)


@pytest.mark.parametrize("ignores", [False, True])
@pytest.mark.parametrize(
    ("cutover", "cutoff", "is_timely"),
    [
        (0, None, True),
        (1, None, False),
        (None, 0, False),
        (None, 1, True),
        (0, 1, True),
        (-100, 100, True),
        (-100, 0, False),
        (1, 100, False),
        (None, None, True),
    ],
)
def test_m3msg_case_22_cutover_is_the_first_time_and_cutoff_the_first_one_after_unless_both_are_ignored(
    cutover: int | None, cutoff: int | None, is_timely: bool, ignores: bool
) -> None:
    way = Way()
    way.config = msgspec.structs.replace(way.config, ignore_cutover_cutoff=ignores)
    way.restart()
    way.topology.say(topic(service("s", "replicated")))
    way.run()
    way.publish(b"a", routes=[0])
    batch = way.topic.subscription("m3msg.s").cursors[0].source.read(0)
    assert batch is not None
    stored_ns = batch.row_time(0)
    one = way.consumer()
    shard = Shard(
        0,
        "available",
        cutover_ns=0 if cutover is None else stored_ns + cutover,
        cutoff_ns=0 if cutoff is None else stored_ns + cutoff,
    )
    way.topology.place("s", placed({one: (shard,)}))
    way.run()
    assert list(one.got) == [b"a"] * (is_timely or ignores)
    assert way.counts("s").untimely == (not is_timely and not ignores)
    assert way.topic.subscription("m3msg.s").depth() == 0


def test_a_message_that_went_out_dozens_of_times_still_waits_between_and_goes_out_until_it_is_acked() -> None:
    way = Way()
    one = way.consumer()
    one.acks = False
    way.topology.placements = {"s": placed({one: (0, 1, 2, 3)})}
    way.topology.say(topic(service("s")))
    way.run()
    way.publish(b"a", routes=[0])
    for _ in range(35):
        way.until(lambda: len(one.sessions) == 4)
        for session in list(one.sessions):
            session.hang_up()
        way.run(2)
    way.until(lambda: len(one.sessions) == 4)
    before = one.got[b"a"]
    assert before > 30
    way.run(60)
    assert one.got[b"a"] - before <= 1
    one.acks = True
    way.publish(b"b", routes=[0])
    for session in list(one.sessions):
        session.hang_up()
    way.until(lambda: way.topic.subscription("m3msg.s").in_flight() + way.topic.subscription("m3msg.s").depth() == 0)
    assert one.got[b"b"] == 1


def test_pauses_without_a_limit_do_not_grow_beyond_half_a_day() -> None:
    for retry in (Retry(5 * SECOND, 0, Random(1)), Retry(SECOND, 0, Random(1), pauses_ns=[1 << 60])):
        assert max(retry.after_ns(attempt) for attempt in (20, 33, 65_535)) <= 12 * 3600 * SECOND


def test_a_connection_that_could_not_be_sent_to_once_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    way = Way()
    one = way.consumer()
    way.topology.placements = {"s": placed({one: (0, 1, 2, 3)})}
    way.topology.say(topic(service("s")))
    way.run()

    def fails(*told: Any) -> Framed:
        monkeypatch.setattr(connection, "framed", framed)
        raise ValueError("a bug")

    monkeypatch.setattr(connection, "framed", fails)
    way.publish(b"a", routes=[0])
    way.run(30)
    assert (list(one.got), len(one.sessions)) == ([b"a"], 4)


def test_a_replica_that_could_not_be_sent_once_is_sent_again_and_does_not_break_the_connection_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    way = Way()
    one, two = way.consumer(), way.consumer()
    # The first owner of shards 2 and 3 is the second one of shards 0 and 1.
    way.topology.placements = {"r": placed({one: [0, 1], two: [0, 1, 2, 3]})}
    way.topology.say(topic(service("r", "replicated")))
    way.run()
    sessions = list(two.sessions)
    failed: list[Any] = []

    def fails(*told: Any) -> Framed:
        if told[2] == 0 or failed:
            return framed(*told)
        failed.append(told)
        raise ValueError("a bug")

    monkeypatch.setattr(connection, "framed", fails)
    way.publish(b"a", routes=[0])
    way.run(30)
    assert (len(failed), one.got[b"a"], two.got[b"a"]) == (1, 1, 1)
    assert (list(two.sessions), len(sessions), way.counts("r").resets) == (sessions, 4, 0)
    assert {each.depth() + each.in_flight() for each in way.topic.subscriptions.values()} == {0}
