"""`penstock topic`: make, look at, change and drop topics of a running node."""

from __future__ import annotations

import re
import sys
from fnmatch import fnmatchcase
from typing import Annotated

import msgspec
import typer

from penstock.cli.client import Answer, Client, part
from penstock.cli.command import remote
from penstock.cli.failure import USAGE, Failure
from penstock.cli.printer import Printer, count, moment, size
from penstock.cli.settings import flat, nested, of_topics
from penstock.cli.values import note_spelling
from penstock.units.quantity import format_size

app = typer.Typer(help="Make, look at, change and drop topics.", no_args_is_help=True)

UNCLAIMED = "with no subscription yet, because there was none or the topic is paused"

Name = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")]


class Shard(msgspec.Struct):
    """One shard, as far as it is shown."""

    number: int
    start: int
    end: int
    rows: int
    bytes: int
    damaged: list[msgspec.Raw]


class Summary(msgspec.Struct):
    """One topic in a list."""

    name: str
    depth: int
    rows: int
    bytes: int
    published: int
    subscriptions: list[str]
    is_paused: bool


class Page(msgspec.Struct):
    """Some of the topics."""

    topics: list[Summary]
    next: str | None = None


class RawPage(msgspec.Struct):
    """The same, as the node said it."""

    topics: list[msgspec.Raw]


class Topic(msgspec.Struct):
    """One topic in full."""

    name: str
    number: int
    created: str
    settings: dict[str, str | int | bool | dict[str, dict[str, str | int | bool]]]
    published: int
    depth: int
    bytes: int
    shards: list[Shard]
    subscriptions: list[str]


@remote(app, "create", of_topics())
def create(client: Client, out: Printer, name: Name, settings: dict[str, object]) -> None:
    """Make a topic; what is not chosen comes from the node's configuration."""
    answer = client.call("POST", "/topics", {"name": name, "settings": nested(settings)})
    made = answer.read(Topic)
    note_spelling(name)
    out.done(answer.raw, f"topic {name} made: {count(len(made.shards), 'shard')}, {made.settings['durability']}")


@remote(app, "list")
def list_(
    client: Client,
    out: Printer,
    prefix: Annotated[str, typer.Argument(metavar="[PREFIX]", help="Only topics whose names begin so.")] = "",
) -> None:
    """List topics."""
    topics, raw = _listed(client, prefix)
    rows = [
        (
            topic.name,
            str(topic.rows),
            size(topic.bytes),
            str(topic.depth),
            ", ".join(topic.subscriptions) or "-",
            "paused" if topic.is_paused else "",
        )
        for topic in topics
    ]
    out.table(raw, ("topic", "rows", "bytes", "unclaimed", "subscriptions", ""), rows, "there is no topic yet")
    if not out.json and any(topic.depth for topic in topics):
        out.line(f"unclaimed: {UNCLAIMED}")


def _listed(client: Client, prefix: str) -> tuple[list[Summary], list[msgspec.Raw]]:
    """Return all topics whose names begin so, and the same as the node said it."""
    topics: list[Summary] = []
    raw: list[msgspec.Raw] = []
    after: str | None = ""
    while after is not None:
        answer = client.get("/topics", {"prefix": prefix, "after": after})
        page = answer.read(Page)
        topics += page.topics
        raw += answer.read(RawPage).topics
        after = page.next
    return topics, raw


@remote(app, "show")
def show(client: Client, out: Printer, name: Name) -> None:
    """Show one topic: settings, shards, subscriptions."""
    _show(out, client.get(f"/topics/{part(name)}"))


@remote(app, "set", of_topics(changes=True))
def set_(client: Client, out: Printer, name: Name, settings: dict[str, object]) -> None:
    """Change settings of a topic; the others stay."""
    if not settings:
        raise Failure(
            f"topic {name} stays as it is: no setting was named; `penstock topic set --help` lists them", USAGE
        )
    answer = client.call("PATCH", f"/topics/{part(name)}", {"settings": nested(settings)})
    changed = ", ".join(f"{key} = {value}" for key, value in flat(nested(settings)).items())
    out.done(answer.raw, f"topic {name}: {changed}")


@remote(app, "pause")
def pause(client: Client, out: Printer, name: Name) -> None:
    """Keep what comes from now on in the topic."""
    answer = client.call("POST", f"/topics/{part(name)}/pause")
    out.done(answer.raw, f"topic {name} is paused; `penstock topic resume {name}` lets it flow again")


@remote(app, "resume")
def resume(client: Client, out: Printer, name: Name) -> None:
    """Let messages flow to the subscriptions again."""
    answer = client.call("POST", f"/topics/{part(name)}/resume")
    out.done(answer.raw, f"topic {name} flows")


@remote(app, "empty")
def empty(client: Client, out: Printer, name: Name) -> None:
    """Let go of what no subscription has yet."""
    answer = client.call("POST", f"/topics/{part(name)}/empty")
    out.done(answer.raw, f"topic {name} holds nothing back for its next subscription")


@remote(app, "delete")
def delete(
    client: Client,
    out: Printer,
    names: Annotated[
        list[str], typer.Argument(metavar="TOPIC...", help="Topics, or patterns such as 'demo.*' (in quotes).")
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Drop topics with everything in them; asks first."""
    chosen = _matching(client, names)
    what = f"topic {chosen[0]}" if len(chosen) == 1 else f"{len(chosen)} topics ({', '.join(chosen)})"
    if not yes:
        if not sys.stdin.isatty():
            raise Failure(f"{what} would be dropped with everything inside; say so with --yes", USAGE)
        typer.confirm(f"Drop {what} with everything inside?", abort=True, err=True)
    for name in chosen:
        client.call("DELETE", f"/topics/{part(name)}")
    out.done({"deleted": chosen}, f"{what} {'is' if len(chosen) == 1 else 'are'} gone, with everything inside")


def _matching(client: Client, names: list[str]) -> list[str]:
    """Return the topics that are meant; a pattern that fits none is refused, and so is a name that is not there.

    Where a topic has that very name, it alone is meant, whatever characters are in it.
    """
    chosen: list[str] = []
    for name in names:
        if not set(name) & set("*?["):
            chosen += [client.get(f"/topics/{part(name)}").read(Topic).name]
            continue
        prefix = re.split(r"[*?\[]", name)[0]
        there = [topic.name for topic in _listed(client, prefix)[0]]
        found = [name] if name in there else [each for each in there if fnmatchcase(each, name)]
        if not found:
            raise Failure(f"no topic fits {name!r}; `penstock topic list` lists them")
        chosen += found
    return list(dict.fromkeys(chosen))


def _show(out: Printer, answer: Answer) -> None:
    topic = answer.read(Topic)
    quota = topic.settings["quota_bytes"]
    fields = {
        "topic": topic.name,
        "created": moment(topic.created),
        "published": f"{topic.published} since the node started",
        "unclaimed": f"{topic.depth} ({UNCLAIMED})" if topic.depth else "0",
        "subscriptions": ", ".join(topic.subscriptions) or "-",
        "stored": size(topic.bytes) + (f" of {size(quota)}" if isinstance(quota, int) and quota else ""),
        "data in": f"topics/{topic.number}",
    }
    for shard in topic.shards:
        damage = f", {len(shard.damaged)} damaged stretches: see `penstock log verify`" if shard.damaged else ""
        fields[f"shard {shard.number}"] = (
            f"offsets {shard.start} to {shard.end - 1}, {shard.rows} rows, {size(shard.bytes)}{damage}"
            if shard.rows
            else f"empty, next offset {shard.end}{damage}"
        )
    fields |= {name: _text(name, value) for name, value in flat(topic.settings).items()}
    out.fields(answer.raw, fields)


def _text(name: str, value: object) -> str:
    if name.endswith("_bytes") and isinstance(value, int):
        return format_size(value)
    return str(value).lower() if isinstance(value, bool) else str(value) or "-"
