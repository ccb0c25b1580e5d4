"""What a seed decides of queues: which there are, beside NSQ's topics and for their clients too, and who uses them."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import msgspec

from penstock.clock import MILLISECOND
from penstock.dialects.dynamiq.choices import DynamiqChoices
from penstock.dialects.dynamiq.queue import SETTINGS as PARTITIONED
from penstock.dialects.sqs.attributes import fresh
from penstock.dialects.sqs.choices import SqsChoices
from penstock.settings import SubscriptionSettings, TopicSettings


@dataclass(slots=True)
class QueuePlan:
    """One queue."""

    topic: str
    #: Who talks to it: how many clients of SQS, and how many of Dynamiq's two versions.
    sqs: int
    dynamiq: int
    v2: int
    #: Between two requests of a client.
    gap_ns: int
    #: Its partitions are cut anew now and then.
    restless: bool
    settings: SubscriptionSettings

    @property
    def is_fifo(self) -> bool:
        """Whether it keeps the order of groups."""
        return self.topic.endswith(".fifo")


def some_queue(random: Random, topic: TopicSettings) -> tuple[QueuePlan, TopicSettings]:
    """Return a queue, and its topic with what was chosen of it."""
    kind = random.choice(("standard", "fifo", "fifo", "partitions", "partitions"))
    visibility_ns = random.choice((150, 300, 600)) * MILLISECOND
    name = "q0.fifo" if kind == "fifo" else "q0"
    settings = PARTITIONED if kind == "partitions" else fresh(name).settings
    settings = msgspec.structs.replace(settings, lease_ns=visibility_ns, ttl_ns=0)
    queue = QueuePlan(
        topic=name,
        sqs=random.choice((1, 2, 3)) if kind != "partitions" else random.choice((0, 0, 1)),
        dynamiq=random.choice((1, 2, 3)) if kind == "partitions" else 0,
        gap_ns=random.choice((3, 10, 30)) * MILLISECOND,
        restless=random.random() < 0.5,
        v2=random.choice((0, 1, 1, 2)),
        settings=settings,
    )
    if kind == "fifo":
        return queue, SqsChoices(fifo=True).put(topic)
    if kind == "standard":
        return queue, topic
    least = random.choice((1, 1, 3))
    chosen = DynamiqChoices(
        visibility_ns=visibility_ns, min_partitions=least, max_partitions=least + random.choice((0, 2, 6))
    )
    return queue, chosen.put(topic)
