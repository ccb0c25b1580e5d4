"""Offsets: where a query stands in each shard of each topic, as Spark keeps it in its checkpoint.

Owns the JSON form and the rules of what may follow what. Knows nothing of files or the network.
Invariant: offsets are bound to an incarnation of a topic, so those of a topic that was deleted and made anew are never
taken for the new one's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from penstock.client.wire import TopicInfo
from penstock.errors import Refusal
from penstock.pipeline.options import EARLIEST, LATEST, Place


class Position(NamedTuple):
    """Where a query stands in one topic: the next offset of each shard."""

    incarnation: int
    offsets: tuple[int, ...]


Positions = dict[str, Position]


def encoded(positions: Mapping[str, Position]) -> dict[str, Any]:
    """Return positions as JSON; the same positions give the same text, by which Spark tells whether there is more."""
    return {
        name: {
            "incarnation": positions[name].incarnation,
            "offsets": {str(shard): offset for shard, offset in enumerate(positions[name].offsets)},
        }
        for name in sorted(positions)
    }


def decoded(values: Mapping[str, Any]) -> Positions:
    """Return positions from JSON; `Refusal` if it is no such thing."""
    try:
        return {
            name: Position(
                int(each["incarnation"]),
                tuple(int(each["offsets"][str(shard)]) for shard in range(len(each["offsets"]))),
            )
            for name, each in values.items()
        }
    except (KeyError, TypeError, ValueError, AttributeError):
        raise Refusal(
            "bad_offset", f"these are no offsets of this source, so the checkpoint is another's: {str(values)[:200]}"
        ) from None


def placed(place: Place, topics: Mapping[str, TopicInfo], option: str) -> Positions:
    """Return the positions that an option means; `Refusal` where it names what is not there or not kept."""
    if isinstance(place, int):
        return {name: _whole(info, place) for name, info in topics.items()}
    check_names(place, topics, option)
    found = {}
    for name, info in topics.items():
        given = place[name]
        offsets = []
        for shard in info.shards:
            offset = given[shard.shard]
            if offset == EARLIEST:
                offset = shard.start
            elif offset == LATEST:
                offset = shard.end
            elif offset > shard.end:
                raise Refusal(
                    "bad_offset",
                    f"option {option}: offset {offset} of shard {shard.shard} of topic {name} "
                    f"is beyond its end, which is {shard.end}",
                )
            offsets.append(offset)
        found[name] = Position(info.incarnation, tuple(offsets))
    return found


def _whole(info: TopicInfo, word: int) -> Position:
    ends = [shard.end if word == LATEST else shard.start for shard in info.shards]
    return Position(info.incarnation, tuple(ends))


def check_names(place: dict[str, dict[int, int]], topics: Mapping[str, TopicInfo], option: str) -> None:
    """Refuse offsets or times for a topic or shard that is not there, and none for one that is."""
    for name in place:
        if name not in topics:
            raise Refusal("bad_request", f"option {option} names topic {name}, which is not among those subscribed to")
    for name, info in topics.items():
        given, there = set(place.get(name, ())), {shard.shard for shard in info.shards}
        if given - there:
            raise Refusal("bad_request", f"option {option}: topic {name} has no shard {min(given - there)}")
        if there - given:
            raise Refusal(
                "bad_request",
                f"option {option}: shard {min(there - given)} of topic {name} is missing; "
                + ("say a time for it" if option.endswith("Timestamp") else "say -2 for earliest, -1 for latest"),
            )
