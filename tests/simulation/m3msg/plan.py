"""What one seed decides of a relay to M3's consumer services: who they are, and what will go wrong."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from penstock.clock import MILLISECOND
from penstock.config import Config, EventsConfig, NodeConfig
from penstock.relays.m3msg.config import RelayConfig
from penstock.settings import TopicSettings
from tests.simulation.host import Ending, some_ending

DATA = "data"
NAME = "aggregated_metrics"
SHARDS = 4


@dataclass(slots=True)
class Plan:
    """The decisions of one seed."""

    config: Config
    relay: RelayConfig
    settings: TopicSettings
    #: How many instances the shared service has, and the replicated one; 0 where there is none.
    shared: int
    replicas: int
    gap_ns: int
    rows_max: int
    endings: list[Ending]
    latency_ns: int
    slowness: float
    #: How likely a frame is not acked, acked late, or the last one; the mean time between two other troubles.
    fault_odds: float
    trouble_ns: int
    crash_at_end: bool

    @property
    def in_memory(self) -> bool:
        """Whether the topic ends with its process."""
        return self.settings.durability == "memory"

    @property
    def drops(self) -> bool:
        """Whether the topic holds so few rows that some go before everybody has them."""
        return self.in_memory and self.settings.memory_rows < 1000


def make_plan(random: Random) -> Plan:
    """Draw a plan."""
    relay = RelayConfig(
        topics=(NAME,),
        connections=random.choice((1, 2, 4)),
        in_flight=random.choice((5, 100, 65_536)),
        retry_initial_ns=random.choice((50, 300)) * MILLISECOND,
        retry_max_ns=random.choice((100, 1000)) * MILLISECOND,
        dial_timeout_ns=random.choice((50, 500)) * MILLISECOND,
        write_timeout_ns=500 * MILLISECOND,
    )
    shared, replicas = random.choice(((1, 0), (3, 0), (0, 2), (2, 3)))
    return Plan(
        config=Config(
            data_dir=DATA,
            node=NodeConfig(ack_flush_ns=random.choice((0, 10 * MILLISECOND))),
            events=EventsConfig(mode="off"),
            parts=(relay,),
        ),
        relay=relay,
        settings=TopicSettings(
            durability=random.choice(("os", "fsync", "memory")),
            shards=random.choice((1, 1, 2)),
            memory_rows=random.choice((30, 1_000_000)),
        ),
        shared=shared,
        replicas=replicas,
        gap_ns=random.choice((3, 15, 60)) * MILLISECOND,
        rows_max=random.choice((1, 5, 20)),
        endings=[some_ending(random) for _ in range(random.choice((1, 2, 3)))],
        latency_ns=random.choice((50_000, MILLISECOND, 5 * MILLISECOND)),
        slowness=random.choice((0.5, 1, 8)),
        fault_odds=random.choice((0.0, 0.05, 0.3)),
        trouble_ns=random.choice((40, 150, 500)) * MILLISECOND,
        crash_at_end=random.random() < 0.5,
    )
