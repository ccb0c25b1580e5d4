"""How a topic gets more shards while it works: the record, then the shards, then what was published meanwhile.

What is stored before the record changes was placed by the old number of shards, all of it, and what is stored after it
by the new one; the record tells the offsets between the two (decision 012). So nothing is taken in while the registry
is asked.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from penstock.clock import SECOND
from penstock.disk import unmade
from penstock.errors import InvariantError, Refusal
from penstock.log.shard import Shard
from penstock.node import making
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
    node, numbers = topic.node, range(len(topic.shards), shards)
    settings = msgspec.structs.replace(topic.settings, shards=shards)
    try:
        check_topic_settings(settings)  # before anything is made of them
        if topic.intake.is_held or topic.is_growing:
            raise Refusal("conflict", f"topic {topic.name} is getting more shards already; try again")
        node.lifecycle.check_shards(topic.name, shards, len(numbers))
    except Refusal as refusal:
        return Answer.refused(refusal)
    work = partial(making.more, node, topic.disk, topic.record, topic.path, topic.storage.quota, numbers, settings)
    answer: Answer[None] = Answer()

    def done(made: list[Shard] | None, error: BaseException | None) -> None:
        topic.is_growing = False
        if made is None:
            failure = error if isinstance(error, Exception) else InvariantError(f"nothing was made: {error!r}")
            answer.refuse(unmade(f"shards {numbers[0]} to {shards - 1} of topic {topic.name}", failure))
        else:
            _take(topic, made).then(lambda _, error: answer.give(None) if error is None else answer.refuse(error))

    topic.is_growing = True
    if len(numbers) > making.AT_ONCE or topic.disk.is_shared:
        topic.disk.submit("make", work, done)
        return answer
    try:
        found = work()
    except Exception as error:
        done(None, error)
    else:
        done(found, None)
    return answer


def _take(topic: Topic, made: list[Shard]) -> Answer[None]:
    """Write down that a topic has more shards, and put them to work."""
    node, before = topic.node, topic.shards
    try:
        topic.check_alive()
        topic.intake.hold()
    except Refusal as refusal:
        _unmake(topic, made)
        return Answer.refused(refusal)
    grown = topic.record.grown
    growth = Growth(
        shards=len(before),
        first=grown[-1].first if grown else len(before),
        ends=tuple(shard.end for shard in before),
        at_ns=node.clock.now(),
    )
    settings = msgspec.structs.replace(topic.settings, shards=len(before) + len(made))
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


def _unmake(topic: Topic, made: list[Shard]) -> None:
    """Take back shards that were made; others of their numbers are made only then."""
    topic.is_growing = True

    def gone(_: None, __: Exception | None) -> None:
        topic.is_growing = False

    making.unmake(topic.node, topic.name, topic.disk, made).then(gone)


def _is_needed(topic: Topic, growth: Growth) -> bool:
    """Tell whether messages are kept that were stored before a growth, or somebody may repeat them."""
    if growth.at_ns > topic.node.clock.now() - REPEAT_NS:
        return True
    return any(end > shard.kept_from for end, shard in zip(growth.ends, topic.shards, strict=False))
