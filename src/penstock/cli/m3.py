"""`penstock m3`: topics and placements of M3's in etcd, as M3's own tools write them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import msgspec
import typer

from penstock.cli.command import Json
from penstock.cli.config import File, Settings, flags
from penstock.cli.failure import USAGE, Failure
from penstock.cli.printer import Printer, count
from penstock.cli.values import pairs

if TYPE_CHECKING:
    from penstock.m3.placement import Placement
    from penstock.m3.topic import ServiceId, Topic
    from penstock.registry.etcd.client import Client
    from penstock.relays.m3msg.topology import EtcdTopology

app = typer.Typer(help="Write and show M3's topics and placements in etcd.", no_args_is_help=True)
topic_app = typer.Typer(help="Topics, and the services that consume them.", no_args_is_help=True)
placement_app = typer.Typer(help="Placements: which instance of a service has which shards.", no_args_is_help=True)
app.add_typer(topic_app, name="topic")
app.add_typer(placement_app, name="placement")

T = TypeVar("T")

Name = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")]
ServiceName = Annotated[str, typer.Argument(metavar="SERVICE", help="The service.")]
Instances = Annotated[list[str], typer.Argument(metavar="ID=HOST:PORT...", help="Instances, and where they listen.")]
Ask = Callable[["Client", "EtcdTopology"], Awaitable[T]]


@topic_app.command("init")
def topic_init(
    name: Name,
    shards: Annotated[int, typer.Option(help="How many shards it has, for good.", min=1)] = 64,
    file: File = None,
    settings: Settings = None,
    json: Json = False,
) -> None:
    """Make a topic without services."""
    from penstock.m3.topic import Topic, check

    made = Topic(name=name, shards=shards)
    check(made)
    _ask(lambda client, where: _put_topic(client, where, made, 0), file, settings)
    Printer(json=json).done(
        made, f"{name} is made with {count(shards, 'shard')}; `penstock m3 topic add` adds services"
    )


@topic_app.command("add")
def topic_add(
    name: Name,
    service: ServiceName,
    consumption: Annotated[str, typer.Option(help="shared: one instance gets a message; replicated: each owner.")] = (
        "shared"
    ),
    ttl: Annotated[str, typer.Option(help="A message that is older is not sent any more; 0s for ever.")] = "0s",
    file: File = None,
    settings: Settings = None,
    json: Json = False,
) -> None:
    """Let a service consume a topic."""
    from penstock.config import parse_duration
    from penstock.m3.topic import ConsumerService

    if consumption not in ("shared", "replicated"):
        raise Failure(f"--consumption {consumption}: shared or replicated", USAGE)
    kind: Literal["shared", "replicated"] = "shared" if consumption == "shared" else "replicated"

    async def add(client: Client, where: EtcdTopology) -> Topic:
        found, revision = await _topic(client, where, name)
        key = _own(where, service)
        if any(each.service_id == key for each in found.services):
            raise Failure(f"{service} consumes {name} already")
        new = ConsumerService(service_id=key, consumption=kind, ttl_ns=parse_duration(ttl))
        found = msgspec.structs.replace(found, services=(*found.services, new))
        return await _put_topic(client, where, found, revision)

    _show_topic(Printer(json=json), _ask(add, file, settings))


@topic_app.command("remove")
def topic_remove(
    name: Name, service: ServiceName, file: File = None, settings: Settings = None, json: Json = False
) -> None:
    """Let a service consume a topic no more; what waits for it is gone. One of another zone is named as it is shown."""

    async def remove(client: Client, where: EtcdTopology) -> Topic:
        found, revision = await _topic(client, where, name)
        ids = [each.service_id for each in found.services]
        gone = _named(name, service, ids, _own(where, service))
        rest = tuple(each for each in found.services if each.service_id != gone)
        return await _put_topic(client, where, msgspec.structs.replace(found, services=rest), revision)

    _show_topic(Printer(json=json), _ask(remove, file, settings))


def _named(topic: str, service: str, ids: list[ServiceId], own: ServiceId) -> ServiceId:
    """Return which service is meant: the one of this zone and environment, the one shown so, or the only one."""
    exact = [each for each in ids if each == own] or [each for each in ids if str(each) == service]
    found = exact or [each for each in ids if each.name == service]
    if not found:
        names = ", ".join(map(str, ids)) or "none"
        raise Failure(f"{service} does not consume {topic}; those that do: {names}")
    if len(found) > 1:
        raise Failure(f"more than one {service} consumes {topic}: {', '.join(map(str, found))}; write which")
    return found[0]


@topic_app.command("show")
def topic_show(name: Name, file: File = None, settings: Settings = None, json: Json = False) -> None:
    """Show a topic and its services."""
    found, _ = _ask(lambda client, where: _topic(client, where, name), file, settings)
    _show_topic(Printer(json=json), found)


@placement_app.command("init")
def placement_init(
    service: ServiceName,
    instances: Instances,
    shards: Annotated[int, typer.Option(help="Shards of its topic; 0 = every instance has all of them.", min=0)] = 64,
    replicas: Annotated[int, typer.Option(help="Instances that have each shard.", min=1)] = 1,
    file: File = None,
    settings: Settings = None,
    json: Json = False,
) -> None:
    """Place a service: deal shards to its instances."""
    from penstock.m3.balance import made
    from penstock.m3.topic import SHARDS_MAX

    if shards > SHARDS_MAX:
        raise Failure(f"--shards {shards}: {shards:,} shards; there may be {SHARDS_MAX:,}", USAGE)
    new = made(_endpoints("placement init", instances), shards, replicas)
    _ask(lambda client, where: _put_placement(client, where, service, new, 0), file, settings)
    _show_placement(Printer(json=json), new)


@placement_app.command("add")
def placement_add(
    service: ServiceName, instances: Instances, file: File = None, settings: Settings = None, json: Json = False
) -> None:
    """Add instances, which take their share of the shards."""
    from penstock.m3.balance import added

    async def add(client: Client, where: EtcdTopology) -> Placement:
        found, revision = await _placement(client, where, service)
        for name, endpoint in _endpoints("placement add", instances).items():
            found = added(found, name, endpoint)
        return await _put_placement(client, where, service, found, revision)

    _show_placement(Printer(json=json), _ask(add, file, settings))


@placement_app.command("remove")
def placement_remove(
    service: ServiceName,
    instances: Annotated[list[str], typer.Argument(metavar="ID...", help="Instances that go.")],
    file: File = None,
    settings: Settings = None,
    json: Json = False,
) -> None:
    """Remove instances; the others share what they had."""
    from penstock.m3.balance import removed

    async def remove(client: Client, where: EtcdTopology) -> Placement:
        found, revision = await _placement(client, where, service)
        for name in instances:
            found = removed(found, name)
        return await _put_placement(client, where, service, found, revision)

    _show_placement(Printer(json=json), _ask(remove, file, settings))


@placement_app.command("show")
def placement_show(service: ServiceName, file: File = None, settings: Settings = None, json: Json = False) -> None:
    """Show which instance has which shards."""
    found, _ = _ask(lambda client, where: _placement(client, where, service), file, settings)
    _show_placement(Printer(json=json), found)


# --- etcd -----------------------------------------------------------------------------------------------------------


def _ask(ask: Ask[T], file: str | None, settings: list[str] | None) -> T:
    """Ask etcd as the configuration says; what is refused is a failure of the command."""
    from penstock.cli.table import load
    from penstock.registry.etcd.zones import Zones
    from penstock.relays.m3msg.config import RelayConfig
    from penstock.relays.m3msg.topology import EtcdTopology

    config = load(file, flags(settings)).config
    relay = config.of(RelayConfig)

    async def asked() -> T:
        zones = Zones(config.etcd.zones)
        try:
            return await ask(zones.client(relay.zone), EtcdTopology(zones.client, relay))
        finally:
            await zones.close()

    return asyncio.run(asked())


def _own(where: EtcdTopology, service: str) -> ServiceId:
    """Return a service of the relay's own zone and environment."""
    from penstock.m3.topic import ServiceId

    return ServiceId(service, where.environment, where.zone)


async def _topic(client: Client, where: EtcdTopology, name: str) -> tuple[Topic, int]:
    from penstock.m3.topic import decode

    entry = await client.get(where.topic_key(name).encode())
    if entry is None:
        raise Failure(f"there is no {where.topic_key(name)} in etcd; `penstock m3 topic init {name}` makes it")
    return decode(entry.value), entry.revision


async def _put_topic(client: Client, where: EtcdTopology, topic: Topic, revision: int) -> Topic:
    from penstock.m3.topic import encode

    await _put(client, where.topic_key(topic.name), encode(topic), revision)
    return topic


async def _placement(client: Client, where: EtcdTopology, service: str) -> tuple[Placement, int]:
    from penstock.m3.placement import decode

    key = where.placement_key(_own(where, service))
    entry = await client.get(key.encode())
    if entry is None:
        raise Failure(f"there is no {key} in etcd; `penstock m3 placement init {service} ID=HOST:PORT...` makes it")
    return decode(entry.value), entry.revision


async def _put_placement(
    client: Client, where: EtcdTopology, service: str, placement: Placement, revision: int
) -> Placement:
    from penstock.m3.placement import encode

    await _put(client, where.placement_key(_own(where, service)), encode(placement), revision)
    return placement


async def _put(client: Client, key: str, value: bytes, revision: int) -> None:
    outcome = await client.change({key.encode(): value}, guards={key.encode(): revision})
    if outcome.conflicts:
        raise Failure(f"{key} is in etcd already" if revision == 0 else f"{key} was changed meanwhile; try again")


def _endpoints(command: str, texts: list[str]) -> dict[str, str]:
    """Return the addresses of instances; a relay could not dial one that is none."""
    from penstock.config import host_and_port
    from penstock.errors import ConfigError

    found = pairs(command, texts)
    for name, endpoint in found.items():
        try:
            host_and_port(endpoint)
        except ConfigError as error:
            raise Failure(f"instance {name}: {error}", USAGE) from None
    return found


# --- people ---------------------------------------------------------------------------------------------------------


def _show_topic(out: Printer, topic: Topic) -> None:
    from penstock.config import format_duration

    rows = [
        (str(each.service_id), each.consumption, format_duration(each.ttl_ns) if each.ttl_ns > 0 else "for ever")
        for each in topic.services
    ]
    out.table(topic, ("service", "consumption", "sent for"), rows, f"{topic.name} has no services")


def _show_placement(out: Printer, placement: Placement) -> None:
    rows = [
        (name, each.endpoint, _ranges([shard.id for shard in each.shards]) if placement.is_sharded else "all")
        for name, each in sorted(placement.instances.items())
    ]
    out.table(placement, ("instance", "endpoint", "shards"), rows, "it has no instances")


def _ranges(shards: list[int]) -> str:
    """Return shards as people write them: 0..3, 7."""
    pieces: list[list[int]] = []
    for shard in sorted(shards):
        if pieces and shard == pieces[-1][1] + 1:
            pieces[-1][1] = shard
        else:
            pieces.append([shard, shard])
    return ", ".join(str(first) if first == last else f"{first}..{last}" for first, last in pieces) or "none"
