"""`penstock peek` and `penstock tail`: the log as it is, without a subscription and without a trace."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Annotated

import msgspec
import typer

from penstock.cli.client import Client, part
from penstock.cli.failure import USAGE, Failure
from penstock.cli.message import Format, FormatOption, Verbose, format_of, read
from penstock.cli.printer import Printer

#: One answer holds at most so many; the node's limit.
PAGE_MAX = 1000
#: How long one shard is waited for: alone, and where others may have something meanwhile.
WAIT_S = 30
TURN_MS = 250

TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")]


class Page(msgspec.Struct):
    """Some rows of one shard."""

    messages: list[msgspec.Raw]
    next: int
    start: int
    end: int


class Shards(msgspec.Struct):
    """How many shards a topic has."""

    shards: list[msgspec.Raw]


def peek(
    client: Client,
    out: Printer,
    topic: TopicName,
    offset: Annotated[
        str | None, typer.Option(help="From an offset, earliest or latest.", show_default="earliest")
    ] = None,
    time: Annotated[str | None, typer.Option(help="From a time, or a duration ago (10m).", metavar="WHEN")] = None,
    most: Annotated[int, typer.Option("--max", "-n", min=1, help="So many messages.")] = 10,
    shard: Annotated[int, typer.Option(min=0, help="Of this shard.")] = 0,
    text: FormatOption = None,
) -> None:
    """Look at messages in the log, with place and time; nothing is taken."""
    if offset is not None and time is not None:
        raise Failure("--offset and --time both say where to begin; choose one", USAGE)
    at, left, printed = offset or "earliest", most, format_of(text, verbose=True)
    while left > 0:
        page = _page(client, topic, shard, at, min(left, PAGE_MAX), time=time)
        for raw in page.messages:
            _print(out, raw, printed)
        left -= len(page.messages)
        at, time = str(page.next), None
        if page.next >= page.end:
            return


def tail(
    client: Client,
    out: Printer,
    topic: TopicName,
    last: Annotated[int, typer.Option("--last", "-n", min=0, help="Begin with so many of the last offsets.")] = 10,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", "-f", help="Wait for what comes.")] = True,
    most: Annotated[int | None, typer.Option("--max", min=1, help="End after so many.", show_default="never")] = None,
    shard: Annotated[int | None, typer.Option(min=0, help="Only of this shard.", show_default="all")] = None,
    verbose: Verbose = False,
    text: FormatOption = None,
) -> None:
    """Print the bodies at the end of the log, and those that come; nothing is taken."""
    printed = format_of(text, verbose=verbose)
    for raw in islice(_coming(client, topic, shard, last, follow=follow), most):
        _print(out, raw, printed)


def _coming(client: Client, topic: str, shard: int | None, last: int, *, follow: bool) -> Iterator[msgspec.Raw]:
    count = len(client.get(f"/topics/{part(topic)}").read(Shards).shards)
    places = {number: _begin(client, topic, number, last) for number in (range(count) if shard is None else [shard])}
    waited = 0
    while True:
        news = False
        for number, offset in places.items():
            page = _page(client, topic, number, str(offset), PAGE_MAX)
            yield from page.messages
            news = news or bool(page.messages)
            places[number] = page.next
        if news:
            continue
        if not follow:
            return
        # One shard can be waited for at a time; with several, each gets a short turn.
        waited = (waited + 1) % len(places)
        number = list(places)[waited]
        wait = f"{WAIT_S}s" if len(places) == 1 else f"{TURN_MS}ms"
        page = _page(client, topic, number, str(places[number]), PAGE_MAX, wait=wait)
        yield from page.messages
        places[number] = page.next


def _begin(client: Client, topic: str, shard: int, last: int) -> int:
    page = _page(client, topic, shard, "latest", 1)
    return max(page.start, page.end - last)


def _page(
    client: Client, topic: str, shard: int, offset: str, limit: int, *, time: str | None = None, wait: str | None = None
) -> Page:
    query: dict[str, str | int | bool | None] = {"shard": shard, "limit": limit, "time": time, "wait": wait}
    if time is None:
        query["offset"] = offset
    return client.get(f"/topics/{part(topic)}/messages", query, wait_s=WAIT_S).read(Page)


def _print(out: Printer, raw: msgspec.Raw, printed: Format) -> None:
    if out.json:
        out.document(bytes(raw))
    else:
        out.bytes(printed.of(read(raw)))
