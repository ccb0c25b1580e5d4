"""Where replayed messages come from: ranges of topics, or a version of a lake table.

Owns what a replay's bounds mean now, and what is held while it runs; `batches.py` and `frames.py` read.
Invariant: what a settled source gives for some stretches never changes; what is gone is an error, never left out.
"""

from __future__ import annotations

import json
import logging
import time
from contextlib import suppress
from typing import NamedTuple, Protocol

from penstock.client.connection import Access, Connection
from penstock.client.wire import Hold, TopicInfo
from penstock.errors import ConfigError, PenstockError, Refusal
from penstock.pipeline.hold import RENEW_S
from penstock.pipeline.jobs.replay.options import Bound, Replay, time_ns
from penstock.pipeline.jobs.replay.plan import Plan, Stretch
from penstock.pipeline.lake.table import Table, table
from penstock.pipeline.options import parsed
from penstock.pipeline.plan.document import Place
from penstock.pipeline.store import Store, opened, subscribed
from penstock.pipeline.target import parsed as target_of
from penstock.pipeline.target import running
from penstock.pipeline.tasks import Extent

_log = logging.getLogger(__name__)

CALL_S = 10.0
#: What rows are counted by.
COUNTED = ("topic", "shard", "offset", "timestamp", "key", "headers", "body")
#: What makes a table an archive of messages.
NEEDED = ("topic", "shard", "offset", "timestamp", "body")
#: The times that Spark and the log can both say.
TIME_US_MAX = ((1 << 63) - 1) // 1000
#: Of a table's files, which are compressed: more is Spark's.
SMALL_BYTES = 128 << 20
TIMES = ("event_time", "due", "expires")


class Settled(NamedTuple):
    """A source as it was when the plan was made."""

    stretches: tuple[Stretch, ...]
    incarnations: dict[str, int]
    shards: dict[str, int]
    version: int | None
    #: About how many rows there are before anything is chosen.
    rows: int


class Source(Protocol):
    """Messages that can be read in stretches."""

    def settle(self, now_ns: int) -> Settled:
        """Look what there is, now."""

    def ready(self, plan: Plan, number: int) -> None:
        """Refuse a step that cannot be read any more, and hold what this one and the later ones need."""

    def close(self, plan: Plan) -> None:
        """Let go of what was held."""


def source_of(options: Replay) -> Source:
    """Return the source that the options name."""
    return TableSource(options) if options.table else TopicSource(options)


class TopicSource:
    """Ranges of topics, by the node or by its files."""

    def __init__(self, options: Replay) -> None:
        self._options = options
        self._words = options.node.options() | {"subscribe": json.dumps(list(options.topics))}
        self.store: Store = opened(parsed(self._words))
        self._held_s: float | None = None

    def settle(self, now_ns: int) -> Settled:
        """Return the offsets that the options mean now."""
        topics = subscribed(self.store, parsed(self._words))
        stretches, rows = [], 0
        for name, info in topics.items():
            starts = self._offsets(info, self._options.from_, "from", now_ns)
            ends = self._offsets(info, self._options.until, "until", now_ns)
            for shard, first, stop in zip(info.shards, starts, ends, strict=True):
                low, high = max(first, shard.start), min(stop, shard.end)
                if low < high:
                    stretches.append(Stretch(name, shard.shard, low, high))
                    rows += Extent(shard).rows(low, high)
        incarnations = {name: info.incarnation for name, info in topics.items()}
        shards = {name: len(info.shards) for name, info in topics.items()}
        return Settled(tuple(stretches), incarnations, shards, None, rows)

    def _offsets(self, info: TopicInfo, bound: Bound, key: str, now_ns: int) -> list[int]:
        """Return for each shard the offset that a bound means."""
        if bound == "earliest":
            return [shard.start for shard in info.shards]
        if bound == "latest":
            return [shard.end for shard in info.shards]
        if isinstance(bound, str):
            return self.store.offsets_at(info, time_ns(bound, now_ns, key))
        if isinstance(bound, int) and len(info.shards) > 1:
            return [bound] * len(info.shards)
        named = {"0": bound} if isinstance(bound, int) else bound
        found = [shard.start if key == "from" else shard.end for shard in info.shards]
        for shard, offset in named.items():
            if not shard.isdigit() or int(shard) >= len(info.shards):
                raise ConfigError(f"{key}: topic {info.name} has no shard {shard}; it has {len(info.shards)}")
            kept = info.shards[int(shard)]
            if not kept.start <= offset <= kept.end:
                raise ConfigError(
                    f"{key}: offset {offset} of shard {shard} of topic {info.name} is not kept; there are {kept.start} "
                    f"to {kept.end}"
                )
            found[int(shard)] = offset
        return found

    def ready(self, plan: Plan, number: int) -> None:
        """Refuse a topic that was made anew, and hold what is still to be read."""
        for name, incarnation in plan.incarnations.items():
            info = self.store.topic(name)
            if info is None or info.incarnation != incarnation:
                raise Refusal("gone", f"topic {name} was deleted since replay {plan.name} was planned")
        self._hold(plan, number)

    def close(self, plan: Plan) -> None:
        """Let the node remove what it held for this replay; where none runs, nothing was held."""
        place = self._options.node
        if self._held_s is None or (not place.url and running(place.path) is None):
            return
        with suppress(PenstockError), Connection(node_of(place), CALL_S) as connection:
            connection.act("release-hold", {"name": _hold_name(plan)})

    def _hold(self, plan: Plan, number: int) -> None:
        """Keep what is still to be read against retention."""
        now_s = time.monotonic()
        if self._held_s is not None and now_s < self._held_s + RENEW_S:
            return
        self._held_s = now_s
        needed: dict[str, dict[int, int]] = {}
        for step in reversed(plan.steps[number:]):
            for stretch in step.stretches:
                needed.setdefault(stretch.topic, {})[stretch.shard] = stretch.start
        for name, starts in needed.items():
            info = self.store.topic(name)
            if info is None:
                continue  # which reading will say
            offsets = [starts.get(shard.shard, shard.end) for shard in info.shards]
            failed = self.store.hold(
                Hold(name=_hold_name(plan), topic=name, incarnation=info.incarnation, offsets=offsets)
            )
            if failed:
                _log.warning("topic %s is not held against retention: %s", name, failed)


class TableSource:
    """A version of a lake table."""

    def __init__(self, options: Replay) -> None:
        self._options = options
        self.table: Table = table(options.table, format=options.format, partition_by=None)
        self.bounds: list[Bound] = []

    def settle(self, now_ns: int) -> Settled:
        """Return the version that the options mean now."""
        facts = self.table.facts()
        if self._options.version is None and facts.files == 0:
            raise ConfigError(f"table {self._options.table} is empty or not there: nothing can be replayed from it")
        version = self._options.version
        if version is None and self._options.format == "delta":  # plain Parquet keeps no versions
            version = facts.version
        self.bounds = [
            time_ns(bound, now_ns, key) if isinstance(bound, str) and bound not in ("earliest", "latest") else bound
            for bound, key in ((self._options.from_, "from"), (self._options.until, "until"))
        ]
        return Settled((), {}, {}, version, facts.rows)

    def small(self) -> bool:
        """Tell whether this process has the memory for all of it."""
        return self.table.facts().bytes < SMALL_BYTES

    def ready(self, plan: Plan, number: int) -> None:
        """A version of a table stays what it is."""

    def close(self, plan: Plan) -> None:
        """A table is held by nobody."""


def _hold_name(plan: Plan) -> str:
    return f"replay-{plan.id}"


def node_of(place: Place) -> Access:
    """Return how to get to the node of a place now."""
    words = place.options()
    return target_of({name: value for name, value in words.items() if name != "path" or not place.url}).node()


def sink_options(options: Replay, plan: Plan, number: int) -> dict[str, str]:
    """Return the options of the sink under which one step is written once."""
    place = options.to_node or options.node
    words = {name: value for name, value in place.options().items() if name != "path" or not place.url}
    return words | {"txnAppId": f"replay/{plan.id}", "txnVersion": str(number), "keepShards": "true"}
