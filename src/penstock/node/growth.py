"""How a topic gets more shards while it works: the record, then the shards, then what was published meanwhile.

What is stored before the record changes was placed by the old number of shards, all of it, and what is stored after it
by the new one; the record tells the offsets between the two (decision 012). So nothing is taken in while the registry
is asked. Invariant: no directory goes of a shard that the record may name.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from penstock.clock import SECOND
from penstock.disk import unmade
from penstock.errors import InvariantError, Refusal
from penstock.log.shard import Shard
from penstock.node import making
from penstock.registry.answer import Answer
from penstock.registry.attempt import UnansweredError
from penstock.registry.catalog import TOPICS
from penstock.registry.records import Growth, check_topic_settings
from penstock.registry.registry import Event

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
    known = _known(topic)
    if len(topic.shards) < known != shards:  # it has grown before, and nobody heard of it
        return grow(topic, known).then_ask(lambda _: grow(topic, shards) if known < shards else Answer.of(None))
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
    before = len(topic.shards)
    answer: Answer[None] = Answer()
    try:
        topic.check_alive()
        topic.intake.hold()
    except Refusal as refusal:
        _let_go(topic, made, refusal)
        return Answer.refused(refusal)

    def told(_: None, error: Exception | None) -> None:
        if _known(topic) == before + len(made):  # the answer may be lost, but not what it was about
            topic.changes.follow()
        elif error is not None:
            _let_go(topic, made, error)
            topic.intake.release()
            answer.refuse(error)
            return
        try:
            topic.take_in(made)
        finally:
            topic.intake.release(topic.record.grown)
        answer.give(None)

    _written(topic, before + len(made)).then(told)
    return answer


def _written(topic: Topic, shards: int) -> Answer[None]:
    """Write down that a topic has so many shards; if that is written already, then only where the others end now."""
    ends, record = tuple(shard.end for shard in topic.shards), topic.node.catalog.known(topic.name)
    if record is not None and _known(topic) == shards:
        *earlier, last = record.grown
        return topic.change(grown=(*earlier, msgspec.structs.replace(last, ends=ends)))
    grown = topic.record.grown
    growth = Growth(
        shards=len(topic.shards),
        first=grown[-1].first if grown else len(topic.shards),
        ends=ends,
        at_ns=topic.node.clock.now(),
    )
    settings = msgspec.structs.replace(topic.settings, shards=shards)
    return topic.change(settings=settings, grown=(*(each for each in grown if _is_needed(topic, each)), growth))


def _known(topic: Topic) -> int:
    """Return how many shards the registry shows that a topic has."""
    record = topic.node.catalog.known(topic.name)
    return record.settings.shards if record is not None and record.number == topic.record.number else 0


def _let_go(topic: Topic, made: list[Shard], error: Exception) -> None:
    """Make no use of shards that were made; they stay on the disk where the record names them, or may do so yet."""
    if isinstance(error, UnansweredError) or _known(topic) > len(topic.shards):
        for shard in made:
            shard.drop()
        _wait_for_news(topic)
    else:
        _unmake(topic, made)


def _wait_for_news(topic: Topic) -> None:
    """Take the shards in that the record turns out to name, once it is heard of."""
    registry, key = topic.node.catalog.registry, TOPICS + topic.name

    def heard(events: Sequence[Event]) -> None:
        if any(event.key == key for event in events):
            cancel()
            if topic.is_open and not topic.is_leaving and (known := _known(topic)) > len(topic.shards):
                grow(topic, known)  # if that cannot be, whoever asks for it again is told why

    cancel = registry.watch(key, registry.revision, heard)


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
