"""How a topic gets more shards while it works: the record, then the shards, then what was published meanwhile.

What is stored before the record changes was placed by the old number of shards, all of it, and what is stored after it
by the new one; the record tells the offsets between the two (decision 012). So nothing is taken in while the registry
is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from penstock.clock import SECOND
from penstock.disk import unmade
from penstock.errors import Refusal
from penstock.log.shard import Shard
from penstock.registry.answer import Answer
from penstock.registry.records import Growth, check_topic_settings

if TYPE_CHECKING:
    from penstock.node.topic import Topic

#: What was published before a growth may be repeated for this long, and no longer: a Spark commit that kept failing.
REPEAT_NS = 7 * 24 * 3600 * SECOND


def no_fewer(topic: Topic, shards: int) -> str:
    """Return why a topic cannot have fewer shards."""
    return (
        f"topic {topic.name} has {len(topic.shards)} shards and cannot have {shards}: the messages of the others would "
        f"have no place. Make a topic with {shards}, let the publishers go there, and delete this one when its "
        "subscriptions have read it"
    )


def grow(topic: Topic, shards: int) -> Answer[None]:
    """Give a topic more shards, which begin empty."""
    made: list[Shard] = []
    settings = msgspec.structs.replace(topic.settings, shards=shards)
    before = topic.shards
    try:
        check_topic_settings(settings)  # before anything is made of them
        if topic.intake.is_held:
            raise Refusal("conflict", f"topic {topic.name} is getting more shards already; try again")
        for number in range(len(before), shards):
            made.append(topic.open_shard(number, settings))  # noqa: PERF401 - if one fails, those before it go
        topic.intake.hold()
    except Exception as error:
        _unmake(topic, made)
        return Answer.refused(unmade(f"shards {len(before)} to {shards - 1} of topic {topic.name}", error))
    grown = topic.record.grown
    growth = Growth(
        shards=len(before),
        first=grown[-1].first if grown else len(before),
        ends=tuple(shard.end for shard in before),
        at_ns=topic.node.clock.now(),
    )
    asked = topic.change(settings=settings, grown=(*(each for each in grown if _is_needed(topic, each)), growth))

    def told(_: None, error: Exception | None) -> None:
        if error is not None:
            _unmake(topic, made)
            topic.intake.release()
            return
        try:
            topic.take_in(made)
        finally:
            topic.intake.release(topic.record.grown)

    asked.then(told)
    return asked


def _is_needed(topic: Topic, growth: Growth) -> bool:
    """Tell whether messages are kept that were stored before a growth, or somebody may repeat them."""
    if growth.at_ns > topic.node.clock.now() - REPEAT_NS:
        return True
    return any(end > shard.kept_from for end, shard in zip(growth.ends, topic.shards, strict=False))


def _unmake(topic: Topic, shards: Sequence[Shard]) -> None:
    for shard in shards:
        try:
            shard.delete()
        except OSError as error:  # they are empty, and whoever makes them again finds them so
            topic.node.report_bug(f"shard {shard.number} of topic {topic.name}", error)
