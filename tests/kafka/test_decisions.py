"""Dory's decisions, each by itself; numbers are those of the acceptance cases."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from random import Random

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from penstock.columns import Offsets
from penstock.errors import ConfigError
from penstock.relays.kafka.actions import Action, Actions, changes
from penstock.relays.kafka.assembly import assemble
from penstock.relays.kafka.batching import Batcher, BatchLimits
from penstock.relays.kafka.choice import KeyMap, Rotation, Spread
from penstock.relays.kafka.cluster import Broker, Cluster, SaidTopic, cluster
from penstock.relays.kafka.lane import Window
from penstock.relays.kafka.pauses import Pauses
from penstock.relays.kafka.sequences import MODULUS, Sequences

SECOND = 1_000_000_000
BROKERS = (Broker(1, "a", 1), Broker(2, "b", 2), Broker(3, "c", 3))


def known(*partitions: tuple[int, int, int], brokers: Sequence[Broker] = BROKERS, error: int = 0) -> Cluster:
    return cluster(brokers, [SaidTopic("t", error, partitions)])


def keyed(said: Cluster, keys: Sequence[int], mode: str = "dory") -> list[int]:
    found = KeyMap(said.topics["t"], said.in_service, mode)  # type: ignore[arg-type]
    return [int(number) for number in found.partitions(np.array(keys, np.int64))]


# --- partitions -----------------------------------------------------------------------------------------------------

USUAL = known((0, 1, 0), (1, 2, 0), (2, 1, 0))


def test_dory_case_17_a_partition_key_goes_where_the_formula_says() -> None:
    assert keyed(USUAL, [0, 1, 2, 3, 12345, 0xFFFFFFFF]) == [0, 1, 2, 0, 0, 0]


def test_a_key_counts_without_a_sign_whatever_the_column_has() -> None:
    said = known((0, 1, 0), (5, 1, 0), (9, 1, 0))
    assert keyed(said, [0, 1, 2, 0xFFFFFFFF, -1, 0x80000000, -(1 << 31)]) == [0, 5, 9, 0, 0, 9, 9]


def test_dory_case_18_a_key_walks_on_from_a_broker_that_is_out_of_service() -> None:
    assert keyed(known((0, 1, 0), (1, 3, 5), (2, 1, 0)), [0, 1, 2]) == [0, 2, 2]


def test_a_partition_with_an_error_keeps_its_keys_while_its_broker_is_in_service() -> None:
    assert keyed(known((0, 1, 0), (1, 1, 5), (2, 1, 0)), [0, 1, 2]) == [0, 1, 2]


def test_a_partition_without_a_leader_moves_all_keys_or_in_the_stable_mode_only_its_own() -> None:
    said = known((0, 1, 0), (1, -1, 5), (2, 1, 0))
    assert keyed(said, [0, 1, 2, 3]) == [0, 2, 0, 2]
    assert keyed(said, [0, 1, 2, 3], "stable") == [0, 2, 2, 0]


@given(st.lists(st.tuples(st.sampled_from((1, 2, 3, -1)), st.sampled_from((0, 5, 9))), min_size=1), st.integers())
def test_a_stable_key_changes_its_partition_only_if_that_one_cannot_be_had(
    said: list[tuple[int, int]], key: int
) -> None:
    partitions = [(number, leader, error) for number, (leader, error) in enumerate(said)]
    found = known(*partitions)
    if not found.topics["t"].available:
        return
    key &= 0xFFFFFFFF
    home = key % len(partitions)
    (got,) = keyed(found, [key], "stable")
    if partitions[home][1] in found.in_service:
        assert got == home
    assert partitions[got][1] in found.in_service


def test_dory_case_19_batches_are_spread_as_brokers_lead_partitions_and_each_cycles_its_own() -> None:
    said = known(*((number, 1 if number < 3 else 2, 0) for number in range(10)))
    spread = Spread(said.topics["t"], Random(7))
    assert Counter(spread.next() for _ in range(40)) == {1: 12, 2: 28}
    rotation = Rotation(said, 1)
    went = []
    for _ in range(4):
        went.append(rotation.current("t"))
        rotation.used("t")
    assert went == [0, 1, 2, 0]


@given(st.integers(1, 8), st.lists(st.integers(1, 9), max_size=6), st.integers())
def test_messages_that_go_one_by_one_are_spread_alike_in_one_piece_or_in_many(
    partitions: int, pieces: list[int], seed: int
) -> None:
    topic = known(*((number, 1 + number % 3, 0) for number in range(partitions))).topics["t"]
    one, many = Spread(topic, Random(seed)), Spread(topic, Random(seed))
    alone = [one.next() for _ in range(sum(pieces))]
    assert alone == [broker for piece in pieces for broker in many.many(piece).tolist()]
    assert one.only == (1 if partitions == 1 else None)


# --- what Kafka says it has -----------------------------------------------------------------------------------------


def test_what_has_an_error_or_no_leader_is_not_there_and_the_first_of_two_holds() -> None:
    said = cluster(
        [*BROKERS, Broker(1, "again", 9)],
        [
            SaidTopic("t", 0, ((1, 2, 0), (0, 1, 9), (1, 3, 0), (2, 7, 0))),
            SaidTopic("bad", 3, ((0, 1, 0),)),
            SaidTopic("t", 0, ()),
        ],
    )
    assert said.brokers[1].host == "a"
    assert list(said.topics) == ["t"]
    assert [(each.id, each.leader) for each in said.topics["t"].partitions] == [(0, 1), (1, 2)]
    assert said.topics["t"].numbers == (0, 1, 2)
    assert said.in_service == {1, 2}


def test_two_answers_are_equal_unless_a_message_would_go_elsewhere() -> None:
    assert known((0, 1, 0), (1, 2, 0)) == known((1, 2, 0), (0, 1, 0))
    assert known((0, 1, 0)) != known((0, 2, 0))
    assert known((0, 1, 0)) != known((0, 1, 5))
    assert known((0, 1, 0)) != known((0, 1, 0), brokers=[*BROKERS[:2], Broker(3, "moved", 3)])


# --- batching -------------------------------------------------------------------------------------------------------


class Plain(msgspec.Struct, frozen=True):
    """Messages of a test: (size, when it began to wait) of each."""

    rows: tuple[tuple[int, int], ...]
    topic: str = "t"
    partition: int | None = None

    @property
    def count(self) -> int:
        return len(self.rows)

    @property
    def sizes(self) -> Offsets:
        return np.array([size for size, _ in self.rows], np.int64)

    @property
    def times_ns(self) -> Offsets:
        return np.array([time for _, time in self.rows], np.int64)

    def cut(self, first: int, end: int) -> Plain:
        return replace(self, rows=self.rows[first:end])


def sized(*sizes: int) -> Plain:
    return Plain(tuple((size, 0) for size in sizes))


def flat(batches: list[list[Plain]]) -> list[list[tuple[int, int]]]:
    return [[row for group in batch for row in group.rows] for batch in batches]


def test_dory_case_27_a_batch_is_complete_with_its_number_or_with_its_time() -> None:
    batcher: Batcher[Plain] = Batcher(BatchLimits(time_ns=SECOND, messages=3))
    rows = tuple((5, 100 * SECOND) for _ in range(7))
    assert [len(batch) for batch in flat(batcher.add(Plain(rows), 100 * SECOND))] == [3, 3]
    assert batcher.deadline_ns == 101 * SECOND
    assert batcher.flush() == [Plain(rows[:1])]
    assert batcher.deadline_ns is None


def test_dory_case_28_bytes_cut_batches_as_dory_cuts_them() -> None:
    batcher: Batcher[Plain] = Batcher(BatchLimits(bytes=10))
    done = batcher.add(sized(4, 4, 3, 0, 10, 5, 5), 0)
    assert [[size for size, _ in batch] for batch in flat(done)] == [[4, 4], [3, 0], [10], [5, 5]]
    assert not batcher.groups


def test_an_old_message_completes_its_batch_at_once() -> None:
    batcher: Batcher[Plain] = Batcher(BatchLimits(time_ns=SECOND))
    assert batcher.add(Plain(((1, 100 * SECOND),)), 100 * SECOND) == []
    assert flat(batcher.add(Plain(((1, 1), (1, 100 * SECOND))), 100 * SECOND)) == [[(1, 100 * SECOND), (1, 1)]]
    assert batcher.count == 1


def model(
    limits: BatchLimits, state: list[tuple[int, int]], rows: Sequence[tuple[int, int]], now: int
) -> list[list[tuple[int, int]]]:
    """One message after the other, as Dory's documentation tells it."""
    done = []

    def emit() -> None:
        if state:
            done.append(list(state))
            state.clear()

    for size, time in rows:
        weight = max(size, 1)
        if limits.bytes and weight >= limits.bytes:
            emit()
            done.append([(size, time)])
            continue
        if limits.bytes and sum(max(s, 1) for s, _ in state) + weight > limits.bytes:
            emit()
        state.append((size, time))
        if (
            (limits.messages and len(state) >= limits.messages)
            or (limits.bytes and sum(max(s, 1) for s, _ in state) >= limits.bytes)
            or (limits.time_ns and min(t for _, t in state) + limits.time_ns <= now)
        ):
            emit()
    return done


row = st.tuples(st.integers(0, 12), st.integers(0, 20))


@given(
    st.builds(BatchLimits, st.integers(0, 10), st.integers(0, 5), st.integers(0, 14)).filter(lambda each: each.is_set),
    st.lists(st.tuples(st.lists(row, min_size=1, max_size=8), st.integers(0, 3)), max_size=6),
)
def test_messages_in_one_piece_make_the_batches_that_single_ones_would(
    limits: BatchLimits, pieces: list[tuple[list[tuple[int, int]], int]]
) -> None:
    batcher: Batcher[Plain] = Batcher(limits)
    state: list[tuple[int, int]] = []
    now = 8
    for rows, passed in pieces:
        now += passed
        assert flat(batcher.add(Plain(tuple(rows)), now)) == model(limits, state, rows, now)
        assert [each for group in batcher.groups for each in group.rows] == state
        assert batcher.count == len(state)
        assert batcher.deadline_ns == (
            min(time for _, time in state) + limits.time_ns if state and limits.time_ns else None
        )


# --- requests -------------------------------------------------------------------------------------------------------


def taken(queue: deque[Plain], request: int, largest: int) -> dict[tuple[str, int], list[int]]:
    found = assemble(queue, lambda topic: 7, request, largest)
    return {place: [size for group in groups for size, _ in group.rows] for place, groups in found.items()}


def test_a_request_ends_where_the_next_message_does_not_fit_and_nothing_is_skipped() -> None:
    queue = deque([sized(400, 500), sized(200, 10)])
    assert taken(queue, 1000, 10_000) == {("t", 7): [400, 500]}
    assert taken(queue, 1000, 10_000) == {("t", 7): [200, 10]}
    assert not queue


def test_a_message_that_alone_is_too_large_goes_alone() -> None:
    queue = deque([sized(5000, 1)])
    assert taken(queue, 1000, 1000) == {("t", 7): [5000]}
    assert taken(queue, 1000, 1000) == {("t", 7): [1]}


def test_keyed_messages_join_the_set_of_their_partition_and_topics_share_a_request() -> None:
    queue = deque(
        [sized(1), replace(sized(2), partition=7), replace(sized(3), partition=1), replace(sized(4), topic="u")]
    )
    assert taken(queue, 1000, 1000) == {("t", 7): [1, 2], ("t", 1): [3], ("u", 7): [4]}


def test_a_message_set_stays_below_what_a_broker_takes() -> None:
    queue = deque([sized(74, 74, 74), replace(sized(1), topic="u")])
    assert taken(queue, 1000, 200) == {("t", 7): [74, 74]}
    assert taken(queue, 1000, 200) == {("t", 7): [74], ("u", 7): [1]}


@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 60), min_size=1, max_size=5), st.sampled_from("tu"), st.sampled_from((None, 7, 1))
        ),
        max_size=6,
    ),
    st.integers(1, 200),
    st.integers(30, 200),
)
def test_every_message_leaves_once_in_the_order_of_its_set_and_within_limits(
    said: list[tuple[list[int], str, int | None]], request: int, largest: int
) -> None:
    queue = deque(replace(sized(*sizes), topic=topic, partition=partition) for sizes, topic, partition in said)
    sent: dict[tuple[str, int], list[int]] = {}
    while queue:
        now = taken(queue, request, largest)
        together = [size for sizes in now.values() for size in sizes]
        assert len(together) == 1 or sum(together) <= request
        for place, sizes in now.items():
            assert len(sizes) == 1 or sum(size + 26 for size in sizes) <= largest
            sent.setdefault(place, []).extend(sizes)
    wanted: dict[tuple[str, int], list[int]] = {}
    for sizes, topic, partition in said:
        wanted.setdefault((topic, 7 if partition is None else partition), []).extend(sizes)
    assert sent == wanted


# --- answers, rates, pauses -----------------------------------------------------------------------------------------


def test_the_table_of_answers_is_dorys() -> None:
    actions = Actions()
    assert [code for code in range(-1, 120) if actions.of(code) is Action.PAUSE] == [3, 5, 6, 7, 13]
    assert [code for code in range(-1, 120) if actions.of(code) is Action.RESEND] == [2]
    assert actions.of(0) is Action.DELIVERED
    assert all(actions.of(code) is Action.DISCARD for code in (-1, 1, 4, 10, 19, 43, 44, 99))


def test_the_table_can_be_changed_by_code_and_says_what_it_cannot_use() -> None:
    actions = Actions(changes({"19": "pause", "10": "discard_and_pause"}))
    assert actions.of(19).pauses
    assert not actions.of(19).discards
    assert actions.of(10).pauses
    assert actions.of(10).discards
    for wrong in ({"x": "pause"}, {"0": "discard"}, {"7": "wait"}):
        with pytest.raises(ConfigError):
            changes(wrong)


def test_dory_case_21_a_window_admits_so_many_and_the_next_begins_a_multiple_later() -> None:
    window = Window(1000, 3)
    assert window.admit(10, 500) == 3
    assert window.admit(1, 1499) == 0
    assert window.admit(2, 1500) == 2
    assert window.admit(5, 2499) == 1
    assert window.admit(5, 7777) == 3
    assert Window(1000, 0).admit(1, 0) == 0


def test_the_first_pause_is_short_the_next_ones_longer_and_after_a_quiet_window_short_again() -> None:
    pauses = Pauses(1000, 2, 10, Random(3))
    now = 0
    first = pauses.next_ns(now)
    assert first == 10
    for base in (1000, 2000, 4000, 4000):
        now += first
        first = pauses.next_ns(now)
        assert 0.5 * base <= first <= 1.5 * base
    assert pauses.next_ns(now + (1000 << 4)) == 10


def test_time_that_went_by_since_the_last_pause_is_left_off() -> None:
    pauses = Pauses(1000, 2, 10, Random(3))
    pauses.next_ns(0)
    assert pauses.next_ns(10 + 1600) == 10


# --- numbers of messages --------------------------------------------------------------------------------------------


class Sent:
    """Messages of a test that have a number."""

    def __init__(self, count: int, sequence: int) -> None:
        self.count = count
        self.sequence = sequence
        self.moved = False


def test_numbers_go_on_for_each_partition_and_begin_again_behind_the_last() -> None:
    sequences = Sequences(5, 0)
    assert [sequences.take(("t", 0), 3), sequences.take(("t", 0), 2), sequences.take(("t", 1), 1)] == [0, 3, 0]
    sequences.take(("t", 1), MODULUS - 2)
    assert [sequences.take(("t", 1), 2), sequences.take(("t", 1), 1)] == [MODULUS - 1, 1]


def test_what_is_given_up_leaves_no_gap() -> None:
    sequences = Sequences(5, 0)
    place = ("t", 0)
    sequences.take(place, 4)
    lost = Sent(3, sequences.take(place, 3))
    later = [Sent(2, sequences.take(place, 2)), Sent(1, sequences.take(place, 1))]
    sequences.give_up(place, lost.count, later)
    assert [each.sequence for each in later] == [4, 6]
    assert all(each.moved for each in later)
    assert sequences.take(place, 1) == 7


def test_a_topic_that_went_begins_anew() -> None:
    sequences = Sequences(5, 0)
    sequences.take(("t", 0), 4)
    sequences.take(("u", 0), 4)
    sequences.forget("t")
    assert [sequences.take(("t", 0), 1), sequences.take(("u", 0), 1)] == [0, 4]
