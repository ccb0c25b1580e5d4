"""All feeds from Kafka of one node."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator

from penstock.dialect import Peer, Sample
from penstock.feeds.kafka.config import KafkaFeedConfig
from penstock.feeds.kafka.feed import Feed
from penstock.node.node import Node

#: A feed that ends leaves its group; a Kafka that does not answer is not waited for.
LEAVE_S = 10.0

STATES = ("reading", "waiting", "away", "missing", "held")

_log = logging.getLogger("penstock.kafka")


class Feeds:
    """What runs while there are feeds."""

    def __init__(self, node: Node, config: KafkaFeedConfig, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.feeds = [Feed(node, feed, config, self._call_soon) for feed in config.feeds]
        self._addresses = {feed.name: ",".join(feed.brokers) for feed in config.feeds}
        for feed in self.feeds:
            feed.reader.start()

    def _call_soon(self, call: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:  # the loop is closed
            return

    async def drain(self) -> None:
        """Read nothing more, and leave the groups: what was stored is written down and told to Kafka."""
        for feed in self.feeds:
            feed.reader.end()
        ended = [asyncio.to_thread(feed.reader.join, LEAVE_S) for feed in self.feeds]
        for feed, has_ended in zip(self.feeds, await asyncio.gather(*ended), strict=True):
            if not has_ended:
                _log.warning("feed %s: Kafka does not answer; the group learns by itself that it is gone", feed.name)

    async def close(self) -> None:
        """Do nothing more."""
        for feed in self.feeds:
            feed.close()

    def samples(self) -> Iterator[Sample]:
        """Return the figures of each feed."""
        for feed in self.feeds:
            labels = {"feed": feed.name}
            for name, text, value in (
                ("messages_total", "Records that became messages.", feed.rows),
                ("bytes_total", "Bytes of their values.", feed.bytes),
                ("tombstones_skipped_total", "Records without a value that were passed over.", feed.skipped),
                ("refused_total", "Records that no message can be made of.", feed.refused),
                ("missed_total", "Records that Kafka dropped before they were read.", feed.missed),
                ("retries_total", "Times that the node did not take what was read.", feed.retried),
            ):
                yield Sample(name, "counter", text, value, labels)
            yield Sample("lag", "gauge", "Records that are not read yet.", feed.behind, labels)
            yield Sample("partitions", "gauge", "Partitions that this node reads.", feed.partitions, labels)
            held = "Bytes that were read and are not stored, and those that librdkafka has fetched ahead."
            yield Sample("held_bytes", "gauge", held, feed.held_bytes + feed.ahead_bytes, labels)
            yield Sample("is_paused", "gauge", "1 while there is no room for more.", feed.reader.is_paused, labels)
            state = feed.state
            for each in STATES:
                shown = {**labels, "state": each}
                yield Sample("state", "gauge", "1 for what the feed is doing.", float(each == state), shown)

    def peers(self) -> Iterator[Peer]:
        """Return the Kafkas that are read."""
        for feed in self.feeds:
            if "brokers" not in feed.wrong:
                yield Peer(self._addresses[feed.name], "kafka_feed", name=feed.name)
