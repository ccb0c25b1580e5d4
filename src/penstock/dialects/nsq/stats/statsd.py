"""The stats of a node under nsqd's StatsD names, so that its dashboards go on working.

Owns names and which values are counters; how they are sent is `wire.statsd`'s.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from penstock.clock import Clock
from penstock.dialects.nsq.config import NsqConfig
from penstock.dialects.nsq.stats.document import Channel, Observer, TopicStats, memory_of_process
from penstock.dialects.nsq.stats.latency import Percentiles
from penstock.dialects.nsq.topics import EPHEMERAL
from penstock.wire.statsd import Dial, Sample, Statsd, Totals


def sender(observer: Observer, clock: Clock, config: NsqConfig, host: str, dial: Dial) -> Statsd:
    """Return what sends a node's stats as the configuration says; `host` is where others find the node."""
    return Statsd(
        Totals(partial(samples, observer, config), prefix(config.statsd_prefix, host)).lines,
        clock,
        dial,
        interval_ns=config.statsd_interval_ns,
        packet_bytes_max=config.statsd_udp_packet_size,
    )


def prefix(pattern: str, host: str) -> str:
    """Return what stands before every name: `nsq.%s` with a host is `nsq.127_0_0_1_4151.`."""
    text = pattern.replace("%s", host.replace(".", "_").replace(":", "_"))
    return text if not text or text.endswith(".") else f"{text}."


def samples(observer: Observer, config: NsqConfig) -> Iterator[Sample]:
    """Yield everything, under nsqd's names."""
    skip = config.statsd_exclude_ephemeral
    for topic in observer.topics() or []:
        if skip and topic.topic_name.endswith(EPHEMERAL):
            continue
        yield from _of_topic(topic)
        for channel in topic.channels:
            if not (skip and channel.channel_name.endswith(EPHEMERAL)):
                yield from _of_channel(f"topic.{topic.topic_name}.channel.{channel.channel_name}", channel)
    if config.statsd_mem_stats:
        memory = memory_of_process()
        yield from (
            (f"mem.{field}", getattr(memory, field), False)
            for field in memory.__struct_fields__
            if field != "gc_total_runs"
        )
        yield "mem.gc_runs", memory.gc_total_runs, True


def _of_topic(topic: TopicStats) -> Iterator[Sample]:
    name = f"topic.{topic.topic_name}"
    yield f"{name}.message_count", topic.message_count, True
    yield f"{name}.message_bytes", topic.message_bytes, True
    yield f"{name}.depth", topic.depth, False
    yield f"{name}.backend_depth", topic.backend_depth, False
    yield from _of_latency(name, topic.e2e_processing_latency)


def _of_channel(name: str, channel: Channel) -> Iterator[Sample]:
    yield f"{name}.message_count", channel.message_count, True
    yield f"{name}.depth", channel.depth, False
    yield f"{name}.backend_depth", channel.backend_depth, False
    yield f"{name}.in_flight_count", channel.in_flight_count, False
    yield f"{name}.deferred_count", channel.deferred_count, False
    yield f"{name}.requeue_count", channel.requeue_count, True
    yield f"{name}.timeout_count", channel.timeout_count, True
    yield f"{name}.clients", channel.client_count, False
    yield from _of_latency(name, channel.e2e_processing_latency)


def _of_latency(name: str, latency: Percentiles) -> Iterator[Sample]:
    for one in latency.percentiles or []:
        yield f"{name}.e2e_processing_latency_{one.quantile * 100:.0f}", int(one.value), False
