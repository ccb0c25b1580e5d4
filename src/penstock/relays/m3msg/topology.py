"""Where a relay learns of M3's topics and placements: from a file, or from etcd, where they may change at any time."""

from __future__ import annotations

import asyncio
import logging
import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

import msgspec

from penstock.config import host_and_port, parse_duration
from penstock.errors import ConfigError
from penstock.m3 import placement as placements
from penstock.m3 import topic as topics
from penstock.m3.placement import Instance, Placement, Shard
from penstock.m3.shardset import BadShardSet, ranges
from penstock.m3.topic import SHARDS_MAX, ConsumerService, Filters, RoutingFilter, ServiceId, Topic
from penstock.m3.wire import BadMessage, fields
from penstock.relays.m3msg.config import RelayConfig

if TYPE_CHECKING:
    from penstock.registry.etcd.client import Client
    from penstock.registry.etcd.mirror import Edit, Mirror

_log = logging.getLogger("penstock.m3msg")

T = TypeVar("T")

#: Etcd that says nothing for so long after a start is away.
START_S = 2.0

OnTopic = Callable[[Topic], None]
OnPlacement = Callable[[Placement], None]
OnFlag = Callable[[bool], None]
Cancel = Callable[[], None]


class Topology(Protocol):
    """Tells what there is, and whatever changes; not from inside the call that asks."""

    #: Values that could not be used, which changed nothing.
    refused: int
    #: Why what it told may be old, empty while it is not; and how often that began.
    away: str
    losses: int

    def watch_topic(self, name: str, told: OnTopic) -> Cancel:
        """Tell of a topic as it is and as it becomes; one that is deleted stays as it was."""

    def watch_placement(self, service: ServiceId, told: OnPlacement) -> Cancel:
        """Tell of the placement of a service likewise."""

    def watch_flag(self, key: str, told: OnFlag) -> Cancel:
        """Tell of a flag likewise."""

    async def close(self) -> None:
        """Tell nothing more."""


# --- a file ---------------------------------------------------------------------------------------------------------


class _Instance(msgspec.Struct, forbid_unknown_fields=True):
    endpoint: str
    #: A shard set, like 0..31; not needed where the placement has no shards.
    shards: str = ""


class _Placement(msgspec.Struct, forbid_unknown_fields=True):
    instances: dict[str, _Instance]


class _Service(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    name: str
    consumption: Literal["shared", "replicated"] = "shared"
    ttl: str = "0s"
    #: None: takes everything.
    traffic_types: tuple[str, ...] | None = None
    is_default: bool = False


class _Topic(msgspec.Struct, forbid_unknown_fields=True):
    shards: int
    services: tuple[_Service, ...] = ()


class _File(msgspec.Struct, forbid_unknown_fields=True):
    topics: dict[str, _Topic] = {}
    placements: dict[str, _Placement] = {}


class Known(msgspec.Struct, frozen=True):
    """What a file says."""

    topics: Mapping[str, Topic]
    placements: Mapping[str, Placement]


def read(path: str) -> Known:
    """Return what a file says; ConfigError where it cannot be used."""
    try:
        with open(path, "rb") as file:
            said = msgspec.convert(tomllib.load(file), _File)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise ConfigError(f"{path}: {error}") from None
    try:
        found = {name: _topic(name, topic) for name, topic in said.topics.items()}
        for topic in found.values():
            topics.check(topic)
        placed = {name: _placement(placement) for name, placement in said.placements.items()}
    except (BadMessage, BadShardSet, ConfigError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from None
    for topic in found.values():
        for service in topic.services:
            if service.service_id.name not in placed:
                raise ConfigError(
                    f"{path}: there is no [placements.{service.service_id.name}], which {topic.name} names"
                )
    return Known(found, placed)


def _topic(name: str, said: _Topic) -> Topic:
    services = []
    for service in said.services:
        routing = None
        if service.traffic_types is not None:
            routing = RoutingFilter(service.traffic_types, service.is_default)
        services.append(
            ConsumerService(
                service_id=ServiceId(service.name),
                consumption=service.consumption,
                ttl_ns=parse_duration(service.ttl),
                filters=Filters(routing=routing) if routing is not None else None,
            )
        )
    return Topic(name=name, shards=said.shards, services=tuple(services))


def _placement(said: _Placement) -> Placement:
    instances = {}
    most = 0
    for name, instance in said.instances.items():
        pieces = ranges(instance.shards) if instance.shards else ()
        if pieces and pieces[-1][1] >= SHARDS_MAX:
            raise ConfigError(
                f"instance {name}: shard {pieces[-1][1]} is above the last one there may be, {SHARDS_MAX - 1}"
            )
        owned = [shard for first, last in pieces for shard in range(first, last + 1)]
        shards = tuple(Shard(shard, "available") for shard in owned)
        try:
            host_and_port(instance.endpoint)
        except ConfigError as error:
            raise ConfigError(f"instance {name}: {error}") from None
        instances[name] = Instance(id=name, endpoint=instance.endpoint, shards=shards)
        most = max(most, *owned, 0)
    sharded = any(instance.shards for instance in instances.values())
    return Placement(instances=instances, is_sharded=sharded, shards=most + 1 if sharded else 0)


class FileTopology:
    """What a file says, once."""

    refused = losses = 0
    away = ""

    def __init__(self, known: Known) -> None:
        self._known = known

    def watch_topic(self, name: str, told: OnTopic) -> Cancel:
        """Tell of a topic."""
        return _soon(told, self._known.topics.get(name))

    def watch_placement(self, service: ServiceId, told: OnPlacement) -> Cancel:
        """Tell of a placement."""
        return _soon(told, self._known.placements.get(service.name))

    def watch_flag(self, key: str, told: OnFlag) -> Cancel:
        """Tell of no flag: what a file says does not change."""
        return lambda: None

    async def close(self) -> None:
        """Tell nothing more; it does not anyway."""


def _soon(told: Callable[[T], None], value: T | None) -> Cancel:
    if value is None:
        return lambda: None
    return asyncio.get_running_loop().call_soon(told, value).cancel


# --- etcd -----------------------------------------------------------------------------------------------------------


class EtcdTopology:
    """What stands in etcd, in the places where M3 keeps it."""

    def __init__(self, client_of: Callable[[str], Client], config: RelayConfig) -> None:
        """Ask the client of a zone, which raises ConfigError if there is no such zone."""
        self._client_of = client_of
        self._client = client_of(config.zone)
        self.zone = config.zone
        self.environment = config.environment
        self._topics = config.topic_namespace
        self._placements = config.placement_namespace
        self._mirrors: list[tuple[Mirror, asyncio.Task[None]]] = []
        self.refused = self.losses = 0
        self.away = ""

    def topic_key(self, name: str) -> str:
        """Return where a topic is."""
        return f"{self._topics}/{self.environment}/{name}"

    def placement_key(self, service: ServiceId) -> str:
        """Return where the placement of a service is; without an environment that part is left out."""
        return "/".join(part for part in (self._placements, service.environment, service.name) if part)

    def watch_topic(self, name: str, told: OnTopic) -> Cancel:
        """Tell of a topic as it is and as it becomes."""
        return self._watch(self._client, self.topic_key(name), partial(self._told, topics.decode, told))

    def watch_placement(self, service: ServiceId, told: OnPlacement) -> Cancel:
        """Tell of the placement of a service as it is and as it becomes, in its own zone."""
        try:
            client = self._client_of(service.zone or self.zone)
        except ConfigError as error:
            self.refused += 1
            _log.warning("service %s is not sent to: %s", service, error)
            return lambda: None
        return self._watch(client, self.placement_key(service), partial(self._told, placements.decode, told))

    def watch_flag(self, key: str, told: OnFlag) -> Cancel:
        """Tell of a flag, a BoolProto, as it is and as it becomes."""
        return self._watch(self._client, f"_kv/{self.environment}/{key}", partial(self._told, flag, told))

    async def close(self) -> None:
        """Tell nothing more."""
        for mirror, first in self._mirrors:
            first.cancel()
            await mirror.close()
        self._mirrors.clear()

    def _watch(self, client: Client, key: str, told: Callable[[str, bytes], None]) -> Cancel:
        from penstock.registry.etcd.mirror import Mirror

        mirror = Mirror(client, key.encode(), partial(self._changed, key, told), is_prefix=False, on_state=self._state)
        first = asyncio.get_running_loop().create_task(self._first(mirror, key, told))
        self._mirrors.append((mirror, first))
        return partial(self._unwatch, mirror, first)

    def _unwatch(self, mirror: Mirror, first: asyncio.Task[None]) -> None:
        if (mirror, first) in self._mirrors:
            self._mirrors.remove((mirror, first))
            first.cancel()
            self._state(True)
            self._ending = asyncio.get_running_loop().create_task(mirror.close())

    async def _first(self, mirror: Mirror, key: str, told: Callable[[str, bytes], None]) -> None:
        try:
            async with asyncio.timeout(START_S):
                await mirror.is_ready.wait()
        except TimeoutError:
            self._state(False)
            await mirror.is_ready.wait()
        entry = mirror.entries.get(key.encode())
        if entry is not None:
            told(key, entry.value)

    def _changed(self, key: str, told: Callable[[str, bytes], None], edits: Sequence[Edit]) -> None:
        value = edits[-1].value
        if value is None:
            _log.warning("%s was deleted in etcd; what it said holds until it is put again", key)
        else:
            told(key, value)

    def _state(self, is_current: bool) -> None:
        """Say once that etcd is away, whatever is watched there, and once that all of it is current again."""
        why = next((mirror.why for mirror, _ in self._mirrors if not mirror.is_current), "")
        if not is_current and why and not self.away:
            self.losses += 1
            _log.warning("M3's topics and placements cannot be read from etcd: %s; what was known holds", why)
            self.away = why
        elif self.away and not why:
            _log.info("M3's topics and placements are read from etcd again")
            self.away = ""

    def _told(self, decode: Callable[[bytes], T], told: Callable[[T], None], key: str, value: bytes) -> None:
        try:
            found = decode(value)
        except BadMessage as error:
            self.refused += 1
            _log.warning("%s in etcd cannot be used and changes nothing: %s", key, error)
            return
        told(found)


def flag(value: bytes) -> bool:
    """Return what a BoolProto says."""
    said = False
    for field in fields(value):
        if field.number == 1:
            said = bool(field.whole())
    return said
