"""Several nodes on one registry and one shared log: topics are with one of them, and go to another when it is gone."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from penstock.clock import MILLISECOND, SECOND
from penstock.config import ClusterConfig, Config, EventsConfig, TopicConfig
from penstock.delivery.source import Delivery
from penstock.delivery.subscription import Subscription
from penstock.dialects.flight.info import topic_info
from penstock.errors import Elsewhere, Refusal
from penstock.intake.receipt import Receipt
from penstock.log.kafka.engine import Engine
from penstock.log.kafka.look import labels
from penstock.log.kafka.store import AwayError
from penstock.message import Rows
from penstock.node.growth import grow
from penstock.node.node import Node
from penstock.node.polls import Polls
from penstock.node.topic import Topic
from penstock.registry import EmbeddedRegistry
from penstock.settings import TopicSettings
from penstock.tally import Interval
from tests.cluster.fake_store import FakeStore
from tests.fakes import FakeClock, FakeDisk, FakeTimer
from tests.registry.far import Far, Trouble

LEASE_NS = 10 * SECOND

T = TypeVar("T")
U = TypeVar("U")


class NodeClock(FakeClock):
    """The common clock, as one process sees it: while it stands still it makes no calls, and makes them afterwards."""

    def __init__(self, common: FakeClock) -> None:
        self.common = common
        self.runs = True
        self._put_off: list[Callable[[], None]] = []
        #: What its threads do waits.
        self.holds_threads = False
        #: Pools of threads that stand still by themselves.
        self.stalled: set[str] = set()
        self.held: list[Callable[[], None]] = []

    def now(self) -> int:
        return self.common.now()

    def monotonic(self) -> int:
        return self.common.monotonic()

    def call_soon(self, call: Callable[[], None]) -> None:
        self.common.call_soon(lambda: self._call(call))

    def call_at(self, monotonic_ns: int, call: Callable[[], None]) -> FakeTimer:
        timer = FakeTimer(call)
        self.common.call_at(monotonic_ns, lambda: self._call(lambda: timer.call() if timer.call else None))
        return timer

    def _call(self, call: Callable[[], None]) -> None:
        if self.runs:
            call()
        else:
            self._put_off.append(call)

    def let_threads_go(self) -> None:
        """Let them do what waited."""
        self.holds_threads = False
        self.stalled.clear()
        held, self.held = self.held, []
        for turn in held:
            self.call_soon(turn)

    def go_on(self) -> None:
        """Run again, with everything that should have been done meanwhile."""
        self.runs = True
        calls, self._put_off = self._put_off, []
        for call in calls:
            self.common.call_soon(call)


class ClockThreads:
    """Threads of one process that do their work in a later turn of its clock."""

    def __init__(self, clock: NodeClock) -> None:
        self._clock = clock

    def submit(self, pool: str, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        def turn() -> None:
            if self._clock.holds_threads or pool in self._clock.stalled:
                self._clock.held.append(turn)
                return
            try:
                result = work()
            except Exception as error:
                done(None, error)
            else:
                done(result, None)

        self._clock.call_soon(turn)

    def map(self, work: Callable[[T], U], items: Iterable[T]) -> list[U]:
        return [work(item) for item in items]

    def tell(self, what: Callable[[], None]) -> None:
        self._clock.call_soon(what)


class Cluster:
    """Nodes in one process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = FakeClock()
        self.store = FakeStore()
        disk = FakeDisk(self.clock)
        disk.make(str(path / "etcd"))
        self.server = EmbeddedRegistry.open(disk, self.clock, str(path / "etcd" / "registry"))
        self.clocks: dict[str, NodeClock] = {}
        self.nodes: dict[str, Node] = {}

    def start(self, name: str, clock: NodeClock | None = None, way: type[Far] = Far, *, counts: bool = False) -> Node:
        config = Config(
            data_dir=str(self.path / name),
            cluster=ClusterConfig(name="c", node=name, slots=8, lease_ns=LEASE_NS),
            topic=TopicConfig(log="kafka"),
            events=EventsConfig() if counts else EventsConfig(mode="off"),
        )
        clock = self.clocks[name] = clock or NodeClock(self.clock)
        registry = way(self.server, clock, random.Random(name), Trouble(delay_ns=MILLISECOND))
        disk = FakeDisk(clock)
        engine = Engine(self.store, ClockThreads(clock), disk)
        node = self.nodes[name] = Node(config, clock, disk, random.Random(name), registry, engine=engine)
        assert node.share is not None
        node.share.start({})
        return node

    def stop(self, name: str) -> None:
        """The process stands still: killed, if it never goes on."""
        self.clocks[name].runs = False

    def run(self, ns: int = 5 * SECOND) -> None:
        self.clock.advance(ns)

    def owner(self, name: str) -> Node:
        found = [node for node in self.nodes.values() if name in node.topics]
        assert len(found) == 1
        return found[0]


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


def made(cluster: Cluster, node: Node, name: str, settings: TopicSettings | None = None) -> Topic:
    found: list[Topic | Exception | None] = []
    node.obtain(name, settings).then(lambda topic, error: found.append(topic or error))
    cluster.run()
    assert isinstance(found[0], Topic), found
    return found[0]


class Heard(list["Receipt | BaseException"]):
    """What a publisher heard."""

    __hash__ = object.__hash__  # type: ignore[assignment]  # each is a publisher of its own

    def done(self, receipt: Receipt | None, error: BaseException | None) -> None:
        answer = error or receipt
        assert answer is not None
        self.append(answer)

    @property
    def oks(self) -> int:
        return sum(not isinstance(each, BaseException) for each in self)


def publish(topic: Topic, *bodies: bytes) -> Heard:
    heard = Heard()
    for body in bodies:
        topic.publish(Rows.of([body], "test"), heard, heard.done)
    return heard


class Consumer:
    """Takes everything a subscription has."""

    def __init__(self, cluster: Cluster, topic: Topic, holder: str = "") -> None:
        self.bodies: list[bytes] = []
        self.ids: list[int] = []
        self.evicted = 0
        subscriptions: list[Subscription | None] = []
        topic.subscribe("s").then(lambda subscription, error: subscriptions.append(subscription))
        cluster.run(SECOND)
        assert subscriptions[0] is not None
        self.seat = topic.attach(subscriptions[0], self._deliver, evict=self._evict, holder=holder)
        self.seat.set_credit(1000)
        cluster.run(SECOND)

    def _deliver(self, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            self.bodies += delivery.batch.bodies(delivery.rows)
            self.ids += [id_ for id_, _, _ in delivery.each()]

    def _evict(self) -> None:
        self.evicted += 1


def test_a_node_of_a_cluster_says_in_its_counts_which_it_is(cluster: Cluster) -> None:
    nodes = [cluster.start(name, counts=True) for name in ("n1", "n2")]
    cluster.run()
    made(cluster, nodes[0], "t")
    publish(cluster.owner("t").topic("t"), b"one")
    cluster.run(30 * SECOND)
    for node in nodes:
        own = node.topics.get(f"_penstock.counts@{node.config.cluster.node}")
        assert (own is not None) == ("t" in node.topics)
        if own is not None:
            batch = own.shards[0].read(0)
            assert batch is not None
            assert msgspec.json.decode(batch.row_body(0), type=Interval).node == node.config.cluster.node


def test_a_topic_is_with_one_node_and_the_others_know_with_which(cluster: Cluster) -> None:
    one, two = cluster.start("one"), cluster.start("two")
    cluster.run()
    topic = made(cluster, one, "t")
    heard = publish(topic, b"a", b"b")
    cluster.run()
    assert heard.oks == 2
    with pytest.raises(Elsewhere, match="topic t is on node one"):
        two.topic("t")
    answers: list[Exception | None] = []
    two.obtain("t").then(lambda topic, error: answers.append(error))
    two.create_topic("t").then(lambda topic, error: answers.append(error))
    two.delete_topic("t").then(lambda _, error: answers.append(error))
    assert [type(each).__name__ for each in answers] == ["Elsewhere", "Refusal", "Elsewhere"]
    with pytest.raises(Refusal, match="there is no topic 'u'"):
        two.topic("u")


def test_a_topic_that_was_taken_over_takes_messages_also_when_nobody_had_any_for_long(cluster: Cluster) -> None:
    one, two = cluster.start("one"), cluster.start("two")
    cluster.run()
    assert publish(made(cluster, one, "t"), b"a") == []
    cluster.run()
    cluster.stop("one")
    cluster.run(LEASE_NS + 5 * SECOND)
    topic = two.topic("t")
    assert topic.shards[0].end > topic.shards[0].readable_end, "offsets that may have been given are passed by"
    cluster.run(3 * one.config.shared_log.patience_ns)
    assert two.share is not None
    assert two.share.problems() == []
    heard = publish(topic, b"b")
    cluster.run()
    assert heard.oks == 1


def test_a_node_that_stands_still_loses_its_topics_and_nothing_that_was_told_is_lost(cluster: Cluster) -> None:
    one, two = cluster.start("one"), cluster.start("two")
    cluster.run()
    topic = made(cluster, one, "t")
    heard = publish(topic, *(b"%d" % number for number in range(10)))
    cluster.run()
    consumer = Consumer(cluster, topic)
    assert heard.oks == len(consumer.bodies) == 10
    consumer.seat.ack(consumer.ids[:4])
    cluster.run()
    cluster.stop("one")
    cluster.run(LEASE_NS + 5 * SECOND)
    moved = two.topic("t")
    late = publish(topic, b"late")  # by the one that does not know yet
    second = Consumer(cluster, moved)
    assert sorted(second.bodies) == [b"4", b"5", b"6", b"7", b"8", b"9"]
    cluster.clocks["one"].go_on()
    cluster.run()
    assert late.oks == 0
    assert len(late) == 1
    assert "t" not in one.topics
    assert consumer.evicted == 1
    with pytest.raises(Elsewhere, match="topic t is on node two"):
        one.topic("t")
    more = publish(moved, b"after")
    cluster.run()
    assert more.oks == 1
    assert second.bodies[6:] == [b"after"]


def test_leases_under_a_name_go_along(cluster: Cluster) -> None:
    one, two = cluster.start("one"), cluster.start("two")
    cluster.run()
    topic = made(cluster, one, "t")
    publish(topic, b"a", b"b")
    holder = Consumer(cluster, topic, "me")
    assert len(holder.ids) == 2
    cluster.run()
    cluster.stop("one")
    cluster.run(LEASE_NS + 5 * SECOND)
    moved = two.topic("t")
    assert Consumer(cluster, moved).bodies == []
    again = Consumer(cluster, moved, "me")
    assert again.seat.ack(holder.ids) == []
    cluster.run(120 * SECOND)
    assert Consumer(cluster, moved).bodies == []


def test_a_node_that_comes_gets_its_part_and_nothing_is_handed_out_twice(cluster: Cluster) -> None:
    one = cluster.start("one")
    cluster.run()
    topics = [made(cluster, one, f"t{number}") for number in range(12)]
    for topic in topics:
        publish(topic, b"a", b"b")
        consumer = Consumer(cluster, topic)
        consumer.seat.ack(consumer.ids[:1])
    cluster.run()
    two = cluster.start("two")
    cluster.run(20 * SECOND)
    assert one.share is not None
    assert two.share is not None
    assert (len(one.share.slots.mine), len(two.share.slots.mine)) == (4, 4)
    assert sorted([*one.topics, *two.topics]) == sorted(topic.name for topic in topics)
    assert two.topics
    assert two.share.holdings.lost == one.share.holdings.lost == 0
    for topic in two.topics.values():
        assert Consumer(cluster, topic).bodies == [b"b"]


def test_a_node_that_leaves_hands_everything_over(cluster: Cluster) -> None:
    one, two = cluster.start("one"), cluster.start("two")
    cluster.run()
    topic = made(cluster, one, "t")
    publish(topic, b"a")
    cluster.run()
    assert one.share is not None
    done: list[None] = []
    one.share.leave().then(lambda _, error: done.append(None))
    cluster.run()
    assert done
    assert not one.topics
    assert Consumer(cluster, two.topic("t")).bodies == [b"a"]
    answers: list[Exception | None] = []
    one.obtain("new").then(lambda _, error: answers.append(error))
    assert isinstance(answers[0], Refusal)
    assert answers[0].code == "unavailable"


def test_a_topic_on_a_nodes_own_disk_stays_there_and_is_away_with_it(cluster: Cluster) -> None:
    one, two = cluster.start("one"), cluster.start("two")
    cluster.run()
    made(cluster, one, "mine", TopicSettings(log="local"))
    with pytest.raises(Elsewhere, match="topic mine is on node one"):
        two.topic("mine")
    cluster.stop("one")
    cluster.run(3 * LEASE_NS)
    with pytest.raises(Refusal, match="topic mine is on the disk of node one, which is not there"):
        two.topic("mine")


def test_what_need_not_outlast_a_process_is_on_the_own_disk(cluster: Cluster) -> None:
    one = cluster.start("one")
    cluster.run()
    assert made(cluster, one, "e", TopicSettings(log="kafka", ephemeral=True)).settings.log == "local"
    assert made(cluster, one, "m", TopicSettings(log="kafka", durability="memory")).settings.log == "local"
    safe = made(cluster, one, "s", TopicSettings(log="kafka", durability="os"))
    assert (safe.settings.log, safe.settings.durability) == ("kafka", "fsync")


def test_a_slot_whose_writer_got_no_answer_is_taken_anew_and_shows_what_was_kept(cluster: Cluster) -> None:
    one = cluster.start("one")
    cluster.run()
    topic = made(cluster, one, "t")
    first = publish(topic, b"a")
    cluster.run()
    cluster.store.lose_next(kept=True)
    doubtful = publish(topic, b"b")
    cluster.run()
    assert (first.oks, doubtful.oks, len(doubtful)) == (1, 0, 1)
    cluster.store.heal()
    cluster.run()
    again = one.topic("t")
    assert again is not topic
    heard = publish(again, b"c")
    assert Consumer(cluster, again).bodies == [b"a", b"b", b"c"]
    assert heard.oks == 1


def test_a_deleted_topic_is_gone_from_the_store_and_a_new_one_of_its_name_is_empty(cluster: Cluster) -> None:
    one, two = cluster.start("one"), cluster.start("two")
    cluster.run()
    topic = made(cluster, one, "t")
    publish(topic, b"a")
    cluster.run()
    one.delete_topic("t")
    cluster.run(30 * SECOND)
    assert cluster.store.topics() == []
    assert one.catalog.deleted() == []
    assert Consumer(cluster, made(cluster, two, "t")).bodies == []


def test_two_nodes_that_make_one_topic_at_once_agree_on_whose_it_is(cluster: Cluster) -> None:
    one, two = cluster.start("one"), cluster.start("two")
    cluster.run()
    answers: list[Topic | Exception | None] = []
    for node in (one, two):
        node.obtain("t").then(lambda topic, error: answers.append(topic or error))
    cluster.run()
    assert sorted(type(each).__name__ for each in answers) == ["Elsewhere", "Topic"]
    assert len([node for node in (one, two) if "t" in node.topics]) == 1


def test_publishers_are_refused_while_the_store_is_away_and_taken_again(cluster: Cluster) -> None:
    one = cluster.start("one")
    cluster.run()
    topic = made(cluster, one, "t")
    assert one.share is not None
    cluster.clocks["one"].holds_threads = True
    waiting = publish(topic, b"a")
    cluster.run(32 * SECOND)
    assert one.share.problems() == ["topic t: the shared log has taken nothing for 31 s"]
    refused = publish(topic, b"b")
    assert isinstance(refused[0], Refusal)
    assert refused[0].code == "unavailable"
    cluster.clocks["one"].let_threads_go()
    cluster.run()
    assert (waiting.oks, one.share.problems()) == (1, [])
    again = publish(topic, b"c")
    cluster.run()
    assert again.oks == 1


def test_a_topic_that_came_from_another_node_takes_publishes_however_long_nobody_publishes(cluster: Cluster) -> None:
    one, two = cluster.start("one"), cluster.start("two")
    cluster.run()
    publish(made(cluster, one, "t"), b"a")
    cluster.run()
    cluster.stop("one")
    cluster.run(60 * SECOND)
    assert two.share is not None
    assert two.share.problems() == []
    heard = publish(two.topic("t"), b"b")
    cluster.run()
    assert heard.oks == 1


@pytest.mark.parametrize("is_new", [False, True], ids=["known", "new"])
def test_a_topic_whose_slot_came_again_while_it_was_being_opened_is_opened(cluster: Cluster, *, is_new: bool) -> None:
    one = cluster.start("one")
    cluster.run()
    assert one.share is not None
    holdings = one.share.holdings
    threads = holdings._engine.threads
    openings: list[Callable[[], None]] = []
    submit = threads.submit

    def hold(pool: str, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        if getattr(work, "__name__", "") == "work" and not openings:  # the rest fences and closes
            openings.append(lambda: submit(pool, work, done))
        else:
            submit(pool, work, done)

    def fail() -> None:
        record = one.catalog.topic("t")
        assert record is not None
        holdings._failed(holdings._held[holdings._slot(record)], AwayError("no answer"))

    if not is_new:
        made(cluster, one, "t")
    threads.submit = hold  # type: ignore[method-assign]
    if is_new:
        one.obtain("t")
        cluster.run(SECOND)
    else:
        fail()
        cluster.run(2 * SECOND)
    assert len(openings) == 1
    fail()
    cluster.run(3 * SECOND)
    assert "t" not in one.topics
    openings[0]()
    cluster.run()
    heard = publish(one.topic("t"), b"a")
    cluster.run()
    assert heard.oks == 1


def test_readers_are_not_sent_to_the_files_that_are_cached(cluster: Cluster) -> None:
    one = cluster.start("one")
    cluster.run()
    assert topic_info(made(cluster, one, "t")).path is None
    assert topic_info(made(cluster, one, "mine", TopicSettings(log="local"))).path is not None


def test_a_hold_is_known_to_whoever_has_the_topic_and_runs_out_by_its_clock_alone(cluster: Cluster) -> None:
    one = cluster.start("one")
    cluster.run()
    topic = made(cluster, one, "t")
    one.holds.hold("query", topic.record, [3], 60 * SECOND)
    cluster.run()
    two = cluster.start("two")  # it reads what there is
    cluster.run(30 * SECOND)
    one.holds.hold("query", topic.record, [5], 600 * SECOND)
    cluster.run(60 * SECOND)
    owner = cluster.owner("t")
    assert owner.holds.floors(topic.record) == [(5,)]
    cluster.stop(next(name for name, node in cluster.nodes.items() if node is owner))
    cluster.run(60 * SECOND)
    assert "t" in cluster.nodes["two" if owner is one else "one"].topics
    assert two.holds.floors(topic.record) == one.holds.floors(topic.record) == [(5,)]


def test_a_hold_is_released_at_any_node(cluster: Cluster) -> None:
    one, two = cluster.start("one"), cluster.start("two")
    cluster.run()
    topic = made(cluster, one, "t")
    one.holds.hold("query", topic.record, [3], 600 * SECOND)
    cluster.run()
    released: list[int | None] = []
    two.holds.release("query").then(lambda count, _: released.append(count))
    cluster.run()
    assert released == [1]
    assert one.holds.floors(topic.record) == []


def test_a_topic_that_goes_elsewhere_is_not_said_to_be_deleted(cluster: Cluster) -> None:
    one = cluster.start("one")
    cluster.start("two")
    cluster.run()
    topic = made(cluster, one, "t")
    assert one.share is not None
    one.share.leave()
    cluster.run()
    answers: list[Exception | None] = []
    topic.subscribe("s").then(lambda _, error: answers.append(error))
    assert isinstance(answers[0], Refusal)
    assert answers[0].code == "unavailable"


def test_a_node_that_stops_takes_nothing_though_the_store_is_there_again(cluster: Cluster) -> None:
    one = cluster.start("one")
    cluster.run()
    topic = made(cluster, one, "t")
    cluster.clocks["one"].holds_threads = True
    publish(topic, b"a")
    cluster.run(32 * SECOND)
    one.stop()
    cluster.clocks["one"].let_threads_go()
    cluster.run()
    late = publish(topic, b"late")
    assert isinstance(late[0], Refusal)
    assert late[0].code == "stopping"


def test_who_waits_for_messages_of_a_topic_that_goes_elsewhere_may_ask_again(cluster: Cluster) -> None:
    one, two = cluster.start("one"), cluster.start("two")
    cluster.run()
    topic = made(cluster, one, "t")
    found: list[Subscription | None] = []
    topic.subscribe("s").then(lambda subscription, _: found.append(subscription))
    cluster.run(SECOND)
    assert found[0] is not None
    poll = Polls(one).begin(topic, found[0], "sqs", 1, SECOND, 60 * SECOND)
    cluster.stop("two")
    cluster.run(SECOND)
    assert not poll.answer.is_given
    topic.begin_leaving()
    topic.delete()
    with pytest.raises(Refusal, match="went to another node") as refused:
        poll.answer.now()
    assert refused.value.code == "unavailable"
    with pytest.raises(Refusal, match="went to another node"):
        topic.create_subscription("u").now()
    assert two.bugs == 0


def test_a_node_that_has_just_come_is_not_ready_before_it_has_its_part(cluster: Cluster) -> None:
    one = cluster.start("one")
    assert one.share is not None
    assert one.share.problems() == ["this node has no part of the cluster yet"]
    cluster.run()
    assert one.share.problems() == []


def test_who_was_told_to_try_again_finds_the_topic_made_and_who_comes_later_that_it_exists(cluster: Cluster) -> None:
    one, two = cluster.start("one"), cluster.start("two")
    cluster.run()
    wide = TopicSettings(log="kafka", shards=2)

    def create(node: Node, settings: TopicSettings | None = None) -> str:
        told: list[str] = []
        node.create_topic("t", settings).then(
            lambda topic, error: told.append(error.code if isinstance(error, Refusal) else f"{topic and topic.name}")
        )
        cluster.run()
        return told[0]

    cluster.store.is_away = True
    assert create(one) == "unavailable"
    cluster.store.heal()
    cluster.run()
    assert cluster.owner("t") is one, "it was recorded all the same"
    assert create(one, wide) == "conflict", "this is not what was asked for"
    assert create(two) == "elsewhere"
    assert create(one) == "t"
    assert create(one) == create(two) == "conflict"


def test_the_label_of_a_topic_that_went_and_came_again_is_written(cluster: Cluster) -> None:
    one, two = cluster.start("one"), cluster.start("two")
    cluster.run()
    Consumer(cluster, made(cluster, one, "t"))
    for away, here in (("one", two), ("two", one)):
        cluster.stop(away)
        cluster.run(LEASE_NS + 5 * SECOND)
        here.topic("t").subscribe(f"with {here.share and here.share.name}".replace(" ", "-"))
        cluster.clocks[away].go_on()
        cluster.run()
    [(_, label)] = labels(cluster.store)
    assert label is not None
    assert sorted(each["name"] for each in label.subscriptions or ()) == ["s", "with-one", "with-two"]


def test_shards_of_a_growth_that_failed_are_removed_beside_the_loop(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, clock = cluster.start("one"), cluster.clocks["one"]
    cluster.run()
    topic = made(cluster, one, "t")

    def refuse() -> None:
        clock.stalled.add("make")  # as where Kafka does not answer
        raise Refusal("conflict", "it is storing messages at this moment")

    monkeypatch.setattr(topic.intake, "hold", refuse)
    told: list[Exception | None] = []
    grow(topic, 2).then(lambda _, error: told.append(error))
    cluster.run()
    assert isinstance(told[0], Refusal)
    assert topic.disk.exists(f"{topic.path}/1"), "the loop did not wait for it"
    again = grow(topic, 2)
    assert again.is_given, "it is refused until they are gone"
    again.then(lambda _, error: told.append(error))
    assert isinstance(told[1], Refusal)
    clock.let_threads_go()
    cluster.run()
    assert not topic.disk.exists(f"{topic.path}/1")
    monkeypatch.undo()
    grow(topic, 2).then(lambda _, error: told.append(error))
    cluster.run()
    assert told[2] is None
    assert len(topic.shards) == 2
