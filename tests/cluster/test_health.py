"""The six ways to be degraded, and how far clocks are apart."""

from __future__ import annotations

import pytest

from penstock.clock import MILLISECOND, SECOND
from penstock.cluster.denial import Denial
from penstock.cluster.drift import Drift, Samples, is_active
from penstock.cluster.health import Health, Op


def denied(health: Health, op: Op) -> Denial | None:
    try:
        health.check(op)
    except Denial as denial:
        return denial
    return None


def kinds(health: Health) -> dict[str, int]:
    """Return what is refused of everything that can be asked for, and how."""
    ops: tuple[Op, ...] = ("create", "lease", "extend", "release", "delete", "greet", "admin", "clean", "prefetch")
    return {op: denial.kind for op in ops if (denial := denied(health, op)) is not None}


def test_a_clock_that_is_off_three_times_stops_what_it_would_date_until_it_was_right_for_ten_seconds() -> None:
    health, second = Health(), 0
    for _ in range(2):
        second += 1
        health.time_drift.observe(600, second * SECOND)
    assert health.state == "healthy"
    second += 1
    health.time_drift.observe(-600, second * SECOND)
    assert (health.state, health.reasons()) == ("degraded", ("time_drift",))
    assert kinds(health) == dict.fromkeys(("create", "lease", "extend", "release", "clean", "prefetch"), 201)
    assert not health.may_push("a")
    assert ("time_drift", "", True) in list(health.levels())
    for offset, seconds in ((240, 10), (260, 1), (-240, 10)):
        for _ in range(seconds):
            second += 1
            health.time_drift.observe(offset, second * SECOND)
            assert health.time_drift.active
    health.time_drift.observe(240, (second + 1) * SECOND)
    assert health.state == "healthy"
    assert kinds(health) == {}
    assert health.may_push("a")


def test_a_clock_that_is_off_now_and_then_degrades_nothing() -> None:
    health = Health()
    for second, offset in enumerate((600, 600, 400, 600, 600, -400, 501, 500)):
        health.time_drift.observe(offset, second * SECOND)
    assert health.state == "healthy"


def test_a_storage_that_fails_five_times_gets_one_operation_in_ten_until_ten_of_them_are_well() -> None:
    health = Health()
    for _ in range(4):
        health.storage.observe(False)
    assert health.state == "healthy"
    health.storage.observe(False)
    assert health.reasons() == ("storage",)
    refused = [denied(health, "create") for _ in range(30)]
    assert [number for number, each in enumerate(refused) if each is None] == [9, 19, 29]
    told = refused[0]
    assert told is not None
    assert (told.kind, told.throttled_ms) == (201, 500)
    for _ in range(9):
        health.storage.observe(True)
    health.storage.observe(False)
    for _ in range(9):
        health.storage.observe(True)
        assert health.storage.active
    health.storage.observe(True)
    assert all(denied(health, "create") is None for _ in range(20))


def test_a_storage_that_fails_every_other_time_is_in_trouble_and_one_in_three_is_not() -> None:
    often, seldom = Health(), Health()
    for number in range(60):
        often.storage.observe(number % 2 == 0)
        seldom.storage.observe(number % 3 != 0)
    assert (often.storage.active, seldom.storage.active) == (True, False)


def test_a_registry_that_is_away_for_five_seconds_stops_new_leases_and_not_deletes() -> None:
    health = Health()
    for at in range(5):
        health.partition.observe(False, ["one"], at * SECOND)
        assert health.state == "healthy"
    health.partition.observe(False, ["one"], 5 * SECOND)
    assert health.reasons() == ("partition",)
    assert kinds(health) == dict.fromkeys(("create", "lease", "prefetch", "admin"), 202)
    assert denied(health, "delete") is None
    assert denied(health, "extend") is None
    for at in range(6, 11):
        health.partition.observe(True, ["one"], at * SECOND)
        assert health.partition.active
    health.partition.observe(True, ["one"], 11 * SECOND)
    assert health.state == "healthy"


def test_a_registry_that_comes_and_goes_is_away_only_after_five_seconds_in_a_row() -> None:
    health = Health()
    for at in range(60):
        health.partition.observe(at % 5 == 0, [], at * SECOND)
    assert health.state == "healthy"


@pytest.mark.parametrize(
    ("there", "left", "alone"), [(3, 1, True), (3, 2, False), (4, 2, False), (4, 1, True), (2, 0, False)]
)
def test_more_than_half_of_three_or_more_brokers_gone_within_a_minute_is_a_partition(
    there: int, left: int, alone: bool
) -> None:
    health = Health()
    names = [f"b{number}" for number in range(there)]
    health.partition.observe(True, names, 0)
    health.partition.observe(True, names[:left], 30 * SECOND)
    assert health.partition.active is alone
    health.partition.observe(True, names[:left], 61 * SECOND)
    health.partition.observe(True, names[:left], 66 * SECOND)
    assert not health.partition.active, "those who went that long ago are no longer expected"


def test_three_of_four_busy_consumers_stop_their_topic_until_fewer_than_half_are() -> None:
    health = Health()
    for number in range(4):
        health.consumer("a", f"c{number}", is_busy=number >= 2)
        health.consumer("b", f"c{number}", is_busy=False)
    assert health.may_push("a")
    health.consumer("a", "c1", is_busy=True)
    assert (health.may_push("a"), health.may_push("b")) == (False, True)
    assert ("consumers_busy", "a", True) in list(health.levels())
    assert health.state == "healthy", "one topic is not the broker"
    health.consumer("a", "c3", is_busy=False)
    assert not health.may_push("a"), "half of them are"
    health.consumer("a", "c2", is_busy=False)
    assert health.may_push("a")


def test_busy_consumers_that_leave_count_no_more() -> None:
    health = Health()
    health.consumer("a", "c0", is_busy=True)
    assert not health.may_push("a")
    health.consumer_left("a", "c0")
    assert health.may_push("a")
    assert list(health.levels()) == [(reason, "", False) for reason in ("time_drift", "storage", "partition", "memory")]


def test_a_producer_whose_requests_fail_waits_twice_as_long_each_time_until_ten_are_well() -> None:
    health, now_ns = Health(), 0
    for number in range(20):
        health.check_producer("p", now_ns)
        health.producer("a", "p", is_well=number < 10, now_ns=now_ns)
        assert ("producer_errors", "a", number == 19) in list(health.levels())
    waits = []
    for _ in range(9):
        with pytest.raises(Denial) as caught:
            health.check_producer("p", now_ns)
        assert caught.value.kind == 429
        waits.append(caught.value.throttled_ms)
        now_ns += caught.value.throttled_ms * MILLISECOND
        health.check_producer("p", now_ns)
        health.producer("a", "p", is_well=False, now_ns=now_ns)
    assert waits == [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]
    now_ns += 10 * SECOND
    for _ in range(10):
        health.check_producer("p", now_ns)
        health.producer("a", "p", is_well=True, now_ns=now_ns)
    assert ("producer_errors", "a", False) in list(health.levels())
    for _ in range(10):
        health.producer("a", "p", is_well=False, now_ns=now_ns)
    with pytest.raises(Denial) as caught:
        health.check_producer("p", now_ns)
    assert caught.value.throttled_ms == 100, "it begins anew"
    health.check_producer("another", now_ns)
    health.producer_left("p")
    health.check_producer("p", now_ns)


def test_a_producer_is_throttled_from_ten_requests_on() -> None:
    health = Health()
    for number in range(10):
        health.check_producer("p", 0)
        health.producer("a", "p", is_well=number % 2 == 0, now_ns=0)
    with pytest.raises(Denial, match="wait for 100 ms"):
        health.check_producer("p", 99 * MILLISECOND)
    health.check_producer("p", 100 * MILLISECOND)


def test_little_memory_lets_nobody_in_and_pushes_nothing_ahead_until_there_is_some() -> None:
    health = Health()
    health.memory.observe(90, 100)
    assert health.state == "healthy"
    health.memory.observe(91, 100)
    assert kinds(health) == {"greet": 201, "prefetch": 201}
    assert health.may_push("a")
    health.memory.observe(80, 100)
    assert health.reasons() == ("memory",)
    health.memory.observe(79, 100)
    assert health.state == "healthy"


def test_each_degradation_says_what_it_is() -> None:
    health = Health()
    for at in range(3):
        health.time_drift.observe(700, at * SECOND)
    health.partition.observe(False, [], 0)
    health.partition.observe(False, [], 5 * SECOND)
    health.memory.observe(100, 100)
    for number in range(10):
        health.storage.observe(False)
        health.producer("a", "p", is_well=False, now_ns=number)
    health.consumer("a", "c", is_busy=True)
    said = health.sentences()
    assert [each.partition(")")[0] for each in said] == [
        f"degraded ({reason}"
        for reason in ("time_drift", "storage", "partition", "memory", "consumers_busy", "producer_errors")
    ]
    assert "700 ms" in said[0]
    assert "consumers of a are busy" in said[4]


def test_a_sample_that_took_long_says_nothing() -> None:
    samples = Samples()
    for _ in range(5):
        samples.add(1000, 1610, 1020)  # 600 ahead, asked in 20 ms
    samples.add(2000, 5000, 2400)
    samples.add(3000, 3621, 3042)
    assert samples.offset_ms() == 600
    assert samples.rtt_ms() == 20


def test_only_the_last_sixteen_samples_count() -> None:
    samples = Samples()
    for _ in range(17):
        samples.add(0, 700, 0)
        samples.add(0, 0, 0)
        assert samples.offset_ms() in (700, 350, 0)
    for _ in range(16):
        samples.add(0, 5, 0)
    assert samples.offset_ms() == 5


def test_this_clock_is_judged_by_most_of_three_partners_or_by_the_registry_alone() -> None:
    drift = Drift()
    assert drift.self_offset_ms() is None
    drift.add("consumer", "a", "c1", 0, 900, 0)
    drift.add("producer", "a", "p1", 0, 10, 0)
    assert drift.self_offset_ms() is None
    drift.add("sync", "", "etcd", 0, 30, 0)
    assert drift.self_offset_ms() == 30
    drift.forget("producer", "a", "p1")
    assert drift.self_offset_ms() == 30
    drift.add("broker", "", "b2", 0, 600, 0)
    assert drift.self_offset_ms() == 600


def test_partners_on_a_busy_machine_that_answer_late_do_not_make_this_clock_a_wrong_one() -> None:
    drift = Drift()
    for name in ("c1", "c2", "c3", "c4"):
        drift.add("consumer", "a", name, 0, 2900, 3000)  # asked at 0, and looked at its clock when it came to it
    assert drift.self_offset_ms() == 0
    for name in ("c1", "c2", "c3", "c4"):
        drift.add("consumer", "a", name, 4000, 5610, 4020)
        drift.add("consumer", "a", name, 5000, 6610, 5020)
    assert drift.self_offset_ms() == 1590


def test_clients_of_one_user_or_machine_have_one_vote_on_how_far_this_clock_is_off() -> None:
    drift = Drift()
    for name in ("p1", "p2", "p3", "p4"):
        drift.add("producer", "a", name, 0, 900, 0, voice="user mallory")
    assert drift.self_offset_ms() is None
    drift.add("consumer", "a", "c1", 0, 10, 0, voice="10.0.0.1")
    drift.add("consumer", "b", "c1", 0, 20, 0, voice="10.0.0.2")
    assert drift.self_offset_ms() == 20
    drift.add("producer", "a", "p1", 0, 30, 0, voice="10.0.0.3")
    assert drift.self_offset_ms() == 25, "who greets anew from elsewhere speaks for that"


def test_clocks_that_are_off_are_told_by_kind_and_topic() -> None:
    drift = Drift()
    drift.add("consumer", "a", "c1", 0, 300, 20)
    drift.add("consumer", "a", "c2", 0, 110, 20)
    drift.add("consumer", "a", "c3", 0, -490, 20)
    assert [tuple(each) for each in drift.levels()] == [("consumer", "a", 2, (290 - 500) / 2)]
    assert drift.mean_latency_ms("consumer") == 10
    assert drift.mean_offset_ms("consumer") == pytest.approx(-110 / 3)
    assert [is_active(offset) for offset in (100, -100, 100.5, -101)] == [False, False, True, True]
