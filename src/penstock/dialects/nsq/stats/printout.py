"""The stats as text, for people with curl: nsqd's layout, line by line.

Owns columns and units. Everything said comes from the document of `stats`.
"""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from penstock import __version__
from penstock.clock import SECOND
from penstock.dialects.nsq.stats.document import Channel, Client, Memory, Stats, TopicStats
from penstock.dialects.nsq.stats.latency import Percentiles

_UNITS = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us"))


def printout(stats: Stats, started_ns: int, now_ns: int) -> str:
    """Return the page that /stats shows without `format=json`."""
    started = datetime.fromtimestamp(started_ns // SECOND, UTC).isoformat().replace("+00:00", "Z")
    lines = [
        f"nsqd v{stats.version} (built w/penstock-{__version__})",
        f"start_time {started}",
        f"uptime {duration(now_ns - started_ns)}",
        "",
        f"Health: {stats.health}",
    ]
    if stats.memory is not msgspec.UNSET:
        lines += ["", "Memory:", *_memory(stats.memory)]
    topics = stats.topics or []
    lines += ["", "Topics:" if topics else "Topics: None"]
    for number, topic in enumerate(topics):
        lines += [*([""] if number else []), *_topic(topic, now_ns)]
    lines += ["", "Producers:" if stats.producers else "Producers: None"]
    lines += [f"   {_client(client, now_ns)}" for client in stats.producers or []]
    return "\n".join(lines) + "\n"


def duration(ns: int) -> str:
    """Return a duration as Go writes it: 1h2m3.5s, 250ms, 0s."""
    if ns < SECOND:
        for unit_ns, unit in _UNITS[1:]:
            if ns >= unit_ns:
                return f"{_trimmed(ns / unit_ns)}{'µs' if unit == 'us' else unit}"
        return f"{ns}ns" if ns > 0 else "0s"
    minutes, rest_ns = divmod(ns, 60 * SECOND)
    hours, minutes = divmod(minutes, 60)
    whole, fraction = divmod(rest_ns, SECOND)
    seconds = f"{whole}.{fraction:09d}".rstrip("0").rstrip(".") + "s"
    return f"{hours}h{minutes}m{seconds}" if hours else f"{minutes}m{seconds}" if minutes else seconds


def _memory(memory: Memory) -> list[str]:
    return [f"   {name:<25}\t{value}" for name, value in msgspec.structs.asdict(memory).items()]


def _topic(topic: TopicStats, now_ns: int) -> list[str]:
    head = (
        f"{'*P ' if topic.paused else '   '}[{topic.topic_name:<15}] depth: {topic.depth:<5} "
        f"be-depth: {topic.backend_depth:<5} msgs: {topic.message_count:<8} "
        f"e2e%: {_latency(topic.e2e_processing_latency)}"
    )
    return [head, *(line for channel in topic.channels for line in _channel(channel, now_ns))]


def _channel(channel: Channel, now_ns: int) -> list[str]:
    head = (
        f"{'   *P ' if channel.paused else '      '}[{channel.channel_name:<25}] depth: {channel.depth:<5} "
        f"be-depth: {channel.backend_depth:<5} inflt: {channel.in_flight_count:<4} def: {channel.deferred_count:<4} "
        f"re-q: {channel.requeue_count:<5} timeout: {channel.timeout_count:<5} msgs: {channel.message_count:<8} "
        f"e2e%: {_latency(channel.e2e_processing_latency)}"
    )
    return [head, *(f"        {_client(client, now_ns)}" for client in channel.clients or [])]


def _client(client: Client, now_ns: int) -> str:
    port = client.remote_address.rpartition(":")[2]
    who = f"{client.hostname}:{port} {client.user_agent}"
    connected = duration(max(now_ns // SECOND - client.connect_ts, 0) * SECOND)
    if client.pub_counts is not msgspec.UNSET:
        total = sum(one.count for one in client.pub_counts)
        topics = ",".join(f"{one.topic}={one.count}" for one in client.pub_counts)
        return f"[{client.version} {who:<21}] msgs: {total:<8} topics: {topics} connected: {connected}"
    return (
        f"[{client.version} {who:<21}] state: {client.state} inflt: {client.in_flight_count:<4} "
        f"rdy: {client.ready_count:<4} fin: {client.finish_count:<8} re-q: {client.requeue_count:<8} "
        f"msgs: {client.message_count:<8} connected: {connected}"
    )


def _latency(latency: Percentiles) -> str:
    return ", ".join(_human(one.value) for one in latency.percentiles or [])


def _human(ns: float) -> str:
    for unit_ns, unit in _UNITS:
        if ns > unit_ns:
            return f"{ns / unit_ns:.1f}{unit}"
    return f"{ns:.1f}ns"


def _trimmed(number: float) -> str:
    return f"{number:.6f}".rstrip("0").rstrip(".")
