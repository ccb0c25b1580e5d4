"""The meter: measures how long messages of every channel take, where the node is asked to.

Owns which channel has which sketch. Hears of finished messages from the subscriptions, by id, and looks their times
up in the log; what is not in memory any more is not measured.
Invariant: without percentiles to show there is no meter, and an ack costs one look at None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from weakref import WeakKeyDictionary

import numpy as np

from penstock.columns import OFFSET_BITS, SMALL, Offsets, place_of
from penstock.delivery.subscription import Subscription
from penstock.dialects.nsq.stats.latency import BUCKETS, Latency, Percentiles, percentiles
from penstock.message import Batch
from penstock.node.node import Change, Node
from penstock.node.topic import Topic

#: One group of acks is measured in at most this many batches, spread over all of it: 1,000 lone messages that are
#: acked together would otherwise cost 1,000 looks into the log.
LOOKS_MAX = 64

_NONE = Percentiles()


class Meter:
    """Latencies of all channels of a node."""

    def __init__(self, node: Node, quantiles: Sequence[float], window_ns: int) -> None:
        self._node = node
        self._quantiles = tuple(quantiles)
        self._window_ns = window_ns
        self._latencies: WeakKeyDictionary[Subscription, Latency] = WeakKeyDictionary()
        if self._quantiles:
            node.watchers.append(self._changed)
            for topic in node.topics.values():
                for subscription in topic.subscriptions.values():
                    self._attach(topic, subscription)

    def close(self) -> None:
        """Measure nothing more."""
        if self._changed in self._node.watchers:
            self._node.watchers.remove(self._changed)
        for subscription in list(self._latencies):
            subscription.on_ack = None

    def of(self, subscriptions: Iterable[Subscription]) -> Percentiles:
        """Return the percentiles over all messages of some channels."""
        if not self._quantiles:
            return _NONE
        now_ns = self._node.clock.monotonic()
        counts = np.zeros(BUCKETS, np.int64)
        for subscription in subscriptions:
            latency = self._latencies.get(subscription)
            if latency is not None:
                counts += latency.counts(now_ns)
        return percentiles(counts, self._quantiles)

    def _changed(self, event: Change, topic: Topic, subscription: Subscription | None) -> None:
        if event == "created" and subscription is not None:
            self._attach(topic, subscription)

    def _attach(self, topic: Topic, subscription: Subscription) -> None:
        latency = self._latencies[subscription] = Latency(self._window_ns, self._node.clock.monotonic())
        subscription.on_ack = partial(self._acked, topic, latency)

    def _acked(self, topic: Topic, latency: Latency, ids: list[int] | Offsets) -> None:
        """Measure finished messages. Budget: 2 us for a lone one, 30 ns each from 1,000 of one batch on."""
        clock = self._node.clock
        now_ns, monotonic_ns = clock.now(), clock.monotonic()
        if isinstance(ids, list) and len(ids) <= SMALL:
            for id_ in ids:
                shard, offset = place_of(id_)
                batch = topic.shards[shard].read(offset)
                if batch is not None and batch.first <= offset:
                    latency.add(now_ns - batch.row_time(offset - batch.first), 1, monotonic_ns)
            return
        places = np.sort(np.asarray(ids, np.int64) - 1)
        shards = places >> OFFSET_BITS
        for number in np.unique(shards).tolist():
            offsets = places[shards == number] - (number << OFFSET_BITS)
            _walk(topic.shards[number].read, offsets, partial(_measure, latency, now_ns, monotonic_ns))


def _walk(read: Callable[[int], Batch | None], offsets: Offsets, measure: Callable[[Batch, Offsets], None]) -> None:
    """Call `measure` with the batches that hold ascending offsets, and which of their rows those are."""
    step = len(offsets) // LOOKS_MAX
    at = 0
    while at < len(offsets):
        batch = read(int(offsets[at]))
        if batch is None:
            at += max(step, 1)
            continue
        stop = int(np.searchsorted(offsets, batch.end))
        rows = offsets[at:stop] - batch.first
        measure(batch, rows[rows >= 0])
        at = max(stop, at + step)


def _measure(latency: Latency, now_ns: int, monotonic_ns: int, batch: Batch, rows: Offsets) -> None:
    if isinstance(batch.timestamp, int):
        latency.add(now_ns - batch.timestamp, len(rows), monotonic_ns)
    else:
        latency.add_all(now_ns - np.asarray(batch.timestamp, np.int64)[rows], monotonic_ns)
