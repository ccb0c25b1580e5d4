"""`penstock status` and `penstock top`: a node on one screen, once or live.

Everything comes from the admin API; rates are the difference between two looks.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec
import typer

from penstock.cli.client import Client, part
from penstock.cli.failure import OK, REFUSED, UNREACHABLE, Failure, Refused
from penstock.cli.printer import Printer, moment, size
from penstock.cli.subscription import STATES
from penstock.cli.topic import UNCLAIMED
from penstock.units.quantity import parse_duration

#: Of how many topics the subscriptions are looked at, one request each.
LOOKED_AT_MAX = 50
ERRORS_SHOWN = 5

Every = Annotated[str, typer.Option(help="The time between two looks; rates are over it.", metavar="DURATION")]
Most = Annotated[int, typer.Option("--max", "-n", min=1, help="So many topics and subscriptions.")]


class Health(msgspec.Struct):
    """What the process is."""

    version: str


class Readiness(msgspec.Struct):
    """Whether the node can do its work."""

    ready: bool
    problems: list[str]
    degraded: list[str] = []


class Listener(msgspec.Struct):
    """One place that is listened at."""

    purpose: str
    place: str


class Dialect(msgspec.Struct):
    """One dialect, or the admin API."""

    listeners: list[Listener]


class Dialects(msgspec.Struct):
    """All of them."""

    dialects: list[Dialect]


class Peers(msgspec.Struct):
    """How many are connected."""

    total: int


class Part(msgspec.Struct):
    """One part of the memory budget."""

    name: str
    bytes: int
    max_bytes: int
    refused: int


class Memory(msgspec.Struct):
    """What the process has in memory, and what of it is held for others."""

    resident_bytes: int
    parts: list[Part]


class Topic(msgspec.Struct):
    """One topic."""

    name: str
    published: int
    rows: int
    bytes: int
    depth: int
    subscriptions: list[str]
    is_paused: bool
    in_per_s: float = 0.0


class Topics(msgspec.Struct):
    """A page of topics."""

    topics: list[Topic]
    next: str | None = None


class Consumer(msgspec.Struct):
    """One receiver."""

    name: str


class Subscription(msgspec.Struct):
    """One subscription; `depth` is what could be handed out now."""

    topic: str
    name: str
    depth: int
    in_flight: int
    waiting: int
    counts: dict[str, int]
    consumers: list[Consumer]
    acked_per_s: float = 0.0

    @property
    def lag(self) -> int:
        """Return what it has not finished."""
        return self.depth + self.in_flight + self.waiting


class Subscriptions(msgspec.Struct):
    """Those of a topic."""

    subscriptions: list[Subscription]


class Query(msgspec.Struct):
    """One query of a pipeline."""

    rows_per_s: float
    lag_rows: int
    error: str


class Pipeline(msgspec.Struct):
    """One pipeline."""

    name: str
    state: str
    error: str
    queries: list[Query]


class Pipelines(msgspec.Struct):
    """All of them."""

    pipelines: list[Pipeline]


class Sample(msgspec.Struct):
    """A word about something refused."""

    peer: str = ""
    text: str = ""


class Fault(msgspec.Struct):
    """What was refused or dropped for one reason on one topic."""

    reason: str
    topic: str
    count: int
    last: str
    samples: list[Sample]


class Faults(msgspec.Struct):
    """The most recent first."""

    entries: list[Fault]


class Look(msgspec.Struct):
    """A node at one moment."""

    url: str
    version: str
    ready: bool
    problems: list[str]
    listeners: list[Listener]
    connections: int
    memory: Memory
    #: Those with the most traffic first.
    topics: list[Topic]
    topics_total: int
    #: Those with the largest lag first, of the topics that were looked at.
    subscriptions: list[Subscription]
    subscriptions_total: int
    pipelines: list[Pipeline]
    errors: list[Fault]


class Watcher:
    """Looks at a node again and again; each look has the rates since the one before."""

    def __init__(self, client: Client, most: int) -> None:
        self._client = client
        self._most = most
        self._at_s = 0.0
        self._published: dict[str, int] = {}
        self._acked: dict[tuple[str, str], int] = {}

    def look(self) -> Look:
        """Return the node as it is now."""
        client = self._client
        ready = client.get("readyz", accept=(503,)).read(Readiness)
        dialects = client.get("/dialects").read(Dialects).dialects
        now_s = time.monotonic()
        topics = self._topics(now_s)
        subscriptions = self._subscriptions(topics, now_s)
        self._at_s = now_s
        return Look(
            client.url,
            client.get("healthz").read(Health).version,
            ready.ready,
            list(dict.fromkeys([*ready.problems, *ready.degraded])),
            [listener for dialect in dialects for listener in dialect.listeners],
            client.get("/peers", {"limit": 1}).read(Peers).total,
            client.get("/memory").read(Memory),
            topics[: self._most],
            len(topics),
            subscriptions[: self._most],
            sum(len(topic.subscriptions) for topic in topics),
            client.get("/pipelines").read(Pipelines).pipelines,
            client.get("/ledger", {"limit": ERRORS_SHOWN}).read(Faults).entries,
        )

    def _topics(self, now_s: float) -> list[Topic]:
        found: list[Topic] = []
        after: str | None = ""
        while after is not None:
            page = self._client.get("/topics", {"after": after}).read(Topics)
            found += page.topics
            after = page.next
        for topic in found:
            topic.in_per_s = self._rate(topic.published, self._published.get(topic.name), now_s)
        self._published = {topic.name: topic.published for topic in found}
        return sorted(found, key=lambda topic: (-topic.in_per_s, -topic.depth, -topic.rows, topic.name))

    def _subscriptions(self, topics: Sequence[Topic], now_s: float) -> list[Subscription]:
        found: list[Subscription] = []
        for topic in [topic for topic in topics if topic.subscriptions][:LOOKED_AT_MAX]:
            try:
                page = self._client.get(f"/topics/{part(topic.name)}/subscriptions").read(Subscriptions)
            except Refused:  # it went away meanwhile
                continue
            found += page.subscriptions
        for one in found:
            acked = one.counts.get("acked", 0)
            one.acked_per_s = self._rate(acked, self._acked.get((one.topic, one.name)), now_s)
        self._acked = {(one.topic, one.name): one.counts.get("acked", 0) for one in found}
        return sorted(found, key=lambda one: (-one.lag, -one.acked_per_s, one.topic, one.name))

    def _rate(self, now: int, before: int | None, now_s: float) -> float:
        """Return how much came in a second; nothing where there was no look before, or the node began anew."""
        if before is None or not self._at_s or now < before:
            return 0.0
        return round((now - before) / max(now_s - self._at_s, 0.001), 1)


def status(client: Client, out: Printer, every: Every = "1s", most: Most = 10) -> int:
    """Show a node on one screen: health, listeners, topics, subscriptions, pipelines, the last errors.

    Exits with 1 if the node is not ready to work.
    """
    watcher = Watcher(client, most)
    watcher.look()
    time.sleep(parse_duration(every) / 1e9)
    look = watcher.look()
    show(out, look)
    return OK if look.ready else REFUSED


def top(
    client: Client,
    out: Printer,
    every: Every = "2s",
    most: Most = 10,
    frames: Annotated[
        int | None, typer.Option(min=1, help="End after so many screens.", show_default="with Ctrl-C")
    ] = None,
) -> None:
    """Show the same as `status`, live, until Ctrl-C."""
    watcher = Watcher(client, most)
    watcher.look()
    shown = 0
    live = out.terminal and not out.json
    try:
        if live:
            out.stream.write("\x1b[?1049h")  # a screen of its own; what was there comes back at the end
        while frames is None or shown < frames:
            time.sleep(parse_duration(every) / 1e9)
            try:
                look = watcher.look()
            except Failure as failure:  # it may come back
                if failure.code != UNREACHABLE or not live:
                    raise
                out.line(f"\x1b[H\x1b[J{failure}")
                continue
            if live:
                out.stream.write("\x1b[H\x1b[J")
            elif shown and not out.json:
                out.line("")
            show(out, look)
            shown += 1
    except KeyboardInterrupt:
        return
    finally:
        if live:
            out.stream.write("\x1b[?1049l")
            sys.stdout.flush()


def show(out: Printer, look: Look) -> None:
    """Print a look: the document to a script, one screen to a person."""
    if out.json:
        out.document(look)
        return
    out.line(f"Penstock {look.version} at {look.url}: {'ready' if look.ready else 'NOT READY'}")
    for problem in look.problems:
        out.line(f"  {problem}")
    for listener in look.listeners:
        out.line(f"  {listener.purpose:<16} {listener.place}")
    out.line(f"  {'connections':<16} {look.connections}")
    out.line(f"  {'memory':<16} {_memory(look.memory)}")
    out.line("")
    topics = ("topic", "in/s", "rows", "bytes", "unclaimed", "")
    out.table(None, topics, list(_topic_rows(look.topics)), "there is no topic yet")
    _more(out, look.topics_total - len(look.topics))
    if look.topics:
        out.line(f"unclaimed: {UNCLAIMED}")
    if look.subscriptions:
        out.line("")
        subscriptions = ("subscription", "of topic", "lag", "ready", "leased", "waiting", "acked/s", "consumers")
        out.table(None, subscriptions, list(_subscription_rows(look.subscriptions)))
        _more(out, look.subscriptions_total - len(look.subscriptions))
        out.line(f"lag: not finished yet, which is ready, leased and waiting together; {STATES}")
    if look.pipelines:
        out.line("")
        out.table(None, ("pipeline", "state", "rows/s", "lag", "error"), list(_pipeline_rows(look.pipelines)))
    out.line("")
    errors = ("last error", "reason", "topic", "count", "")
    out.table(None, errors, list(_error_rows(look.errors)), "nothing was refused or dropped")


def _memory(memory: Memory) -> str:
    """Return what is in memory, with the parts that hold something or had to refuse somebody."""
    parts = [
        f"{part.name} {size(part.bytes)} of {size(part.max_bytes)}"
        + (f" ({part.refused} refused)" * bool(part.refused))
        for part in memory.parts
        if part.bytes or part.refused
    ]
    return ", ".join([size(memory.resident_bytes), *parts])


def _more(out: Printer, left_out: int) -> None:
    if left_out > 0:
        out.line(f"and {left_out} more; --max shows more")


def _error_rows(errors: Sequence[Fault]) -> Iterator[tuple[str, ...]]:
    for one in errors:
        sample = one.samples[-1].text[:80] if one.samples else ""
        yield moment(one.last), one.reason, one.topic or "-", str(one.count), " ".join(sample.split())


def _topic_rows(topics: Sequence[Topic]) -> Iterator[tuple[str, ...]]:
    for one in topics:
        paused = "paused" if one.is_paused else ""
        yield one.name, _rate(one.in_per_s), str(one.rows), size(one.bytes), str(one.depth), paused


def _subscription_rows(subscriptions: Sequence[Subscription]) -> Iterator[tuple[str, ...]]:
    for one in subscriptions:
        numbers = (one.lag, one.depth, one.in_flight, one.waiting)
        yield one.name, one.topic, *map(str, numbers), _rate(one.acked_per_s), str(len(one.consumers))


def _pipeline_rows(pipelines: Sequence[Pipeline]) -> Iterator[tuple[str, ...]]:
    for one in pipelines:
        rows_per_s = sum(query.rows_per_s for query in one.queries)
        error = one.error or next((query.error for query in one.queries if query.error), "")
        yield one.name, one.state, _rate(rows_per_s), str(sum(q.lag_rows for q in one.queries)), error[:80]


def _rate(rate: float) -> str:
    return f"{rate:.0f}" if rate >= 10 or rate == int(rate) else f"{rate:.1f}"
