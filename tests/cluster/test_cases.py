"""The acceptance cases of timelines that are arithmetic alone, by number: dealers, windows, selector, balance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from random import Random

import numpy as np
import pytest

from penstock.cluster.balance import PAUSE_MS, Balance, Client, Suggestion
from penstock.cluster.broker import Broker, State
from penstock.cluster.selector import choices
from penstock.dealing.buckets import drawn
from penstock.dealing.ranges import Owners, simple, simple_ceil
from penstock.dealing.table import DEALERS, DealerName, Member, Table, deal, moves
from penstock.dealing.windows import Schedule, Windows
from penstock.errors import Refusal


def ranges(buckets: Sequence[int] | np.ndarray[tuple[int], np.dtype[np.int64]]) -> str:
    """Write numbers as the specification does: 0-2,6."""
    pieces: list[list[int]] = []
    for bucket in sorted(int(bucket) for bucket in buckets):
        if pieces and bucket == pieces[-1][-1] + 1:
            pieces[-1].append(bucket)
        else:
            pieces.append([bucket])
    return ",".join(f"{one[0]}-{one[-1]}" if len(one) > 1 else str(one[0]) for one in pieces)


def owned(owners: Owners, consumers: int) -> list[str]:
    return [ranges(np.flatnonzero(owners == number)) for number in range(consumers)]


def members(names: str) -> list[Member]:
    """A1 stands in rack A."""
    return [Member(name[0], name) for name in names.split()]


def shown(table: Table) -> dict[str, str]:
    """Return the buckets of each consumer, and behind a bar those it is a backup for."""
    found = {}
    for member in table.members:
        own, backups = table.work(member.name)
        found[member.name] = f"{ranges(own)} | {ranges(backups)}".removesuffix(" | ")
    return found


MIXED: list[tuple[str, State]] = [("a", "degraded"), ("b", "healthy"), ("c", "inactive")]
E1 = deal("rack", members("A1 A2 B1 B2"), 12)
E2 = deal("rack", members("A1 A2 B2"), 12, E1)


# --- dealers ----------------------------------------------------------------------------------------------------------


def test_timeline_case_1_simple_ranges_are_rounded_and_nobody_is_idle() -> None:
    assert owned(simple(3, 2048), 3) == ["0-682", "683-1364", "1365-2047"]
    assert owned(simple(3, 10), 3) == ["0-2", "3-6", "7-9"]
    assert all(owned(simple(8, 9), 8))


def test_timeline_case_2_more_consumers_than_buckets_one_and_none() -> None:
    assert owned(simple(3, 2), 3) == ["0", "1", ""]
    assert owned(simple(1, 2048), 1) == ["0-2047"]
    assert owned(simple(0, 4), 1) == [""]
    assert len(simple(3, 0)) == 0
    assert deal("simple", members("A B C"), 2).idle() == ["C"]


def test_timeline_case_3_simple_ranges_are_disjoint_cover_everything_and_differ_by_one_at_most() -> None:
    for consumers in range(1, 201):
        for buckets in range(1, 201):
            owners = simple(consumers, buckets)
            sizes = np.bincount(owners, minlength=consumers)
            assert len(owners) == buckets
            assert (np.diff(owners) >= 0).all()
            assert sizes.max() - sizes.min() <= 1
            assert (sizes > 0).sum() == min(consumers, buckets)


@pytest.mark.parametrize(
    ("consumers", "buckets", "expected"),
    [
        (3, 89, ["0-29", "30-59", "60-88"]),
        (4, 4357, ["0-1089", "1090-2179", "2180-3269", "3270-4356"]),
        (5, 15, ["0-2", "3-5", "6-8", "9-11", "12-14"]),
        (3, 2, ["0", "1", ""]),
        (10, 1, ["0", *[""] * 9]),
    ],
)
def test_timeline_case_4_steps_rounded_up_are_those_of_the_other_implementation(
    consumers: int, buckets: int, expected: list[str]
) -> None:
    assert owned(simple_ceil(consumers, buckets), consumers) == expected


@pytest.mark.parametrize("dealer", DEALERS)
def test_timeline_case_5_the_order_in_which_consumers_are_told_changes_nothing(dealer: DealerName) -> None:
    here = members("A1 A2 A10 B1 B2 C1 C2")
    before = deal(dealer, members("A1 B9 C1"), 28)
    expected = shown(deal(dealer, here, 28, before))
    for seed in range(20):
        Random(seed).shuffle(here)
        assert shown(deal(dealer, here, 28, before)) == expected


def test_timeline_case_6_racks_back_each_other_up_and_each_of_them_covers_everything_once() -> None:
    assert shown(E1) == {"A1": "0-2 | 6-8", "A2": "3-5 | 9-11", "B1": "6-8 | 0-2", "B2": "9-11 | 3-5"}
    for rack in "AB":
        covered = [each for name in (f"{rack}1", f"{rack}2") for part in E1.work(name) for each in part.tolist()]
        assert sorted(covered) == list(range(12))


def test_timeline_case_7_joins_and_leaves_move_as_little_as_can_be() -> None:
    assert shown(E2) == {"A1": "0-2,6 | 8,11", "A2": "3-5,7 | 9-10", "B2": "8-11 | 0-7"}
    assert E2.work("B2").backups.tolist() == [6, 2, 1, 0, 7, 5, 4, 3]
    assert moves(E1, E2) == 3
    e3 = deal("rack", members("A1 A2 A3 B1 B2"), 12, E1)
    assert shown(e3) == {
        "A1": "0-2 | 6",
        "A2": "3-5 | 9",
        "A3": "8,11 | 7,10",
        "B1": "6-7 | 0-2,8",
        "B2": "9-10 | 3-5,11",
    }
    assert moves(E1, e3) == 2
    e4 = deal("rack", members("A1 A2"), 12, E1)
    assert shown(e4) == {"A1": "0-2,6-8", "A2": "3-5,9-11"}
    assert moves(E1, e4) == 6
    e6 = deal("rack", members("A1 A2 B1 B2"), 12, E2)
    assert {name: text.partition(" | ")[0] for name, text in shown(e6).items()} == {
        "A1": "0-2",
        "A2": "3-5",
        "B1": "6-7,11",
        "B2": "8-10",
    }
    assert moves(E2, e6) == 3
    ranges_ = [deal("simple", members(names), 12) for names in ("A1 A2 B1 B2", "A1 A2 B2")]
    assert moves(*ranges_) == 4


def test_timeline_case_8_racks_of_different_sizes() -> None:
    here = members("A1 A2 A3 A4 B1 C1 C2")
    assert shown(deal("rack", here, 28)) == {
        "A1": "0-3 | 16-18",
        "A2": "4-7 | 19-21",
        "A3": "8-11 | 22-24",
        "A4": "12-15 | 25-27",
        "B1": "16-19 | 0-15,20-27",
        "C1": "20-23 | 0-9",
        "C2": "24-27 | 10-19",
    }
    assert shown(deal("rack", here, 12)) == {
        "A1": "0-1 | 8",
        "A2": "2-3 | 9",
        "A3": "4-5 | 10",
        "A4": "6-7 | 11",
        "B1": "8-9 | 0-7,10-11",
        "C1": "10 | 0-4",
        "C2": "11 | 5-9",
    }


def test_timeline_case_10_without_racks_there_are_no_backups_and_the_first_deal_is_in_ranges() -> None:
    table = deal("rack", [Member("", name) for name in "abc"], 10)
    assert shown(table) == {"a": "0-3", "b": "4-6", "c": "7-9"}


def test_timeline_case_11_a_consumer_works_upwards_on_its_own_and_downwards_on_others() -> None:
    own, backups = E1.work("B2")
    assert [own.tolist(), backups.tolist()] == [[9, 10, 11], [5, 4, 3]]


def test_gladiators_cover_everything_the_next_one_first() -> None:
    table = deal("gladiator", members("A B C"), 6)
    works = {name: [part.tolist() for part in table.work(name)] for name in "ABC"}
    assert works == {
        "A": [[0, 1], [3, 2, 5, 4]],
        "B": [[2, 3], [5, 4, 1, 0]],
        "C": [[4, 5], [1, 0, 3, 2]],
    }
    surplus = deal("gladiator", members("A B C"), 2)
    assert [part.tolist() for part in surplus.work("C")] == [[], [0, 1]]


# --- windows ----------------------------------------------------------------------------------------------------------


def test_timeline_case_28_who_joins_before_a_deal_point_serves_in_the_next_window_and_who_comes_later_after_it() -> (
    None
):
    windows = Windows(1000)
    window = windows.at(1_700_000_000_250)
    point_ms = windows.deal_point_ms(window)
    assert point_ms == 1_700_000_000_500
    assert windows.serves_from(point_ms - 1) == windows.serves_from(point_ms) == window + 1
    assert windows.serves_from(point_ms + 1) == window + 2

    schedule = Schedule("simple", 12)
    joined_ms = {"A1": point_ms - 1, "A2": point_ms + 1}
    for each in (window, window + 1):
        here = [Member("", name) for name, at_ms in joined_ms.items() if at_ms <= windows.deal_point_ms(each)]
        table = schedule.deal(here, each)
        assert table is not None
        schedule.adopt(table)
    assert schedule.at(window) is None
    first, second = schedule.at(window + 1), schedule.at(window + 2)
    assert first is not None
    assert second is not None
    assert shown(first) == {"A1": "0-11"}
    assert shown(second) == {"A1": "0-5", "A2": "6-11"}


# --- brokers ----------------------------------------------------------------------------------------------------------


def placed(names: str, clients: int) -> tuple[dict[str, int], list[bool]]:
    """Send clients of one topic to brokers one after the other; return how many each has, and who was one too many."""
    counts = dict.fromkeys(names, 0)
    over: list[bool] = []
    for _ in range(clients):
        brokers = [Broker(id=name, counts={"t": count}, connections=count) for name, count in counts.items()]
        first = choices(brokers, "t")[0]
        counts[first.broker] += 1
        over.append(first.over_capacity)
    return counts, over


def test_timeline_case_35_clients_of_a_topic_fill_brokers_up_and_then_spread() -> None:
    assert placed("abcd", 8) == ({"a": 4, "b": 4, "c": 0, "d": 0}, [False] * 8)
    assert placed("a", 8) == ({"a": 8}, [*[False] * 7, True])
    assert placed("ab", 15)[0] == {"a": 8, "b": 7}
    assert [choice.broker for choice in choices([Broker(id=n, state=s) for n, s in MIXED], "t")] == ["b", "a"]
    assert choices([Broker(id="a", state="degraded")], "t")[0].broker == "a"


def test_timeline_case_35_a_full_broker_that_is_healthy_comes_before_a_degraded_one() -> None:
    brokers = [Broker(id="a", counts={"t": 9}), Broker(id="b", state="degraded")]
    assert choices(brokers, "t")[0] == ("a", 1, True)


def test_timeline_case_35_a_strict_selector_refuses_whom_nobody_has_room_for() -> None:
    with pytest.raises(Refusal, match="every broker has 7 clients of t or more") as refused:
        choices([Broker(id="a", counts={"t": 7})], "t", strict=True)
    assert refused.value.reason.http == 429
    with pytest.raises(Refusal, match="no broker is there"):
        choices([Broker(id="a", state="inactive")], "t")


def test_equal_brokers_go_by_topics_then_connections_then_names_and_one_each_spreads_evenly() -> None:
    brokers = [
        Broker(id="a", counts={"u": 1, "v": 1}),
        Broker(id="b", counts={"u": 1}, connections=3),
        Broker(id="d", counts={"u": 1}, connections=2),
        Broker(id="c", counts={"u": 1}, connections=2),
    ]
    assert [choice.broker for choice in choices(brokers, "t")] == ["c", "d", "b", "a"]
    counts = dict.fromkeys("abc", 0)
    for _ in range(7):
        brokers = [Broker(id=name, counts={"t": count}) for name, count in counts.items()]
        counts[choices(brokers, "t", preferred=1)[0].broker] += 1
    assert sorted(counts.values()) == [2, 2, 3]


def test_timeline_case_43_buckets_are_drawn_evenly_and_within_their_number() -> None:
    found = drawn(100_000, 64, np.random.default_rng(18))
    counts = np.bincount(found)
    assert len(counts) == 64
    mean = 100_000 / 64
    assert np.abs(counts - mean).max() <= 0.15 * mean


def test_timeline_case_44_clients_move_until_no_broker_has_30_percent_more_and_not_twice_in_a_minute() -> None:
    brokers = [Broker(id=name) for name in "abc"]
    where = {f"c{number:02}": "a" if number < 16 else "bc"[number % 2] for number in range(30)}  # a has 60 % more
    balance, asked = Balance(), dict[str, list[int]]()
    for window in range(200):
        clients = [Client(name, "t", broker) for name, broker in where.items()]
        found = balance.suggestions(window, 1000 * window, brokers, clients)
        assert window >= 2 or not found
        for one in found:
            asked.setdefault(one.client, []).append(window)
            if window % 3 or len(asked[one.client]) > 1:  # some do not follow at first
                where[one.client] = one.target
    assert max(Counter(where.values()).values()) <= 13
    assert sum(map(len, asked.values())) >= 3
    for windows in asked.values():
        assert all(later - earlier >= PAUSE_MS / 1000 for earlier, later in pairwise(windows))


def test_timeline_case_44_what_was_suggested_counts_as_done_until_its_minute_is_over() -> None:
    brokers = [Broker(id=name) for name in "abc"]
    clients = [Client(f"c{number:02}", "t", "a" if number < 16 else "bc"[number % 2]) for number in range(30)]
    balance = Balance()
    found = [balance.suggestions(window, 1000 * window, brokers, clients) for window in range(70)]
    assert [number for number, some in enumerate(found) if some] == [2, 62]
    assert len(found[2]) == 3  # 13 of 30 are just 30 % above the mean


def test_the_client_that_improves_most_is_asked_and_a_window_missed_begins_anew() -> None:
    brokers = [Broker(id="a"), Broker(id="b"), Broker(id="c", state="degraded"), Broker(id="d", state="inactive")]
    clients = [Client("big", "t", "a", 9.0), Client("half", "t", "a", 4.0), Client("tiny", "t", "a", 0.5)]
    balance = Balance()
    for window in (0, 1, 3, 4):
        assert balance.suggestions(window, window, brokers, clients) == []
    assert balance.suggestions(4, 4, brokers, clients) == []
    assert balance.suggestions(5, 5, brokers, clients)[0] == Suggestion("half", "a", "b")
