"""What holds of every deal of slots to nodes, whoever comes, goes, is drained or pinned to."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

from hypothesis import example, given
from hypothesis import strategies as st

from penstock.cluster.deal import deal, slot_of

NAMES = st.sampled_from([f"n{number}" for number in range(8)])
WEIGHTS = st.dictionaries(NAMES, st.integers(1, 5), min_size=1)
COUNTS = st.integers(1, 70)
SLOTS = st.integers(0, 75)
OWNERS = st.dictionaries(SLOTS, NAMES)
PINS = st.dictionaries(SLOTS, NAMES, max_size=12)
DRAINS = st.sets(NAMES, max_size=3)


def moved(before: dict[int, str], after: dict[int, str]) -> set[int]:
    return {slot for slot, name in after.items() if before.get(slot) != name}


@given(COUNTS, WEIGHTS, OWNERS, PINS, DRAINS)
def test_every_slot_has_a_live_owner_and_what_was_dealt_stays(
    count: int, weights: dict[str, int], owners: dict[int, str], pins: dict[int, str], drains: set[str]
) -> None:
    dealt = deal(count, weights, owners, pins, drains)
    assert sorted(dealt) == list(range(count))
    takers = set(weights) - drains or set(weights)
    assert set(dealt.values()) <= takers
    assert all(dealt[slot] == name for slot, name in pins.items() if slot < count and name in takers)
    assert deal(count, weights, dealt, pins, drains) == dealt
    assert deal(count, dict(reversed(weights.items())), dict(reversed(owners.items())), pins, sorted(drains)) == dealt


@given(COUNTS, WEIGHTS, OWNERS)
@example(64, {"a": 1, "b": 1, "c": 1}, dict.fromkeys(range(64), "a"))
def test_shares_follow_weights_and_as_little_moves_as_can(
    count: int, weights: dict[str, int], owners: dict[int, str]
) -> None:
    dealt = deal(count, weights, owners, {}, ())
    has, had = Counter(dealt.values()), Counter(name for slot, name in owners.items() if slot < count)
    total = sum(weights.values())
    for name, weight in weights.items():
        assert abs(has[name] - Fraction(count * weight, total)) < 1
        if had[name] <= count * weight // total:
            assert not any(owners.get(slot) == name for slot in moved(owners, dealt)), "it had no more than its share"
    # Who has more than its share keeps its share, and one more where there is one that is not whole.
    whole = {name: count * weight // total for name, weight in weights.items()}
    more = count - sum(whole.values())
    uneven = sum(had[name] > whole[name] for name, weight in weights.items() if count * weight % total)
    kept = sum(min(had[name], whole[name]) for name in weights) + min(more, uneven)
    assert count - len(moved(owners, dealt)) == kept


@given(COUNTS, WEIGHTS, PINS)
def test_who_has_more_by_pins_leaves_the_rest_to_the_others_by_weight(
    count: int, weights: dict[str, int], pins: dict[int, str]
) -> None:
    has = Counter(deal(count, weights, {}, pins, ()).values())
    pinned = Counter(name for slot, name in pins.items() if slot < count)
    others = [name for name in weights if has[name] > pinned[name]]
    left, total = sum(has[name] for name in others), sum(weights[name] for name in others)
    assert all(abs(has[name] - Fraction(left * weights[name], total)) <= 1 for name in others)


def test_the_loss_of_a_node_moves_its_slots_only() -> None:
    names = [f"n{number}" for number in range(5)]
    before = deal(64, dict.fromkeys(names, 1), {}, {}, ())
    after = deal(64, dict.fromkeys(names[1:], 1), before, {}, ())
    assert moved(before, after) == {slot for slot, name in before.items() if name == "n0"}


def test_topics_fall_into_all_slots_alike_and_for_ever_into_the_same() -> None:
    fell = Counter(slot_of(incarnation, 64) for incarnation in range(64_000))
    assert len(fell) == 64
    assert max(fell.values()) < 1150
    assert min(fell.values()) > 850
    assert [slot_of(incarnation, 64) for incarnation in (0, 1, 2, 1 << 63, (1 << 64) - 1)] == [0, 37, 10, 10, 59]
