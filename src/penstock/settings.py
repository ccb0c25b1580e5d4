"""What a user may choose per topic and per subscription; it lives in the registry and survives restarts.

Values only: no behaviour, no defaults of the node itself (those are in `config`). What a field's `about` says is what
the command line and the API's description say of it; the command line offers the fields that have one.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

Durability = Literal["memory", "os", "fsync"]
Compression = Literal["none", "lz4", "zstd"]
QuotaFull = Literal["refuse", "drop"]
Home = Literal["local", "kafka"]
Dealer = Literal["simple", "gladiator", "rack"]
#: What one setting of a dialect may be.
Choice = bool | int | str

HOUR_NS = 3_600_000_000_000
MINUTE_NS = 60_000_000_000
SECOND_NS = 1_000_000_000
YEAR_NS = 365 * 24 * HOUR_NS
GIB = 1 << 30


def about(text: str, least: int | None = None, *, once: bool = False) -> msgspec.Meta:
    """Return what is known of a field: what it means, its least value, and whether it is chosen once and for good."""
    # Told, not checked here: whoever uses a value refuses it with a reason.
    minimum = None if least is None else {"minimum": least}
    return msgspec.Meta(description=text, extra_json_schema=minimum, extra={"least": least, "once": once})


class TopicSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How one topic takes and keeps messages."""

    shards: Annotated[int, about("Ordered pieces of its log; may become more, never fewer.", 1)] = 1
    durability: Annotated[
        Durability,
        about("When a publish is answered: kept in memory, in the page cache, on disk. For good.", once=True),
    ] = "os"
    log: Annotated[
        Home, about("Where its log lives: on the disk of one node, or on Kafka, for a cluster. For good.", once=True)
    ] = "local"
    #: Both of history beyond what subscriptions still need.
    retention_age_ns: Annotated[int, about("History is kept while younger.", 0)] = 24 * HOUR_NS
    retention_bytes: Annotated[int, about("History is kept while smaller.", 0)] = GIB
    retention_hard: Annotated[
        bool, about("retention_bytes also bounds a topic without subscriptions; on where that is set.")
    ] = False
    #: Of segments, whoever needs them. History gives way first.
    quota_bytes: Annotated[int, about("It stores no more than this; 0 for no limit.", 0)] = 0
    quota_full: Annotated[
        QuotaFull, about("At a quota: what is published is refused, or what is oldest is dropped, read or not.")
    ] = "refuse"
    compression: Annotated[Compression, about("Of closed segments.")] = "none"
    segment_bytes: Annotated[int, about("A file of the log ends at this.", 0)] = 64 << 20
    memory_rows: Annotated[int, about("Rows a memory topic holds; the oldest go first and are counted.", 1)] = 1_000_000
    dedup_window_ns: Annotated[int, about("Duplicates are recognised this long before the last message.", 0)] = (
        5 * MINUTE_NS
    )
    rate: Annotated[int, about("Messages a second it takes; 0 for no limit.", 0)] = 0
    max_due_ns: Annotated[
        int, about("A message may be due this much later than it is published, or released; 0 for no limit.", 0)
    ] = YEAR_NS
    ordered: Annotated[bool, about("New subscriptions keep the order of each shard.")] = False
    ephemeral: Annotated[bool, about("Gone with its last subscription.", once=True)] = False
    paused: bool = False
    dialects: Annotated[
        dict[str, dict[str, Choice]],
        msgspec.Meta(description="What dialects let one choose, each under its name; the others have their defaults."),
    ] = {}


class Measure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a row adds to the weight of its shard: so many bytes and its body; with headers so many more and those."""

    row_bytes: int = 31
    #: None where headers do not count.
    header_bytes: int | None = 2


class TrafficSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The traffic types a subscription takes, by name."""

    allowed: tuple[str, ...] = ()
    is_default: bool = False
    #: Judge as M3's code does, not as its documentation says: unknown names are passed over.
    upstream_filter: bool = False


class SubscriptionSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How one subscription hands out messages."""

    traffic: TrafficSettings | None = None
    storage_policies: Annotated[
        tuple[str, ...],
        msgspec.Meta(
            description='Of metrics, those of these storage policies, like "10s:2d"; all where none is named.'
        ),
    ] = ()
    percentage: Annotated[float, about("The fraction of messages that are handed out, from 0 to 1.")] = 1.0
    shard_set: Annotated[
        str, about('Messages whose route is one of these, like "7", "0..511" or a list; empty for all.')
    ] = ""
    max_attempts: Annotated[int, about("Then a message goes to the dead letters; 0 for no limit.", 0)] = 0
    dead_letter: Annotated[str, about("Topic for dead letters; empty for TOPIC.dead.")] = ""
    ttl_ns: Annotated[int, about("Older messages are not handed out; 0 for ever.", 0)] = 0
    lease_ns: Annotated[int, about("How long a consumer may hold a message.", 0)] = 60 * SECOND_NS
    lease_max_ns: Annotated[int, about("How long it may at most, however it asks.", 0)] = 15 * MINUTE_NS
    #: Which of `delivery.policies` deals its messages.
    policy: Annotated[
        str,
        about(
            "Who gets which message: shared (whoever has room), fair (keys take turns), buckets (dealt to consumers), "
            "or what a dialect or relay chose."
        ),
    ] = "shared"
    dealer: Annotated[
        Dealer,
        about("With policy buckets: ranges, or also a backup for each of them, or one in every other rack."),
    ] = "simple"
    buckets: Annotated[int, about("With policy buckets: how many there are, at most 65535.", 1)] = 1024
    prefetch_ns: Annotated[
        int, about("With policy buckets: messages go out so long before they are due; leases begin when they are.", 0)
    ] = 0
    order: Annotated[
        Literal["none", "key", "shard"],
        about("key: messages of a key one after the other; shard: one message of a shard at a time."),
    ] = "none"
    key_run: Annotated[int, about("Messages of one key out at once, at one consumer, with order key.", 1)] = 1
    ephemeral: Annotated[bool, about("Gone with its last consumer.", once=True)] = False
    paused: bool = False
