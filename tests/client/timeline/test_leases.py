"""What a consumer was pushed is handed out when it is due, not before, and not once its lease may be over."""

from __future__ import annotations

import pytest

from penstock.client.timeline.drift import Drift, Sample
from penstock.client.timeline.leases import Lease, Leases


def lease(name: str, due_ms: int, expires_ms: int = 100_000, version: int = 2) -> Lease:
    return Lease(name.encode(), b"", due_ms, expires_ms, version, 0, b"g")


def taken(leases: Leases, now_ms: float) -> list[str]:
    found = []
    while (each := leases.take(now_ms, now_ms)) is not None:
        found.append(each.message_id.decode())
    return found


def test_a_lease_that_was_pushed_early_is_handed_out_at_its_due_time_and_not_before() -> None:
    leases = Leases()
    leases.push(lease("later", 2200))
    leases.push(lease("b", 1200))
    leases.push(lease("a", 1200))
    assert taken(leases, 1199.9) == []
    assert leases.next_due_ms == 1200
    assert taken(leases, 1200) == ["a", "b"]
    assert taken(leases, 2199) == []
    assert taken(leases, 2200) == ["later"]
    assert (len(leases), leases.held) == (0, 3)


def test_a_lease_whose_end_may_have_come_is_never_handed_out() -> None:
    leases = Leases()
    leases.push(lease("over", 1000, 2000))
    leases.push(lease("good", 1000, 2001))
    assert leases.take(1500, 2000) is not None  # good: the node's time is 2000 at the latest
    assert leases.take(1500, 2000) is None
    assert leases.expired == 1


def test_what_is_pushed_again_is_handed_out_once_unless_it_is_another_lease() -> None:
    leases = Leases()
    leases.push(lease("a", 1000, 5000))
    first = leases.take(1000, 1000)
    assert first is not None
    leases.push(lease("a", 1000, 6000))
    assert taken(leases, 1000) == []
    assert first.expires_ms == 6000
    leases.push(lease("a", 1000, 9000, version=3))
    assert taken(leases, 1000) == ["a"]


def test_what_the_program_deleted_is_not_handed_out_again_before_the_node_knows() -> None:
    leases = Leases()
    leases.push(lease("a", 1000))
    first = leases.take(1000, 1000)
    assert first is not None
    leases.delete(first)
    leases.push(lease("a", 1000))
    assert taken(leases, 1000) == []
    leases.push(lease("a", 1000, version=3))  # its lease was over, and it is another one's work again
    assert taken(leases, 1000) == ["a"]
    leases.deleted([first])
    leases.push(lease("a", 1000))
    assert taken(leases, 1000) == ["a"]


def test_what_is_over_is_kept_by_nobody() -> None:
    leases = Leases()
    leases.push(lease("held", 1000, 5000))
    assert taken(leases, 1000) == ["held"]
    leases.push(lease("waiting", 1000, 5000))
    leases.push(lease("lives", 1000, 5001))
    leases.drop_expired(5000)
    assert (leases.held, len(leases)) == (0, 1)
    assert taken(leases, 4000) == ["lives"]


def test_a_message_nobody_waited_for_is_handed_out_again() -> None:
    leases = Leases()
    leases.push(lease("a", 1000))
    first = leases.take(1000, 1000)
    assert first is not None
    leases.give_back(first)
    assert taken(leases, 1000) == ["a"]
    assert [each.message_id for each in leases.ending(100_000)] == [b"a"]
    assert leases.ending(99_999) == []


def test_the_clock_of_the_node_is_known_as_a_range_by_the_quickest_ping() -> None:
    drift = Drift()
    assert (drift.is_known, drift.earliest(5), drift.latest(5), drift.offset_ms) == (False, 5, 5, 0)
    drift.add(Sample(1000, 61_040, 1200))  # slow
    drift.add(Sample(2000, 62_010, 2020))
    # At 2020 here the node's clock was at 62,010 or later, and no later than 20 ms after that.
    assert drift.earliest(2020) == 62_010
    assert drift.latest(2020) == 62_031
    assert drift.local(62_015, 2020) == 2025


@pytest.mark.parametrize(("ahead_ms", "is_active"), [(100, False), (101, True), (-101, True)])
def test_drift_is_the_median_of_pings_that_were_not_slow(ahead_ms: int, is_active: bool) -> None:
    drift = Drift()
    for at in range(0, 100, 10):
        drift.add(Sample(at, at + 1 + ahead_ms, at + 2))
    drift.add(Sample(200, 5000, 300))  # took far longer than the others
    assert drift.offset_ms == ahead_ms
    assert drift.is_active is is_active
