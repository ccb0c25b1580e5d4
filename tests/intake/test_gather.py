"""Gathering keeps order and tells every owner once, whatever comes in whatever pieces."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from itertools import pairwise
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.budget import Share
from penstock.clock import Clock
from penstock.columns import Column
from penstock.errors import Refusal
from penstock.intake import gather
from penstock.intake.gather import ALONE_NS, GROUP_ROWS_MAX, PIECE_ROWS_MAX, Gather, Owner, Stored
from penstock.message import Rows
from tests.fakes import FakeClock

A, B = object(), object()


class Shelf:
    """A log in a list: stores groups, and tells their owners at once or when asked to."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.tags: list[object] = []
        self.groups: list[Rows] = []
        self.error: Exception | None = None
        self.during: Callable[[], None] | None = None

    def store(self, group: Rows, owners: list[Owner[int]]) -> None:
        if self.error is not None:
            raise self.error
        first = len(self.bodies)
        self.groups.append(group)
        cuts, body = [int(cut) for cut in group.cuts], bytes(group.body)
        self.bodies += [body[start:end] for start, end in pairwise(cuts)]
        tags = group.columns.get("tag")
        self.tags += [None] * group.count if tags is None else tags if isinstance(tags, list) else tags.to_pylist()
        assert sum(count for _, _, count in owners) == group.count
        if self.during is not None:
            during, self.during = self.during, None
            during()
        for done, first_row, _ in owners:
            done(first + first_row, None)


class Bench:
    """A gather with its clock, shelf and memory."""

    def __init__(self, bytes_max: int = 1 << 30) -> None:
        self.clock = FakeClock()
        self.shelf = Shelf()
        self.memory = Share("input", bytes_max)
        self.gather = Gather(
            cast(Clock, self.clock), self.shelf.store, self.memory, lambda refusal, _, done: done(None, refusal)
        )
        self.told: list[tuple[object, int | None, BaseException | None]] = []

    def done(self, name: object) -> Stored[int]:
        return lambda first, error: self.told.append((name, first, error))

    def offer(self, name: bytes, count: int = 1, publisher: object = A, **extra: object) -> None:
        columns = {"tag": cast(Column, [extra["tag"]] * count)} if "tag" in extra else None
        rows = Rows.of([b"%b.%d" % (name, row) for row in range(count)], str(extra.get("source", "nsq")), columns)
        rows.sequence = cast(bytes, extra.get("sequence", b""))
        self.gather.offer(rows, self.done(name), publisher)

    def share(self) -> None:
        """Let two publishers be seen, so that nothing is stored directly."""
        self.offer(b"share-a", publisher=A)
        self.offer(b"share-b", publisher=B)
        self.clock.run()
        self.shelf.__init__()  # type: ignore[misc]
        self.told.clear()


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_lone_publisher_is_stored_at_once(bench: Bench) -> None:
    bench.offer(b"one")
    assert bench.shelf.bodies == [b"one.0"]
    assert bench.told == [(b"one", 0, None)]
    assert bench.memory.used == 0


def test_second_publisher_makes_both_wait_for_the_turn(bench: Bench) -> None:
    bench.offer(b"a1", publisher=A)
    bench.offer(b"b1", publisher=B)
    bench.offer(b"a2", publisher=A)
    assert bench.shelf.bodies == [b"a1.0"]
    bench.clock.run()
    assert bench.shelf.bodies == [b"a1.0", b"b1.0", b"a2.0"]
    assert [group.count for group in bench.shelf.groups] == [1, 2]
    assert bench.told == [(b"a1", 0, None), (b"b1", 1, None), (b"a2", 2, None)]


def test_publisher_is_alone_again_after_a_quiet_while(bench: Bench) -> None:
    bench.share()
    bench.clock.advance(ALONE_NS - 1)
    bench.offer(b"early", publisher=B)
    assert bench.shelf.bodies == []
    bench.clock.advance(1)
    bench.offer(b"alone", publisher=B)
    assert bench.shelf.bodies == [b"early.0", b"alone.0"]
    assert len(bench.shelf.groups) == 2


def test_publishers_that_take_turns_slowly_are_each_alone(bench: Bench) -> None:
    for number in range(6):
        bench.offer(b"%d" % number, publisher=(A, B)[number % 2])
        assert len(bench.shelf.bodies) == number + 1
        bench.clock.advance(ALONE_NS)


def test_lone_publisher_does_not_overtake_what_is_pending(bench: Bench) -> None:
    bench.share()
    bench.offer(b"first", publisher=B)
    bench.clock._monotonic_ns += 2 * ALONE_NS  # Time passes while the loop does not come to our turn.
    bench.offer(b"second", publisher=B)
    assert bench.shelf.bodies == []
    bench.clock.run()
    assert bench.shelf.bodies == [b"first.0", b"second.0"]


def test_one_turn_is_asked_for_once(bench: Bench) -> None:
    bench.share()
    for number in range(100):
        bench.offer(b"%d" % number)
    assert len(bench.clock._soon) == 1
    assert len(bench.gather) == 100
    bench.clock.run()
    assert [group.count for group in bench.shelf.groups] == [100]
    assert bench.told == [(b"%d" % number, number, None) for number in range(100)]


def test_large_piece_is_not_copied_and_keeps_its_place(bench: Bench) -> None:
    bench.share()
    bench.offer(b"small1")
    bench.offer(b"large", PIECE_ROWS_MAX + 1)
    bench.offer(b"small2")
    bench.offer(b"small3")
    bench.clock.run()
    assert [group.count for group in bench.shelf.groups] == [1, PIECE_ROWS_MAX + 1, 2]
    assert bench.shelf.bodies[0] == b"small1.0"
    assert bench.shelf.bodies[-2:] == [b"small2.0", b"small3.0"]


def test_group_is_bounded_in_rows(bench: Bench) -> None:
    bench.share()
    pieces = GROUP_ROWS_MAX // PIECE_ROWS_MAX + 1
    for number in range(pieces):
        bench.offer(b"%d" % number, PIECE_ROWS_MAX)
    bench.clock.run()
    assert [group.count for group in bench.shelf.groups] == [GROUP_ROWS_MAX, PIECE_ROWS_MAX]


def test_group_is_bounded_in_bytes(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather, "GROUP_BYTES_MAX", 2500)
    bench.share()
    for _ in range(4):
        bench.gather.offer(Rows.of([b"x" * 800], "nsq"), bench.done("x"), A)
    bench.gather.offer(Rows.of([b"x" * 9000], "nsq"), bench.done("x"), A)
    bench.clock.run()
    assert [group.count for group in bench.shelf.groups] == [2, 2, 1]


def test_pieces_that_differ_are_not_merged(bench: Bench) -> None:
    bench.share()
    bench.offer(b"1", source="nsq")
    bench.offer(b"2", source="sqs")
    bench.offer(b"3", source="sqs", tag="t")
    bench.offer(b"4", source="sqs", tag="u")
    bench.offer(b"5", source="sqs", tag="u", sequence=b"s1")
    bench.offer(b"6", source="sqs", tag="u", sequence=b"s2")
    bench.offer(b"7", source="sqs", tag="u")
    bench.clock.run()
    assert [group.count for group in bench.shelf.groups] == [1, 1, 2, 1, 1, 1]
    assert [group.sequence for group in bench.shelf.groups] == [b"", b"", b"", b"s1", b"s2", b""]
    assert bench.shelf.bodies == [b"%d.0" % number for number in range(1, 8)]
    assert bench.shelf.tags == [None, None, "t", "u", "u", "u", "u"]


def test_with_full_memory_what_is_pending_is_stored_at_once_and_nobody_refused() -> None:
    bench = Bench(bytes_max=2000)
    bench.share()
    for number in range(10):
        bench.offer(b"%d" % number)
    assert 0 < len(bench.shelf.bodies) < 10
    assert bench.memory.used <= 2000
    bench.clock.run()
    assert bench.memory.used == 0
    assert bench.shelf.bodies == [b"%d.0" % number for number in range(10)]


def test_memory_that_others_hold_refuses_and_the_pending_rows_are_not_harmed() -> None:
    bench = Bench(bytes_max=2000)
    bench.share()
    bench.offer(b"first")
    bench.memory.take(1500)
    bench.offer(b"x" * 1000)
    ((_, _, error),) = [told for told in bench.told if told[1] is None]
    assert isinstance(error, Refusal)
    assert error.code == "memory_full"
    bench.clock.run()
    bench.memory.give(1500)
    assert bench.memory.used == 0
    assert bench.shelf.bodies == [b"first.0"]
    bench.offer(b"after")
    bench.clock.run()
    assert bench.shelf.bodies[-1] == b"after.0"


def test_refusal_of_the_store_reaches_every_owner(bench: Bench) -> None:
    bench.share()
    bench.shelf.error = Refusal("disk_full", "the disk is full")
    bench.offer(b"a")
    bench.offer(b"b")
    bench.clock.run()
    assert bench.told == [(b"a", None, bench.shelf.error), (b"b", None, bench.shelf.error)]
    assert bench.memory.used == 0
    bench.shelf.error = None
    bench.offer(b"c")
    bench.clock.run()
    assert bench.shelf.bodies == [b"c.0"]


def test_refusal_of_the_store_reaches_a_lone_publisher(bench: Bench) -> None:
    bench.shelf.error = Refusal("disk_full", "the disk is full")
    bench.offer(b"a")
    assert bench.told == [(b"a", None, bench.shelf.error)]


def test_broken_store_is_heard_of_and_harms_no_other_group(bench: Bench) -> None:
    bench.share()
    bench.offer(b"a")
    bench.offer(b"b", source="sqs")
    bench.shelf.error = ValueError("a bug")
    store = bench.gather._store

    def once(group: Rows, owners: list[Owner[int]]) -> None:
        try:
            store(group, owners)
        finally:
            bench.shelf.error = None

    bench.gather._store = once
    with pytest.raises(ValueError, match="a bug"):
        bench.clock.run()
    assert [name for name, first, _ in bench.told if first is None] == [b"a"]
    assert bench.shelf.bodies == [b"b.0"]
    assert bench.memory.used == 0


def test_offer_made_while_rows_are_stored_comes_after_them(bench: Bench) -> None:
    bench.shelf.during = lambda: bench.offer(b"nested")
    bench.offer(b"outer")
    assert bench.shelf.bodies == [b"outer.0"]
    bench.clock.run()
    assert bench.shelf.bodies == [b"outer.0", b"nested.0"]
    assert [name for name, _, _ in bench.told] == [b"outer", b"nested"]


def test_flush_stores_without_waiting_for_the_turn(bench: Bench) -> None:
    bench.share()
    bench.offer(b"a")
    bench.gather.flush()
    assert bench.shelf.bodies == [b"a.0"]
    bench.clock.run()
    assert len(bench.shelf.groups) == 1


def test_gather_keeps_no_publisher_alive(bench: Bench) -> None:
    class Connection:
        pass

    connection = Connection()
    gone = weakref.ref(connection)
    bench.offer(b"a", publisher=connection)
    del connection
    assert gone() is None


offers = st.tuples(
    st.just("offer"),
    st.integers(0, 2),  # publisher
    st.sampled_from([1, 1, 1, 2, 15, 16, 17, 40]),  # rows
    st.sampled_from(["nsq", "nsq", "sqs"]),
    st.sampled_from([None, None, "tag"]),
    st.sampled_from([b"", b"", b"", b"seq"]),
)
turns = st.tuples(st.just("turn"), st.sampled_from([0, 1, ALONE_NS // 2, ALONE_NS, 3 * ALONE_NS]))


@given(st.lists(st.one_of(offers, offers, turns), max_size=60), st.sampled_from([1500, 1 << 20]))
def test_any_interleaving_keeps_order_and_tells_everyone_once(steps: list[tuple[object, ...]], bytes_max: int) -> None:
    publishers = [object() for _ in range(3)]
    bench = Bench(bytes_max)
    sent: dict[bytes, list[tuple[bytes, object]]] = {}
    with pytest.MonkeyPatch.context() as patch:
        # Small bounds, so that small pieces meet all of them.
        patch.setattr(gather, "PIECE_ROWS_MAX", 17)
        patch.setattr(gather, "GROUP_ROWS_MAX", 50)
        patch.setattr(gather, "GROUP_BYTES_MAX", 3000)
        for step in steps:
            if step[0] == "turn":
                bench.clock.advance(cast(int, step[1]))
                continue
            _, publisher, count, source, tag, sequence = cast(tuple[str, int, int, str, str | None, bytes], step)
            name = b"%d" % len(sent)
            sent[name] = [(b"%b.%d" % (name, row), tag) for row in range(count)]
            extra = {"tag": tag} if tag else {}
            bench.offer(name, count, publishers[publisher], source=source, sequence=sequence, **extra)
        bench.clock.run()
    stored = list(zip(bench.shelf.bodies, bench.shelf.tags, strict=True))
    answers = {cast(bytes, name): first for name, first, _ in bench.told}
    assert len(bench.told) == len(sent) == len(answers)
    # What was not refused lies there in the order of the offers, each where its owner was told.
    assert stored == [row for name, rows in sent.items() if answers[name] is not None for row in rows]
    for name, first in answers.items():
        if first is not None:
            assert stored[first : first + len(sent[name])] == sent[name]
    assert bench.memory.used == 0
