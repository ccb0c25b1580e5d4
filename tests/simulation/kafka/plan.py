"""What one seed decides of a relay to Kafka: how both are configured, and what will go wrong."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from penstock.clock import MILLISECOND, SECOND
from penstock.config import Config, EventsConfig, NodeConfig
from penstock.relays.kafka.config import KafkaRelayConfig
from penstock.settings import TopicSettings
from tests.simulation.host import Ending, some_ending

DATA = "data"
PORTS = (9092, 9093, 9094)

#: Answers that make a relay ask anew, and send again; of the first kind Kafka has the messages nevertheless.
PAUSING_AFTER, PAUSING = (6, 7, 13), (2, 3, 5, 6, 7, 13)
#: Answers that cost messages; likewise.
COSTLY_AFTER, COSTLY = (7, 20), (10, 19, 87)
#: The producer is not known any more.
UNKNOWN_PRODUCER = (47, 59)
#: More attempts than any run has.
ENDLESS = 1_000_000


@dataclass(slots=True)
class Plan:
    """The decisions of one seed."""

    config: Config
    relay: KafkaRelayConfig
    #: Topics, and how many partitions each has in Kafka.
    topics: dict[str, tuple[TopicSettings, int]]
    brokers: int
    gap_ns: int
    rows_max: int
    endings: list[Ending]
    latency_ns: int
    slowness: float
    #: How long replicas take.
    commit_ns: int
    #: How likely a produce request meets a fault, and the mean time between two other troubles.
    fault_odds: float
    trouble_ns: int
    #: Kafka answers with errors that cost messages, or for which a producer has to be made anew.
    costly: bool
    forgets: bool
    crash_at_end: bool

    @property
    def is_forgetful(self) -> bool:
        """Whether a life may need a second producer: Kafka forgot the first, or what it may have was given up."""
        return self.forgets or self.costly or self.relay.failed_attempts_max < ENDLESS


def make_plan(random: Random) -> Plan:
    """Draw a plan."""
    brokers = random.choice((1, 2, 3, 3))
    topics = {
        f"t{number}": (
            TopicSettings(durability=random.choice(("os", "fsync")), shards=random.choice((1, 1, 2))),
            random.choice((1, 2, 4)),
        )
        for number in range(random.choice((1, 1, 2)))
    }
    batching = random.choice(("none", "none", "per_topic", "combined"))
    relay = KafkaRelayConfig(
        topics=tuple(topics),
        brokers=tuple(f"10.0.0.1:{port}" for port in PORTS[:brokers]),
        idempotence=random.random() < 0.8,
        requests=random.choice((1, 2, 5, 5)),
        request_bytes=random.choice((100, 1000, 1 << 20)),
        in_flight=random.choice((20, 1000)),
        in_flight_bytes=random.choice((2000, 1 << 20)),
        batching=batching,  # type: ignore[arg-type]
        batch_time_ns=30 * MILLISECOND,
        batch_messages=random.choice((0, 7)),
        combined_time_ns=30 * MILLISECOND,
        combined_messages=random.choice((0, 7)),
        compression=random.choice(("none", "gzip")),
        partition_keys=random.choice(("dory", "stable")),
        failed_attempts_max=random.choice((0, 2, ENDLESS, ENDLESS)),
        socket_timeout_ns=random.choice((300, 1500)) * MILLISECOND,
        metadata_refresh_ns=random.choice((200 * MILLISECOND, SECOND, 10 * SECOND)),
        metadata_compare=random.random() < 0.8,
        pause_min_ns=random.choice((1, 10)) * MILLISECOND,
        pause_initial_ns=random.choice((5, 40)) * MILLISECOND,
        pause_doublings=3,
        restart_max_delay_ns=random.choice((5, 100, 500)) * MILLISECOND,
        shutdown_max_delay_ns=random.choice((1, 200, 2000)) * MILLISECOND,
    )
    return Plan(
        config=Config(
            data_dir=DATA,
            node=NodeConfig(ack_flush_ns=random.choice((0, 10 * MILLISECOND))),
            events=EventsConfig(mode="off"),
            parts=(relay,),
        ),
        relay=relay,
        topics=topics,
        brokers=brokers,
        gap_ns=random.choice((3, 15, 60)) * MILLISECOND,
        rows_max=random.choice((1, 1, 5, 20)),
        endings=[some_ending(random) for _ in range(random.choice((2, 3, 4)))],
        latency_ns=random.choice((50_000, MILLISECOND, 5 * MILLISECOND)),
        slowness=random.choice((0.5, 1, 8)),
        commit_ns=random.choice((100_000, 2 * MILLISECOND, 20 * MILLISECOND)),
        fault_odds=random.choice((0.0, 0.1, 0.3, 0.3)),
        trouble_ns=random.choice((80, 300, 1000)) * MILLISECOND,
        costly=random.random() < 0.4,
        forgets=relay.idempotence and random.random() < 0.1,
        crash_at_end=random.random() < 0.5,
    )
