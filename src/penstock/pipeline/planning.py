"""From options and offsets to tasks: which topics, from where to where, and whether that is still to be had.

Owns the rules on topics that came, went or were made anew, and on rows that are not kept. Runs in Spark's driver.
Invariant: rows are left out only with failOnDataLoss=false, and then a line in the log counts the offsets.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping

from penstock.client.wire import Read, TopicInfo
from penstock.errors import Refusal
from penstock.pipeline import launch
from penstock.pipeline.conditions import Conditions
from penstock.pipeline.offsets import Position, Positions, check_names, placed
from penstock.pipeline.options import LATEST, Options, Place, Times
from penstock.pipeline.scan import Task
from penstock.pipeline.schema import Shape
from penstock.pipeline.store import Piece, Store, Topics, subscribed_names
from penstock.pipeline.tasks import Extent, shared

_log = logging.getLogger(__name__)

#: A node that starts writes its index anew; so often it is looked again before an end is taken for gone.
LOOKS = 10
LOOK_PAUSE_S = 0.2

MILLISECOND_NS = 1_000_000


def position(
    store: Store, topics: Topics, place: Place | None, time_ms: Times | None, default: int, option: str
) -> Positions:
    """Return where a read begins or ends: by time, by offsets, or at the default."""
    if time_ms is None:
        return placed(default if place is None else place, topics, option)
    if not isinstance(time_ms, int):
        check_names(time_ms, topics, f"{option}ByTimestamp")
    found = {}
    for name, info in topics.items():
        times = [time_ms if isinstance(time_ms, int) else time_ms[name][shard.shard] for shard in info.shards]
        at = {each: store.offsets_at(info, each * MILLISECOND_NS) for each in set(times)}
        found[name] = Position(info.incarnation, tuple(at[each][shard] for shard, each in enumerate(times)))
    return found


def starting(store: Store, topics: Topics, options: Options, default: int) -> Positions:
    """Return where a read begins."""
    return position(store, topics, options.starting, options.starting_ms, default, "startingOffsets")


def ending(store: Store, topics: Topics, options: Options) -> Positions:
    """Return where a batch read ends."""
    return position(store, topics, options.ending, options.ending_ms, LATEST, "endingOffsets")


def checked(positions: Positions, topics: Topics, options: Options) -> Positions:
    """Return the positions that can be read on from; `Refusal` where rows or topics are gone and that may not be."""
    found = {}
    for name, stood in positions.items():
        info = topics.get(name)
        if info is None:
            _gone(name, options)
            continue
        if info.incarnation != stood.incarnation:
            raise Refusal(
                "gone",
                f"topic {name} was deleted and made anew: the offsets belong to incarnation {stood.incarnation}, "
                f"the topic is incarnation {info.incarnation}. Start with a new checkpointLocation.",
            )
        offsets = [_kept(name, info, shard, offset, options) for shard, offset in enumerate(stood.offsets)]
        offsets += [shard.start for shard in info.shards[len(offsets) :]]
        found[name] = Position(info.incarnation, tuple(offsets))
    for name, info in topics.items():
        if name not in found:  # it is new: everything in it is
            found[name] = Position(info.incarnation, tuple(shard.start for shard in info.shards))
    return found


def _gone(name: str, options: Options) -> None:
    meant = re.fullmatch(options.pattern, name) if options.pattern is not None else name in options.topics
    if not meant:
        raise Refusal(
            "bad_request",
            f"the checkpoint has offsets of topic {name}, which is not subscribed to: "
            "it belongs to another query; use another checkpointLocation",
        )
    if options.strict:
        raise Refusal("gone", f"topic {name} was deleted; set failOnDataLoss to false to go on without it")
    _log.warning("topic %s was deleted: what was not read of it is skipped", name)


def _kept(name: str, info: TopicInfo, shard: int, offset: int, options: Options) -> int:
    if shard >= len(info.shards):
        raise Refusal("bad_offset", f"topic {name} has no shard {shard} any more")
    kept = info.shards[shard]
    if offset > kept.end:
        raise Refusal(
            "bad_offset",
            f"offset {offset} of shard {shard} of topic {name} is beyond its end, which is {kept.end}: "
            "the log is older than the offsets, or another one",
        )
    if offset >= kept.start:
        return offset
    if options.strict:
        raise Refusal(
            "bad_offset",
            f"offset {offset} of shard {shard} of topic {name} is not kept any more, the earliest is {kept.start}; "
            "set failOnDataLoss to false to skip what is gone",
        )
    _log.warning(
        "shard %d of topic %s: skipped %d offsets, %d to %d, which are not kept any more",
        shard, name, kept.start - offset, offset, kept.start - 1,
    )  # fmt: skip
    return kept.start


def settled(store: Store, options: Options, needed: Mapping[str, Position]) -> Topics:
    """Return the topics, looked at until they reach what is needed of them or clearly will not."""
    for look in range(LOOKS):
        topics = {name: info for name in subscribed_names(store, options) if (info := store.topic(name)) is not None}
        if look == LOOKS - 1 or all(_reaches(topics.get(name), each) for name, each in needed.items()):
            break
        time.sleep(LOOK_PAUSE_S)
    return topics


def _reaches(info: TopicInfo | None, needed: Position) -> bool:
    if info is None or info.incarnation != needed.incarnation or len(needed.offsets) > len(info.shards):
        return True  # waiting will not help
    return all(offset <= info.shards[shard].end for shard, offset in enumerate(needed.offsets))


def planned(
    topics: Topics, start: Positions, end: Positions, options: Options, shape: Shape, conditions: Conditions
) -> list[Task]:
    """Return the tasks that read what lies between two positions."""
    low, high = conditions.offsets()
    from_ns, until_ns = conditions.times()
    tags = conditions.tags()
    if options.tags is not None:
        tags = [tag for tag in options.tags if tags is None or tag in tags]
    pieces: list[tuple[Piece, Extent]] = []
    for name, info in topics.items():
        if name not in end:
            continue
        begins = start[name].offsets if name in start else [shard.start for shard in info.shards]
        for shard, first, stop in zip(info.shards, begins, end[name].offsets, strict=False):
            first, stop = max(first, low), min(stop, high)
            if first >= stop or not conditions.may_hold(name, shard.shard):
                continue
            read = Read(
                topic=name,
                shard=shard.shard,
                incarnation=info.incarnation,
                start=first,
                end=stop,
                from_ns=from_ns,
                until_ns=until_ns if options.path is not None else None,
                columns=shape.wanted(),
                tags=tags,
                traffic=options.traffic,
                buckets=list(options.buckets) if options.buckets is not None else None,
                skip_lost=not options.strict,
            )
            pieces.append((Piece(read, info.path or "" if options.path is not None else ""), Extent(shard)))
    return [Task(each) for each in shared(pieces, launch.cores(), options.tasks)] if pieces else []
