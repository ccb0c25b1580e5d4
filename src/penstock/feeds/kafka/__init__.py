"""Kafka in: records of Kafka's topics become messages, each once, by librdkafka."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.config import Config
from penstock.dialect import Bound, Dialect, Running
from penstock.feeds.kafka.config import KafkaFeedConfig, check

if TYPE_CHECKING:
    from penstock.node.node import Node


async def start(node: Node, config: Config, bound: Mapping[str, Bound]) -> Running:
    """Begin to read."""
    import asyncio

    from penstock.feeds.kafka.feeds import Feeds

    return Feeds(node, config.of(KafkaFeedConfig), asyncio.get_running_loop())


FEED = Dialect(
    "kafka_feed",
    KafkaFeedConfig,
    check,
    lambda config: (),
    start,
    is_on=lambda config: bool(config.of(KafkaFeedConfig).feeds),
)
