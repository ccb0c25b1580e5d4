"""How a topic gets more shards while it works: the record, then the shards, then what was published meanwhile.

What is stored before the record changes was placed by the old number of shards, all of it, and what is stored after it
by the new one; the record tells the offsets between the two (decision 012). So nothing is taken in while the registry
is asked. Invariant: no directory goes of a shard that the record may name.
"""

from __future__ import annotations

import logging
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

#: Shards that the record names and that could not be had are tried again after this time: a disk may have room by then.
AGAIN_NS = 60 * SECOND

_log = logging.getLogger("penstock.node")


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
    work = partial(
        making.more,
        node,
        topic.disk,
        topic.record,
        topic.path,
        topic.storage.quota,
        numbers,
        settings,
        named=_may_name(topic),
    )
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
    shards = len(topic.shards) + len(made)
    answer: Answer[None] = Answer()
    try:
        topic.check_alive()
        topic.intake.hold()
    except Refusal as refusal:
        _let_go(topic, made, refusal)
        return Answer.refused(refusal)
    ends = tuple(shard.end for shard in topic.shards)

    def told(_: None, error: Exception | None) -> None:
        if not _is_written(topic, shards, ends):
            error = error or Refusal("conflict", f"somebody else changed topic {topic.name} meanwhile; try again")
            _let_go(topic, made, error)
            topic.intake.release()
            answer.refuse(error)
            return
        topic.changes.follow()  # the answer may be lost, but not what it was about
        try:
            topic.take_in(made)
        finally:
            topic.intake.release(topic.record.grown)
        answer.give(None)

    _written(topic, shards, ends).then(told)
    return answer


def _written(topic: Topic, shards: int, ends: tuple[int, ...]) -> Answer[None]:
    """Write down of a topic so many shards; if that is written already, then only where the others end now."""
    record = topic.node.catalog.known(topic.name)
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


def _is_written(topic: Topic, shards: int, ends: tuple[int, ...]) -> bool:
    """Tell whether the registry shows this growth, and no other one to as many shards."""
    record = topic.node.catalog.known(topic.name)
    return record is not None and _known(topic) == shards and record.grown[-1].ends == ends


def _known(topic: Topic) -> int:
    """Return how many shards the registry shows that a topic has."""
    record = topic.node.catalog.known(topic.name)
    return record.settings.shards if record is not None and record.number == topic.record.number else 0


def _may_name(topic: Topic) -> bool:
    """Tell whether the record names shards that the topic does not have, or may do so."""
    return topic.is_short or _known(topic) > len(topic.shards)


def _let_go(topic: Topic, made: list[Shard], error: Exception) -> None:
    """Make no use of shards that were made; they stay on the disk where the record names them, or may do so yet."""
    if isinstance(error, UnansweredError) or _may_name(topic):
        for shard in made:
            shard.drop()
        _wait(topic)
    else:
        _unmake(topic, made)


def _wait(topic: Topic) -> None:
    """Take the shards in that the record turns out to name, once it is heard of."""
    if topic.is_short:  # that is waited for
        return
    topic.is_short = True
    if _known(topic) > len(topic.shards):  # there may be no news of it any more
        _wait_longer(topic)
        return
    registry, key = topic.node.catalog.registry, TOPICS + topic.name

    def heard(events: Sequence[Event]) -> None:
        if any(event.key == key for event in events):
            cancel()
            _catch_up(topic)

    cancel = registry.watch(key, registry.revision, heard)


def _wait_longer(topic: Topic) -> None:
    clock = topic.node.clock
    clock.call_at(clock.monotonic() + AGAIN_NS, partial(_catch_up, topic))


def _catch_up(topic: Topic) -> None:
    """Take the shards in that the record names; again later, if that cannot be now."""
    known = _known(topic)
    if not topic.is_open or topic.is_leaving:
        return
    if known <= len(topic.shards):
        topic.is_short = False
        return

    def done(_: None, error: Exception | None) -> None:
        topic.is_short = error is not None
        if error is not None:
            text = "topic %s has %d of the %d shards that its record names; the others are tried again in %d s: %s"
            _log.warning(text, topic.name, len(topic.shards), known, AGAIN_NS // SECOND, error)
            _wait_longer(topic)

    if topic.is_growing or topic.intake.is_held:
        _wait_longer(topic)
    else:
        grow(topic, known).then(done)


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
