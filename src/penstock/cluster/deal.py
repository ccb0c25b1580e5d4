"""Which node should own which slot: every node comes to the same deal from the same data.

Pure. Invariant: a deal that was carried out is dealt again unchanged, so that nothing moves while nobody comes or goes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

#: The finalizer of SplitMix64: neighbouring numbers fall into slots that have nothing to do with each other.
_MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_MASK = (1 << 64) - 1


def slot_of(incarnation: int, count: int) -> int:
    """Return the slot that a topic falls into; it is the same for ever, on every node."""
    mixed = incarnation & _MASK
    for shift, factor in _MIX:
        mixed = (mixed ^ mixed >> shift) * factor & _MASK
    return (mixed ^ mixed >> 31) % count


def deal(
    count: int,
    weights: Mapping[str, int],
    owners: Mapping[int, str],
    pins: Mapping[int, str],
    drains: Collection[str],
) -> dict[int, str]:
    """Return which live node should own each slot; nothing where no node lives.

    Slots stay where they are unless their node is gone or drained, they are pinned to another one, or their node has
    more than its share by weight. A drained node keeps what it has only if all are.
    """
    takers = {name: weight for name, weight in sorted(weights.items()) if name not in drains} or dict(weights)
    if not takers:
        return {}
    dealt = {slot: name for slot, name in sorted(pins.items()) if 0 <= slot < count and name in takers}
    kept: dict[str, list[int]] = {name: [] for name in sorted(takers)}
    for slot in range(count):
        if slot not in dealt and (name := owners.get(slot, "")) in kept:
            kept[name].append(slot)
    pinned = dict.fromkeys(kept, 0)
    for name in dealt.values():
        pinned[name] += 1
    room = {}
    for name, share in _shares(count, takers, pinned, kept).items():
        stays = share - pinned[name]
        dealt.update(dict.fromkeys(kept[name][:stays], name))
        room[name] = stays - len(kept[name][:stays])
    free = iter(slot for slot in range(count) if slot not in dealt)
    for name in sorted(room):
        for _ in range(room[name]):
            dealt[next(free)] = name
    return dealt


def _shares(
    count: int, weights: Mapping[str, int], pinned: Mapping[str, int], kept: Mapping[str, list[int]]
) -> dict[str, int]:
    """Return how many slots each node has, in proportion to its weight and never fewer than are pinned to it."""
    shares: dict[str, int] = {}
    open_weights = dict(weights)
    while True:  # somebody is always left: not all can have more than their share
        left, total = count - sum(shares.values()), sum(open_weights.values())
        over = [name for name, weight in open_weights.items() if pinned[name] * total > left * weight]
        if not over:
            break
        for name in over:
            shares[name] = pinned[name]
            del open_weights[name]
    for name, weight in open_weights.items():
        shares[name] = left * weight // total
    # One more for some of those whose share is not whole: first for who has it, because then nothing moves.
    fractions = [name for name, weight in open_weights.items() if left * weight % total]
    fractions.sort(
        key=lambda name: (
            pinned[name] + len(kept[name]) <= shares[name],
            -(left * open_weights[name] % total),
            name,
        )
    )
    for name in fractions[: count - sum(shares.values())]:
        shares[name] += 1
    return shares
