"""How topics come and go: made, opened at the start, deleted, and what is left of them removed.

Owns what is under way while the registry has not answered. What a topic does while it is there is its own business,
and who may make one the node's. Invariant: of one name at most one topic is being made, and none before the one that
had the name is gone from the registry.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from penstock.callers.rights import OWN
from penstock.clock import SECOND
from penstock.dialect import chosen, measure_of
from penstock.disk import unmade
from penstock.errors import ConfigError, CorruptionError, Refusal
from penstock.log.kafka.disk import SharedDisk
from penstock.moves.redrive import resume
from penstock.node import making
from penstock.node.absent import Absent
from penstock.node.making import Made
from penstock.node.opening import check_age
from penstock.node.topic import Topic
from penstock.node.turns import Turns
from penstock.registry.answer import Answer, Underway
from penstock.registry.catalog import SUBSCRIPTIONS, TOPICS
from penstock.registry.records import TopicRecord
from penstock.registry.registry import Cancel, Event
from penstock.rescue.labels import label_of
from penstock.settings import Measure, TopicSettings

if TYPE_CHECKING:
    from penstock.delivery.subscription import Subscription
    from penstock.node.node import Node

_log = logging.getLogger("penstock.node")

T = TypeVar("T")


class Lifecycle:
    """The topics of a node on their way in and out."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._config = node.config
        self._disk = node.disk
        self._topics = node.topics
        self._catalog = node.catalog
        self._directories = node.directories
        #: Topics that are being made, and names that are being freed, while the registry does not answer.
        self.coming: Underway[Topic] = Underway()
        self._going: Underway[None] = Underway()
        #: How many shards each of the former will have.
        self._making: dict[str, int] = {}
        #: How many subscriptions are being made.
        self._subscribing = 0
        self._turns = Turns(node.clock)
        #: Topics of this disk that are not open because the registry has something of them that cannot be read, by
        #: name; and what of them cannot, where that is not their own record.
        self._unread: set[str] = set()
        self.unopened: dict[str, str] = {}
        self._unwatch: list[Cancel] = []
        self.absent = Absent(node)

    def open_all(self) -> None:
        """Open what the registry knows, at the start of the node; what it does not know is set aside."""
        numbers = self._directories.numbers()
        counted = self._catalog.counters.subscriptions()
        if numbers[1] > counted:
            check_age(self._catalog, self._directories, self._config, counted)
        self._catalog.counters.begin_after(*numbers)
        known = set()
        # A node of a cluster may lose its disk and go on; what it told of itself is no reason not to.
        is_bare = self._node.share is not None and not self._disk.list(self._directories.topics)
        for record in self._catalog.topics():
            if self._is_here(record):
                if is_bare and record.is_made and record.name.startswith(OWN):
                    _log.warning("topic %s went with the disk of this node, and begins anew", record.name)
                    self._remove(record)
                    continue
                self.open_known(record)
                if not record.settings.ephemeral:
                    known.add(str(record.number))
        self.absent.mark()
        unread = {key.removeprefix(TOPICS) for key in self._catalog.unreadable() if key.startswith(TOPICS)}
        self._unread |= unread
        self.remove_deleted()
        for name in self._disk.list(self._directories.topics):
            if name not in known and not (unread and self._directories.may_be_of(name, unread)):
                self._directories.set_aside(name)
        if self._unread:
            registry = self._catalog.registry
            self._unwatch = [registry.watch(each, registry.revision, self._heard) for each in (TOPICS, SUBSCRIPTIONS)]

    def open_known(self, record: TopicRecord) -> Topic | None:
        """Open a topic whose files are here; None where it went with the last life, or must wait for the registry."""
        name = record.name
        if record.settings.ephemeral:
            self._remove(record)
            return None
        try:
            self._catalog.subscriptions(record)
        except CorruptionError as error:
            self._unread.add(name)
            self.unopened[name] = str(error)
            _log.error("topic %s is not opened: %s", name, error)
            return None
        if not self.absent.has_files(record):
            return None
        topic = self._topics[name] = Topic(self._node, record, self._directories.of(record.number))
        topic.forget_passing()
        self.absent.opened(record)
        return topic

    def _remove(self, record: TopicRecord) -> None:
        """Let the registry know no more of a topic of which nothing is left."""
        self._going.add(record.name, self._catalog.delete_topic(record.name).settled())

    def check_readable(self, name: str) -> None:
        """Refuse a topic that is not open because the registry has something of it that cannot be read."""
        if name in self.unopened:
            raise Refusal("unavailable", f"topic {name} cannot be used now: {self.unopened[name]}", SECOND)
        self._catalog.topic(name)

    def _heard(self, _: Sequence[Event]) -> None:
        """Open what could not be read, once it can."""
        for name in sorted(self._unread):
            self._node.guarded(f"topic {name}", partial(self._look_again, name))

    def _look_again(self, name: str) -> None:
        record = self._catalog.known(name)
        if record is None and TOPICS + name in self._catalog.unreadable():
            return
        self._unread.discard(name)
        self.unopened.pop(name, None)
        if record is None or name in self._topics or name in self.coming or self._node.stopping:
            return
        if self._is_here(record) and self._disk.exists(self._directories.of(record.number)):
            self.open_again(record)

    def open_again(self, record: TopicRecord) -> None:
        """Open a topic that the registry knows, or has in full, again."""
        topic = self.open_known(record)
        if topic is not None:
            self._node.tell("created", topic)
            resume(self._node, [topic])
            _log.info("topic %s is open: the registry knows it again", record.name)

    def _is_here(self, record: TopicRecord) -> bool:
        """Tell whether a topic is on this node's own disk; what is on the shared log comes with its slot."""
        share = self._node.share
        if share is not None:
            return share.is_home(record)
        if record.settings.log != "local" or record.home:
            where = f"the disk of node {record.home}" if record.home else "the shared log"
            raise ConfigError(f"topic {record.name} is on {where}, and this node is in no cluster; set cluster.name")
        return True

    def remove_deleted(self) -> None:
        """Remove what is left of deleted topics, then forget that they were: in this order, whatever happens."""
        share = self._node.share
        deleted = self._catalog.deleted()
        if share is not None:
            deleted = share.cleared(deleted)
        if deleted:
            for each in deleted:
                self._directories.remove(each)
            self._directories.sync()
            self._catalog.forget_deleted([each.number for each in deleted])  # if it is refused, there is time

    def make(self, name: str, settings: TopicSettings | None, owner: str, *, in_turn: bool = False) -> Answer[Topic]:
        """Make a topic of a name that is free; `in_turn` after those who wait for theirs, if the disk is busy."""
        if self._node.stopping:
            return Answer.refused(Refusal("stopping", "the node is stopping"))
        try:  # first of all: one that is not open for it is no leftover that may give way to a new one
            self.check_readable(name)
            self.absent.check(name)
        except Refusal as refusal:
            return Answer.refused(refusal)
        if name in self._node.own:  # whoever asks for it first
            settings = self._node.own[name]()
        settings = settings or self._config.topic.settings()
        share = self._node.share
        try:
            if share is not None:
                settings = share.settled(settings)
            elif settings.log != "local":
                raise Refusal("bad_request", f"topic {name} cannot be on the shared log: this node is in no cluster")
            if name not in self._node.own:
                self.check_limits(name, settings.shards)
            measure = measure_of(chosen(settings, self._node.dialects), self._node.dialects)
        except Refusal as refusal:
            return Answer.refused(refusal)
        turn = self._turns.next() if in_turn else Answer.of(None)
        recorded = turn.then_ask(lambda _: self._timed(lambda: self._recorded(name, settings, measure, owner)))
        made = recorded.then_ask(self._made)
        self._making[name] = settings.shards
        topic = made.then_make(lambda found: self._timed(lambda: self._open(*found)))
        topic.then(lambda _, __: self._making.__delitem__(name))
        return self.coming.add(name, topic if share is None else share.or_elsewhere(name, topic))

    def _timed(self, work: Callable[[], T]) -> T:
        """Do something that stops the loop."""
        began_ns = self._node.clock.monotonic()
        try:
            return work()
        finally:
            self._turns.spent(began_ns)

    def check_limits(self, name: str, shards: int) -> None:
        """Refuse a topic that is one too many, or has too many shards; those that are being made count."""
        have = len(self._topics) + len(self._making)
        if have >= self._config.limits.topics:
            raise self._beyond("limits.topics", name, f"there are {have} topics already")
        self.check_shards(name, shards, shards)

    def check_shards(self, name: str, shards: int, more: int) -> None:
        """Refuse a topic of so many shards, so many more of them than there are now."""
        limits = self._config.limits
        have = sum(len(topic.shards) for topic in self._topics.values()) + sum(self._making.values())
        if shards > limits.topic_shards:
            why = f"topic {name} would have {shards} shards, more than {limits.topic_shards}"
            raise self._beyond("limits.topic_shards", name, why)
        if have + more > limits.shards:
            why = f"all topics together have {have} shards, and {more} more are too many"
            raise self._beyond("limits.shards", name, why)

    def check_subscriptions(self, topic: str, have: int) -> None:
        """Refuse a topic that has so many subscriptions one more, or all topics together; those that come count."""
        limits = self._config.limits
        if have >= limits.topic_subscriptions:
            why = f"topic {topic} has {have} subscriptions already"
            raise self._beyond("limits.topic_subscriptions", topic, why)
        total = sum(len(each.subscriptions) for each in self._topics.values()) + self._subscribing
        if total >= limits.subscriptions:
            raise self._beyond("limits.subscriptions", topic, f"all topics together have {total} subscriptions already")

    def subscribing(self, made: Answer[Subscription]) -> Answer[Subscription]:
        """Count a subscription from now on that is being made, of whichever topic, and return it."""

        def came(_: Subscription | None, __: Exception | None) -> None:
            self._subscribing -= 1

        self._subscribing += 1
        made.then(came)
        return made

    def _beyond(self, limit: str, name: str, why: str) -> Refusal:
        self._node.ledger.add(limit, name, 1, self._node.clock.now())
        return Refusal("limit_reached", f"{why}; {limit} may be raised")

    def _recorded(self, name: str, settings: TopicSettings, measure: Measure | None, owner: str) -> Answer[TopicRecord]:
        """Answer with the record of a topic that is not open."""
        going = self._going.get(name)
        if going is not None:  # first one, then the other, whatever becomes of the first
            return going.settled().then_ask(lambda _: self._recorded(name, settings, measure, owner))
        left = None if name in self._topics else self._catalog.topic(name)
        share = self._node.share
        if share is not None:
            if left is not None and not (left.home == share.name and left.settings == settings):
                return Answer.refused(share.refusal(name) or Refusal("unavailable", f"topic {name} comes; try again"))
            try:
                home, fits = share.home_of(settings), share.fitting(settings)
            except Refusal as refusal:
                return Answer.refused(refusal)
            if left is None:
                return self._catalog.create_topic(name, settings, measure, owner, home, fits)
        if left is not None and left.settings == settings and left.owner == owner:
            return Answer.of(left)  # its answer was lost, or its files could not be made and it could not be undone
        if left is not None:
            return self._catalog.delete_topic(name).then_ask(
                lambda _: self._catalog.create_topic(name, settings, measure, owner)
            )
        return self._catalog.create_topic(name, settings, measure, owner)

    def _made(self, record: TopicRecord) -> Answer[tuple[TopicRecord, Made | None]]:
        """Answer with a topic that the registry knows, once its files are there if they take long to make."""
        if self._node.share is not None and record.settings.log == "kafka":
            return self._node.share.open_new(record)
        path = self._directories.of(record.number)
        if record.settings.shards <= making.AT_ONCE or self._disk.exists(path):
            return Answer.of((record, None))
        answer: Answer[tuple[TopicRecord, Made | None]] = Answer()

        def done(made: Made | None, error: BaseException | None) -> None:
            if isinstance(error, Exception):
                answer.refuse(self._unmade(record.name, error))
            else:
                answer.give((record, made))

        quota, written = making.quota_of(self._node, record), label_of(self._catalog, record)
        self._disk.submit("make", partial(making.opened, self._node, self._disk, record, path, quota, written), done)
        return answer

    def _unmade(self, name: str, error: Exception) -> Exception:
        """Take back the record of a topic whose files could not be made; what there is of them goes with a sweep."""
        self._going.add(name, self._catalog.delete_topic(name).settled())
        return unmade(f"topic {name}", error)

    def _open(self, record: TopicRecord, made: Made | None = None) -> Topic:
        """Put a topic to work that the registry knows."""
        name = record.name
        if self._node.stopping:
            raise Refusal("stopping", "the node is stopping")
        try:
            path = made.path if made is not None else self._directories.of(record.number)
            topic = self._topics[name] = Topic(self._node, record, path, made)
        except Exception as error:
            raise self._unmade(name, error) from error
        self.absent.opened(record)
        _log.info("topic %s created", name)
        self._node.tell("created", topic)
        return topic

    def vanished(self, topic: Topic) -> None:
        """Drop a topic that somebody else deleted; one that nobody deleted keeps its data."""
        if self.absent.is_deleted(topic):
            self._drop(topic)
        else:
            self.absent.let_go(topic)

    def problems(self) -> list[str]:
        """Return what the registry has of topics that cannot be read, one sentence each."""
        return self._catalog.problems() + [f"topic {name}: {why}" for name, why in sorted(self.unopened.items())]

    def delete(self, topic: Topic) -> Answer[None]:
        """Drop a topic with everything in it."""
        name = topic.name
        return self._going.add(name, self._catalog.delete_topic(name).then_make(lambda _: self._drop(topic)))

    def is_stuck(self, name: str) -> bool:
        """Tell whether a topic is this node's, and was found to be such that it cannot be opened."""
        share = self._node.share
        is_held = share is not None and share.holdings.is_stuck(name)
        return name not in self._topics and (is_held or name in self.unopened)

    def is_going(self, name: str) -> bool:
        """Tell whether a topic is being deleted."""
        return name in self._going

    def delete_unopened(self, name: str) -> Answer[None]:
        """Drop a topic that cannot be opened: that is written down, and what there is of it goes with a sweep."""
        share = self._node.share
        coming = share.holdings.coming.get(name) if share is not None else None
        if coming is not None:  # another try, which may bring it
            return coming.settled().then_ask(lambda _: self._node.delete_topic(name))

        def deleted(_: TopicRecord) -> None:
            _log.info("topic %s deleted, which was not open", name)

        return self._going.add(name, self._catalog.delete_topic(name).then_make(deleted))

    def stop(self) -> None:
        """Let nobody wait any longer for a topic to be made."""
        self.absent.stop()
        self._turns.stop()
        for cancel in self._unwatch:
            cancel()

    def _drop(self, topic: Topic) -> None:
        if self._topics.get(topic.name) is not topic:
            return
        del self._topics[topic.name]
        self._node.ticker.forget(topic)
        try:
            if isinstance(topic.disk, SharedDisk):
                topic.disk.close()  # what is still sent to partitions that go would be a failure of the whole slot
            topic.delete()
            if len(topic.shards) <= making.AT_ONCE:
                self._disk.remove(topic.path)
            else:
                self._disk.submit("make", partial(self._disk.remove, topic.path), partial(self._removed, topic.name))
        except OSError as error:
            self._removed(topic.name, None, error)
        _log.info("topic %s deleted", topic.name)
        self._node.tell("deleted", topic)

    def _removed(self, name: str, _: None, error: BaseException | None) -> None:
        if error is not None:  # the next sweep tries again
            _log.warning("what is left of topic %s on disk goes later: %s", name, error)
