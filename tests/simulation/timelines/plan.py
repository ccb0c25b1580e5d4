"""What one seed decides of a timeline: how it is dealt, who uses it, where its registry is, and what goes wrong."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec

from penstock.clock import MILLISECOND, SECOND
from penstock.config import CallersConfig, Config, EventsConfig, NodeConfig
from penstock.config.tree import TopicConfig
from penstock.dialects.timeline.config import TimelineConfig
from tests.registry.far import Trouble
from tests.simulation.host import Ending
from tests.simulation.survival import CLEAN, DEATH

TOPIC = "reminders"
#: Between the status of a consumer and the next, and between words that the node says by itself.
TICK_NS = SECOND
#: Longest way to a message's time, by whoever makes it.
DUE_MS_MAX = 6000


class Person(msgspec.Struct, frozen=True):
    """A consumer."""

    name: str
    rack: str
    lease_ms: int
    buffer: int
    #: How long it works on a message, on average.
    work_ns: int


class Plan(msgspec.Struct):
    """One seed."""

    config: Config
    settings: dict[str, Any]
    people: list[Person]
    #: None where the node's own registry is used.
    registry: Trouble | None
    endings: list[Ending]
    #: Between creates, moves of people, and other misfortunes.
    create_ns: int
    move_ns: int
    trouble_ns: int
    rows_max: int
    #: To the node, one way.
    latency_ns: int
    slowness: float
    #: How likely work ends otherwise than by a delete, and a delete is by the owner.
    odd: float
    owner: float
    #: How far clocks are set at most; 0 where nobody touches them.
    jump_ms: int
    is_deleted_once: bool


def make_plan(random: Random) -> Plan:
    """Draw one."""
    dealer = random.choice(("simple", "simple", "gladiator", "rack"))
    racks = ("a", "b") if dealer == "rack" and random.random() < 0.8 else ("",)
    people = [
        Person(
            f"c{number}",
            random.choice(racks),
            lease_ms=random.choice((150, 600, 2000, 5000)),
            buffer=random.choice((1, 4, 100)),
            work_ns=random.choice((2, 40, 300)) * MILLISECOND,
        )
        for number in range(random.choice((1, 2, 3, 5)))
    ]
    far = random.random() < 0.6
    lost = random.choice((0.0, 0.0, 0.03))
    return Plan(
        config=Config(
            data_dir="data",
            node=NodeConfig(ack_flush_ns=random.choice((0, 10 * MILLISECOND))),
            events=EventsConfig(mode="off"),
            callers=CallersConfig(audit="off"),
            topic=TopicConfig(
                durability=random.choice(("os", "os", "fsync")),
                segment_bytes=random.choice((4096, 1 << 20)),
            ),
            parts=(TimelineConfig(),),
        ),
        settings={
            "bucket_count": random.choice((1, 2, 16, 64)),
            "dealer": dealer,
            "time_window_ms": random.choice((100, 300, 1000)),
            "prefetch_max_ms": random.choice((0, 0, 300, 1200)),
            "prefetch_max_count": random.choice((1, 5, 1000)),
            "max_seconds_lease": 10,
            "rqs_limit_per_client": 1_000_000,
        },
        people=people,
        registry=Trouble(
            delay_ns=random.choice((1, 5, 30)) * MILLISECOND, answer_lost=lost, request_lost=lost, late=lost
        )
        if far
        else None,
        endings=[_some_ending(random) for _ in range(random.choice((1, 1, 2, 3)))],
        create_ns=random.choice((10, 40, 150)) * MILLISECOND,
        move_ns=int(random.choice((0.3, 1, 4)) * SECOND),
        trouble_ns=int(random.choice((0.7, 2, 6)) * SECOND),
        rows_max=random.choice((1, 4, 10)),
        latency_ns=random.choice((50_000, MILLISECOND, 10 * MILLISECOND)),
        slowness=random.choice((0.5, 1, 4)),
        odd=random.choice((0.0, 0.1, 0.4)),
        owner=random.choice((0.0, 0.02, 0.1)),
        jump_ms=random.choice((0, 0, 300, 3000, 30_000)),
        is_deleted_once=random.random() < 0.1,
    )


def _some_ending(random: Random) -> Ending:
    kind = random.choice((DEATH, DEATH, CLEAN))
    return Ending(
        kind,
        after_ns=int(random.choice((1, 3, 8)) * random.uniform(0.5, 1) * SECOND),
        fuse=random.choice((0, random.randint(1, 30))) if kind == DEATH else 0,
        start_fuse=random.randint(1, 40) if random.random() < 0.1 else None,
        down_ns=int(random.uniform(1, 2000) * MILLISECOND),
    )
