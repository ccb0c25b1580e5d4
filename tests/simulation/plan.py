"""What one seed decides before anything happens: the configuration, who is there, and what will go wrong when."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random

import msgspec

from penstock.clock import MILLISECOND, SECOND
from penstock.config import Config, EventsConfig, MemoryConfig, NodeConfig, TopicConfig
from penstock.dialects.nsq.choices import NsqChoices
from penstock.dialects.nsq.config import NsqConfig
from penstock.settings import SubscriptionSettings, TopicSettings
from tests.registry.far import Trouble
from tests.simulation.choices import some_settings
from tests.simulation.consumers import Temper
from tests.simulation.extras import WANTED_TAGS
from tests.simulation.queues.plan import QueuePlan, some_queue
from tests.simulation.survival import CLEAN, DEATH, POWER
from tests.simulation.taste import Taste, some_taste

DATA = "data"

#: More shards than are made at once, on the loop.
MANY = 5

#: How long a node lives at most, in seconds; a long life is rare because it costs as much as many short ones.
LIVES_S = (*(0.05,) * 5, *(0.2,) * 8, *(0.4,) * 6, *(1.0,) * 3, 6.0)


#: The delivery history is written often, to be in everybody's way; `rate_max` is met, too.
HISTORIES = (
    EventsConfig(mode="off"),
    EventsConfig(one_in=3, flush_interval_ns=50 * MILLISECOND),
    EventsConfig(mode="full", flush_interval_ns=20 * MILLISECOND, rate_max=500, retention_bytes=1 << 16),
)


#: The part of seeds that have a queue.
QUEUES = 0.3


@dataclass(slots=True)
class Ending:
    """How one life of the node ends."""

    kind: str
    after_ns: int
    #: The process dies inside one of the next operations on the disk after that time; 0 means at that time.
    fuse: int
    #: It may die again while it starts.
    start_fuse: int | None
    down_ns: int
    #: Files in which one bit is turned around meanwhile.
    flips: int


@dataclass(slots=True)
class Plan:
    """The decisions of one seed."""

    config: Config
    topics: dict[str, TopicSettings]
    #: (topic, name, settings) of subscriptions made by the operator at the start.
    subscriptions: list[tuple[str, str, SubscriptionSettings]]
    #: (topics, publishes it does not wait for, time between two, how likely one has headers)
    producers: list[tuple[list[str], int, int, float]]
    #: (topic, channel, taste, temper, topic it also publishes to)
    consumers: list[tuple[str, str, Taste, Temper, str]]
    publishers: int
    sessions: int
    operator_gap_ns: int | None
    deletes: bool
    latency_ns: int
    cut_odds: float
    slowness: float
    endings: list[Ending]
    #: Mean time between broken connections, between moments when the disk is full, and between failing syncs.
    breaks_ns: int | None
    full_ns: int | None
    jumps: bool
    body_bytes_max: int
    #: When all has healed and everything is acked, the process dies once more, and nothing may come again.
    crash_at_end: bool
    #: While all heals, somebody asks for this tag everywhere and takes nothing for a while; empty for nobody.
    sulking: str
    spoils_ns: int | None = None
    #: Topics are given more shards now and then.
    grows: bool = False
    #: The registry is elsewhere, and this goes wrong on the way; None where it is the node's own.
    far: Trouble | None = None
    #: For so long a change is asked for there.
    patience_ns: int = 10 * SECOND
    #: Queues with clients of their own.
    queues: list[QueuePlan] = field(default_factory=list)


def make_plan(random: Random) -> Plan:
    """Draw a plan."""
    lease_ns = random.choice((150, 300, 600)) * MILLISECOND
    lease_max_ns = random.choice((1100, 2000)) * MILLISECOND
    config = Config(
        data_dir=DATA,
        node=NodeConfig(
            ack_flush_ns=random.choice((0, 0, 10 * MILLISECOND)),
        ),
        # Small, so that parts are full now and then; chosen, because the machine's memory is none of the seed's.
        memory=MemoryConfig(
            budget_bytes=1 << 26, input_bytes=random.choice((1 << 15, 1 << 20, 1 << 20)), cache_bytes=1
        ),
        topic=TopicConfig(durability=random.choice(("os", "fsync"))),
        parts=(
            NsqConfig(
                msg_timeout_ns=lease_ns,
                max_msg_timeout_ns=lease_max_ns,
                heartbeat_interval_ns=random.choice((200, 700)) * MILLISECOND,
                max_client_output_size=random.choice((2000, 1 << 20)),
            ),
        ),
    )
    topics = {f"t{number}": _topic(random) for number in range(random.choice((1, 1, 2, 3)))}
    names = list(topics)
    subscriptions = []
    for name in names:
        for number in range(random.choice((0, 1, 2))):
            settings = some_settings(random, lease_ns, lease_max_ns, limited=number == 0 and random.random() < 0.4)
            subscriptions.append((name, f"s{number}", settings))
    channels = ["s0", "s1", "s2", "passing#ephemeral"]
    consumers = [
        (
            random.choice(names),
            random.choice(channels),
            some_taste(random),
            _temper(random),
            random.choice(names) if random.random() < 0.3 else "",
        )
        for _ in range(random.choice((1, 2, 3, 5, 7)))
    ]
    plan = Plan(
        config=config,
        topics=topics,
        subscriptions=subscriptions,
        producers=[
            (
                random.sample(names, random.randint(1, len(names))),
                random.choice((1, 1, 10, 50)),
                _gap_ns(random),
                random.choice((0.0, 0.3, 0.9)),
            )
            for _ in range(random.choice((1, 2, 3)))
        ],
        consumers=consumers,
        publishers=random.choice((0, 1, 1, 2)),
        sessions=random.choice((0, 0, 1)),
        operator_gap_ns=random.choice((None, 60, 200, 200)) and random.choice((60, 200)) * MILLISECOND,
        deletes=random.random() < 0.3,
        latency_ns=random.choice((50_000, MILLISECOND, 5 * MILLISECOND)),
        cut_odds=random.choice((0.05, 0.5)),
        slowness=random.choice((0.5, 1, 8)),
        endings=[_ending(random) for _ in range(random.choice((1, 2, 3, 4)))],
        breaks_ns=random.choice((None, 100, 400)) and random.choice((100, 400)) * MILLISECOND,
        full_ns=random.choice((None, None, 300 * MILLISECOND)),
        jumps=random.random() < 0.1,
        body_bytes_max=random.choice((20, 200, 700)),
        crash_at_end=random.random() < 0.5,
        sulking=random.choice(("", *WANTED_TAGS)),
    )
    plan.config = msgspec.structs.replace(config, events=random.choice(HISTORIES))
    plan.spoils_ns = random.choice((None, None, 100 * MILLISECOND, 500 * MILLISECOND))
    for name, chosen in topics.items():
        topics[name] = msgspec.structs.replace(chosen, quota_bytes=random.choice((0, 0, 0, 20_000)))
    if random.random() < 0.3:
        _grow(plan, random)
    if random.random() < 0.2:
        _go_far(plan, random)
    if random.random() < QUEUES:
        _queue(plan, random)
    if random.random() < 0.05:  # made in a thread
        name = random.choice(list(topics))
        topics[name] = msgspec.structs.replace(topics[name], shards=MANY)
    return plan


def _grow(plan: Plan, random: Random) -> None:
    """Let topics grow, most of them under subscriptions that keep the order of keys: theirs move to other shards."""
    plan.grows = True
    plan.operator_gap_ns = plan.operator_gap_ns or 60 * MILLISECOND
    made = [(topic, name) for topic, name, _ in plan.subscriptions]
    nsq = plan.config.of(NsqConfig)
    settings = SubscriptionSettings(lease_ns=nsq.msg_timeout_ns, lease_max_ns=nsq.max_msg_timeout_ns)
    plan.subscriptions += [(topic, "s0", settings) for topic in plan.topics if (topic, "s0") not in made]
    for number, (topic, name, chosen) in enumerate(plan.subscriptions):
        if random.random() < 0.7:
            ordered = msgspec.structs.replace(chosen, order="key", key_run=random.choice((1, 2)))
            plan.subscriptions[number] = (topic, name, ordered)


def _go_far(plan: Plan, random: Random) -> None:
    """Let the registry be elsewhere: topics are made by the first who publishes, history and dead letters likewise.

    The book takes what a SUB makes for done when it is asked for. So channels are there before anybody comes, and the
    operator neither makes nor deletes one.
    """
    odds = [random.choice((0.0, 0.1, 0.3)) * random.random() for _ in range(4)]
    plan.far = Trouble(random.choice((1, 10, 40)) * MILLISECOND, *odds)
    plan.patience_ns = random.choice((150 * MILLISECOND, 400 * MILLISECOND, 10 * SECOND))
    plan.spoils_ns = None  # damage is the other seeds' affair
    for ending in plan.endings:
        ending.flips = 0
    made = {(topic, name) for topic, name, _ in plan.subscriptions}
    nsq = plan.config.of(NsqConfig)
    settings = SubscriptionSettings(lease_ns=nsq.msg_timeout_ns, lease_max_ns=nsq.max_msg_timeout_ns)
    for number, (topic, channel, taste, temper, other) in enumerate(plan.consumers):
        channel = "s2" if channel.endswith("#ephemeral") else channel
        plan.consumers[number] = (topic, channel, replace(taste, ordered=False), temper, other)
        if (topic, channel) not in made:
            made.add((topic, channel))
            plan.subscriptions.append((topic, channel, settings))
    plan.producers = [([*names, "n0", "n1"], *rest) for names, *rest in plan.producers]  # type: ignore[misc]


def _queue(plan: Plan, random: Random) -> None:
    """Have a queue that NSQ's clients publish to and read from, beside its own."""
    queue, settings = some_queue(random, _topic(random))
    plan.queues.append(queue)
    plan.topics[queue.topic] = settings
    nsq = plan.config.of(NsqConfig)
    channel = SubscriptionSettings(lease_ns=nsq.msg_timeout_ns, lease_max_ns=nsq.max_msg_timeout_ns)
    plan.subscriptions += [(queue.topic, "queue", queue.settings), (queue.topic, "s0", channel)]
    for number, (names, *rest) in enumerate(plan.producers):
        if random.random() < 0.5:
            plan.producers[number] = ([*names, queue.topic], *rest)  # type: ignore[assignment]
    plan.consumers[0] = (queue.topic, "s0", *plan.consumers[0][2:])


def _gap_ns(random: Random) -> int:
    return random.choice((8, 30, 30, 80)) * MILLISECOND


def _topic(random: Random) -> TopicSettings:
    tight = random.random() < 0.3
    settings = TopicSettings(
        shards=random.choice((1, 1, 2, 3)),
        durability=random.choice(("os", "os", "fsync", "fsync", "memory")),
        retention_age_ns=random.choice((0, 200 * MILLISECOND)) if tight else 3600 * SECOND,
        retention_bytes=random.choice((0, 3000)) if tight else 1 << 30,
        retention_hard=tight and random.random() < 0.3,
        compression=random.choice(("none", "none", "none", "lz4")),
        segment_bytes=random.choice((2500, 6000, 30_000)),
        memory_rows=random.choice((20, 1_000_000)),
        rate=random.choice((0, 0, 0, 0, 100)),
    )
    return NsqChoices(extend=random.choice(("auto", "auto", "on", "on", "off"))).put(settings)


def _temper(random: Random) -> Temper:
    kind = random.choice(("keen", "keen", "flaky", "sleepy", "thief"))
    think_ns = random.choice((1, 10, 40)) * MILLISECOND
    if kind == "keen":
        return Temper(ack=0.97, release=0.02, extend=0.0, steal=0.01, publish=0.2, think_ns=think_ns)
    if kind == "flaky":
        return Temper(ack=0.4, release=0.4, extend=0.1, steal=0.02, publish=0.2, think_ns=think_ns)
    if kind == "sleepy":
        return Temper(ack=0.4, release=0.05, extend=0.35, steal=0.0, publish=0.2, think_ns=3 * think_ns)
    return Temper(ack=0.6, release=0.1, extend=0.1, steal=0.4, publish=0.1, think_ns=think_ns)


def _ending(random: Random) -> Ending:
    kind = random.choice((DEATH, DEATH, POWER, POWER, CLEAN))
    return Ending(
        kind=kind,
        after_ns=int(random.choice(LIVES_S) * random.uniform(0.5, 1) * SECOND),
        fuse=random.choice((0, random.randint(1, 30))) if kind != CLEAN else 0,
        start_fuse=random.randint(1, 40) if random.random() < 0.15 else None,
        down_ns=int(random.uniform(1, 200) * MILLISECOND),
        flips=random.choice((0, 0, 0, 0, 0, 1, 2)),
    )
