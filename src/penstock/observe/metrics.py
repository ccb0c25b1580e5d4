"""The metrics of a node: its own counters, read when somebody scrapes.

Owns the names. The core never calls anything here; it only counts in slots of its own, which cost nothing per message.
A counter starts at zero with the process, and a subscription's counts with its last seek: Prometheus expects that.
"""

from __future__ import annotations

import os
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from typing import Any, Literal, Protocol, TypeAlias

from penstock.budget import Share
from penstock.callers.account import Account
from penstock.clock import SECOND
from penstock.config.tree import MetricsConfig
from penstock.delivery.durations import BOUNDS_NS, Durations
from penstock.delivery.subscription import Subscription
from penstock.discards import Discards, shown
from penstock.filters.traffic import unknown
from penstock.intake.ledger import Ledger
from penstock.log.quota import Quota
from penstock.log.shard import Shard
from penstock.observe import pipelines, quotas
from penstock.observe.exposition import NO_LABELS, Exposition, Labels
from penstock.observe.lag import LoopLag
from penstock.registry import registry
from penstock.registry.records import TopicRecord
from penstock.settings import TopicSettings

#: What a dialect says of itself: name without its own, kind, text, value, labels.
Figure: TypeAlias = "tuple[str, Literal['counter', 'gauge'], str, float, Labels]"


class IntakeSlots(Protocol):
    """What is read of a topic's intake."""

    published: int
    published_bytes: int

    @property
    def forgotten_keys(self) -> int:
        """Idempotence keys dropped inside their window because there were too many."""


class TopicSlots(Protocol):
    """What is read of a topic."""

    @property
    def intake(self) -> IntakeSlots:
        """The way in."""

    @property
    def shards(self) -> Sequence[Shard]:
        """Its pieces of the log."""

    @property
    def subscriptions(self) -> Mapping[str, Subscription]:
        """Its subscriptions by name."""

    @property
    def settings(self) -> TopicSettings:
        """What the user chose."""

    @property
    def record(self) -> TopicRecord:
        """What the registry knows of it."""

    def depth(self) -> int:
        """Return the rows that no subscription has."""

    def stored_bytes(self) -> int:
        """Return what its segments hold."""


class TransactionSlots(Protocol):
    """What is read of the transactions."""

    committed: int

    @property
    def failed(self) -> int:
        """Batches that cannot be finished."""


class GateSlots(Protocol):
    """What is read of the gate."""

    @property
    def refusals(self) -> Mapping[tuple[str, str], int]:
        """Callers that were refused, by reason and listener."""

    @property
    def accounts(self) -> Iterable[Account]:
        """What users with a quota have of it."""


class RegistrySlots(Protocol):
    """What is read of the registry."""

    def figures(self) -> Iterable[registry.Figure]:
        """Return what there is to measure."""


class ShareSlots(Protocol):
    """What is read of a node's share of a cluster."""

    def figures(self) -> Iterable[registry.Figure]:
        """Return what there is to measure."""


class PolicySlots(Protocol):
    """What is read of a routing policy in etcd."""

    revision: int
    is_current: bool

    @property
    def counts(self) -> Mapping[Any, int]:
        """What happened, by kind."""


class RoutingSlots(Protocol):
    """What is read of the routing mapping in force."""

    @property
    def mapping(self) -> Mapping[str, int]:
        """The bit of each traffic type."""

    @property
    def policy(self) -> PolicySlots | None:
        """The policy in etcd that it comes from."""


class NodeSlots(Protocol):
    """What is read of a node."""

    started_ns: int
    bugs: int
    stopping: bool
    ledger: Ledger
    discards: Discards
    quota: Quota

    @property
    def share(self) -> ShareSlots | None:
        """What it has of a cluster's topics."""

    @property
    def routing(self) -> RoutingSlots:
        """The routing mapping in force."""

    def memory(self) -> Sequence[Share]:
        """Return what each part of its memory holds now."""

    @property
    def transactions(self) -> TransactionSlots:
        """What becomes of staged batches."""

    @property
    def gate(self) -> GateSlots:
        """Says who may do what."""

    @property
    def staging(self) -> Sized:
        """Batches that tasks staged and nobody committed yet."""

    @property
    def holds(self) -> Sized:
        """Offsets that readers outside still need."""

    @property
    def pipelines(self) -> pipelines.PipelineSlots:
        """The pipelines it has heard of."""

    @property
    def registry(self) -> RegistrySlots:
        """Remembers topics."""

    @property
    def topics(self) -> Mapping[str, TopicSlots]:
        """Its topics by name."""


def exposition(
    node: NodeSlots,
    lag: LoopLag,
    version: str,
    served: Mapping[str, Iterable[Figure]],
    connected: Mapping[str, int],
    described: Iterable[Callable[[Exposition], None]],
    settings: MetricsConfig,
) -> str:
    """Return everything there is to say about a node and those who serve it, in Prometheus' text format."""
    out = Exposition(settings.labels)
    _node(out, node, lag, version)
    _topics(out, node.topics)
    _subscriptions(out, node.topics)
    _missing(out, node)
    pipelines.describe(out, node.pipelines)
    for describe in described:
        describe(out)
    found = [({"dialect": name}, count) for name, count in connected.items()]
    out.family("penstock_connections", "gauge", "Who is connected, as the list of peers tells, by dialect.", found)
    _served(out, served)
    _describe_process(out)
    return out.text()


def _node(out: Exposition, node: NodeSlots, lag: LoopLag, version: str) -> None:
    out.one("penstock_up", "gauge", "1 while the node takes messages, 0 while it stops.", int(not node.stopping))
    out.family("penstock_build_info", "gauge", "The version that runs, always 1.", [({"version": version}, 1)])
    out.one("penstock_start_time_seconds", "gauge", "When the node started, in unix time.", node.started_ns / SECOND)
    out.one("penstock_bugs_total", "counter", "Failures inside the node that should not exist.", node.bugs)
    _memory(out, node)
    stored = sum(topic.stored_bytes() for topic in node.topics.values())
    out.one("penstock_stored_bytes", "gauge", "What the segments of all topics hold.", stored)
    out.one("penstock_quota_bytes", "gauge", "They may hold this much; 0 is no limit.", node.quota.bytes_max)
    out.one("penstock_staged_attempts", "gauge", "Attempts of Spark tasks not committed yet.", len(node.staging))
    out.one("penstock_commits_total", "counter", "Batches of Spark queries committed.", node.transactions.committed)
    failed = node.transactions.failed
    out.one("penstock_commits_failed", "gauge", "Batches that were staged, are damaged and cannot be finished.", failed)
    out.one("penstock_holds", "gauge", "Holds of readers outside on the log.", len(node.holds))
    for figure in node.registry.figures():
        out.one(f"penstock_registry_{figure.name}", figure.kind, figure.text, figure.value)
    for figure in node.share.figures() if node.share is not None else ():
        out.one(f"penstock_cluster_{figure.name}", figure.kind, figure.text, figure.value)
    out.family(
        "penstock_ledger_messages_total",
        "counter",
        "Everything refused or dropped, by reason and topic.",
        [({"reason": entry.reason, "topic": entry.topic}, entry.count) for entry in node.ledger.entries()],
    )
    thrown = [({"reason": of, "topic": shown(topic)}, count) for (of, topic), count in node.discards.totals.items()]
    out.family("penstock_discarded_messages_total", "counter", "What was thrown away, by reason and topic.", thrown)
    twice = [({"topic": shown(topic)}, count) for topic, count in node.discards.duplicates.items()]
    text = "Messages sent again without knowing what became of them, by topic."
    out.family("penstock_possible_duplicates_total", "counter", text, twice)
    refused = [({"reason": reason, "listener": at}, count) for (reason, at), count in node.gate.refusals.items()]
    text = "Callers that were refused, by reason and listener."
    out.family("penstock_callers_refused_total", "counter", text, refused)
    quotas.describe(out, node.gate.accounts, Counter(topic.record.owner for topic in node.topics.values()))
    out.histogram(
        "penstock_loop_lag_seconds",
        "How late the event loop called a timer, four times a second.",
        lag.bounds_s,
        [(NO_LABELS, lag.counts, lag.sum_ns / SECOND)],
    )


def _served(out: Exposition, served: Mapping[str, Iterable[Figure]]) -> None:
    for name, figures in served.items():
        families: dict[tuple[str, Literal["counter", "gauge"], str], list[tuple[Labels, float]]] = {}
        for figure, kind, text, value, labels in figures:
            families.setdefault((f"penstock_{name}_{figure}", kind, text), []).append((labels, value))
        for family, samples in families.items():
            out.family(*family, samples)


def _memory(out: Exposition, node: NodeSlots) -> None:
    parts = node.memory()
    kinds = "Memory held for others, by part of the budget."
    out.family("penstock_memory_bytes", "gauge", kinds, [({"part": each.name}, each.used) for each in parts])
    most = [({"part": each.name}, each.bytes_max) for each in parts]
    out.family("penstock_memory_max_bytes", "gauge", "Each part may hold this much.", most)
    refused = [({"part": each.name}, each.refused) for each in parts]
    told = "How often somebody was refused, cut off or lost rows because a part was full, or let it wait for too long."
    out.family("penstock_memory_refusals_total", "counter", told, refused)


def _topics(out: Exposition, topics: Mapping[str, TopicSlots]) -> None:
    found = [({"topic": name}, topic) for name, topic in topics.items()]
    out.one("penstock_topics", "gauge", "Topics on this node.", len(found))
    prefix = "penstock_topic_"
    published = [(labels, topic.intake.published) for labels, topic in found]
    sizes = [(labels, topic.intake.published_bytes) for labels, topic in found]
    depths = [(labels, topic.depth()) for labels, topic in found]
    out.family(prefix + "published_messages_total", "counter", "Messages taken and stored.", published)
    out.family(prefix + "published_bytes_total", "counter", "Bodies of messages taken and stored.", sizes)
    out.family(prefix + "depth_messages", "gauge", "Messages that no subscription has yet.", depths)
    stored = [(labels, topic.stored_bytes()) for labels, topic in found]
    quotas = [(labels, topic.settings.quota_bytes) for labels, topic in found]
    out.family(prefix + "stored_bytes", "gauge", "What its segments hold.", stored)
    out.family(prefix + "quota_bytes", "gauge", "They may hold this much; 0 is no limit.", quotas)
    forgotten = [(labels, topic.intake.forgotten_keys) for labels, topic in found]
    text = "Idempotence keys forgotten before their time because there were too many."
    out.family(prefix + "forgotten_keys_total", "counter", text, forgotten)
    _shards(out, [({**labels, "shard": str(s.number)}, s) for labels, topic in found for s in topic.shards])


def _shards(out: Exposition, found: Sequence[tuple[Labels, Shard]]) -> None:
    prefix = "penstock_shard_"
    rows = [(labels, shard.rows_between(shard.kept_from, shard.end)) for labels, shard in found]
    sizes = [(labels, shard.stored_bytes()) for labels, shard in found]
    ends = [(labels, shard.end) for labels, shard in found]
    damaged = [(labels, len(shard.damaged)) for labels, shard in found]
    errors = [(labels, shard.sync_errors) for labels, shard in found]
    dropped = [(labels, shard.dropped_rows) for labels, shard in found]
    out.family(prefix + "stored_messages", "gauge", "Messages kept in the log.", rows)
    out.family(prefix + "segment_bytes", "gauge", "Size of all segments of the log.", sizes)
    out.family(prefix + "end_offset", "gauge", "The offset that the next message gets.", ends)
    out.family(prefix + "damaged_ranges", "gauge", "Ranges of offsets that cannot be read.", damaged)
    out.family(prefix + "sync_errors_total", "counter", "Syncs to disk that failed.", errors)
    out.family(prefix + "dropped_messages_total", "counter", "Messages dropped from a full memory topic.", dropped)


def _subscriptions(out: Exposition, topics: Mapping[str, TopicSlots]) -> None:
    found = [
        ({"topic": name, "subscription": subscription.name}, subscription)
        for name, topic in topics.items()
        for subscription in topic.subscriptions.values()
    ]
    counts = [(labels, subscription.counts()) for labels, subscription in found]
    out.family(
        "penstock_subscription_passed_messages_total",
        "counter",
        "Messages a subscription has passed since its start or last seek.",
        [(labels, count["passed"]) for labels, count in counts],
    )
    out.family(
        "penstock_subscription_finished_messages_total",
        "counter",
        "Messages a subscription is done with, by the reason.",
        [
            ({**labels, "reason": reason}, value)
            for labels, count in counts
            for reason, value in count.items()
            if reason not in ("passed", "held")
        ],
    )
    _filters(
        out, [(labels, subscription, count) for (labels, subscription), (_, count) in zip(found, counts, strict=True)]
    )
    prefix = "penstock_subscription_"
    gauges = {
        "held_messages": ("Messages passed and not finished.", [(labels, count["held"]) for labels, count in counts]),
        "depth_messages": ("Messages that could go out now.", [(labels, s.depth()) for labels, s in found]),
        "in_flight_messages": ("Messages out on lease.", [(labels, s.in_flight()) for labels, s in found]),
        "waiting_messages": ("Messages that wait for their time.", [(labels, s.waiting()) for labels, s in found]),
        "consumers": ("Consumers that are connected.", [(labels, len(s.seats)) for labels, s in found]),
        "paused": ("1 while the subscription is paused.", [(labels, int(s.settings.paused)) for labels, s in found]),
    }
    for name, (text, samples) in gauges.items():
        out.family(prefix + name, "gauge", text, samples)
    text = "From a message's coming, or its due time, to its first delivery."
    _durations(out, prefix + "delivery_latency_seconds", text, [(labels, s.waited) for labels, s in found])
    text = "From a message's delivery to its ack."
    _durations(out, prefix + "lease_seconds", text, [(labels, s.leased_for) for labels, s in found])
    released = [(labels, s.released) for labels, s in found]
    expired = [(labels, s.expired_leases) for labels, s in found]
    out.family(prefix + "released_messages_total", "counter", "Messages given back by consumers.", released)
    out.family(prefix + "expired_leases_total", "counter", "Leases that ended without an answer.", expired)


def _filters(out: Exposition, found: Sequence[tuple[Labels, Subscription, Mapping[str, int]]]) -> None:
    """Add what filters did, of the subscriptions that have any or had."""
    filtering = [each for each in found if each[2]["filtered"] or each[1].has_filters]
    prefix = "penstock_subscription_filter_"
    accepted = [(labels, count["passed"] - count["filtered"]) for labels, _, count in filtering]
    text = "Messages that passed all filters, since the start or last seek."
    out.family(prefix + "accepted_messages_total", "counter", text, accepted)
    refused = [
        ({**labels, "filter": kind}, value)
        for labels, subscription, _ in filtering
        for kind, value in subscription.refused.items()
    ]
    text = "Messages that a filter refused, by its kind, since the start."
    out.family(prefix + "refused_messages_total", "counter", text, refused)


def _missing(out: Exposition, node: NodeSlots) -> None:
    found = [
        ({"topic": topic, "subscription": name, "traffic_type": missing}, 1)
        for topic, slots in node.topics.items()
        for name, subscription in slots.subscriptions.items()
        if subscription.settings.traffic is not None
        for missing in unknown(subscription.settings.traffic.allowed, node.routing.mapping)
    ]
    text = "1 for each traffic type that a subscription allows and the routing mapping does not know."
    out.family("penstock_routing_missing_traffic_types", "gauge", text, found)
    policy = node.routing.policy
    if policy is not None:
        happened = [({"event": event}, count) for event, count in policy.counts.items()]
        told = "What happened to the routing policy in etcd, by kind."
        out.family("penstock_routing_policy_events_total", "counter", told, happened)
        out.one("penstock_routing_policy_current", "gauge", "1 while etcd answers.", int(policy.is_current))
        text = "The revision in etcd of the routing policy in force."
        out.one("penstock_routing_policy_revision", "gauge", text, policy.revision)
    text = "Traffic types in the routing mapping."
    out.one("penstock_routing_traffic_types", "gauge", text, len(node.routing.mapping))


def _durations(out: Exposition, name: str, text: str, found: Sequence[tuple[Labels, Durations]]) -> None:
    """Add a histogram; what nothing was counted for is left out, or a thousand idle subscriptions were most of all."""
    counted = [(labels, each.counts, each.sum_ns / SECOND) for labels, each in found if any(each.counts)]
    out.histogram(name, text, [bound / SECOND for bound in BOUNDS_NS], counted)


def _describe_process(out: Exposition) -> None:
    """Add what the operating system says, under the names Prometheus' own clients use."""
    with open("/proc/self/statm", encoding="ascii") as file:
        pages = file.read().split()
    out.one("process_resident_memory_bytes", "gauge", "Resident memory size.", int(pages[1]) * resource.getpagesize())
    out.one("process_virtual_memory_bytes", "gauge", "Virtual memory size.", int(pages[0]) * resource.getpagesize())
    out.one("process_cpu_seconds_total", "counter", "User and system CPU time spent.", time.process_time())
    out.one("process_open_fds", "gauge", "Open file descriptors.", len(os.listdir("/proc/self/fd")))
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    out.one("process_max_fds", "gauge", "Open file descriptors allowed.", limit)
