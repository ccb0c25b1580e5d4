"""What every registry must do, wherever it is: these run against each back end, and against one that is far away."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TypeVar

import pytest

from penstock.clock import SECOND, Clock
from penstock.errors import Refusal
from penstock.registry import EmbeddedRegistry, Event, Registry
from penstock.registry.answer import Answer
from penstock.registry.attempt import Draft, attempt
from penstock.registry.registry import CHANGE_EDITS_MAX, KEY_BYTES_MAX, VALUE_BYTES_MAX, Lease, UnknownOutcomeError
from tests.registry.far import Far, Trouble
from tests.simulation.machine import Machine

T = TypeVar("T")


class Place:
    """A registry, the time it needs, and another process that opens it again."""

    registry: Registry
    #: The revision before anything was done here, where others have a registry, too.
    base = 0
    #: A lease that is long enough to be renewed in time.
    ttl_s = 1.0

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.machine = Machine(1)
        self.open()

    @property
    def clock(self) -> Clock:
        return self.machine.clock

    def run(self, seconds: float) -> None:
        """Let time pass."""
        self.machine.run(seconds)

    def until(self, holds: Callable[[], bool]) -> None:
        """Let time pass until something is true."""
        for _ in range(1000):
            if holds():
                return
            self.run(0.01)
        raise AssertionError("it never came to be")

    def lease(self, share: float = 1.0) -> Lease:
        return self.answered(self.registry.lease(int(share * self.ttl_s * SECOND)))

    def open(self) -> None:
        """Begin another process; what was not answered before may or may not have been done."""
        machine = self.machine
        machine.start()
        server = EmbeddedRegistry.open(machine.disk, machine.clock, "data/registry")
        self.registry = server
        if self.kind == "far":
            self.registry = Far(server, machine.clock, Random(7), Trouble())

    def answered(self, answer: Answer[T]) -> T:
        """Wait for an answer."""
        self.until(lambda: answer.is_given)
        return answer.now()

    def at(self, revision: int) -> int:
        """Return a revision, counted from the first change here."""
        return self.base + revision

    def put(self, key: str, value: bytes, **guards: int) -> int:
        """Put a value, and return how many changes there were here then."""
        return self.answered(self.registry.propose({key: value}, (), guards)) - self.base

    def refused(self, answer: Answer[T]) -> str:
        with pytest.raises(Refusal) as caught:
            self.answered(answer)
        return caught.value.code


@pytest.fixture(params=["embedded", "far"])
def place(request: pytest.FixtureRequest) -> Place:
    return Place(request.param)


def test_what_was_answered_can_be_read_and_is_there_in_the_next_life(place: Place) -> None:
    assert place.registry.get("a") is None
    assert place.put("a", b"1") == 1
    assert place.registry.get("a") == (b"1", place.at(1))
    assert place.registry.revision == place.at(1)
    assert place.put("a", b"2") == 2
    place.open()
    assert place.registry.get("a") == (b"2", place.at(2))
    assert place.registry.revision == place.at(2)


def test_several_keys_change_in_one_step(place: Place) -> None:
    place.put("a", b"1")
    assert place.answered(place.registry.propose({"b": b"2", "c": b"3"}, ["a"])) == place.at(2)
    assert place.registry.list("") == {"b": (b"2", place.at(2)), "c": (b"3", place.at(2))}


def test_a_list_holds_a_prefix_in_order(place: Place) -> None:
    for key in ("t/b", "t/a", "s/a", "tt"):
        place.put(key, b"")
    assert list(place.registry.list("t/")) == ["t/a", "t/b"]


def test_a_guard_that_does_not_hold_is_a_conflict_and_the_replica_shows_why(place: Place) -> None:
    propose = place.registry.propose
    place.put("a", b"1", a=0)
    assert place.refused(propose({"a": b"2"}, (), {"a": 0})) == "conflict"
    assert place.refused(propose({}, ["a"], {"a": 9})) == "conflict"
    assert place.refused(propose({"b": b"2"}, (), {"b": 0, "a": 0})) == "conflict"
    assert place.registry.list("") == {"a": (b"1", place.at(1))}
    assert place.put("a", b"2", a=place.at(1)) == 2


def test_of_two_who_want_the_same_one_gets_it(place: Place) -> None:
    asked = [place.registry.propose({"a": b"%d" % number}, (), {"a": 0}) for number in range(5)]
    outcomes = []
    for answer in asked:
        try:
            outcomes.append(f"at {place.answered(answer) - place.base}")
        except Refusal as refusal:
            outcomes.append(refusal.code)
    assert sorted(outcomes) == ["at 1", *["conflict"] * 4]
    assert place.registry.revision == place.at(1)


def test_deleting_what_is_not_there_is_done_and_changes_nothing(place: Place) -> None:
    place.put("a", b"1")
    assert place.answered(place.registry.propose({}, ["b"])) == place.at(1)
    assert place.registry.revision == place.at(1)


@pytest.mark.parametrize(
    "puts",
    [
        {"": b""},
        {"x" * (KEY_BYTES_MAX + 1): b""},
        {"a": bytes(VALUE_BYTES_MAX + 1)},
        {f"key-{number}": b"" for number in range(CHANGE_EDITS_MAX + 1)},
    ],
)
def test_what_cannot_be_kept_is_refused(place: Place, puts: dict[str, bytes]) -> None:
    assert place.refused(place.registry.propose(puts)) == "bad_request"
    assert place.registry.revision == place.base


def test_a_watcher_hears_every_change_of_its_prefix_once_and_in_order(place: Place) -> None:
    seen: list[Event] = []
    place.put("t/a", b"0")
    place.registry.watch("t/", place.at(1), seen.extend)
    for number in range(20):
        place.answered(place.registry.propose({f"t/{number % 3}": b"%d" % number, "other": b""}))
    place.answered(place.registry.propose({}, ["t/0"]))
    place.until(lambda: len(seen) == 21)
    assert [event.revision - place.base for event in seen] == list(range(2, 23))
    assert seen[-1] == ("t/0", None, place.at(22))


def test_a_watcher_that_comes_back_hears_what_it_missed(place: Place) -> None:
    for number in range(5):
        place.put("a", b"%d" % number)
    place.open()
    seen: list[Event] = []
    place.registry.watch("", place.at(2), seen.extend)
    place.until(lambda: len(seen) == 3)
    place.put("a", b"5")
    place.until(lambda: len(seen) == 4)
    assert [event.value for event in seen] == [b"2", b"3", b"4", b"5"]


def test_a_cancelled_watcher_hears_nothing_more(place: Place) -> None:
    seen: list[Event] = []
    others: list[Event] = []
    cancel = place.registry.watch("", place.base, seen.extend)
    place.put("a", b"1")
    place.until(lambda: bool(seen))
    cancel()
    place.registry.watch("", place.at(1), others.extend)
    place.put("a", b"2")
    place.until(lambda: bool(others))
    assert len(seen) == 1


def test_a_revision_of_the_future_is_gone(place: Place) -> None:
    with pytest.raises(Refusal) as caught:
        place.registry.watch("", place.at(1), lambda events: None)
    assert caught.value.code == "gone"


# Leases


def test_what_hangs_on_a_lease_goes_with_it(place: Place) -> None:
    lease = place.answered(place.registry.lease(60 * SECOND))
    place.answered(place.registry.propose({"alive/a": b"", "alive/b": b""}, (), {}, lease))
    place.put("alive/c", b"")
    assert list(place.registry.list("alive/")) == ["alive/a", "alive/b", "alive/c"]
    place.answered(lease.end())
    assert lease.is_over
    assert list(place.registry.list("alive/")) == ["alive/c"]
    assert place.refused(place.registry.propose({"alive/a": b""}, (), {}, lease)) == "gone"


def test_a_lease_lasts_while_it_is_renewed_and_no_longer(place: Place) -> None:
    lease = place.lease()
    place.answered(place.registry.propose({"alive/a": b""}, (), {}, lease))
    for _ in range(4):
        place.run(0.3 * place.ttl_s)
        place.answered(lease.renew())
    assert place.registry.get("alive/a") is not None
    place.run(1.01 * place.ttl_s)
    assert lease.is_over
    place.until(lambda: place.registry.get("alive/a") is None)
    assert place.refused(lease.renew()) == "gone"


def test_the_holder_knows_that_its_lease_is_over_before_anybody_else_does(place: Place) -> None:
    lease = place.lease(0.6)
    place.answered(place.registry.propose({"alive/a": b""}, (), {}, lease))
    heard: list[bool] = []
    place.registry.watch("alive/", place.registry.revision, lambda events: heard.append(lease.is_over))
    place.until(lambda: bool(heard))
    assert heard == [True]


def test_a_later_lease_has_a_larger_number_also_in_the_next_life(place: Place) -> None:
    numbers = []
    for _ in range(3):
        numbers += [place.lease().number for _ in range(2)]
        place.open()
    assert numbers == sorted(set(numbers))


def test_what_is_put_again_without_its_lease_stays(place: Place) -> None:
    first, second = (place.answered(place.registry.lease(60 * SECOND)) for _ in range(2))
    place.answered(place.registry.propose({"a": b"1", "b": b"1"}, (), {}, first))
    place.put("a", b"2")
    place.answered(place.registry.propose({"b": b"2"}, (), {}, second))
    place.answered(first.end())
    assert [key for key in place.registry.list("") if not key.startswith("lease/")] == ["a", "b"]
    place.answered(second.end())
    assert list(place.registry.list("")) == ["a"]


def test_what_hung_on_a_lease_of_a_process_that_died_goes_in_the_end(place: Place) -> None:
    place.answered(place.registry.propose({"alive/a": b""}, (), {}, place.lease(0.6)))
    place.open()
    place.until(lambda: place.registry.get("alive/a") is None)


# A change that is composed from what is there, with every kind of trouble on the way


def counted(registry: Registry, owner: int) -> Callable[[], Draft[int]]:
    """Return what takes the next number, and writes down whose it is."""

    def compose() -> Draft[int]:
        entry = registry.get("counter")
        number = int(entry.value) + 1 if entry else 1
        puts = {"counter": b"%d" % number, f"mine/{number}": b"%d" % owner}
        return Draft(number, puts, (), {"counter": entry.revision if entry else 0}, (f"mine/{number}",))

    return compose


def test_everybody_who_counts_gets_a_number_of_its_own(place: Place) -> None:
    asked = [attempt(place.registry, place.clock, counted(place.registry, owner)) for owner in range(8)]
    assert sorted(place.answered(answer) for answer in asked) == list(range(1, 9))


@pytest.mark.parametrize("seed", range(30))
def test_no_change_is_made_twice_or_lost_whatever_becomes_of_the_answers(seed: int) -> None:
    place = Place("embedded")
    trouble = Trouble(refused=0.05, request_lost=0.15, answer_lost=0.2, late=0.15)
    server = place.registry
    assert isinstance(server, EmbeddedRegistry)
    far = Far(server, place.machine.clock, Random(seed), trouble)
    asked = []
    for owner in range(25):
        asked.append(attempt(far, place.machine.clock, counted(far, owner)))
        place.machine.run(0.05)
    place.machine.run(60)
    owners = [int(entry.value) for entry in server.list("mine/").values()]
    assert len(owners) == len(set(owners))
    for owner, answer in enumerate(asked):
        assert answer.is_given
        try:
            entry = server.get(f"mine/{answer.now()}")
            assert entry is not None
            assert int(entry.value) == owner
        except Refusal as refusal:
            assert refusal.code == "unavailable"
    assert len(far.fates) >= 4


def test_a_registry_that_never_answers_is_given_up() -> None:
    place = Place("embedded")
    server = place.registry
    assert isinstance(server, EmbeddedRegistry)
    far = Far(server, place.machine.clock, Random(1), Trouble(request_lost=1.0))
    asked = attempt(far, place.machine.clock, counted(far, 1))
    place.machine.run(5)
    assert not asked.is_given
    place.machine.run(6)
    with pytest.raises(Refusal, match="not known whether this was done") as caught:
        asked.now()
    assert caught.value.code == "unavailable"
    with pytest.raises(UnknownOutcomeError):
        place.answered(far.propose({"a": b""}))
