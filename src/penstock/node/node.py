"""The node: puts registry, log, intake and delivery together; the only place that knows all of them.

Its seams are clock, disk and randomness, so that the simulation runs the very same node. Dialects, the API and the
CLI talk to it and to `Topic`; it never talks to them.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from random import Random
from typing import Literal, NamedTuple, TypeVar

from penstock.budget import Budget, Share
from penstock.callers import OWN, Action, Caller, Gate
from penstock.callers.gate import Verdict
from penstock.clock import MILLISECOND, SECOND, Clock, SteadyTime, Timer
from penstock.cluster.drift import Drift
from penstock.cluster.health import Health
from penstock.config import Config
from penstock.delivery.instant import Instant
from penstock.delivery.subscription import Subscription
from penstock.dialect import Bound, Dialect, Running, chosen, measure_of
from penstock.discards import Discards
from penstock.disk import Disk, unmade
from penstock.errors import CorruptionError, Refusal
from penstock.fanout import Fanouts
from penstock.intake.ledger import Ledger
from penstock.intake.staging import Staging
from penstock.log.cached import share
from penstock.log.memory import MemoryShard, squeeze
from penstock.log.quota import Quota
from penstock.log.shard import Shard
from penstock.m3 import routing
from penstock.moves.redrive import Redrive, resume
from penstock.moves.tasks import Tasks
from penstock.node import making
from penstock.node.audit import TOPIC as AUDIT
from penstock.node.audit import Audit
from penstock.node.events import HISTORIES, Events
from penstock.node.events import TOPIC as EVENTS
from penstock.node.holds import Holds
from penstock.node.making import Made
from penstock.node.membership import Membership
from penstock.node.pipelines import Pipelines
from penstock.node.policy import Policy
from penstock.node.slices import Slices
from penstock.node.topic import Topic
from penstock.node.turns import Turns
from penstock.observe.discard_log import DiscardLog, discard_log
from penstock.offers import Offer
from penstock.registry.answer import Answer, Underway
from penstock.registry.catalog import Catalog
from penstock.registry.embedded import EmbeddedRegistry
from penstock.registry.records import RoutingMapping, TopicRecord, check_name
from penstock.registry.registry import Registry
from penstock.rescue.directories import Directories
from penstock.rescue.fanouts import FanoutFiles
from penstock.rescue.labels import Labels, label_of
from penstock.settings import Measure, TopicSettings
from penstock.tally import TOPIC as COUNTS
from penstock.transactions.transactions import Transactions

#: Acks are written, leases end and the log does its chores this often while there is something to do.
TICK_NS = 10 * MILLISECOND

#: History is looked over no more often than this, whatever the configuration asks for.
RETAIN_NS_MIN = 10 * MILLISECOND

#: What shards keep in memory is brought within its common bound this often: it costs a look at every shard.
SHARE_NS = SECOND

#: History of all topics is looked through for room this often at most.
ROOM_NS = SECOND

#: A failure in one place is logged this often at most, in so many places told apart.
BUG_LOG_NS = SECOND
BUG_LOGS_MAX = 1024

_log = logging.getLogger("penstock.node")

T = TypeVar("T")

Change = Literal["created", "changed", "deleted"]
#: (what happened, the topic, the subscription or None where it happened to the topic itself)
Watcher = Callable[[Change, Topic, Subscription | None], None]


class Served(NamedTuple):
    """Somebody who serves the node's clients."""

    running: Running
    bound: Sequence[Bound]


class Node:
    """A running node without its listeners."""

    def __init__(
        self,
        config: Config,
        clock: Clock,
        disk: Disk,
        random: Random,
        registry: Registry | None = None,
        dialects: Sequence[Dialect] = (),
    ) -> None:
        self.config = config
        #: Who may be served on it, and what each lets people choose of a topic.
        self.dialects = dialects
        self.clock = clock
        self.disk = disk
        self.started_ns = clock.now()
        #: What is old enough to be dropped is told by this.
        self.steady = SteadyTime(clock)
        self.stopping = False
        self.ledger = Ledger()
        #: What was thrown away after somebody sent it, and why.
        self.discards = Discards(
            clock, config.discards.report_interval_ns, config.discards.sample_bytes, warns=config.discards.warn
        )
        #: The file of them; None where none is kept.
        self.discard_log: DiscardLog | None = None
        #: What the segments of all topics hold together.
        self.quota = Quota(config.node.quota_bytes)
        #: When history may be looked through for room the next time, by the quota that has none.
        self._room_ns: dict[Quota, int] = {}
        #: Memory for what it holds for others.
        self.budget = Budget(config.memory, config.limits, clock)
        self.topics: dict[str, Topic] = {}
        #: The delivery history; None where none is kept.
        self.events = Events(self, config.events) if config.events.mode != "off" else None
        #: Topics of the node's own, and what each starts with.
        self._own: dict[str, Callable[[], TopicSettings]] = {}
        if self.events is not None:
            self._own[EVENTS] = self.events.settings
            self._own[COUNTS] = self.events.counts.settings
        self.bugs = 0
        #: Where something failed -> when that was last logged, and how often it was not since.
        self._bug_logs: dict[str, tuple[int, int]] = {}
        #: Told whenever a topic or subscription comes or goes, in the turn it does.
        self.watchers: list[Watcher] = []
        #: What is served on it and where, by name; whoever started that says so. The node itself asks none of them.
        self.served: dict[str, Served] = {}
        #: What dialects let the native protocol carry for them, by their names; each says so when it starts.
        self.offers: dict[str, Offer] = {}
        #: How well it is where it serves timelines, and how far the clocks of others are from its own.
        self.health = Health()
        self.drift = Drift()
        #: What it is in a cluster; None where it serves no timelines.
        self.membership: Membership | None = None
        #: Redrives under way, by dead-letter topic.
        self.redrives: dict[str, Redrive] = {}
        #: Those of them that people look after, and the latest that are over.
        self.tasks = Tasks(self)
        #: Topics that are being made, and names that are being freed, while the registry does not answer.
        self._coming: Underway[Topic] = Underway()
        #: How many shards each of the former will have.
        self._making: dict[str, int] = {}
        self._turns = Turns(clock)
        #: Large work of any client.
        self.slices = Slices(clock)
        self._going: Underway[None] = Underway()
        self._active: dict[Topic, None] = {}
        self._ticker: Timer | None = None
        self._shared_ns = clock.monotonic()
        disk.make(config.data_dir)
        if config.discards.log:
            self.discard_log = discard_log(disk, clock, config.discards)
            self.discards.listeners.append(self.discard_log.write)
        self.directories = Directories(disk, config.data_dir)
        #: Says who may do what.
        self.gate = Gate(config, clock, disk, self.quota)
        #: Who did what of importance; None where that is not kept.
        self.audit: Audit | None = None
        if config.callers.audit != "off":
            self.audit = Audit(self, config.callers)
            self.gate.told = self.audit.note
            self._own[AUDIT] = self.audit.settings
        self.catalog = Catalog(registry or self._registry(), clock, random)
        known = self.catalog.mapping()
        self.mapping = known.traffic_types
        #: The mapping as etcd has it; None where it is the registry's own.
        self.policy: Policy | None = None
        if config.routing.key:
            place = config.routing
            keys = routing.keys(place.environment, place.key, place.namespace)
            self.policy = Policy(place.zone, keys, known, self._take_policy)
        self._unwatch = self.catalog.watch_mapping(self._on_mapping)
        #: What readers outside need of the log, what tasks staged, and what becomes of it.
        self.holds = Holds(self.catalog, self.steady)
        self.staging = Staging(disk, f"{config.data_dir}/staging", clock.now())
        self.transactions = Transactions(self)
        #: Names under which several topics are published to at once.
        self.fanouts = Fanouts(self)
        #: How the pipelines are that told it.
        self.pipelines = Pipelines(clock)
        self._open_topics()
        self._labels = Labels(self)
        self._fanout_files = FanoutFiles(self)
        resume(self)
        self.transactions.resume()
        self._retainer = clock.call_at(clock.monotonic() + self._retain_ns(), self._retain)

    def _registry(self) -> EmbeddedRegistry:
        """Open what the node remembers; without it topics on disk would be strangers."""
        path, there = f"{self.config.data_dir}/registry", self.disk.list(self.directories.topics)
        found = "missing"
        if not there or self.disk.exists(path):
            registry = EmbeddedRegistry.open(self.disk, self.clock, path)
            if not there or registry.revision:
                return registry
            registry.close()
            found = "empty"
        raise CorruptionError(
            f"{path} is {found}, and {self.directories.topics} holds {len(there)} topics. Put the right file there, or "
            f"run `penstock registry rebuild --data {self.config.data_dir}`, which makes one from what is on disk"
        )

    def _open_topics(self) -> None:
        numbers = self.directories.numbers()
        counted = self.catalog.subscriptions_counted()
        if numbers[1] > counted:
            self._check_age(counted)
        self.catalog.count_from(*numbers)
        known = set()
        for record in self.catalog.topics():
            if record.settings.ephemeral:
                self._going.add(record.name, self.catalog.delete_topic(record.name).settled())
                continue
            known.add(str(record.number))
            topic = self.topics[record.name] = Topic(self, record, self.directories.of(record.number))
            topic.forget_passing()
        self._remove_deleted()
        for name in self.disk.list(self.directories.topics):
            if name not in known:
                self.directories.set_aside(name)

    def _check_age(self, counted: int) -> None:
        """Refuse a registry from before subscriptions that known topics have: what they need would be dropped."""
        for record in self.catalog.topics():
            for number, name in self.directories.subscriptions(record.number).items():
                if number > counted:
                    raise CorruptionError(
                        f"{self.config.data_dir}/registry does not know subscription {name} of topic {record.name}, "
                        "which is on disk: it was cut short, or an older one was put back. Put the right file there, "
                        f"or run `penstock registry rebuild --force --data {self.config.data_dir}`, which makes one "
                        "from what is on disk"
                    )

    def _remove_deleted(self) -> None:
        """Remove what is left of deleted topics, then forget that they were: in this order, whatever happens."""
        deleted = self.catalog.deleted()
        if deleted:
            for each in deleted:
                self.directories.remove(each)
            self.directories.sync()
            self.catalog.forget_deleted([each.number for each in deleted])  # if it is refused, there is time

    def now(self) -> Instant:
        """Return this instant on both clocks."""
        return Instant(self.clock.monotonic(), self.clock.now())

    @property
    def registry(self) -> Registry:
        """Where topics and subscriptions are remembered."""
        return self.catalog.registry

    @property
    def cache_bytes(self) -> int:
        """How much one shard may keep of what was appended last, and as much of what was read back."""
        return max(self.budget.cache.bytes_max // 4, 1 << 20)

    def memory(self) -> list[Share]:
        """Return what each part of its memory holds now."""
        self.budget.cache.used = sum(shard.cached_bytes for shard in self._shards())
        return list(self.budget)

    def squeeze(self) -> None:
        """Make room in the memory for memory topics: the largest shards lose their oldest rows."""
        share = self.budget.topic
        share.refused += 1
        squeeze([shard for shard in self._shards() if isinstance(shard, MemoryShard)], share.bytes_max)

    def _shards(self) -> Iterator[Shard]:
        return (shard for topic in self.topics.values() for shard in topic.shards)

    # --- topics ---------------------------------------------------------------------------------------------------

    def topic(self, name: str) -> Topic:
        """Return a topic that must exist."""
        topic = self.topics.get(name)
        if topic is None:
            raise Refusal("not_found", f"there is no topic {name!r}")
        return topic

    def obtain(self, name: str, settings: TopicSettings | None = None, owner: str = "") -> Answer[Topic]:
        """Answer with a topic, made if there is none of this name; what is not chosen is as configured.

        It counts in the quota of its owner, who is asked for nothing: it did not ask for the topic itself.
        """
        topic = self.topics.get(name)
        if topic is not None:
            return Answer.of(topic)
        return self._coming.get(name) or self._make(name, settings, owner, in_turn=name != EVENTS)

    def reach(self, caller: Caller, action: Action, name: str, what: str = "") -> Topic:
        """Return a topic that must exist to somebody who may do this with it; `what` tells the audit more."""
        caller.check(action, name, what)
        return self.topic(name)

    def obtain_for(
        self, caller: Caller, action: Action, name: str, settings: TopicSettings | None = None
    ) -> Answer[Topic]:
        """Answer with a topic for somebody who may do this with it; its first use makes it."""
        self._allow(caller, action, name)
        return self.make_for(caller, name, settings)

    def check_obtainable(self, caller: Caller, action: Action, name: str) -> None:
        """Refuse what `obtain_for` would refuse, and make nothing."""
        self._allow(caller, action, name)
        if name not in self.topics:
            check_name(name)
            self._check_limits(name, self.config.topic.settings().shards)

    def _allow(self, caller: Caller, action: Action, name: str) -> None:
        caller.check(action, name)
        if name not in self.topics:
            if name.startswith(OWN) and name not in self._own:
                caller.check("create", name)
            if action != "create":
                self.gate.granted(caller, "create", name, f"by its first use: {action}")

    def make_for(self, caller: Caller, name: str, settings: TopicSettings | None = None) -> Answer[Topic]:
        """Answer with a topic for somebody who was asked whether it may make it, which is counted if it does."""
        if name in self.topics or name in self._coming or name in self._own:
            return self.obtain(name, settings)
        return self._counted(caller, name, lambda owner: self.obtain(name, settings, owner))

    def create_for(self, caller: Caller, name: str, settings: TopicSettings) -> Answer[Topic]:
        """Make a topic of a name that is free for somebody who may do that."""
        caller.check("create", name)
        return self._counted(caller, name, lambda owner: self.create_topic(name, settings, owner))

    def _counted(self, caller: Caller, name: str, make: Callable[[str], Answer[Topic]]) -> Answer[Topic]:
        """Make a topic within the quota of whoever wants it; it is the owner."""
        account = caller.account
        if account is None:
            return make("")
        most = account.quota.topics
        if most and self.owned(account.name) + account.making >= most:
            text = f"the quota of user {account.name} is {most} topics, and it made as many; delete one"
            self.gate.exceed(caller, "topics", Verdict("limit_reached", "quota", text), "create", name)
        account.making += 1

        def made(_: Topic | None, __: Exception | None) -> None:
            account.making -= 1

        answer = make(account.name)
        answer.then(made)
        return answer

    def owned(self, owner: str) -> int:
        """Return how many topics a user made."""
        return sum(topic.record.owner == owner for topic in self.topics.values())

    def create_topic(self, name: str, settings: TopicSettings | None = None, owner: str = "") -> Answer[Topic]:
        """Make a topic of a name that is free; what is not chosen comes from the node's configuration."""
        if name in self._coming:
            return Answer.refused(Refusal("conflict", f"topic {name} is being made"))
        return self._make(name, settings, owner)

    def _make(self, name: str, settings: TopicSettings | None, owner: str, *, in_turn: bool = False) -> Answer[Topic]:
        if self.stopping:
            return Answer.refused(Refusal("stopping", "the node is stopping"))
        if name in self._own:  # whoever asks for it first
            settings = self._own[name]()
        settings = settings or self.config.topic.settings()
        try:
            if name not in self._own:
                self._check_limits(name, settings.shards)
            measure = measure_of(chosen(settings, self.dialects), self.dialects)
        except Refusal as refusal:
            return Answer.refused(refusal)
        turn = self._turns.next() if in_turn else Answer.of(None)
        recorded = turn.then_ask(lambda _: self._timed(lambda: self._recorded(name, settings, measure, owner)))
        made = recorded.then_ask(self._made)
        self._making[name] = settings.shards
        topic = made.then_make(lambda found: self._timed(lambda: self._open(*found)))
        topic.then(lambda _, __: self._making.__delitem__(name))
        return self._coming.add(name, topic)

    def _timed(self, work: Callable[[], T]) -> T:
        """Do something that stops the loop."""
        began_ns = self.clock.monotonic()
        try:
            return work()
        finally:
            self._turns.spent(began_ns)

    def _check_limits(self, name: str, shards: int) -> None:
        """Refuse a topic that is one too many, or has too many shards; those that are being made count."""
        have = len(self.topics) + len(self._making)
        if have >= self.config.limits.topics:
            raise self._beyond("limits.topics", name, f"there are {have} topics already")
        self.check_shards(name, shards, shards)

    def check_shards(self, name: str, shards: int, more: int) -> None:
        """Refuse a topic of so many shards, so many more of them than there are now."""
        limits = self.config.limits
        have = sum(len(topic.shards) for topic in self.topics.values()) + sum(self._making.values())
        if shards > limits.topic_shards:
            why = f"topic {name} would have {shards} shards, more than {limits.topic_shards}"
            raise self._beyond("limits.topic_shards", name, why)
        if have + more > limits.shards:
            why = f"all topics together have {have} shards, and {more} more are too many"
            raise self._beyond("limits.shards", name, why)

    def _beyond(self, limit: str, name: str, why: str) -> Refusal:
        self.ledger.add(limit, name, 1, self.clock.now())
        return Refusal("limit_reached", f"{why}; {limit} may be raised")

    def _recorded(self, name: str, settings: TopicSettings, measure: Measure | None, owner: str) -> Answer[TopicRecord]:
        """Answer with the record of a topic that is not open."""
        going = self._going.get(name)
        if going is not None:  # first one, then the other, whatever becomes of the first
            return going.settled().then_ask(lambda _: self._recorded(name, settings, measure, owner))
        left = None if name in self.topics else self.catalog.topic(name)
        if left is not None and left.settings == settings and left.owner == owner:
            return Answer.of(left)  # its answer was lost, or its files could not be made and it could not be undone
        if left is not None:
            return self.catalog.delete_topic(name).then_ask(
                lambda _: self.catalog.create_topic(name, settings, measure, owner)
            )
        return self.catalog.create_topic(name, settings, measure, owner)

    def _made(self, record: TopicRecord) -> Answer[tuple[TopicRecord, Made | None]]:
        """Answer with a topic that the registry knows, once its files are there if they take long to make."""
        path = self.directories.of(record.number)
        if record.settings.shards <= making.AT_ONCE or self.disk.exists(path):
            return Answer.of((record, None))
        answer: Answer[tuple[TopicRecord, Made | None]] = Answer()

        def done(made: Made | None, error: BaseException | None) -> None:
            if isinstance(error, Exception):
                answer.refuse(self._unmade(record.name, error))
            else:
                answer.give((record, made))

        quota, written = making.quota_of(self, record), label_of(self.catalog, record)
        self.disk.submit("make", partial(making.opened, self, record, path, quota, written), done)
        return answer

    def _unmade(self, name: str, error: Exception) -> Exception:
        """Take back the record of a topic whose files could not be made; what there is of them goes with a sweep."""
        self._going.add(name, self.catalog.delete_topic(name).settled())
        return unmade(f"topic {name}", error)

    def _open(self, record: TopicRecord, made: Made | None = None) -> Topic:
        """Put a topic to work that the registry knows."""
        name = record.name
        if self.stopping:
            raise Refusal("stopping", "the node is stopping")
        try:
            topic = self.topics[name] = Topic(self, record, self.directories.of(record.number), made)
        except Exception as error:
            raise self._unmade(name, error) from error
        _log.info("topic %s created", name)
        self.tell("created", topic)
        return topic

    def delete_topic(self, name: str) -> Answer[None]:
        """Drop a topic with everything in it."""
        topic = self.topics.get(name)
        if topic is None:
            return Answer.refused(Refusal("not_found", f"there is no topic {name!r}"))
        return self._going.add(name, self.catalog.delete_topic(name).then_make(lambda _: self._drop(topic)))

    def _drop(self, topic: Topic) -> None:
        if self.topics.get(topic.name) is not topic:
            return
        del self.topics[topic.name]
        self._active.pop(topic, None)
        try:
            topic.delete()
            if len(topic.shards) <= making.AT_ONCE:
                self.disk.remove(topic.path)
            else:
                self.disk.submit("make", partial(self.disk.remove, topic.path), partial(self._removed, topic.name))
        except OSError as error:
            self._removed(topic.name, None, error)
        _log.info("topic %s deleted", topic.name)
        self.tell("deleted", topic)

    def _removed(self, name: str, _: None, error: BaseException | None) -> None:
        if error is not None:  # the next sweep tries again
            _log.warning("what is left of topic %s on disk goes later: %s", name, error)

    def tell(self, event: Change, topic: Topic, subscription: Subscription | None = None) -> None:
        """Tell the watchers what came or went; a bug of theirs must not cost the topic."""
        for told in list(self.watchers):
            try:
                told(event, topic, subscription)
            except Exception as failure:
                self.report_bug("watcher", failure)

    def make_room(self, size: int, asking: Topic) -> None:
        """Let other topics' history give way to what one shall store, if the node's or its owner's quota is full."""
        now_ns, owner = self.clock.monotonic(), asking.record.owner
        full = self.quota if self.quota.left() < size or not owner else self.gate.accounts.named(owner).stored
        if full.left() >= size or now_ns < self._room_ns.get(full, 0):
            return
        self._room_ns[full] = now_ns + ROOM_NS
        for topic in list(self.topics.values()):
            concerned = full is self.quota or topic.record.owner == owner
            if topic is not asking and concerned and full.left() < size:
                self._guarded(f"room of topic {topic.name}", partial(topic.storage.give_way, size))

    # --- routing --------------------------------------------------------------------------------------------------

    def _on_mapping(self, mapping: RoutingMapping) -> None:
        """Hear of the mapping in the registry, which is but a memory where etcd has it."""
        if self.policy is None:
            self._remap(mapping)

    def routing_mapping(self) -> RoutingMapping:
        """Return the mapping in force; of one in etcd it is not known which types were retired."""
        return self.catalog.mapping() if self.policy is None else RoutingMapping(traffic_types=dict(self.mapping))

    def _take_policy(self, traffic_types: Mapping[str, int]) -> None:
        """Go by what etcd says, at once, and remember it for a start without etcd."""
        self._remap(RoutingMapping(traffic_types=dict(traffic_types)))
        # The registry syncs a file, which nobody has to wait for.
        self.clock.call_soon(lambda: self.catalog.take_mapping(self.mapping).then(self._policy_kept))

    def _policy_kept(self, _: RoutingMapping | None, error: Exception | None) -> None:
        if error is not None:
            _log.warning("the routing mapping is in force, and not remembered for the next start: %s", error)

    def _remap(self, mapping: RoutingMapping) -> None:
        self.mapping = mapping.traffic_types
        for topic in self.topics.values():
            topic.apply_rules()

    # --- time -----------------------------------------------------------------------------------------------------

    def look_after(self, topic: Topic) -> None:
        """Tick a topic until it sleeps."""
        if topic not in self._active:
            self._active[topic] = None
            self._set_ticker(self.clock.monotonic())

    def _set_ticker(self, now_ns: int) -> None:
        if self._ticker is None:
            self._ticker = self.clock.call_at(now_ns + self._tick_ns(), self._tick)

    def _tick_ns(self) -> int:
        flush_ns = self.config.node.ack_flush_ns
        return min(flush_ns, TICK_NS) if flush_ns else TICK_NS

    def _tick(self) -> None:
        self._ticker = None
        now = self.now()
        for topic in list(self._active):
            self._tick_topic(topic, now)
        self._share_at_times(now)
        if self._active and not self.stopping:
            self._set_ticker(now.monotonic_ns)

    def tick_now(self, topic: Topic) -> None:
        """Tick a topic that slept, and until it sleeps again."""
        if self.stopping:
            return
        now = self.now()
        self._active[topic] = None
        self._tick_topic(topic, now)
        self._share_at_times(now)
        if self._active:
            self._set_ticker(now.monotonic_ns)

    def _tick_topic(self, topic: Topic, now: Instant) -> None:
        self._guarded(f"tick of topic {topic.name}", partial(self._tick_active, topic, now))

    def _tick_active(self, topic: Topic, now: Instant) -> None:
        if topic.deleted or not topic.tick(now):
            self._active.pop(topic, None)

    def _share_at_times(self, now: Instant) -> None:
        if now.monotonic_ns - self._shared_ns >= SHARE_NS:
            self._shared_ns = now.monotonic_ns
            self._guarded("cache", self._share_cache)

    def _share_cache(self) -> None:
        share(list(self._shards()), self.budget.cache.bytes_max)

    def _guarded(self, where: str, call: Callable[[], None]) -> None:
        """Do what must not cost everything else its turn if it fails."""
        try:
            call()
        except Exception as failure:
            self.report_bug(where, failure)

    def _retain_ns(self) -> int:
        return max(self.config.node.retention_check_ns, RETAIN_NS_MIN)

    def _retain(self) -> None:
        now = self.now()
        may_clean = self.health.may("clean")  # by a clock that is wrong, what is old is not
        for topic in list(self.topics.values()):
            self._guarded(f"chores of topic {topic.name}", partial(topic.chores, now))
            if may_clean:
                self._guarded(f"retention of topic {topic.name}", topic.retain)
        if may_clean:
            self._guarded("sweep", self._sweep)
        if not self.stopping:
            self._retainer = self.clock.call_at(self.clock.monotonic() + self._retain_ns(), self._retain)

    def _sweep(self) -> None:
        self.pipelines.sweep()
        try:
            self._remove_deleted()
            self.holds.sweep()
            self.transactions.sweep()
        except Refusal:
            pass  # a full disk: there is time

    # --- trouble --------------------------------------------------------------------------------------------------

    def count_fault(self, dialect: str, code: str, text: str, peer: str) -> None:
        """Count what a client did wrong."""
        self.ledger.add(f"{dialect}:{code}", "", 1, self.clock.now(), f"{peer}: {text}")

    def report_bug(self, where: str, error: BaseException) -> None:
        """Count and log a failure that should not exist; the node goes on."""
        self.bugs += 1
        self.ledger.add("bug", "", 1, self.clock.now(), f"{where}: {error!r}")
        now_ns = self.clock.monotonic()
        logged_ns, unsaid = self._bug_logs.get(where, (now_ns - BUG_LOG_NS, 0))
        if now_ns - logged_ns < BUG_LOG_NS:  # what fails in every tick must not fill the disk with saying so
            self._bug_logs[where] = (logged_ns, unsaid + 1)
            return
        if len(self._bug_logs) >= BUG_LOGS_MAX:
            self._bug_logs.clear()
        self._bug_logs[where] = (now_ns, 0)
        again = f" (and {unsaid} times since this was last said)" if unsaid else ""
        _log.error("%s failed%s: %s", where, again, "".join(traceback.format_exception(error)))

    def damage(self) -> list[str]:
        """Return what is known to be damaged on disk, one line each."""
        return [
            f"topic {topic.name} shard {shard.number}: {damage}"
            for topic in self.topics.values()
            for shard in topic.shards
            for damage in shard.damaged
        ]

    def read_only(self) -> list[str]:
        """Return which shards take nothing in, and why, one line each."""
        return [
            f"topic {topic.name} shard {shard.number}: {shard.read_only}"
            for topic in self.topics.values()
            for shard in topic.shards
            if shard.read_only
        ]

    def lost(self) -> list[str]:
        """Return a sentence on each directory that the registry does not know."""
        return self.directories.problems()

    # --- the end --------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Take nothing more in and hand nothing more out; what consumers hold they may still finish."""
        if self.events is not None and not self.stopping:
            self._guarded("events", self.events.flush)
        if self.audit is not None and not self.stopping:
            self._guarded("audit", self.audit.close)
        self.stopping = True
        for topic in self.topics.values():
            topic.intake.closed = topic.intake.closed or "stopping"

    def held(self) -> int:
        """Return how many rows connected seats hold."""
        return sum(
            seat.in_flight
            for topic in self.topics.values()
            for subscription in topic.subscriptions.values()
            for seat in subscription.seats.values()
        )

    def rest(self) -> None:
        """Do nothing more by itself."""
        self.stop()
        for timer in (self._ticker, self._retainer):
            if timer is not None:
                timer.cancel()
        self._turns.stop()
        if self.discard_log is not None:
            self.discard_log.close()
        self._unwatch()
        self._labels.close()
        self._fanout_files.close()
        self.gate.close()

    def close_events(self) -> None:
        """Write the last of the delivery history."""
        if self.events is not None:
            self._guarded("events", self.events.close)

    def close(self) -> None:
        """Write everything down; blocking. Nothing may use the node afterwards."""
        self.rest()
        for topic in self.topics.values():
            if topic.name not in HISTORIES:
                self._guarded(f"close of topic {topic.name}", topic.close)
        self.close_events()  # last, because it tells how the others ended
        for topic in self.topics.values():
            if topic.name in HISTORIES:
                self._guarded(f"close of topic {topic.name}", topic.close)
