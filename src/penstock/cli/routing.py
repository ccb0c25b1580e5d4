"""`penstock routing`: which bit each traffic type is, what subscriptions take, and who would get a message."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from penstock.cli.client import Client, part
from penstock.cli.command import remote
from penstock.cli.failure import REFUSED, USAGE, Failure
from penstock.cli.printer import Printer, count
from penstock.cli.settings import chosen
from penstock.cli.values import pairs
from penstock.cli.values import traffic as traffic_of

app = typer.Typer(help="Look at, set and test the traffic types.", no_args_is_help=True)


class Policy(msgspec.Struct):
    """The routing policy in etcd."""

    zone: str
    keys: list[str]
    key: str
    revision: int
    current: bool
    problems: list[str]


class Mapping(msgspec.Struct):
    """The bit of each traffic type."""

    traffic_types: dict[str, int]
    retired: dict[str, int] = {}
    policy: Policy | None = None


class Taker(msgspec.Struct):
    """What one subscription says to a message."""

    topic: str
    subscription: str
    accepted: bool
    reason: str


class Which(msgspec.Struct):
    """What every subscription says to it."""

    subscriptions: list[Taker]


class Verdict(msgspec.Struct):
    """What a filter says, and why."""

    accepted: bool
    reason: str


@remote(app, "show")
def show(client: Client, out: Printer) -> None:
    """Show the routing mapping, and where it is kept."""
    answer = client.get("/routing")
    mapping = answer.read(Mapping)
    rows = [(str(bit), name, "") for name, bit in mapping.traffic_types.items()]
    rows += [(str(bit), name, "retired") for name, bit in mapping.retired.items()]
    rows.sort(key=lambda row: int(row[0]))
    empty = "no routing mapping is set; `penstock routing set NAME=BIT...` sets one"
    out.table(answer.raw, ("bit", "traffic type", ""), rows, empty)
    if mapping.policy is not None and not out.json:
        for line in _told(mapping.policy):
            out.line(line)


def _told(policy: Policy) -> list[str]:
    """Return what to know of a policy in etcd."""
    state = "" if policy.current else ", which does not answer: the last mapping stays"
    lines = [f"kept in etcd, zone {policy.zone}{state}"]
    force = {policy.key: f" (in force, revision {policy.revision})"}
    lines += [f"  {key}{force.get(key, '')}" for key in policy.keys]
    return lines + [f"  {problem}" for problem in policy.problems]


@remote(app, "set")
def set_(
    client: Client,
    out: Printer,
    types: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME=BIT]...", help="Traffic types with their bits, 0 to 63.")
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Retire the types that are not named.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Also move a type or reuse a bit: producers and consumers must agree anew.")
    ] = False,
    topic: Annotated[str | None, typer.Option("--topic", help="The topic of a subscription to filter.")] = None,
    subscription: Annotated[
        str | None, typer.Option("--subscription", help="The subscription that gets the filter below.")
    ] = None,
    allow: Annotated[
        list[str] | None, typer.Option("--allow", help="A type the subscription takes. May be repeated.")
    ] = None,
    is_default: Annotated[bool, typer.Option("--default", help="It takes what the policy cannot judge.")] = False,
    upstream: Annotated[
        bool, typer.Option("--upstream", help="Judge as M3's code does: unknown names are passed over.")
    ] = False,
) -> None:
    """Add traffic types, or replace the whole mapping; set which of them a subscription takes. It applies at once."""
    if (topic is None) != (subscription is None) or (topic is None and (allow or is_default or upstream)):
        raise Failure("a filter needs --topic and --subscription, and --allow for each type it takes", USAGE)
    if not types and topic is None and not replace:
        raise Failure("nothing was named: write NAME=BIT, or --topic and --subscription for a filter", USAGE)
    said, documents = [], {}
    if types or replace:
        named = {name: _bit(name, text) for name, text in pairs("routing set", types).items()}
        body: dict[str, object] = {"traffic_types": named}
        if not replace:
            before = client.get("/routing").read(Mapping).traffic_types
            body = {"traffic_types": {**before, **named}, "before": before}
        answer = client.call("PUT", "/routing", body, query={"force": force})
        known = answer.read(Mapping).traffic_types
        names = ", ".join(f"{name}={bit}" for name, bit in known.items())
        said.append(f"{count(len(known), 'traffic type')} known: {names}")
        documents["mapping"] = answer.raw
    if topic is not None and subscription is not None:
        traffic = {"allowed": allow or [], "is_default": is_default, "upstream_filter": upstream}
        path = f"/topics/{part(topic)}/subscriptions/{part(subscription)}"
        answer = client.call("PATCH", path, {"settings": {"traffic": traffic}})
        takes = ", ".join(allow or []) or "no type"
        said.append(f"subscription {subscription} of topic {topic} takes {takes}")
        documents["subscription"] = answer.raw
    out.done(documents["mapping"] if len(documents) == 1 and types else documents, "\n".join(said))


@remote(app, "test")
def try_(
    client: Client,
    out: Printer,
    types: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TYPE]...", help="What a message carries: names, or all bits as a number."),
    ] = None,
    allow: Annotated[
        list[str] | None, typer.Option("--allow", help="Try a filter that takes this type. May be repeated.")
    ] = None,
    is_default: Annotated[
        bool, typer.Option("--default", help="Try a filter that takes what it cannot judge.")
    ] = False,
    upstream: Annotated[bool, typer.Option("--upstream", help="Try a filter that judges as M3's code does.")] = False,
    topic: Annotated[str | None, typer.Option("--topic", help="Ask the subscriptions of this topic.")] = None,
    storage_policy: Annotated[
        str | None, typer.Option("--storage-policy", help="The message's storage policy, like 10s:2d.")
    ] = None,
    shard: Annotated[int | None, typer.Option("--shard", min=0, help="The message's route.")] = None,
) -> int | None:
    """Say which subscriptions would get a message, and why, or what a filter would say; exit code 1 if none."""
    traffic = traffic_of(types) or 0
    if not (allow or is_default or upstream):
        body = {"traffic": traffic} | chosen(topic=topic, storage_policy=storage_policy, shard=shard)
        answer = client.call("POST", "/routing/which", body)
        found = answer.read(Which).subscriptions
        rows = [(one.topic, one.subscription, "yes" if one.accepted else "no", one.reason) for one in found]
        out.table(answer.raw, ("topic", "subscription", "gets it", "because"), rows, "there is no subscription")
        return None if any(one.accepted for one in found) else REFUSED
    if topic is not None or storage_policy is not None or shard is not None:
        raise Failure("--allow tries a filter of traffic types alone; leave it out to ask subscriptions", USAGE)
    body = {"traffic": traffic, "allowed": allow or [], "is_default": is_default, "upstream_filter": upstream}
    answer = client.call("POST", "/routing/test", body)
    verdict = answer.read(Verdict)
    out.done(answer.raw, f"{'taken' if verdict.accepted else 'passed over'}: {verdict.reason}")
    return None if verdict.accepted else REFUSED


def _bit(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise Failure(f'{name}={text}: "{text}" is no bit; write a number from 0 to 63', USAGE)
    return int(text)
