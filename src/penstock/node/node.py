"""The node: puts registry, log, intake and delivery together; the only place that knows all of them.

Its seams are clock, disk and randomness, so that the simulation runs the very same node. Dialects, the API and the
CLI talk to it and to `Topic`; it never talks to them.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Literal, NamedTuple

from penstock.budget import Budget, Share
from penstock.callers import OWN, Action, Caller, Gate
from penstock.callers.gate import Verdict
from penstock.clock import SECOND, Clock, SteadyTime
from penstock.cluster.drift import Drift
from penstock.cluster.health import Health
from penstock.cluster.places import name_of
from penstock.config import Config
from penstock.delivery.instant import Instant
from penstock.delivery.subscription import Subscription
from penstock.dialect import Bound, Dialect, Running
from penstock.discards import Discards
from penstock.disk import Disk
from penstock.errors import Elsewhere, Refusal
from penstock.fanout import Fanouts
from penstock.intake.ledger import Ledger
from penstock.intake.stages import Stages
from penstock.log.kafka.engine import Engine
from penstock.log.memory import MemoryShard, squeeze
from penstock.log.quota import Quota
from penstock.log.shard import Shard
from penstock.moves.redrive import Redrive, resume
from penstock.moves.tasks import Tasks
from penstock.node.audit import TOPIC as AUDIT
from penstock.node.audit import Audit
from penstock.node.events import HISTORIES, Events
from penstock.node.events import TOPIC as EVENTS
from penstock.node.holds import Holds
from penstock.node.known import Known, Places
from penstock.node.lifecycle import Lifecycle
from penstock.node.membership import Membership
from penstock.node.opening import open_registry
from penstock.node.pipelines import Pipelines
from penstock.node.routing import Routing
from penstock.node.share import ClusterShare
from penstock.node.slices import Slices
from penstock.node.ticker import Ticker
from penstock.node.topic import Topic
from penstock.observe.discard_log import DiscardLog, discard_log
from penstock.offers import Offer
from penstock.registry.answer import Answer
from penstock.registry.catalog import Catalog
from penstock.registry.etcd.zones import Zones
from penstock.registry.records import check_name
from penstock.registry.registry import Registry
from penstock.rescue.directories import Directories
from penstock.rescue.fanouts import FanoutFiles
from penstock.rescue.labels import Labels
from penstock.settings import TopicSettings
from penstock.tally import TOPIC as COUNTS
from penstock.transactions.transactions import Transactions

if TYPE_CHECKING:
    from penstock.peers.peers import Peers
    from penstock.peers.reception import Door

#: History of all topics is looked through for room this often at most.
ROOM_NS = SECOND

#: A failure in one place is logged this often at most, in so many places told apart.
BUG_LOG_NS = SECOND
BUG_LOGS_MAX = 1024

_log = logging.getLogger("penstock.node")

#: One that left is at another node, and may come back by "created"; nothing of it was deleted.
Change = Literal["created", "changed", "deleted", "left"]
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
        engine: Engine | None = None,
        zones: Zones | None = None,
    ) -> None:
        self.config = config
        #: Clients of etcd, one for each zone and all who ask there; whoever made the node closes them.
        self.zones = zones if zones is not None else Zones(config.etcd.zones)
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
        self.own: dict[str, Callable[[], TopicSettings]] = {}
        if self.events is not None:
            self.own[self.own_name(EVENTS)] = self.events.settings
            self.own[self.own_name(COUNTS)] = self.events.counts.settings
        self.bugs = 0
        #: Where something failed -> when that was last logged, and how often it was not since.
        self._bug_logs: dict[str, tuple[int, int]] = {}
        #: Told whenever a topic or subscription comes or goes, in the turn it does.
        self.watchers: list[Watcher] = []
        #: What is served on it and where, by name; whoever started that says so. The node itself asks none of them.
        self.served: dict[str, Served] = {}
        #: What dialects let the native protocol carry for them, by their names; each says so when it starts.
        self.offers: dict[str, Offer] = {}
        #: Where topics of a cluster are that are not here, the way to the nodes that have them, and what other nodes
        #: may come in by, under the names of listeners; None where there is no cluster.
        self.places: Places | None = None  # which is `share`, once there is one
        self.peers: Peers | None = None
        self.doors: dict[str, Door] = {}
        #: What there is in all of it.
        self.known = Known(self)
        #: How well it is where it serves timelines, and how far the clocks of others are from its own.
        self.health = Health()
        self.drift = Drift()
        #: What it is in a cluster; None where it serves no timelines.
        self.membership: Membership | None = None
        #: Redrives under way, by dead-letter topic.
        self.redrives: dict[str, Redrive] = {}
        #: Those of them that people look after, and the latest that are over.
        self.tasks = Tasks(self)
        #: Large work of any client.
        self.slices = Slices(clock)
        self.ticker = Ticker(self)
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
            self.own[self.own_name(AUDIT)] = self.audit.settings
        self.catalog = Catalog(registry or open_registry(disk, clock, config.data_dir, self.directories), clock, random)
        #: Its part in a cluster; None where it is alone.
        self.share: ClusterShare | None = ClusterShare(self, engine, random) if engine is not None else None
        self.places = self.share
        self.lifecycle = Lifecycle(self)
        self.routing = Routing(config.routing, clock, self.catalog, self._remapped)
        #: What readers outside need of the log, what tasks staged, and what becomes of it.
        self.holds = Holds(self.catalog, self.steady, self.topics.__contains__, config.limits.holds)
        self.staging = Stages(disk, f"{config.data_dir}/staging", clock.now())
        self.transactions = Transactions(self)
        self.watchers.append(self.transactions.changed)
        #: Names under which several topics are published to at once.
        self.fanouts = Fanouts(self)
        #: How the pipelines are that told it.
        self.pipelines = Pipelines(clock)
        self.lifecycle.open_all()
        self._labels = Labels(self)
        self._fanout_files = FanoutFiles(self)
        resume(self, self.topics.values())
        self.transactions.resume()
        self.ticker.start()

    def now(self) -> Instant:
        """Return this instant on both clocks."""
        return Instant(self.clock.monotonic(), self.clock.now())

    def own_name(self, name: str) -> str:
        """Return what one of its own topics is called: in a cluster each node has its own."""
        cluster = self.config.cluster
        return f"{name}@{name_of(cluster)}" if cluster.name else name

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
        self.budget.cache.used = sum(shard.cached_bytes for shard in self.shards())
        return list(self.budget)

    def squeeze(self) -> None:
        """Make room in the memory for memory topics: the largest shards lose their oldest rows."""
        share = self.budget.topic
        share.refused += 1
        squeeze([shard for shard in self.shards() if isinstance(shard, MemoryShard)], share.bytes_max)

    def shards(self) -> Iterator[Shard]:
        """Return the shards of all topics."""
        return (shard for topic in self.topics.values() for shard in topic.shards)

    # --- topics ---------------------------------------------------------------------------------------------------

    def topic(self, name: str) -> Topic:
        """Return a topic that must exist."""
        topic = self.find(name)
        if topic is None:
            raise Refusal("not_found", f"there is no topic {name!r}")
        return topic

    def find(self, name: str) -> Topic | None:
        """Return a topic, None if there is none; one that another node has raises where it is."""
        topic = self.topics.get(name)
        if topic is None and self.places is not None and (refusal := self.places.refusal(name)) is not None:
            raise refusal
        if topic is None:
            self.lifecycle.check_readable(name)
            self.lifecycle.absent.check(name)
        return topic

    def is_known(self, name: str) -> bool:
        """Tell whether there is a topic of this name, here or elsewhere."""
        if name in self.topics or name in self.lifecycle.absent.missing:
            return True
        return self.places is not None and self.places.refusal(name) is not None

    def elsewhere(self, name: str) -> str | None:
        """Return which other node has a topic, None if none has."""
        refusal = self.places.refusal(name) if self.places is not None and name not in self.topics else None
        return refusal.node if isinstance(refusal, Elsewhere) else None

    def obtain(self, name: str, settings: TopicSettings | None = None, owner: str = "") -> Answer[Topic]:
        """Answer with a topic, made if there is none of this name; what is not chosen is as configured.

        It counts in the quota of its owner, who is asked for nothing: it did not ask for the topic itself.
        """
        topic = self.topics.get(name)
        if topic is not None:
            return Answer.of(topic)
        coming = self.lifecycle.coming.get(name) or (self.share.find(name) if self.share is not None else None)
        return coming or self.lifecycle.make(name, settings, owner, in_turn=name not in self.own)

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
        if not self.is_known(name):
            check_name(name)
            self.lifecycle.check_limits(name, self.config.topic.settings().shards)

    def _allow(self, caller: Caller, action: Action, name: str) -> None:
        caller.check(action, name)
        if not self.is_known(name):
            if name.startswith(OWN) and name not in self.own:
                caller.check("create", name)
            if action != "create":
                self.gate.granted(caller, "create", name, f"by its first use: {action}")

    def make_for(self, caller: Caller, name: str, settings: TopicSettings | None = None) -> Answer[Topic]:
        """Answer with a topic for somebody who was asked whether it may make it, which is counted if it does."""
        if self.is_known(name) or name in self.lifecycle.coming or name in self.own:
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
        if name in self.lifecycle.coming:
            return Answer.refused(Refusal("conflict", f"topic {name} is being made"))
        again = self.share.asked_again(name, settings, owner) if self.share is not None else None
        if again is not None:
            return again
        if name not in self.topics and self.is_known(name):
            return Answer.refused(Refusal("conflict", f"topic {name} exists already"))
        return self.lifecycle.make(name, settings, owner)

    def delete_topic(self, name: str) -> Answer[None]:
        """Drop a topic with everything in it, also one that is this node's and cannot be opened."""
        if name in self.lifecycle.absent.missing:
            return self.lifecycle.absent.delete(name)
        if self.lifecycle.is_stuck(name):
            return self.lifecycle.delete_unopened(name)
        try:
            return self.lifecycle.delete(self.topic(name))
        except Refusal as refusal:
            return Answer.refused(refusal)

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
                self.guarded(f"room of topic {topic.name}", partial(topic.storage.give_way, size))

    def _remapped(self) -> None:
        for topic in self.topics.values():
            topic.apply_rules()

    def guarded(self, where: str, call: Callable[[], None]) -> None:
        """Do what must not cost everything else its turn if it fails."""
        try:
            call()
        except Exception as failure:
            self.report_bug(where, failure)

    # --- trouble --------------------------------------------------------------------------------------------------

    def count_fault(self, dialect: str, code: str, text: str, peer: str) -> None:
        """Count what a client did wrong."""
        self.ledger.add(f"{dialect}:{code}", "", 1, self.clock.now(), f"{peer}: {text}")

    def report(self, where: str, error: BaseException) -> None:
        """Count what failed on the way to a consumer: a bug, or a full disk on which no lease can be noted."""
        if isinstance(error, Refusal):
            self.count_fault("delivery", error.code, str(error), where)
        else:
            self.report_bug(where, error)

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
        """Return a sentence on each directory that the registry does not know, and on each that is gone."""
        return self.directories.problems() + list(self.lifecycle.absent.missing.values())

    # --- the end --------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Take nothing more in and hand nothing more out; what consumers hold they may still finish."""
        if self.events is not None and not self.stopping:
            self.guarded("events", self.events.flush)
        if self.audit is not None and not self.stopping:
            self.guarded("audit", self.audit.close)
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
        self.ticker.stop()
        self.lifecycle.stop()
        if self.discard_log is not None:
            self.discard_log.close()
        self.routing.close()
        self.holds.close()
        self._labels.close()
        self._fanout_files.close()
        self.gate.close()

    def close_events(self) -> None:
        """Write the last of the delivery history."""
        if self.events is not None:
            self.guarded("events", self.events.close)

    def close(self) -> None:
        """Write everything down; blocking. Nothing may use the node afterwards."""
        self.guarded("marks", self.lifecycle.absent.mark)
        self.rest()
        histories = [self.own_name(name) for name in HISTORIES]
        for topic in self.topics.values():
            if topic.name not in histories:
                self.guarded(f"close of topic {topic.name}", topic.close)
        self.close_events()  # last, because it tells how the others ended
        for topic in self.topics.values():
            if topic.name in histories:
                self.guarded(f"close of topic {topic.name}", topic.close)
