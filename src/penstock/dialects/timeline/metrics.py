"""Metrics of timelines: one table of families, each with its name here and the one that ChronoQueue's note gave it.

Every family has a sample from the start, with the topic "", so that whoever draws a picture finds all names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Literal, NamedTuple, Protocol, TypeAlias, get_args

from penstock.cluster.drift import TARGETS, Drift
from penstock.cluster.figures import (
    BOUNDS_S,
    DELIVERY_BOUNDS_S,
    WINDOWS,
    Direction,
    Figures,
    Histogram,
    LeaseOp,
    Levels,
    MessageOp,
    Partner,
    Query,
    Role,
    TopicOp,
)
from penstock.cluster.health import REASONS, Health
from penstock.dialect import Families, Labels

Sample: TypeAlias = tuple[Labels, float]

#: What clients may ask for, as the protocol calls it.
COMMANDS = (
    "create", "delete", "redeal", "producer-handshake", "consumer-handshake", "info", "ping", "create-messages",
    "consume", "delete-messages", "extend-lease", "release", "count", "unsubscribe",
)  # fmt: skip


class BrokerSlots(Protocol):
    """What is read of a node as a broker of timelines."""

    @property
    def cluster(self) -> str:
        """The cluster it belongs to."""

    @property
    def figures(self) -> Figures:
        """What happened."""

    @property
    def health(self) -> Health:
        """How well it is."""

    @property
    def drift(self) -> Drift:
        """The clocks of others."""

    @property
    def bucket_moves(self) -> Mapping[str, int]:
        """Buckets that went to another consumer, by topic."""


class Family(NamedTuple):
    """A counter or a gauge: its name in ChronoQueue's note ("" if it has none there), its own, and its samples."""

    note: str
    name: str
    kind: Literal["counter", "gauge"]
    text: str
    samples: Sequence[Sample]


def describe(out: Families, broker: BrokerSlots, *, seed_names: bool) -> None:
    """Add everything there is to say about timelines."""
    constant = {"cluster": broker.cluster}
    for family in _families(broker):
        samples = [({**labels, **constant}, value) for labels, value in family.samples]
        out.family(f"penstock_{family.name}", family.kind, family.text, samples)
        if seed_names and family.note:
            out.family(family.note, family.kind, family.text, samples)
    for note, name, text, bounds_s, found in _histograms(broker.figures):
        counted = [({**labels, **constant}, each.counts, each.sum_s) for labels, each in found]
        out.histogram(f"penstock_{name}", text, bounds_s, counted)
        if seed_names and note:  # in milliseconds there
            in_ms = [(labels, counts, total * 1000) for labels, counts, total in counted]
            out.histogram(note, text, [round(bound * 1000, 3) for bound in bounds_s], in_ms)


def _families(broker: BrokerSlots) -> Iterator[Family]:
    figures = broker.figures
    levels = list(figures.levels())
    yield from _of_topics(figures, levels)
    yield from _of_broker(broker)
    yield from _of_storage(figures)
    yield from _of_network(figures, levels)
    moved = [({"topic": topic}, count) for topic, count in {"": 0, **broker.bucket_moves}.items()]
    yield Family("", "dealer_bucket_moves_total", "counter", "Buckets that went to another consumer.", moved)
    over = [({"topic": topic}, count) for topic, count in {"": 0, **figures.over_capacity}.items()]
    text = "Clients sent to a broker that has as many of their topic as it should."
    yield Family("", "selector_over_capacity_total", "counter", text, over)


def _of_topics(figures: Figures, levels: Sequence[Levels]) -> Iterator[Family]:
    failed, asked = "Those that failed.", "Messages, by what somebody wanted of them."
    made = "Topics that somebody wanted made or deleted."
    for counts, ops, note, name, text in (
        (figures.topic_commands, TopicOp, "Topic_commands_count", "topic_commands_total", made),
        (figures.topic_command_errors, TopicOp, "Topic_commands_errors", "topic_command_errors_total", failed),
        (figures.messages, MessageOp, "topic_Messages_count", "topic_messages_total", asked),
        (figures.message_errors, MessageOp, "topic_messages_errors", "topic_message_errors_total", failed),
        (figures.leases, LeaseOp, "topic_Leases_count", "topic_leases_total", "Leases, by what became of them."),
        (figures.lease_errors, LeaseOp, "topic_Leases_errors", "topic_lease_errors_total", failed),
    ):
        yield Family(note, name, "counter", text, _by(counts, "op", get_args(ops)))
    sizes = [({"topic": topic}, size) for topic, size in {"": 0, **figures.lease_bytes}.items()]
    text = "Bodies that were leased."
    yield Family("topic_Leases_body_total_bytes", "topic_lease_body_bytes_total", "counter", text, sizes)
    none = Levels("", waiting=((0,) * WINDOWS,))
    there = [none, *levels]
    available = [({"topic": each.topic}, each.available) for each in there]
    text = "Messages that could go out now."
    yield Family("topic_Available_messages_count", "topic_available_messages", "gauge", text, available)
    waiting = [
        ({"topic": each.topic, "shard": str(shard), "window": str(window)}, count)
        for each in there
        for shard, windows in enumerate(each.waiting)
        for window, count in enumerate(windows, start=1)
    ]
    text = "Messages due in each of the coming time windows, by shard."
    yield Family("topic_Waiting_messages_count_bucket", "topic_waiting_messages", "gauge", text, waiting)
    processing = [({"topic": each.topic}, each.processing) for each in there]
    yield Family("", "topic_processing_messages", "gauge", "Messages on lease.", processing)


def _of_broker(broker: BrokerSlots) -> Iterator[Family]:
    figures = broker.figures
    for counts, note, name, text in (
        (figures.commands, "broker_commands_count", "broker_commands_total", "Commands, once each."),
        (figures.command_errors, "broker_commands_errors", "broker_command_errors_total", "Those that failed."),
    ):
        yield Family(note, name, "counter", text, _by(counts, "command", COMMANDS))
    drifting = {(each.target, each.topic): each for each in broker.drift.levels()}
    keys = [*((target, "") for target in TARGETS if (target, "") not in drifting), *drifting]
    active: list[Sample] = []
    offsets: list[Sample] = []
    for target, topic in keys:
        each = drifting.get((target, topic))
        labels = {"target": target, "topic": topic}
        active.append((labels, each.active if each else 0))
        offsets.append((labels, each.mean_ms / 1000 if each else 0.0))
    text = "Clocks that are more than 100 ms from this one."
    yield Family("broker_Active_timedrifts_count", "broker_active_timedrifts", "gauge", text, active)
    text = "How far those are ahead, on average."
    yield Family("broker_Active_timedrifts_seconds_avg", "broker_timedrift_seconds", "gauge", text, offsets)
    found = {(reason, topic): int(is_active) for reason, topic, is_active in broker.health.levels()}
    states = {(reason, ""): 0 for reason in REASONS} | found
    shown = [({"type": reason, "topic": topic}, value) for (reason, topic), value in states.items()]
    text = "1 while the broker is degraded for a reason."
    yield Family("broker_Degradation_state", "broker_degradation_state", "gauge", text, shown)


def _of_storage(figures: Figures) -> Iterator[Family]:
    queries = [(_query(query), sum(each.counts)) for query, each in _queries(figures)]
    text = "What was asked of the storage."
    yield Family("storage_queries_count", "storage_queries_total", "counter", text, queries)
    errors = [(_query(query), figures.query_errors[query]) for query, _ in _queries(figures)]
    yield Family("storage_queries_errors", "storage_query_errors_total", "counter", "What of that failed.", errors)


def _of_network(figures: Figures, levels: Sequence[Levels]) -> Iterator[Family]:
    zero = dict.fromkeys(((*pair, "") for pair in product(get_args(Direction), get_args(Partner))), 0)
    sizes = [
        ({"direction": direction, "partner": partner, "topic": topic}, size)
        for (direction, partner, topic), size in {**zero, **figures.network_bytes}.items()
    ]
    text = "Bytes of messages, by where they came from or went."
    yield Family("Network_broker_bytes_total", "network_bytes_total", "counter", text, sizes)
    text = "Connections that are open."
    connections: list[Sample] = [({}, figures.connections())]
    yield Family("network_broker_tcp_connections_total", "network_tcp_connections", "gauge", text, connections)
    channels: list[Sample] = []
    for each in [Levels(""), *levels]:
        channels.append(({"type": "consumer", "topic": each.topic}, each.consumers))
        channels.append(({"type": "producer", "topic": each.topic}, each.producers))
    text = "Clients that greeted and are here."
    yield Family("Networkbroker_active_channels_total", "network_active_channels", "gauge", text, channels)
    failed = _by(figures.channel_errors, "type", get_args(Role))
    text = "Streams and requests of clients that ended in error."
    yield Family("Networkbroker_active_channels_errors", "network_channel_errors_total", "counter", text, failed)


def _histograms(
    figures: Figures,
) -> Iterator[tuple[str, str, str, tuple[float, ...], Iterable[tuple[Labels, Histogram]]]]:
    queries = [(_query(query), each) for query, each in _queries(figures)]
    text = "How long the storage took."
    yield "storage_query_duration_ms", "storage_query_duration_seconds", text, BOUNDS_S, queries
    zero = {(partner, ""): Histogram() for partner in get_args(Partner)}
    latencies = [
        ({"partner": partner, "topic": topic}, each) for (partner, topic), each in {**zero, **figures.latencies}.items()
    ]
    text = "How long partners take to answer."
    yield "Network_broker_latency_ms", "network_latency_seconds", text, BOUNDS_S, latencies
    late = {"": Histogram(DELIVERY_BOUNDS_S), **figures.deliveries}
    text = "From a message's due time to its push."
    found = [({"topic": topic}, each) for topic, each in late.items()]
    yield "", "topic_delivery_latency_seconds", text, DELIVERY_BOUNDS_S, found


def _by(counts: Mapping[tuple[str, str], int], label: str, values: Iterable[str]) -> list[Sample]:
    zero = {(value, ""): 0 for value in values}
    return [({label: value, "topic": topic}, count) for (value, topic), count in {**zero, **counts}.items()]


def _queries(figures: Figures) -> Iterator[tuple[Query, Histogram]]:
    nothing = Query("read", "range", "all", "")
    yield nothing, figures.queries.get(nothing, Histogram())
    yield from ((query, each) for query, each in figures.queries.items() if query != nothing)


def _query(query: Query) -> Labels:
    return {"op": query.op, "type": query.type, "filter": query.filter, "topic": query.topic}
