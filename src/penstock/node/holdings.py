"""The slots of a cluster in one node's hands, and the topics in them: how they come, and how they go elsewhere.

A slot that was taken is fenced first, and only then its topics are read and opened; one that was lost is dropped
without another word to the store; one that is given away is closed as a node that stops does.
Whatever keeps a topic from being opened, it is looked at again when that is over: nobody else would.
Invariant: a topic of a slot is open here only while this node holds the slot and its writer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from penstock.clock import SECOND
from penstock.cluster.slots import Slots, slot_of
from penstock.errors import PenstockError, Refusal
from penstock.intake.intake import sequence_window_ns
from penstock.intake.stages import Stages
from penstock.log.kafka.cache import Cache
from penstock.log.kafka.disk import SharedDisk
from penstock.log.kafka.engine import Engine, topic_of
from penstock.log.kafka.store import FencedError, Writer
from penstock.moves.redrive import resume
from penstock.node import making
from penstock.node.ending import Ending
from penstock.node.opening import check_subscriptions
from penstock.node.topic import Topic
from penstock.registry.answer import Answer
from penstock.registry.records import TopicRecord
from penstock.rescue.directories import subscriptions
from penstock.rescue.labels import label_of

if TYPE_CHECKING:
    from penstock.node.making import Made
    from penstock.node.node import Node

#: What could not be opened is tried again after this long.
RETRY_NS = SECOND

T = TypeVar("T")

_log = logging.getLogger("penstock.cluster")


class Held:
    """A slot in these hands."""

    __slots__ = ("epoch", "number", "writer")

    def __init__(self, number: int, epoch: int) -> None:
        self.number = number
        self.epoch = epoch
        #: None until every earlier owner is shut out.
        self.writer: Writer | None = None


class Holdings:
    """What of a cluster one node holds."""

    def __init__(
        self,
        node: Node,
        engine: Engine,
        life: str,
        disk: str,
        cache: str,
        refusal: Callable[[str], Refusal | None],
    ) -> None:
        self._node = node
        self._engine = engine
        self._cluster = node.config.cluster.name
        self._cache = cache
        #: What of closed segments is on the local disk.
        self.kept = Cache(node.config.shared_log.cache_bytes)
        self._refusal = refusal
        registry = node.catalog.registry
        calls = self._took, self._lost, self._give_up
        self.slots = Slots(registry, node.clock, node.config.cluster, life, *calls, disk)
        self._held: dict[int, Held] = {}
        #: Slots that are being given up, and what is in them.
        self._leaving: dict[int, tuple[Held, list[Topic]]] = {}
        #: Topics that are being opened, by name.
        self.coming: dict[str, Answer[Topic]] = {}
        #: What cannot be used, and why.
        self.unusable: dict[str, str] = {}
        #: Topics that are looked at again in a while, by name.
        self._retries: set[str] = set()
        #: How many topics were opened: each has a directory of its own, whatever threads still do in an earlier one.
        self._openings = 0
        self._stopped = False
        #: Slots taken, lost without a word, and given to others in peace, since the start.
        self.taken = self.lost = self.given = 0

    @property
    def ready(self) -> set[int]:
        """The slots in which this node can write."""
        return {number for number, held in self._held.items() if held.writer is not None}

    def why(self, record: TopicRecord) -> str:
        """Return what keeps a topic of these slots from being used, if that is known."""
        return self.unusable.get(_topic(record.name)) or self.unusable.get(_slot(self._slot(record)), "")

    def is_stuck(self, name: str) -> bool:
        """Tell whether a topic of these slots cannot be opened, by itself: not for its slot's problem."""
        record = self._node.catalog.known(name) if _topic(name) in self.unusable else None
        return record is not None and record.settings.log == "kafka" and self._slot(record) in self.ready

    # --- slots come -----------------------------------------------------------------------------------------------

    def _took(self, number: int, epoch: int) -> None:
        if not self._stopped:
            self.taken += 1
            held = self._held[number] = Held(number, epoch)
            self._fence(held)

    def _fence(self, held: Held) -> None:
        if self._has(held):
            writer = partial(self._engine.store.writer, f"{self._cluster}.slot.{held.number}")
            self._engine.threads.submit("fence", writer, partial(self._fenced, held))

    def _fenced(self, held: Held, writer: Writer | None, error: BaseException | None) -> None:
        """Every earlier owner is shut out: what is in the slot can be read now, and nobody adds to it."""
        what = _slot(held.number)
        if not self._has(held):
            if writer is not None:
                self._run(writer.close, _unheard)
        elif writer is None:
            self._note(what, error)
            self._later(partial(self._fence, held))
        else:
            self.unusable.pop(what, None)
            held.writer = writer
            for record in self._node.catalog.topics():
                self._node.guarded(f"topic {record.name}", partial(self.heard, record))

    def heard(self, record: TopicRecord) -> None:
        """Open a topic if it is in one of these slots and not open."""
        held = self._held.get(self._slot(record)) if record.settings.log == "kafka" else None
        node, name = self._node, record.name
        if held is None or held.writer is None or name in self.coming:
            return
        if name not in node.topics and name not in node.lifecycle.coming and not node.stopping:
            if node.lifecycle.is_going(name):
                self._retry(name)
                return
            try:
                work = self._opening(held, held.writer, record)
            except Exception as error:  # something else of it cannot be read: a subscription
                node.bugs += not isinstance(error, PenstockError)
                self._note(_topic(name), error)
                self._retry(name)
                return
            answer = self.coming[name] = Answer()
            self._run(work, partial(self._opened, held, record, answer))

    def _opening(self, held: Held, writer: Writer, record: TopicRecord) -> Callable[[], Made]:
        """Return the blocking work that opens a topic of a slot."""
        self._openings += 1
        node, path, shards = self._node, f"{self._cache}/{record.number}.{self._openings}", record.settings.shards
        store, threads, cache = self._engine
        topic = topic_of(self._cluster, record.incarnation)
        quota, written = making.quota_of(node, record), label_of(node.catalog, record)
        counted = node.catalog.counters.subscriptions()

        def work() -> Made:
            disk = SharedDisk(cache, store, writer, path, topic, threads, shards, self.kept)
            disk.on_failed = partial(self._failed, held)
            made: Made | None = None
            try:
                disk.open_all(made=record.is_made)
                check_subscriptions(node.config, record, subscriptions(disk, path), counted)
                made = making.opened(node, disk, record, path, quota, written)
                _look_through(made, record, node.clock.now())
                Stages.look_through(disk, path)
            except BaseException:
                disk.close()  # the writer is well, perhaps: nothing of this try may come between what the next writes
                for shard in made.shards if made is not None else ():
                    shard.drop()
                cache.remove(path)
                raise
            return made

        return work

    def _opened(
        self, held: Held, record: TopicRecord, answer: Answer[Topic], made: Made | None, error: BaseException | None
    ) -> None:
        name = record.name
        self.coming.pop(name, None)
        current = self._node.catalog.known(name)
        is_known = current is not None and current.incarnation == record.incarnation
        if made is not None and current is not None and is_known and self._has(held):
            try:
                answer.give(self._begun(current, made))
            except Exception as failure:
                error, self._node.bugs = failure, self._node.bugs + (not isinstance(failure, PenstockError))
            else:
                return
        if made is not None:
            self._cut(made)
        if error is not None and is_known and self._has(held):
            self._note(_topic(name), error)
            self._retry(name)
        else:  # the slot may be here again, or there is a new topic of the name
            self._look_again(name)
        answer.refuse(self._refusal(name) or Refusal("gone", f"topic {name} was deleted"))

    def _begun(self, record: TopicRecord, made: Made) -> Topic:
        """Put a topic to work that came from the store."""
        node, name = self._node, record.name
        topic = node.topics[name] = Topic(node, record, made.path, made)
        try:
            topic.forget_passing()
            node.tell("created", topic)
            resume(node, [topic])
        except Exception:
            self._let_go(topic)
            raise
        self.unusable.pop(_topic(name), None)
        if not record.is_made:  # whoever made it came no further
            node.catalog.update_topic(name, is_made=True)
        _log.info("topic %s is here now", name)
        return topic

    def _retry(self, name: str) -> None:
        """Look at a topic again in a while; one look is enough, however often somebody asked for it."""
        if name not in self._retries:
            self._retries.add(name)
            self._later(partial(self._look_again, name))

    def _look_again(self, name: str) -> None:
        self._retries.discard(name)
        record = self._node.catalog.known(name)
        if record is not None and not self._stopped:
            self.heard(record)

    def open_new(self, record: TopicRecord) -> Answer[tuple[TopicRecord, Made | None]]:
        """Answer with the files of a topic that was just recorded in a slot of this node."""
        held = self._held.get(self._slot(record))
        if held is None or held.writer is None:
            return Answer.refused(self._gone(record.name))
        answer: Answer[tuple[TopicRecord, Made | None]] = Answer()

        def refuse(error: BaseException | None) -> None:
            # It is recorded all the same: whoever has its slot makes it.
            self._retry(record.name)
            if isinstance(error, OSError):
                error = Refusal("unavailable", f"topic {record.name} cannot be made yet: {error}; try again", SECOND)
            answer.refuse(error if isinstance(error, Exception) else self._gone(record.name))

        def done(made: Made | None, error: BaseException | None) -> None:
            if made is None:
                refuse(error)
            else:
                self._node.catalog.update_topic(record.name, is_made=True, is_told=True).then(partial(noted, made))

        def noted(made: Made, current: TopicRecord | None, error: Exception | None) -> None:
            if current is not None and current.incarnation == record.incarnation and self._has(held):
                answer.give((current, made))
                return
            self._cut(made)
            refuse(error)

        self._run(self._opening(held, held.writer, record), done)
        return answer

    # --- slots go -------------------------------------------------------------------------------------------------

    def _failed(self, held: Held, error: BaseException) -> None:
        """Drop a slot whose writer is of no use any more: nothing of it can be told to be kept."""
        if not self._has(held):
            return
        self._drop(held)
        if not isinstance(error, FencedError) and self.slots.is_mine(held.number):
            self._note(_slot(held.number), error)
            again = self._held[held.number] = Held(held.number, held.epoch)
            self._later(partial(self._fence, again))
        else:
            _log.warning("slot %d is let go: %s%s", held.number, error, self._hint(held.number, error))
            self.slots.release(held.number)

    def _hint(self, number: int, error: BaseException) -> str:
        """Return what may be behind it where Kafka says that another has the slot, and the registry does not."""
        if not (isinstance(error, FencedError) and self.slots.is_mine(number)):
            return ""
        return (
            ". By the registry it is this node's: if this comes again and again, another cluster called "
            f"{self._cluster} uses the same Kafka. Give one of them another cluster.name, or another Kafka"
        )

    def _lost(self, number: int) -> None:
        held = self._held.get(number)
        if held is not None:
            self._drop(held)
        elif number in self._leaving:
            self._break_off(number)

    def _break_off(self, number: int) -> None:
        """Wait no longer until the store has the rest of a slot that is given up: another may have it."""
        held, topics = self._leaving.pop(number)
        for topic in topics:
            if isinstance(topic.disk, SharedDisk):
                topic.disk.close()
            self._let_go(topic)
            self._node.tell("left", topic)
        if held.writer is not None:
            self._run(held.writer.close, _unheard)

    def _drop(self, held: Held) -> None:
        """Hang up on everybody who uses a topic of a slot, and send nothing more to the store."""
        self._forget(held)
        self.lost += 1
        for topic in self._topics_of(held):
            self._node.guarded(f"topic {topic.name}", partial(self._hang_up, topic))
        if held.writer is not None:
            self._run(held.writer.close, _unheard)

    def _hang_up(self, topic: Topic) -> None:
        if isinstance(topic.disk, SharedDisk):
            topic.disk.close()
        self._let_go(topic)
        topic.begin_leaving()
        self._node.guarded(f"topic {topic.name}", topic.delete)
        self._clear(topic.path)
        self._node.tell("left", topic)

    def _give_up(self, number: int) -> Answer[None]:
        """Close the topics of a slot; answered once another may have it."""
        held = self._held.get(number)
        if held is None:
            return Answer.of(None)
        answer: Answer[None] = Answer()
        self._forget(held)  # nothing comes into it any more; if its writer fails now, nothing is left to do
        topics = self._topics_of(held)
        for topic in topics:
            topic.begin_leaving()
        going = self._leaving[number] = held, topics

        def closed() -> None:
            is_lost = self._leaving.get(number) is not going
            if is_lost:
                self.lost += 1
            else:
                self.given += 1
                del self._leaving[number]
            for topic in topics:
                self._let_go(topic)
                self._clear(topic.path)
                if not is_lost:
                    self._node.tell("left", topic)
                self._look_again(topic.name)
            if held.writer is None:
                answer.give(None)
            else:
                self._run(held.writer.close, lambda _, __: answer.give(None))

        Ending(self._node, closed).end(topics, closed)
        return answer

    def close(self) -> None:
        """Take nothing more; blocking. Topics are closed."""
        self._stopped = True
        for held in self._held.values():
            if held.writer is not None:
                held.writer.close()
        self._held.clear()

    # --- pieces ---------------------------------------------------------------------------------------------------

    def _forget(self, held: Held) -> None:
        """Have a slot no more, nor anything to say of what is in it."""
        del self._held[held.number]
        self.unusable.pop(_slot(held.number), None)
        for record in self._node.catalog.topics():
            if self._slot(record) == held.number:
                self.unusable.pop(_topic(record.name), None)

    def vanished(self, name: str) -> None:
        """Have nothing more to say of a topic that was deleted, or of which the registry says nothing."""
        self.unusable.pop(_topic(name), None)

    def _cut(self, made: Made) -> None:
        """Let go of files that are nobody's any more, and send nothing of them."""
        if isinstance(made.disk, SharedDisk):
            made.disk.close()
        for shard in made.shards:
            shard.drop()
        self._clear(made.path)

    def _clear(self, path: str) -> None:
        """Remove what was cached of a topic."""
        self._run(partial(self._engine.cache.remove, path), _unheard)

    def _has(self, held: Held) -> bool:
        return self._held.get(held.number) is held and not self._stopped

    def _slot(self, record: TopicRecord) -> int:
        return slot_of(record.incarnation, self.slots.count)

    def _topics_of(self, held: Held) -> list[Topic]:
        topics = self._node.topics.values()
        return [each for each in topics if each.settings.log == "kafka" and self._slot(each.record) == held.number]

    def _let_go(self, topic: Topic) -> None:
        if self._node.topics.get(topic.name) is topic:
            del self._node.topics[topic.name]
        self._node.ticker.forget(topic)

    def _gone(self, name: str) -> Refusal:
        return self._refusal(name) or Refusal("unavailable", f"topic {name} went to another node; try again", SECOND)

    def _run(self, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        self._engine.threads.submit("open", work, done)

    def _later(self, call: Callable[[], None]) -> None:
        self._node.clock.call_at(self._node.clock.monotonic() + RETRY_NS, call)

    def _note(self, what: str, error: BaseException | None) -> None:
        text = str(error)
        if self.unusable.get(what) != text:
            self.unusable[what] = text
            trace = None if isinstance(error, PenstockError | OSError) else error
            _log.warning("%s cannot be used: %s; trying again", what, text, exc_info=trace)


def _look_through(made: Made, record: TopicRecord, now_ns: int) -> None:
    """Read what a topic reads when it opens, so that nothing of it must be fetched while the loop waits."""
    for shard in made.shards:
        shard.due_rows(shard.kept_from, now_ns)
        for _ in shard.recent(shard.last_ns - sequence_window_ns(record.settings)):
            pass


def _slot(number: int) -> str:
    return f"slot {number}"


def _topic(name: str) -> str:
    return f"topic {name}"


def _unheard(_: object, __: BaseException | None) -> None:
    return
