"""`penstock subscription`: make, look at, change, move and drop subscriptions; `penstock redrive` for dead letters."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from penstock.cli.client import Client, part
from penstock.cli.command import remote
from penstock.cli.failure import REFUSED, USAGE, Failure
from penstock.cli.printer import Printer, count
from penstock.cli.settings import chosen, options
from penstock.settings import SubscriptionSettings

app = typer.Typer(help="Make, look at, change, move and drop subscriptions.", no_args_is_help=True)

STATES = "ready: to be handed out; leased: with a consumer; waiting: for its time"

TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")]
Name = Annotated[str, typer.Argument(metavar="SUBSCRIPTION", help="The subscription.")]
Traffic = Annotated[
    list[str] | None,
    typer.Option("--traffic", help="Take only this traffic type. May be repeated.", metavar="NAME", show_default=False),
]
TrafficDefault = Annotated[
    bool | None,
    typer.Option(
        "--traffic-default/--no-traffic-default",
        help="Take messages without traffic bits, and all while the routing mapping does not know a name.",
        show_default=False,
    ),
]
TrafficUpstream = Annotated[
    bool | None,
    typer.Option(
        "--traffic-upstream/--no-traffic-upstream",
        help="Judge as M3's code does, not as its documentation says: unknown names are passed over.",
        show_default=False,
    ),
]
StoragePolicies = Annotated[
    list[str] | None,
    typer.Option(
        "--storage-policy",
        help="Of metrics, take those of this storage policy, like 10s:2d; empty for all. May be repeated.",
        metavar="POLICY",
        show_default=False,
    ),
]
NoTraffic = Annotated[bool, typer.Option("--no-traffic", help="Take everything again: drop the traffic filter.")]


class Consumer(msgspec.Struct):
    """One receiver."""

    name: str
    credit: int
    in_flight: int
    acked: int


class TrafficFilter(msgspec.Struct):
    """The traffic types a subscription takes."""

    allowed: list[str] = []
    is_default: bool = False
    upstream_filter: bool = False


class Settings(msgspec.Struct):
    """What a subscription was told, as far as it is shown."""

    traffic: TrafficFilter | None
    storage_policies: list[str]
    percentage: float
    shard_set: str
    max_attempts: int
    dead_letter: str
    ttl: str
    lease: str
    lease_max: str
    dealer: str
    buckets: int
    prefetch: str
    order: str
    key_run: int
    ephemeral: bool
    paused: bool


class Subscription(msgspec.Struct):
    """One subscription in full."""

    topic: str
    name: str
    settings: Settings
    depth: int
    in_flight: int
    waiting: int
    released: int
    expired_leases: int
    counts: dict[str, int]
    consumers: list[Consumer]
    policy: str


class Lease(msgspec.Struct):
    """A message on lease."""

    id: str
    receipt: str
    attempts: int
    ends: str


class Holder(msgspec.Struct):
    """Somebody who holds messages under a name."""

    name: str
    connected: bool
    in_flight: int
    leases: list[Lease]


class Holders(msgspec.Struct):
    """The named holders of a subscription."""

    holders: list[Holder]


class Listing(msgspec.Struct):
    """The subscriptions of a topic."""

    subscriptions: list[Subscription]


class RawListing(msgspec.Struct):
    """The same, as the node said it."""

    subscriptions: msgspec.Raw


@remote(app, "create", options(SubscriptionSettings, defaults=True))
def create(
    client: Client,
    out: Printer,
    topic: TopicName,
    name: Name,
    settings: dict[str, object],
    traffic: Traffic = None,
    traffic_default: TrafficDefault = None,
    traffic_upstream: TrafficUpstream = None,
    storage_policy: StoragePolicies = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="Where it begins: earliest, latest, an offset, a time, or a duration ago.",
            show_default="earliest for the first of a topic, else latest",
        ),
    ] = None,
) -> None:
    """Make a subscription."""
    settings |= chosen(traffic=_traffic(traffic, traffic_default, traffic_upstream, None))
    settings |= _storage(storage_policy)
    answer = client.call("POST", f"/topics/{part(topic)}/subscriptions", {"name": name, "settings": settings})
    if start is not None:
        answer = client.call("POST", f"{_path(topic, name)}/seek", {"to": start})
    made = answer.read(Subscription)
    out.done(answer.raw, f"subscription {name} of topic {topic} made: {count(made.depth, 'message')} to come")


@remote(app, "list")
def list_(client: Client, out: Printer, topic: TopicName) -> None:
    """List the subscriptions of a topic."""
    answer = client.get(f"/topics/{part(topic)}/subscriptions")
    rows = [
        (
            one.name,
            str(one.depth),
            str(one.in_flight),
            str(one.waiting),
            str(one.counts.get("acked", 0)),
            str(len(one.consumers)),
            "paused" if one.settings.paused else "",
        )
        for one in answer.read(Listing).subscriptions
    ]
    columns = ("subscription", "ready", "leased", "waiting", "acked", "consumers", "")
    out.table(answer.read(RawListing).subscriptions, columns, rows, f"topic {topic} has no subscription yet")
    if rows and not out.json:
        out.line(STATES)


@remote(app, "show")
def show(client: Client, out: Printer, topic: TopicName, name: Name) -> None:
    """Show one subscription: settings, counts, consumers."""
    answer = client.get(_path(topic, name))
    one = answer.read(Subscription)
    settings = one.settings
    dead = settings.dead_letter or f"{topic}.dead"
    fields = {
        "subscription": f"{one.name} of topic {one.topic}{' (paused)' if settings.paused else ''}",
        "ready": str(one.depth),
        "leased": str(one.in_flight),
        "waiting": str(one.waiting),
        "released": str(one.released),
        "expired leases": str(one.expired_leases),
        **{name.replace("_", "-"): _explained(name, number) for name, number in one.counts.items()},
        "traffic": _shown(settings.traffic),
        **_filters(settings),
        "max attempts": f"{settings.max_attempts}, then to {dead}" if settings.max_attempts else "no limit",
        "ttl": "none" if settings.ttl == "0" else settings.ttl,
        "lease": f"{settings.lease}, at most {settings.lease_max}",
        "policy": _policy(one),
        "order": f"by key, {settings.key_run} out at a time" if settings.order == "key" else settings.order,
    }
    if settings.ephemeral:
        fields["ephemeral"] = "gone with its last consumer"
    for consumer in one.consumers:
        fields[f"consumer {consumer.name}"] = (
            f"credit {consumer.credit}, holds {consumer.in_flight}, acked {consumer.acked}"
        )
    out.fields(answer.raw, fields)


@remote(app, "holders")
def holders(client: Client, out: Printer, topic: TopicName, name: Name) -> None:
    """List who holds messages under a name, and which: these leases outlive connections and the node."""
    answer = client.get(f"{_path(topic, name)}/holders")
    found = answer.read(Holders).holders
    rows = [(one.name, lease.receipt, str(lease.attempts), lease.ends) for one in found for lease in one.leases]
    more = {one.name: one.in_flight - len(one.leases) for one in found}
    rows += [(holder, f"and {number} more", "", "") for holder, number in more.items() if number]
    columns = ("holder", "receipt", "attempts", "ends")
    out.table(answer.raw, columns, rows, f"nobody holds messages of subscription {name} of topic {topic} under a name")


@remote(app, "set", options(SubscriptionSettings, changes=True))
def set_(
    client: Client,
    out: Printer,
    topic: TopicName,
    name: Name,
    settings: dict[str, object],
    traffic: Traffic = None,
    traffic_default: TrafficDefault = None,
    traffic_upstream: TrafficUpstream = None,
    no_traffic: NoTraffic = False,
    storage_policy: StoragePolicies = None,
) -> None:
    """Change settings of a subscription; the others stay."""
    settings |= _storage(storage_policy)
    if no_traffic:
        if traffic or traffic_default is not None or traffic_upstream is not None:
            raise Failure("--no-traffic drops the filter, so no other --traffic option goes with it", USAGE)
        settings["traffic"] = None
    elif traffic is not None or traffic_default is not None or traffic_upstream is not None:
        old = client.get(_path(topic, name)).read(Subscription).settings.traffic
        settings["traffic"] = _traffic(traffic, traffic_default, traffic_upstream, old)
    if not settings:
        text = "no setting was named; `penstock subscription set --help` lists them"
        raise Failure(f"subscription {name} stays as it is: {text}", USAGE)
    answer = client.call("PATCH", _path(topic, name), {"settings": settings})
    out.done(answer.raw, f"subscription {name} of topic {topic}: {', '.join(settings)} changed")


@remote(app, "pause")
def pause(client: Client, out: Printer, topic: TopicName, name: Name) -> None:
    """Hand out nothing more."""
    answer = client.call("POST", f"{_path(topic, name)}/pause")
    text = f"`penstock subscription resume {topic} {name}` lets it go on"
    out.done(answer.raw, f"subscription {name} of topic {topic} is paused; {text}")


@remote(app, "resume")
def resume(client: Client, out: Printer, topic: TopicName, name: Name) -> None:
    """Hand out again."""
    answer = client.call("POST", f"{_path(topic, name)}/resume")
    out.done(answer.raw, f"subscription {name} of topic {topic} goes on")


@remote(app, "seek")
def seek(
    client: Client,
    out: Printer,
    topic: TopicName,
    name: Name,
    to: Annotated[
        str,
        typer.Argument(
            metavar="TO", help="earliest, latest, an offset, a time (2026-01-31T12:00:00Z), or a duration ago (1h)."
        ),
    ],
    shard: Annotated[int | None, typer.Option(min=0, help="Only in this shard.", show_default="all")] = None,
) -> None:
    """Begin anew somewhere else."""
    answer = client.call("POST", f"{_path(topic, name)}/seek", chosen(to=to, shard=shard))
    depth = answer.read(Subscription).depth
    out.done(answer.raw, f"subscription {name} of topic {topic} begins anew: {count(depth, 'message')} to come")


@remote(app, "empty")
def empty(client: Client, out: Printer, topic: TopicName, name: Name) -> None:
    """Finish everything there is, unread."""
    answer = client.call("POST", f"{_path(topic, name)}/empty")
    out.done(answer.raw, f"subscription {name} of topic {topic} is empty")


@remote(app, "delete")
def delete(client: Client, out: Printer, topic: TopicName, name: Name) -> None:
    """Drop a subscription and hang up on its consumers."""
    client.call("DELETE", _path(topic, name))
    out.done({"deleted": name, "topic": topic}, f"subscription {name} of topic {topic} is gone")


def _path(topic: str, name: str) -> str:
    return f"/topics/{part(topic)}/subscriptions/{part(name)}"


def _traffic(
    names: list[str] | None, is_default: bool | None, upstream: bool | None, old: TrafficFilter | None
) -> TrafficFilter | None:
    """Return the filter that the options ask for; what they leave open stays as it was."""
    changes = chosen(allowed=names, is_default=is_default, upstream_filter=upstream)
    return msgspec.structs.replace(old or TrafficFilter(), **changes) if changes else None


def _storage(policies: list[str] | None) -> dict[str, object]:
    return {} if policies is None else {"storage_policies": [policy for policy in policies if policy]}


def _policy(one: Subscription) -> str:
    """Return who gets which message, in words."""
    settings = one.settings
    if one.policy != "buckets":
        return one.policy
    ahead = "" if settings.prefetch == "0" else f", {settings.prefetch} before they are due"
    return f"{settings.buckets} buckets, dealer {settings.dealer}{ahead}"


def _shown(traffic: TrafficFilter | None) -> str:
    if traffic is None:
        return "everything"
    names = ", ".join(traffic.allowed) or "no type"
    upstream = "; as M3's code does" if traffic.upstream_filter else ""
    return f"{names}; without bits: {'taken' if traffic.is_default else 'passed over'}{upstream}"


def _filters(settings: Settings) -> dict[str, str]:
    """Return the other filters that it has."""
    found = {
        "storage policies": ", ".join(settings.storage_policies),
        "percentage": f"{settings.percentage:g} of 1" if settings.percentage < 1 else "",
        "shard set": settings.shard_set,
    }
    return {name: text for name, text in found.items() if text}


#: What the counts of a subscription mean; `passed` is the sum of the others.
LEGEND = {
    "passed": "looked at since it began or was moved",
    "held": "of them leased, waiting or ready again",
    "acked": "finished by consumers",
    "filtered": "refused by its filters",
    "expired": "too old to be handed out",
    "dead_lettered": "failed too often",
    "removed": "gone with what retention dropped, or skipped by hand",
}


def _explained(name: str, number: int) -> str:
    meaning = LEGEND.get(name)
    return f"{number} ({meaning})" if meaning else str(number)


#: A million letters are moved in one request.
WAIT_S = 600.0


class Redriven(msgspec.Struct):
    """What became of the letters."""

    moved: int
    topics: dict[str, int]
    left: int
    problem: str | None


def redrive(
    client: Client,
    out: Printer,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The dead-letter topic, like orders.dead.")],
    to: Annotated[
        str | None, typer.Option(help="Move them to this topic.", metavar="TOPIC", show_default="where each failed")
    ] = None,
    most: Annotated[int | None, typer.Option("--max", "-n", min=1, help="So many at most.", show_default="all")] = None,
) -> None:
    """Move dead letters back to the topic they failed in.

    The subscription `redrive` of the topic remembers which ones went back; a redrive that moves none leaves none.
    """
    answer = client.call("POST", f"/topics/{part(topic)}/redrive", chosen(to=to, max=most), wait_s=WAIT_S)
    done = answer.read(Redriven)
    where = ", ".join(f"{number} to {name}" for name, number in done.topics.items())
    # Other messages can be moved, too: those of any topic, with --to.
    noun = "dead letter" if topic.endswith(".dead") else "message"
    out.done(answer.raw, f"{count(done.moved, noun)} moved{f': {where}' if where else ''}; {done.left} left")
    if done.problem:
        raise Failure(done.problem, REFUSED)
