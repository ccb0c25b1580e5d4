"""`penstock timeline`: topics on a time axis, and messages that are due at a time.

Speaks the native protocol, by the SDK; the admin API says where that is.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from penstock.cli.client import Client
from penstock.cli.command import remote
from penstock.cli.failure import REFUSED, USAGE, Failure
from penstock.cli.printer import Printer, count, moment
from penstock.units.times import MILLISECOND_NS, shown

if TYPE_CHECKING:
    from penstock.client.timeline import Message, Timeline

app = typer.Typer(help="Timelines: messages that are due at a time.", no_args_is_help=True)

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The timeline.")]
When = Annotated[
    str | None, typer.Option(help="When: +5s, 2026-01-31T12:00:00Z, or unix milliseconds.", metavar="WHEN")
]
#: Messages sent or asked for together.
BATCH = 1000
#: A consumer that waits for nothing in particular still waits for what is pushed to it first.
FIRST_S = 2.0


class Listener(msgspec.Struct):
    """One place that is listened at."""

    key: str
    place: str


class Dialect(msgspec.Struct):
    """Who serves clients."""

    name: str
    listeners: list[Listener]


class Dialects(msgspec.Struct):
    """All of them."""

    dialects: list[Dialect]


@contextmanager
def _timeline(client: Client, topic: str) -> Iterator[Timeline]:
    """Have a timeline of the node that is meant; what cannot be a value of an option is one line."""
    from penstock.client.timeline import Timeline

    url = _url(client)
    try:
        with Timeline(topic, url, token=client.token, patience=10) as timeline:
            yield timeline
    except (TypeError, ValueError) as error:
        raise Failure(str(error), USAGE) from error


def _url(client: Client) -> str:
    """Return where the native protocol of a node is."""
    found = client.get("/dialects").read(Dialects)
    for listener in (listener for dialect in found.dialects for listener in dialect.listeners):
        if listener.key == "flight.port":
            scheme, _, place = listener.place.partition("://")
            host = f"[{client.host}]" if ":" in client.host else client.host
            return f"{scheme}://{host}:{place.rpartition(':')[2]}"
    raise Failure(f"{client.url} has no Flight listener, which timelines need; set flight.enabled = true", REFUSED)


@remote(app, "create")
def create(
    client: Client,
    out: Printer,
    topic: Topic,
    buckets: Annotated[
        int, typer.Option(min=0, max=65535, help="Parts that consumers share.", show_default="1024")
    ] = 0,
    dealer: Annotated[str, typer.Option(help="simple, rack or gladiator.", show_default="simple")] = "",
    window: Annotated[str | None, typer.Option(help="Length of a window.", metavar="DURATION")] = None,
    prefetch: Annotated[
        str | None, typer.Option(help="Push leases so long before they are due; 0 = never.", metavar="DURATION")
    ] = None,
    max_future: Annotated[
        str | None, typer.Option(help="How far ahead a message may be due; 0 = any time.", metavar="DURATION")
    ] = None,
    max_lease: Annotated[str | None, typer.Option(help="The longest lease.", metavar="DURATION")] = None,
    max_body: Annotated[str | None, typer.Option(help="The largest body.", metavar="SIZE")] = None,
) -> None:
    """Make a timeline; what is not chosen has its default. One with the same settings is found."""
    from penstock.client.incoming import milliseconds
    from penstock.units.quantity import parse_size

    with _timeline(client, topic) as timeline:
        timeline.create(
            bucket_count=buckets,
            dealer=dealer,
            time_window_ms=milliseconds(window) if window else 0,
            prefetch_max_ms=milliseconds(prefetch) if prefetch is not None else None,
            max_seconds_future=milliseconds(max_future) // 1000 if max_future is not None else None,
            max_seconds_lease=milliseconds(max_lease) // 1000 if max_lease else 0,
            max_body_bytes=parse_size(max_body) if max_body else 0,
        )
    out.done({"topic": topic}, f"timeline {topic} is there")


@remote(app, "delete")
def delete(client: Client, out: Printer, topic: Topic) -> None:
    """Drop a timeline with all of its messages."""
    with _timeline(client, topic) as timeline:
        timeline.delete()
    out.done({"topic": topic}, f"timeline {topic} is deleted")


@remote(app, "redeal")
def redeal(client: Client, out: Printer, topic: Topic) -> None:
    """Deal the buckets of a timeline anew, as whole ranges; leases stay where they are."""
    with _timeline(client, topic) as timeline:
        is_dealt = timeline.redeal()
    text = f"the buckets of {topic} are dealt anew" if is_dealt else f"{topic} has no consumers to deal buckets to"
    out.done({"topic": topic, "is_dealt": is_dealt}, text)


@remote(app, "info")
def info(
    client: Client,
    out: Printer,
    topic: Annotated[str | None, typer.Argument(metavar="[TOPIC]", help="The timeline.", show_default="all")] = None,
) -> None:
    """Show timelines: what waits, what is available, what is on lease."""
    if topic is not None:
        with _timeline(client, topic) as timeline:
            found = timeline.info()
        out.fields(found, {name.replace("_", " "): _shown(name, value) for name, value in _flat(found)})
        return
    from penstock.client.connection import Access, Connection
    from penstock.client.timeline import wire
    from penstock.client.timeline.link import act

    with Connection(Access(_url(client), client.token)) as connection:
        topics = act(connection, "info", wire.Info(), wire.Informed).topics
    columns = ("topic", "state", "available", "waiting", "processing", "consumers")
    keys = ("id", "state", "approx_available", "waiting", "processing", "consumers")
    rows = [[str(each.get(key, "-")) for key in keys] for each in topics]
    out.table({"topics": topics}, columns, rows, "no timelines; `penstock timeline create NAME` makes one")


def _flat(document: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in document.items():
        if isinstance(value, dict):
            yield from value.items()
        else:
            yield name, value


def _shown(name: str, value: Any) -> str:
    return moment(shown(value * MILLISECOND_NS)) if name in ("created_ms", "oldest_ms") and value else str(value)


@remote(app, "count")
def count_messages(
    client: Client,
    out: Printer,
    topic: Topic,
    status: Annotated[str, typer.Option(help="all, available, waiting or processing.")] = "all",
    start: Annotated[
        str | None, typer.Option("--from", help="Due from then on: +1h, or a time.", metavar="WHEN")
    ] = None,
    end: Annotated[str | None, typer.Option("--to", help="Due before then.", metavar="WHEN")] = None,
) -> None:
    """Count messages, by their state and by when they are due."""
    with _timeline(client, topic) as timeline:
        found = timeline.count(status, start=start, end=end)
    out.done({"count": found}, f"{found}")


@remote(app, "put")
def put(
    client: Client,
    out: Printer,
    topic: Topic,
    texts: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TEXT]...", help="One message each; without any, every line of standard input is one."),
    ] = None,
    due: When = None,
    group: Annotated[str, typer.Option(help="The producer group that owns them.")] = "cli",
    message_id: Annotated[str | None, typer.Option("--id", help="Its id, for one message.", metavar="ID")] = None,
) -> None:
    """Put messages on a timeline, due at once or at a time; prints their ids with --json."""
    from penstock.client.timeline import Scheduled

    if message_id is not None and (texts is None or len(texts) != 1):
        raise Failure("--id names one message; give one TEXT", USAGE)
    lines: Iterable[bytes] = (
        [text.encode(errors="surrogateescape") for text in texts]
        if texts
        else (line.rstrip(b"\n") for line in sys.stdin.buffer)
    )
    total = 0
    with _timeline(client, topic) as timeline, timeline.producer(group) as producer:
        for some in _some(lines):
            ids = producer.create([Scheduled(body, due, message_id) for body in some])
            total += len(ids)
            if out.json:
                out.document({"ids": [each.decode("utf-8", "replace") for each in ids]})
    if not out.json:
        out.line(f"{count(total, 'message')} on {topic}, due {due or 'at once'}")


def _some(lines: Iterable[bytes]) -> Iterator[list[bytes]]:
    some: list[bytes] = []
    for line in lines:
        some.append(line)
        if len(some) == BATCH:
            yield some
            some = []
    if some:
        yield some


@remote(app, "consume")
def consume(
    client: Client,
    out: Printer,
    topic: Topic,
    name: Annotated[
        str | None, typer.Option("--as", help="The consumer's id; the same one goes on with its leases.", metavar="ID")
    ] = None,
    rack: Annotated[str, typer.Option(help="Its rack.", show_default="none")] = "",
    most: Annotated[
        int | None, typer.Option("--max", "-n", min=1, help="End after so many.", show_default="all")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more, for ever.")] = False,
    wait: Annotated[
        str, typer.Option(help="Wait so long for the next message.", metavar="DURATION", show_default="2s")
    ] = "",
    lease: Annotated[str, typer.Option(help="How long to hold a message.", metavar="DURATION")] = "60s",
    keep: Annotated[bool, typer.Option("--keep", help="Give messages back instead of deleting them.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print ids and due times, too.")] = False,
) -> None:
    """Take messages when they are due, print their bodies, and delete them."""
    patience = None if follow else (wait or FIRST_S)
    name = name or f"cli {uuid.uuid4().hex[:8]}"
    kept: list[Message] = []
    with (
        _timeline(client, topic) as timeline,
        timeline.consumer(name, rack=rack, lease=lease, stop_after=most) as consumer,
    ):
        try:
            while (message := consumer.take(timeout=patience)) is not None:
                _print(out, message, verbose)
                if keep:
                    kept.append(message)
                else:
                    message.delete()
        finally:
            # Only now: given back earlier, they would be the next to come.
            for message in kept:
                message.release(message.due_ms * MILLISECOND_NS)


def _print(out: Printer, message: Message, verbose: bool) -> None:
    name, due = message.id.decode("utf-8", "replace"), shown(message.due_ms * MILLISECOND_NS)
    if out.json:
        text = message.body.decode("utf-8", "replace")
        out.document({"id": name, "due": due, "body": text, "version": message.version, "bucket": message.bucket})
    elif verbose:
        out.bytes(f"{moment(due)} {name} ".encode() + message.body)
    else:
        out.bytes(message.body)
