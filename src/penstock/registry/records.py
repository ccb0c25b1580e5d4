"""What the registry holds: one record per topic and per subscription, and the routing mapping.

Values and their rules only; where they are kept and how they change is the catalog's. A record is msgpack by
field name.
Invariant: a record that was made here passes its own checks when it is read back.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from typing import TypeVar

import msgspec

from penstock.columns import SHARD_MAX, TOPIC_NAME_BYTES_MAX
from penstock.errors import ConfigError, CorruptionError, Refusal
from penstock.m3.policies import storage_policy
from penstock.m3.shardset import BadShardSet, ranges
from penstock.registry.past import renewed
from penstock.settings import Home, Measure, SubscriptionSettings, TopicSettings


class Measured(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What rows of a topic weigh from some offsets on."""

    measure: Measure = Measure()
    #: Per shard the first offset that is measured so; a shard that has none here is so from its beginning.
    starts: tuple[int, ...] = ()


class Growth(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A topic was given more shards, so that keys have other shards since."""

    #: How many it had before, and how many it was made with.
    shards: int
    first: int
    #: Per shard it had: whatever is stored since lies at or above this offset, and all before it below.
    ends: tuple[int, ...]
    at_ns: int


class TopicRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One topic: its number names its directory, its incarnation tells it from a deleted one of the same name."""

    name: str
    number: int
    incarnation: int
    settings: TopicSettings
    #: Per shard: where the next subscription starts while there is none.
    orphan_from: tuple[int, ...]
    #: Per shard: the offset no subscription passes while the topic is paused.
    gate: tuple[int, ...] | None = None
    #: What its rows weigh, and weighed before that was changed.
    measures: tuple[Measured, ...] = (Measured(),)
    #: When it was given more shards, the last time last; what nobody needs to know any more is left out.
    grown: tuple[Growth, ...] = ()
    #: The user who made it, in whose quota it counts; empty = nobody's.
    owner: str = ""
    #: The node of a cluster whose disk holds it; empty where it is on Kafka, or there is no cluster.
    home: str = ""
    #: Its log was made, on Kafka or on disk: where it is not there any more, somebody took it away.
    is_made: bool = False
    #: Whoever asked for it has heard that it is there. Until then, asking again is no second topic of the name.
    is_told: bool = True
    created_ns: int


class SubscriptionRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One subscription of a topic."""

    topic_number: int
    name: str
    number: int
    settings: SubscriptionSettings
    #: Per shard the topic had at that time: the first offset that is its to deliver. Of later shards it is 0.
    starts: tuple[int, ...]
    created_ns: int

    def start(self, shard: int) -> int:
        """Return the first offset of a shard that is its to deliver."""
        return self.starts[shard] if shard < len(self.starts) else 0


class DeletedTopic(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A topic that was deleted and whose data may still be there: only this lets anybody remove it."""

    name: str
    number: int
    incarnation: int
    deleted_ns: int
    #: Whose disk held it in a cluster, and where its log was.
    home: str = ""
    log: Home = "local"


class RoutingMapping(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which bit of a message's 64 traffic bits each traffic type is."""

    traffic_types: dict[str, int] = {}
    #: Types that were removed: messages in the log and producers may still carry their bits.
    retired: dict[str, int] = {}


Record = TypeVar("Record", bound=msgspec.Struct)


def encoded(record: msgspec.Struct) -> bytes:
    """Return a record as it is kept."""
    return msgspec.msgpack.encode(record)


def decoded(value: bytes, kind: type[Record], key: str) -> Record:
    """Return a kept record; `key` is for the error."""
    try:
        return read(msgspec.msgpack.decode(value), kind)
    except msgspec.MsgspecError as error:
        raise CorruptionError(
            f"registry entry {key} cannot be read ({error}): it is damaged, or a newer version wrote it"
        ) from error


def read(fields: object, kind: type[Record]) -> Record:
    """Return a record from its fields by name, as this or an older version wrote them."""
    if kind is TopicRecord and isinstance(fields, dict):
        fields = renewed(fields)
    record = msgspec.convert(fields, kind)
    return _sharing(record) if isinstance(record, TopicRecord | SubscriptionRecord) else record


#: Settings that records read last have, by what they are: most topics and subscriptions are like many others.
_SETTINGS: dict[bytes, TopicSettings | SubscriptionSettings] = {}
_SETTINGS_MAX = 64


def _sharing(record: Record) -> Record:
    """Return a record whose settings are one object with those of others like it."""
    settings: TopicSettings | SubscriptionSettings = record.settings  # type: ignore[attr-defined]
    alike = type(settings).__name__.encode() + encoded(settings)
    known = _SETTINGS.get(alike)
    if known is None:
        if len(_SETTINGS) >= _SETTINGS_MAX:
            _SETTINGS.clear()
        _SETTINGS[alike] = settings
        return record
    return msgspec.structs.replace(record, settings=known)


def check_name(name: str, what: str = "topic") -> None:
    """Refuse a name that no dialect could carry safely: 1 to 1024 bytes of UTF-8 without control characters."""
    try:
        length = len(name.encode())
    except UnicodeEncodeError:
        raise Refusal("bad_name", f"{name!r} is no {what} name: it is not UTF-8 text") from None
    if not 0 < length <= TOPIC_NAME_BYTES_MAX:
        raise Refusal("bad_name", f"a {what} name has 1 to {TOPIC_NAME_BYTES_MAX} bytes, not {length}")
    if any(unicodedata.category(character) == "Cc" for character in name):
        raise Refusal("bad_name", f"{name!r} is no {what} name: it holds control characters")


def check_topic_settings(settings: TopicSettings) -> None:
    """Refuse settings no topic could work with."""
    _check_counts(settings, {"shards": 1, "segment_bytes": 1, "memory_rows": 1})
    if settings.shards > SHARD_MAX + 1:
        raise Refusal("bad_request", f"shards is {settings.shards}; it must be at most {SHARD_MAX + 1}")


def check_subscription_settings(settings: SubscriptionSettings) -> None:
    """Refuse settings no subscription could work with."""
    _check_counts(settings, {"lease_ns": 1, "lease_max_ns": 1, "key_run": 1})
    if settings.lease_ns > settings.lease_max_ns:
        raise Refusal("bad_request", f"lease_ns {settings.lease_ns} is above lease_max_ns {settings.lease_max_ns}")
    if settings.dead_letter:
        check_name(settings.dead_letter, "dead-letter topic")
    check_filters(settings.storage_policies, settings.percentage, settings.shard_set)


def check_filters(storage_policies: Iterable[str], percentage: float, shard_set: str) -> None:
    """Refuse filters that nothing could be judged by."""
    try:
        for text in storage_policies:
            storage_policy(text, "storage_policies")
        if shard_set:
            ranges(shard_set)
    except (ConfigError, BadShardSet) as error:
        raise Refusal("bad_request", str(error)) from None
    if not 0 <= percentage <= 1:
        raise Refusal(
            "bad_request", f"percentage is {percentage:g}; it is a fraction from 0 to 1, 0.25 being a quarter"
        )


def mapping_clashes(old: RoutingMapping, traffic_types: Mapping[str, int]) -> list[str]:
    """Return where a new mapping gives a known name or bit another meaning, one sentence each."""
    clashes = []
    known = {**old.retired, **old.traffic_types}
    owner = {bit: name for name, bit in known.items()}
    for name, bit in sorted(traffic_types.items()):
        if known.get(name, bit) != bit:
            clashes.append(f"{name} moves from bit {known[name]} to {bit}")
        elif owner.get(bit, name) != name:
            clashes.append(f"bit {bit} of {owner[bit]} is reused for {name}")
    return clashes


def replaced_mapping(old: RoutingMapping, traffic_types: Mapping[str, int]) -> RoutingMapping:
    """Return the new mapping, which remembers the bits it no longer uses."""
    bits = set(traffic_types.values())
    retired = {
        name: bit
        for name, bit in {**old.retired, **old.traffic_types}.items()
        if name not in traffic_types and bit not in bits
    }
    return RoutingMapping(traffic_types=dict(traffic_types), retired=retired)


def _check_counts(settings: msgspec.Struct, least: Mapping[str, int]) -> None:
    for name, value in msgspec.structs.asdict(settings).items():
        if type(value) is int and not least.get(name, 0) <= value < 1 << 63:
            raise Refusal("bad_request", f"{name} is {value}; it must be at least {least.get(name, 0)}")
