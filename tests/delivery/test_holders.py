"""Leases under a name: they outlive whoever took them, and whoever comes under the name has them again."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.columns import place_of
from penstock.delivery.journal import HELD, RELEASED
from penstock.delivery.seat import Lease, Seat
from penstock.delivery.source import Delivery
from penstock.delivery.versions import VERSION_COUNT, VERSION_MAX
from penstock.errors import Refusal
from penstock.message import Rows
from penstock.settings import TopicSettings
from tests.delivery.parts import SECOND, Bench
from tests.site import Site


@pytest.fixture
def bench() -> Bench:
    return Bench()


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


class Named:
    """Somebody who receives under a name."""

    def __init__(self, bench: Bench, name: str, credit: int = 100, lease_ns: int = 60 * SECOND) -> None:
        self.bench = bench
        self.ids: list[int] = []
        self.seat = Seat(bench.subscription, self._deliver, lease_ns, name, named=True)
        bench.subscription.join(self.seat)
        self.seat.set_credit(credit)

    def _deliver(self, deliveries: list[Delivery]) -> None:
        self.ids += [offset + 1 for delivery in deliveries for offset in delivery.offsets()]

    def take(self) -> list[int]:
        self.bench.pump()
        ids, self.ids = self.ids, []
        return ids


def on_lease(bench: Bench, name: str) -> list[tuple[int, int, int]]:
    """Return (id, version, attempts) of what is on lease under a name."""
    return [(lease.id, lease.version, lease.attempts) for lease in bench.subscription.named[name].leases()]


def compact(bench: Bench) -> None:
    """Let the journal begin anew with a snapshot."""
    bench.cursor.flush(bench.instant)
    bench.journal.needs_snapshot = True
    bench.cursor.heal(bench.instant)
    assert bench.journal.compactions


@pytest.mark.parametrize("compacted", [False, True])
def test_leases_survive_a_crash_with_holder_attempts_version_and_deadline(bench: Bench, compacted: bool) -> None:
    bench.shard.put(numbered(3))
    first = Named(bench, "timeline/c1", credit=3)
    assert first.take() == [1, 2, 3]
    assert first.seat.release([2]) == []
    assert first.take() == [2]
    assert first.seat.extend([3], 90 * SECOND, renew=True) == []
    before = first.seat.leases()
    assert [(lease.id, lease.version, lease.attempts) for lease in before] == [(1, 1, 1), (2, 3, 2), (3, 2, 1)]
    if compacted:
        compact(bench)
    bench.crash(flush=False)
    again = Named(bench, "timeline/c1", credit=3)
    assert again.seat.leases() == before
    bench.shard.put([b"3"])
    assert (again.seat.in_flight, again.take()) == (3, [])
    assert bench.receiver().take() == [b"3"]
    bench.advance(61 * SECOND)
    assert [lease.id for lease in again.seat.leases()] == [3]
    bench.advance(30 * SECOND)
    assert again.seat.in_flight == 0


@pytest.mark.parametrize("compacted", [False, True])
def test_names_stand_side_by_side(bench: Bench, compacted: bool) -> None:
    bench.shard.put(numbered(6))
    ids = {name: Named(bench, name, credit=2).take() for name in ("a", "b/" + "long" * 20, "ü")}
    assert sorted(id_ for some in ids.values() for id_ in some) == [1, 2, 3, 4, 5, 6]
    if compacted:
        compact(bench)
    bench.crash(flush=False)
    assert {name: [id_ for id_, _, _ in on_lease(bench, name)] for name in ids} == ids
    seats = {name: Named(bench, name, credit=0).seat for name in ids}
    assert seats["a"].ack(ids["ü"]) == ids["ü"]
    assert seats["ü"].ack(ids["ü"]) == []
    bench.crash(flush=False)
    assert "ü" not in bench.subscription.named
    assert [id_ for id_, _, _ in on_lease(bench, "a")] == ids["a"]


@pytest.mark.parametrize("compacted", [False, True])
def test_number_of_a_name_that_left_is_the_next_ones(bench: Bench, compacted: bool) -> None:
    bench.shard.put(numbered(4))
    stays, goes = Named(bench, "stays", credit=1), Named(bench, "goes", credit=1)
    assert (stays.take(), goes.take()) == ([1], [2])
    number = goes.seat.holder
    assert goes.seat.ack([2]) == []
    goes.seat.close()
    assert "goes" not in bench.subscription.named
    if compacted:
        compact(bench)
    comes = Named(bench, "comes", credit=1)
    assert comes.seat.holder == number
    left = comes.take()
    bench.crash(flush=False)
    assert [id_ for id_, _, _ in on_lease(bench, "stays")] == [1]
    assert [id_ for id_, _, _ in on_lease(bench, "comes")] == left
    assert set(bench.subscription.named) == {"stays", "comes"}


def test_closing_keeps_the_leases_and_nobody_else_gets_them(bench: Bench) -> None:
    bench.shard.put(numbered(2))
    first = Named(bench, "c1", lease_ns=30 * SECOND)
    assert first.take() == [1, 2]
    first.seat.close()
    assert first.seat.ack([1]) == [1]
    other = bench.receiver()
    assert other.take() == []
    assert [id_ for id_, _, _ in on_lease(bench, "c1")] == [1, 2]
    again = Named(bench, "c1")
    assert again.seat.ack([1]) == []
    again.seat.close()
    bench.advance(31 * SECOND)
    assert other.take() == [b"1"]
    assert bench.subscription.named == {}
    assert bench.sums_hold()


def test_closing_with_release_gives_them_back_also_after_a_crash(bench: Bench) -> None:
    bench.shard.put(numbered(2))
    first = Named(bench, "c1")
    assert first.take() == [1, 2]
    first.seat.close(release=True)
    assert bench.subscription.named == {}
    bench.crash(flush=False)
    receiver = bench.receiver()
    assert receiver.take() == [b"0", b"1"]
    assert receiver.tries == [2, 2]


def test_name_in_use_is_refused_until_it_is_closed(bench: Bench) -> None:
    first = Named(bench, "c1")
    with pytest.raises(Refusal, match="somebody receives as 'c1' in subscription 'audit'; close that one first"):
        Named(bench, "c1")
    with pytest.raises(Refusal, match="somebody receives as 'c1'"):
        bench.subscription.holder("c1")
    first.seat.close()
    Named(bench, "c1")
    bench.subscription.holder("api")
    with pytest.raises(Refusal, match="somebody receives as 'api'"):
        Named(bench, "api")


@pytest.mark.parametrize("name", ["", "x" * 257, "a\0b"])
def test_name_that_cannot_be_written_down_is_refused(bench: Bench, name: str) -> None:
    with pytest.raises(Refusal, match="a holder's name has 1 to 256 bytes"):
        bench.subscription.holder(name)


def test_lone_message_for_a_named_seat_is_written_down_before_it_is_told(bench: Bench) -> None:
    named = Named(bench, "c1")
    batch = bench.shard.put([b"x"])
    bench.is_open = True
    bench.subscription.offer(0, batch, bench.instant.monotonic_ns)
    assert named.ids == [1]
    bench.crash(flush=False)
    assert on_lease(bench, "c1") == [(1, 1, 1)]


@pytest.mark.parametrize("released", [False, True])
def test_journal_of_before_holders_had_names_is_read_as_that_of_api(bench: Bench, released: bool) -> None:
    bench.shard.put(numbered(3))
    ends_ns = bench.instant.wall_ns + 60 * SECOND
    bench.journal.append([(HELD, 0, 0, 1, ends_ns), (HELD, 1, 1, 3, ends_ns)])
    if released:
        bench.journal.append([(RELEASED, 1, 1, 3, 0)])
    bench.crash(flush=False)
    api = bench.subscription.holder("api")
    held = [Lease(1, 1, 1, api.leases()[0].ends_ns), Lease(2, 3, 3, api.leases()[0].ends_ns)]
    assert api.leases() == (held[:1] if released else held)
    # A receipt was the id and the attempt: that of the lease of now holds, and no older one ever again.
    assert api.current([(1, 1), (2, 3), (2, 1)]) == [True, not released, False]
    if released:
        bench.subscription.holder("api").look(1, 60 * SECOND, lambda deliveries: None)
        bench.pump()
        assert api.current([(2, 1), (2, 2), (2, 3), (2, 4)]) == [False, False, False, True]


def test_receipts_are_checked_in_any_order_and_with_any_number(bench: Bench) -> None:
    bench.shard.put(numbered(1000))
    api = bench.subscription.holder("api")
    api.look(1000, 60 * SECOND, lambda deliveries: None)
    bench.pump()
    ids = np.random.default_rng(1).permutation(np.arange(1, 1001))
    given = [(id_, 1) for id_ in (*ids.tolist(), 0, 5000, 1 << 40, -3)]
    assert api.current(given) == [True] * 1000 + [False] * 4
    few = given[-9:]
    assert api.current(few) == [True] * 5 + [False] * 4
    assert api.release([7]) == []
    assert api.current([(7, 1), (8, 1)]) == [False, True]


def test_looks_of_one_turn_all_find_what_is_there(bench: Bench) -> None:
    bench.shard.put(numbered(3))
    api = bench.subscription.holder("api")
    found: list[Delivery] = []
    bench.is_open = True
    for _ in range(3):
        api.look(1, 60 * SECOND, found.extend)
    assert [offset for delivery in found for offset in delivery.offsets()] == [0, 1, 2]


def test_extend_gives_new_versions_only_if_told_to(bench: Bench) -> None:
    bench.shard.put(numbered(2))
    named = Named(bench, "c1")
    named.take()
    assert named.seat.extend([1, 2, 9], 90 * SECOND) == [9]
    assert [lease.version for lease in named.seat.leases()] == [1, 1]
    assert named.seat.extend([2], 90 * SECOND, renew=True) == []
    assert named.seat.current([(1, 1), (2, 1), (2, 2)]) == [True, False, True]
    bench.crash(flush=False)
    assert on_lease(bench, "c1") == [(1, 1, 1), (2, 2, 1)]


def test_versions_of_one_start_begin_anew_after_their_19_bits(bench: Bench) -> None:
    bench.shard.last_version = first = VERSION_MAX - VERSION_COUNT
    bench.crash(flush=False)
    bench.shard.put(numbered(1))
    named = Named(bench, "c1")
    named.take()
    bench.cursor.states.pages.set_versions(np.array([0]), np.array([VERSION_MAX - 1]))
    assert named.seat.extend([1], 60 * SECOND, renew=True) == []
    bench.crash(flush=False)
    assert on_lease(bench, "c1") == [(1, VERSION_MAX, 1)]
    again = Named(bench, "c1")
    assert again.seat.extend([1], 60 * SECOND, renew=True) == []
    assert again.seat.current([(1, VERSION_MAX), (1, first + 1)]) == [False, True]
    bench.crash(flush=False)
    assert on_lease(bench, "c1") == [(1, first + 1, 1)]


def test_version_is_not_given_again_after_a_start_that_lost_the_journal(bench: Bench) -> None:
    bench.shard.put(numbered(1))
    named = Named(bench, "c1")
    named.take()
    receipt = named.seat.leases()[0].version
    bench.journal.entries.clear()
    bench.shard.last_version += VERSION_COUNT + 1  # as each start of a shard does
    bench.crash(flush=False)
    again = Named(bench, "c1")
    again.take()
    assert again.seat.current([(1, receipt)]) == [False]


def test_version_is_not_given_again_after_a_seek(bench: Bench) -> None:
    bench.shard.put(numbered(2))
    named = Named(bench, "c1")
    named.take()
    assert named.seat.extend([1], 60 * SECOND, renew=True) == []
    bench.subscription.seek(0, 0)
    named.take()
    assert [lease.version for lease in named.seat.leases()] == [3, 3]


def test_seek_forgets_names_with_their_leases(bench: Bench) -> None:
    bench.shard.put(numbered(2))
    named = Named(bench, "c1")
    named.take()
    named.seat.close()
    bench.subscription.seek(0, 0)
    assert bench.subscription.named == {}
    assert bench.receiver().take() == numbered(2)


def test_named_seat_of_a_topic_with_two_shards_has_its_leases_again_after_a_kill() -> None:
    site = Site()
    topic = site.node.create_topic("t", TopicSettings(shards=2)).now()
    subscription = topic.create_subscription("audit").now()
    seat = topic.attach(subscription, lambda deliveries: None, holder="timeline/c1")
    seat.set_credit(100)
    for number in range(2):
        topic.publish(_rows(b"a", b"b"), site, lambda receipt, error: None, number)
    site.machine.run()
    before = seat.leases()
    assert [place_of(lease.id) for lease in before] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    with pytest.raises(Refusal, match="somebody receives as 'timeline/c1'"):
        topic.attach(subscription, lambda deliveries: None, holder="timeline/c1")
    assert seat.ack([before[1].id, before[2].id]) == []
    site.machine.run(1)
    site.start()
    topic = site.node.topic("t")
    seat = topic.attach(topic.subscription("audit"), lambda deliveries: None, holder="timeline/c1")
    kept = [(one.id, one.version) for one in (before[0], before[3])]
    assert [(one.id, one.version) for one in seat.leases()] == kept
    assert seat.current([(one.id, one.version) for one in before]) == [True, False, False, True]
    seat.close(release=True)
    assert topic.subscription("audit").depth() == 2


def _rows(*bodies: bytes) -> Rows:
    return Rows.of(bodies, "test")


def test_what_cannot_be_written_down_on_a_full_disk_is_leased_to_nobody_and_counts_for_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.shard.put(numbered(3))
    holder = Named(bench, "api", credit=1)
    assert holder.take() == [1]

    def full(entries: object) -> None:
        raise Refusal("disk_full", "no space left")

    with monkeypatch.context() as patch:
        patch.setattr(bench.journal, "append", full)
        for _ in range(3):
            with pytest.raises(Refusal, match="no space left"):
                bench.cursor.take(2, holder.seat, 60 * SECOND, bench.instant, 0)
        holder.seat.set_credit(0)
        assert holder.seat.ack([1]) == []  # it waits for room
        bench.cursor.flush(bench.instant)
    bench.cursor.flush(bench.instant)
    holder.seat.set_credit(2)
    assert holder.take() == [2, 3]
    bench.crash(flush=False)
    assert [(id_, attempts) for id_, _, attempts in on_lease(bench, "api")] == [(2, 1), (3, 1)]
