"""What holds of every deal, whoever joins and leaves in whatever order."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.dealing.buckets import of_ids
from penstock.dealing.form import pack, unpack
from penstock.dealing.table import BUCKETS_MAX, DEALERS, DealerName, Member, Table, deal, follow, moves
from penstock.dealing.windows import Schedule, Windows
from penstock.errors import CorruptionError, Refusal

#: Who may be there: four racks, of which one has no name.
NAMES = st.builds(Member, st.sampled_from(["", "a", "b", "ö"]), st.integers(0, 8).map(str))
#: A name stands in one rack at a time.
CROWD = st.lists(NAMES, max_size=12, unique_by=lambda member: member.name)
CHAIN = st.lists(CROWD, min_size=1, max_size=8)
SIZES = st.integers(1, 60)


def spread(table: Table, owners: np.ndarray[tuple[int], np.dtype[np.int32]], rack: str | None = None) -> int:
    counts = np.bincount(owners, minlength=len(table.members))
    of_rack = [rack is None or member.rack == rack for member in table.members]
    return int(np.ptp(counts[of_rack]))


def least_moves(before: Table, after: Table) -> int:
    """Return how many must move: who has more than its share keeps its share, or one more where there is one."""
    share, more = divmod(after.buckets, len(after.members))
    had = {member.name: int((before.primary == number).sum()) for number, member in enumerate(before.members)}
    here = [had.get(member.name, 0) for member in after.members]
    kept = sum(min(count, share) for count in here) + min(more, sum(count > share for count in here))
    return int((before.primary >= 0).sum()) - kept


@given(CHAIN, SIZES)
@settings(deadline=None)
def test_timeline_case_9_racks_cover_everything_evenly_and_little_moves(chain: list[list[Member]], size: int) -> None:
    before: Table | None = None
    for crowd in chain:
        table = deal("rack", crowd, size, before)
        if crowd:
            assert (table.primary >= 0).all()
            assert spread(table, table.primary) <= 1
            for rack, owners in zip(table.rack_names(), table.by_rack, strict=True):
                assert {table.members[owner].rack for owner in owners.tolist()} == {rack}
                assert spread(table, owners, rack) <= 1
                inside = np.array([member.rack == rack for member in table.members])[table.primary]
                assert (owners[inside] == table.primary[inside]).all()
            if before is not None and before.members:
                assert moves(before, table) == least_moves(before, table)
        before = table


@given(CROWD.filter(lambda crowd: len(crowd) > 1), SIZES)
@settings(deadline=None)
def test_timeline_case_9_who_leaves_moves_its_own_and_nothing_else(crowd: list[Member], size: int) -> None:
    table = deal("rack", crowd, size)
    gone = crowd[0]
    after = deal("rack", crowd[1:], size, table)
    assert moves(table, after) == len(table.work(gone.name).own)
    assert follow(after, crowd[1:], 7) is after
    joined = follow(after, crowd, 7)
    assert moves(after, joined) <= -(-size // len(crowd))
    assert (joined.epoch, joined.window) == (3, 7)


@given(st.sampled_from(DEALERS), CHAIN, SIZES, st.integers(0, 1 << 30))
@settings(deadline=None)
def test_the_order_of_members_changes_nothing_and_bytes_bring_a_table_back(
    dealer: DealerName, chain: list[list[Member]], size: int, seed: int
) -> None:
    before: Table | None = None
    for window, crowd in enumerate(chain):
        table = deal(dealer, crowd, size, before, window)
        shuffled = list(crowd)
        Random(seed).shuffle(shuffled)
        again = unpack(pack(before)) if before is not None else None
        assert pack(deal(dealer, shuffled, size, again, window)) == pack(table)
        before = table


@given(st.sampled_from(DEALERS), CROWD, SIZES)
@settings(deadline=None)
def test_the_work_of_all_covers_everything_and_nobody_has_a_bucket_twice(
    dealer: DealerName, crowd: list[Member], size: int
) -> None:
    table = deal(dealer, crowd, size)
    works = [table.work(member.name) for member in crowd]
    for own, backups in works:
        assert (np.diff(own) > 0).all()
        assert len(set(own.tolist() + backups.tolist())) == len(own) + len(backups)
    owned = [bucket for work in works for bucket in work.own.tolist()]
    assert sorted(owned) == (list(range(size)) if crowd else [])
    times = {"simple": 0, "gladiator": max(len(crowd) - 1, 0), "rack": max(len({one.rack for one in crowd}) - 1, 0)}
    assert sum(len(work.backups) for work in works) == times[dealer] * size


@given(st.binary(max_size=64))
def test_garbage_is_no_table(data: bytes) -> None:
    with pytest.raises(CorruptionError, match="bytes are no table of buckets"):
        unpack(data)


@given(st.data(), CROWD.filter(bool), SIZES)
@settings(deadline=None)
def test_a_table_that_was_cut_off_or_changed_is_no_table_or_a_whole_one(
    data: st.DataObject, crowd: list[Member], size: int
) -> None:
    whole = pack(deal("rack", crowd, size))
    with pytest.raises(CorruptionError):
        unpack(whole[: data.draw(st.integers(0, len(whole) - 1))])
    other = bytearray(whole)
    other[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        table = unpack(bytes(other))
    except CorruptionError:
        return
    for member in table.members:
        table.work(member.name)


def test_a_table_of_all_buckets_stays_small_through_an_hour_of_joins_and_leaves() -> None:
    random = Random(65_535)
    everybody = [Member(f"rack-{number % 3}", f"consumer-{number:05}") for number in range(1000)]
    table = deal("rack", everybody, BUCKETS_MAX)
    assert len(pack(table)) < 32 << 10
    for _ in range(50):
        table = deal("rack", random.sample(everybody, 990), BUCKETS_MAX, table)
    assert len(pack(table)) < 512 << 10
    assert pack(unpack(pack(table))) == pack(table)


@pytest.mark.parametrize(
    ("dealer", "crowd", "size", "reason"),
    [
        ("simple", [], 0, "there cannot be 0 buckets"),
        ("simple", [], BUCKETS_MAX + 1, "choose from 1 to 65535"),
        ("simpel", [], 1, "there is no dealer 'simpel'; choose one of simple, gladiator, rack"),
        ("rack", [Member("a", "1"), Member("b", "1")], 1, "two consumers of one name"),
    ],
)
def test_what_cannot_be_dealt_is_refused(dealer: DealerName, crowd: list[Member], size: int, reason: str) -> None:
    with pytest.raises(Refusal, match=reason):
        deal(dealer, crowd, size)


@given(st.integers(100, 60_000), st.integers(0, 1 << 42))
def test_a_window_holds_its_deal_point_and_nobody_waits_longer_than_one_and_a_half(width_ms: int, time_ms: int) -> None:
    windows = Windows(width_ms)
    window = windows.at(time_ms)
    assert windows.start_ms(window) <= time_ms < windows.start_ms(window + 1)
    assert windows.at(windows.deal_point_ms(window)) == window
    assert time_ms <= windows.next_deal_point_ms(time_ms) <= time_ms + width_ms
    assert windows.start_ms(windows.serves_from(time_ms)) - time_ms <= 1.5 * width_ms + 1


def test_a_table_that_comes_late_holds_at_once_and_one_that_was_replaced_never_again() -> None:
    schedule = Schedule("rack", 12)
    first = schedule.deal([Member("", "a")], 4)
    assert first is not None
    assert (first.epoch, first.window) == (1, 5)
    schedule.adopt(first)
    assert schedule.deal([Member("", "a")], 6) is None
    second = schedule.deal([Member("", "a"), Member("", "b")], 6)
    assert second is not None
    assert schedule.at(6) is first
    schedule.adopt(second)
    assert schedule.next_window() == 7
    assert [schedule.at(window) for window in (6, 9, 3)] == [first, second, second]
    schedule.adopt(first)  # heard of again
    assert schedule.at(9) is second
    winner = deal("rack", [Member("", "c")], 12, first, window=7)
    schedule.adopt(winner)  # somebody else's deal of the same epoch was written first
    assert schedule.at(9) is winner
    other = Schedule("simple", 12)
    other.adopt(winner)
    changed = other.deal([Member("", "c")], 9)  # the topic has another dealer now
    assert changed is not None
    assert (changed.dealer, changed.epoch, changed.window) == ("simple", 3, 10)


def test_ids_that_follow_each_other_fall_into_buckets_evenly_in_every_shard() -> None:
    for shard in (0, 1, 7):
        ids = (shard << 48) + np.arange(1, 64_001)
        counts = np.bincount(of_ids(ids, 64), minlength=64)
        assert counts.min() > 950
        assert counts.max() < 1050
        assert of_ids(ids[:5], 64).tolist() == [int(of_ids(ids[at : at + 1], 64)[0]) for at in range(5)]
