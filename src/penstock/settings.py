"""What a user may choose per topic and per subscription; it lives in the registry and survives restarts.

Values only: no behaviour, no defaults of the node itself (those are in `config`).
"""

from __future__ import annotations

from typing import Literal

import msgspec

Durability = Literal["memory", "os", "fsync"]
Extend = Literal["on", "off", "auto"]
Compression = Literal["none", "lz4", "zstd"]

HOUR_NS = 3_600_000_000_000
MINUTE_NS = 60_000_000_000
SECOND_NS = 1_000_000_000
GIB = 1 << 30


class TopicSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How one topic takes and keeps messages."""

    shards: int = 1
    durability: Durability = "os"
    #: History beyond what subscriptions still need: kept while younger than this and smaller than that.
    retention_age_ns: int = 24 * HOUR_NS
    retention_bytes: int = GIB
    #: Set by the user: then `retention_bytes` also bounds a topic that has no subscription.
    retention_hard: bool = False
    compression: Compression = "none"
    segment_bytes: int = 64 << 20
    #: Rows a `memory` topic holds at most; the oldest go first and are counted.
    memory_rows: int = 1_000_000
    #: Duplicates are recognised this long before the topic's last append.
    dedup_window_ns: int = 5 * MINUTE_NS
    #: Messages a second, 0 for no limit.
    rate: int = 0
    extend: Extend = "auto"
    #: What a header must be: as the node's configuration says, strict, or any object.
    header_rules: Literal["node", "strict", "lenient"] = "node"
    #: New subscriptions keep the order of each shard, and NSQ clients must ask for that themselves (SUB_ORDERED).
    ordered: bool = False
    #: Copies that were asked for, to be shown to whoever asked; there is one, whatever this says.
    replicas: int = 1
    ephemeral: bool = False
    paused: bool = False


class TrafficSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The traffic types a subscription takes, by name."""

    allowed: tuple[str, ...] = ()
    is_default: bool = False


class SubscriptionSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How one subscription hands out messages."""

    traffic: TrafficSettings | None = None
    #: 0 = no limit; else a row that failed this often goes to the dead-letter topic.
    max_attempts: int = 0
    #: Topic for dead letters; empty means `<topic>.dead` once a limit is set.
    dead_letter: str = ""
    #: Rows older than this are not delivered any more; 0 = for ever.
    ttl_ns: int = 0
    lease_ns: int = 60 * SECOND_NS
    lease_max_ns: int = 15 * MINUTE_NS
    policy: Literal["shared"] = "shared"
    #: `shard`: one row of a shard is out at a time, the next follows its ack. `key`: the same for each key.
    order: Literal["none", "key", "shard"] = "none"
    #: Rows of one key that may be out at once, at one consumer, in order.
    key_run: int = 1
    ephemeral: bool = False
    paused: bool = False
