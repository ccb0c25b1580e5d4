"""One run: a node on a simulated machine, its clients, its misfortunes, and the book in which all of it is checked."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from penstock.clock import MILLISECOND, SECOND
from penstock.columns import id_of
from penstock.dialects import DIALECTS
from penstock.dialects.nsq.config import NsqConfig
from penstock.log import seal
from penstock.node.node import Node
from penstock.node.topic import Topic
from penstock.registry import EmbeddedRegistry, attempt
from penstock.settings import SubscriptionSettings
from tests.registry.far import Far
from tests.registry.far import Trouble as Distance
from tests.simulation.book import Book
from tests.simulation.clients import DialectClient
from tests.simulation.clock import Scheduler, SimClock
from tests.simulation.disk import Died, Platter, SimDisk
from tests.simulation.far_operator import FarOperator
from tests.simulation.healing import check_sums, heal
from tests.simulation.history import History
from tests.simulation.lookup import Elsewhere
from tests.simulation.network import Link, Weather
from tests.simulation.operator import Operator
from tests.simulation.overhear import Overhear
from tests.simulation.plan import DATA, Ending, Plan, make_plan
from tests.simulation.publisher import Publisher
from tests.simulation.queues.tap import QueueTap
from tests.simulation.session import Session
from tests.simulation.speech import NSQ, Connect, Speech
from tests.simulation.survival import DEATH, POWER, LogContents, Stored, compare_log, crash
from tests.simulation.topics import topics_of
from tests.simulation.trouble import Trouble

# A rewrite pauses so that the loop's thread gets its turn; here there is one thread.
seal.pause = lambda: None

#: How long a change of the registry is asked for; lives here are too short to see that come to its end.
PATIENCE_NS = attempt.PATIENCE_NS

#: Parts of bodies that a decoder might take for commands.
TEXTS = (b"\nPUB t0\n\x00\x00\x00\x05", b"FIN 0000000000000001\n", b"  V2", b"\x00" * 8)


#: A run that has seen so many events comes to its next ending at once: another seed finds more than the rest of it.
EVENTS_MAX = 1500


class Outcome(NamedTuple):
    """What a run came to."""

    digest: str
    events: int
    messages: int
    checks: int
    virtual_ns: int


NEAR = Distance(delay_ns=0)


class World:
    """Everything of one seed."""

    def __init__(self, seed: int, *, trace: bool = False, speeches: Sequence[Speech] = (NSQ,)) -> None:
        self.seed = seed
        self.history = History(trace=trace)
        self.plan: Plan = make_plan(self.random("plan"))
        self._speeches = {speech.name: speech for speech in speeches if speech.is_spoken(self.plan)}
        for speech in self._speeches.values():
            self.plan.config = speech.configured(self.plan.config)
        self.scheduler = Scheduler(self.random("turns"))
        self.book = Book(self.scheduler, self.history, self.plan.config.node.ack_flush_ns)
        self.book.jumpy = self.plan.jumps
        self.platter = Platter(self.random("disk"))
        self.weather = Weather(self.random("network"), self.plan.latency_ns, self.plan.cut_odds)
        self.busy = True
        self.far: Far | None = None
        self.node: Node | None = None
        self._connects: dict[str, Connect] = {}
        self._clock: SimClock | None = None
        self._booted_ns = 0
        self.links: dict[int, Link] = {}
        self._link_count = 0
        #: Kept, so that no id() is used twice in a run: intake tells publishers apart by theirs.
        self._protocols: list[object] = []
        self._bodies = 0
        self._body_random = self.random("bodies")
        self._ids: list[int] = []
        nsq = self.plan.config.of(NsqConfig)
        settings = SubscriptionSettings(lease_ns=nsq.msg_timeout_ns, lease_max_ns=nsq.max_msg_timeout_ns)
        self.tap = Overhear(self.book, settings, self._find_subscription, self._observe)
        self.queue_tap = QueueTap(self.book, self._find_topic, self._observe)
        self.operator = (FarOperator if self.plan.far else Operator)(
            self, self.random("operator"), self.plan.operator_gap_ns or 10**15, self.plan.deletes, self.plan.grows
        )
        self.trouble = Trouble(self, self.random("trouble"))
        self.elsewhere = Elsewhere(self)
        self.clients: list[DialectClient] = []
        self._sessions: list[Session] = []
        self._audits = self.random("audits")

    def random(self, what: str) -> Random:
        """Return randomness of its own for one part of the world, so that parts do not disturb each other."""
        return Random(f"{self.seed} {what}")

    # --- the run --------------------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        """Live through the plan, heal, and check what must be true then."""
        try:
            return self._run()
        finally:
            attempt.PATIENCE_NS = PATIENCE_NS

    def _run(self) -> Outcome:
        attempt.PATIENCE_NS = self.plan.patience_ns if self.plan.far is not None else PATIENCE_NS
        self._boot(None)
        self._people()
        self.keep_away(away=True)
        for ending in self.plan.endings:
            self.live(ending)
        heal(self)
        book = self.book
        messages = sum(len(topic.messages) for topic in book.topics.values())
        return Outcome(self.history.digest(), self.history.events, messages, book.checks, self.scheduler.time_ns)

    def _people(self) -> None:
        plan = self.plan
        assert self.node is not None
        for name, settings in plan.topics.items():
            self.operator.create(self.node, name, settings)
        for topic, name, chosen in plan.subscriptions:
            self.operator.subscribe(self.node, topic, name, chosen)
        for speech in self._speeches.values():
            self.clients += speech.people(self, plan, self.random)
        for number in range(plan.publishers):
            Publisher(self, self.random(f"publisher {number}"), 50 * MILLISECOND, list(plan.topics), number)
        for number in range(plan.sessions):
            self._sessions.append(Session(self, self.random(f"session {number}"), 20 * MILLISECOND))
        self.trouble.begin()
        self.elsewhere.begin()
        self.scheduler.after(70 * MILLISECOND, self._audit)

    def live(self, ending: Ending) -> None:
        """Go on until the node ends in this way, and start it again."""
        self._until(ending)
        self._end(ending)
        self._boot(ending)
        self.keep_away(away=self.busy)

    def _until(self, ending: Ending) -> None:
        try:
            self.scheduler.run_until(self.scheduler.time_ns + ending.after_ns, self._saw_enough)
            if ending.fuse:
                self.platter.fuse = ending.fuse
                self.scheduler.run_until(self.scheduler.time_ns + 200 * MILLISECOND)
            if ending.kind not in (DEATH, POWER) and self.node is not None:
                check_sums(self.node, self.book)
                self.book.stopping = True
                self.elsewhere.leave()
                for speech in self._speeches.values():
                    speech.drain()
                self.node.close()
        except Died:
            for session in self._sessions:
                session.died()
        self.platter.fuse = None

    def _saw_enough(self) -> bool:
        return self.history.events > EVENTS_MAX

    def _end(self, ending: Ending) -> None:
        assert self._clock is not None
        self._clock.alive = False
        self.trouble.mark_spoiled()
        self.elsewhere.crash()
        self.tap.ending()
        self.node = None
        self._connects.clear()
        for link in self.links.values():
            link.crash()
        self.links.clear()
        self.tap.stop()
        self.queue_tap.stop()
        crash(self.book, ending.kind)
        if ending.kind == POWER:
            self.platter.lose_power()
            self._booted_ns = self.scheduler.time_ns
        self.trouble.make_space()
        for _ in range(ending.flips):
            self.trouble.flip()
        self.scheduler.run_until(self.scheduler.time_ns + ending.down_ns)

    # --- the node -------------------------------------------------------------------------------------------------

    def _boot(self, ending: Ending | None) -> None:
        fuse = ending.start_fuse if ending is not None else None
        while True:
            self.platter.fuse, fuse = fuse, None
            clock = self._clock = SimClock(self.scheduler, self._booted_ns, self.random(f"timers {self.book.life}"))
            disk = SimDisk(self.platter, self.scheduler, clock, self.plan.slowness)
            try:
                registry, random = self._registry(clock, disk), self.random(f"node {self.book.life}")
                node = Node(self.plan.config, clock, disk, random, registry, dialects=DIALECTS)
                self.platter.fuse = None
                break
            except Died:
                self.book.record("died", "while starting")
                for model in self.book.topics.values():
                    model.cut_unseen = model.shaken  # what that start cut from the logs, nobody was told
                if ending is not None and ending.kind == POWER:
                    self.platter.lose_power()
        self.book.record("boot", self.book.life)
        self.book.booted_ns = self.scheduler.time_ns
        self._reconcile(node)
        # Dead letters first: what lies there, the topic it came from need not have any more.
        for topic in sorted(topics_of(node), key=lambda topic: topic.name not in self.book.buriers):
            self.read_log(topic)
            for name, subscription in self.book.topics[topic.name].subscriptions.items():
                subscription.filtered_from = topic.subscriptions[name].counts()["filtered"]
        for model in self.book.topics.values():
            model.shaken = model.cut_unseen = False
        # Only now do the others find it.
        self.node = node
        self.elsewhere.attach(node, clock)
        config = self.plan.config
        self._connects = {name: speech.serve(node, config) for name, speech in self._speeches.items()}

    def _registry(self, clock: SimClock, disk: SimDisk) -> Far | None:
        """Return the registry elsewhere, where the plan has one; it is near until everybody is there."""
        if self.plan.far is None:
            return None
        server = EmbeddedRegistry.open(disk, clock, f"{DATA}/registry")
        self.far = Far(server, clock, self.random(f"far {self.book.life}"), NEAR)
        return self.far

    def keep_away(self, *, away: bool) -> None:
        """Let the registry be as far away as planned, or near."""
        if self.far is not None and self.plan.far is not None:
            self.far.trouble = self.plan.far if away else NEAR

    def _reconcile(self, node: Node) -> None:
        """Compare what the node remembers of topics and subscriptions with what it was told."""
        book = self.book
        if node.lost():
            book.fail("nobody's data", node.lost()[0])
        for model in list(book.topics.values()):
            topic = node.topics.get(model.name)
            if topic is None:
                if model.number is not None and not model.doubtful:
                    book.fail("topics survive", f"topic {model.name} is gone after a restart")
                book.drop_topic(model)
                continue
            model = book.bind(model.name, topic.record.number, topic.settings)
            model.doubtful = False
            for subscription in list(model.subscriptions.values()):
                if subscription.name not in topic.subscriptions:
                    if not subscription.doubtful and not subscription.settings.ephemeral:
                        book.fail("subscriptions survive", f"{model.name}/{subscription.name} is gone after a restart")
                    book.drop_subscription(subscription)
                    continue
                subscription.doubtful = False
                settings = topic.subscriptions[subscription.name].settings
                if settings != subscription.settings:
                    book.adopt(subscription, settings)
            for name in topic.subscriptions:
                if name not in model.subscriptions:
                    book.fail("subscriptions survive", f"{model.name}/{name} is there although nobody made it")
        for topic in topics_of(node):
            book.bind(topic.name, topic.record.number, topic.settings)
        if dict(node.routing.mapping) != book.mapping:
            book.remap(dict(node.routing.mapping))

    def read_log(self, topic: Topic) -> None:
        """Read everything a topic's log holds and compare it with the book."""
        stored: list[Stored] = []
        for shard in topic.shards:
            offset = shard.kept_from
            while offset < shard.readable_end:
                batch = shard.read(offset)
                if batch is None:
                    came: list[bool] = []
                    shard.fetch(offset, lambda came=came: came.append(True))  # type: ignore[misc]
                    self.scheduler.run_until(self.scheduler.time_ns + 30 * SECOND, lambda came=came: bool(came))  # type: ignore[misc]
                    if not came:
                        self.book.fail("the log is readable", f"{topic.name} does not give its rows from {offset} on")
                    batch = shard.read(offset)
                    if batch is None:
                        break
                low = max(offset - batch.first, 0)
                stored += [
                    Stored(id_of(shard.number, batch.first + row), batch.row_time(row), batch.row_body(row))
                    for row in range(low, min(batch.count, shard.readable_end - batch.first))
                ]
                offset = batch.end
        damaged = [(shard.number, damage.first, damage.end) for shard in topic.shards for damage in shard.damaged]
        cut = {shard.number for shard in topic.shards if shard.cut_bytes}
        compare_log(self.book, self.book.topics[topic.name], LogContents(stored, damaged, cut))

    def _observe(self) -> None:
        """Take note of topics that the node made by itself, and of subscriptions that went with their last consumer."""
        if self.node is None:
            return
        for topic in topics_of(self.node):
            name = topic.name
            model = self.book.topics.get(name)
            if model is None or model.number != topic.record.number:
                self.book.bind(name, topic.record.number, topic.settings)
            for subscription in list(self.book.topics[name].subscriptions.values()):
                if subscription.settings.ephemeral and subscription.name not in topic.subscriptions:
                    self.book.record("gone", name, subscription.name)
                    self.book.drop_subscription(subscription)
        if self.node.bugs:
            entries = self.node.ledger.entries("bug")
            self.book.fail("no bugs", "; ".join(str(sample.content) for sample in entries[0].samples))

    def _find_topic(self, name: str) -> Topic | None:
        return self.node.topics.get(name) if self.node is not None else None

    def _find_subscription(self, topic: str, name: str) -> SubscriptionSettings | None:
        found = self.node.topics.get(topic) if self.node is not None else None
        subscription = found.subscriptions.get(name) if found is not None else None
        return subscription.settings if subscription is not None else None

    def _audit(self) -> None:
        """Check the sums at any moment."""
        if self.node is not None:
            check_sums(self.node, self.book)
        self.scheduler.after(int(self._audits.random() * 200 * MILLISECOND), self._audit)

    # --- what clients need ----------------------------------------------------------------------------------------

    def connect(self, client: DialectClient) -> Link | None:
        """Open a connection; None while the node is down."""
        connect = self._connects.get(client.speech)
        if self.node is None or connect is None or self._clock is None:
            return None
        self._link_count += 1
        speech, reader = self._speeches[client.speech], self._speeches[client.speech].reader()
        link = Link(
            self.scheduler,
            self._clock,
            self.weather,
            self.queue_tap if speech.by_receipt else self.tap,
            client,
            self._link_count,
            reader,
            headers=speech.headers,
        )
        self.links[link.number] = link
        if speech.by_receipt:
            self.queue_tap.connected(link)
        else:
            self.tap.connected(link, speech.lease_ns(self.plan.config))
        protocol = connect()
        assert isinstance(protocol, asyncio.Protocol)
        self._protocols.append(protocol)
        link.open(protocol)
        return link

    def body(self) -> bytes:
        """Make a body that never was before."""
        self._bodies += 1
        random = self._body_random
        size = random.randint(0, self.plan.body_bytes_max)
        filler = random.choice(TEXTS) * 100 if random.random() < 0.1 else b"." * size
        return b"m%05d " % self._bodies + filler[:size]

    def some_id(self) -> int:
        """Return the id of any message somebody has seen."""
        return self.weather.random.choice(self._ids[-50:]) if self._ids else 0x1234

    def seen(self, id_: int) -> None:
        """Remember an id."""
        self._ids.append(id_)


__all__ = ["DATA", "Outcome", "World"]
