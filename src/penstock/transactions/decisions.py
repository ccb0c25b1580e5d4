"""That a batch of several topics of a cluster is committed: one key of the registry, which the nodes that have the
topics carry out, each its part, whoever asked for it and whatever dies.

Owns the key and what may follow it. How a part is carried out is a transaction's business.
Invariant: another batch of a query is decided only when every part of the one before is written down as a transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from penstock.clock import SECOND
from penstock.errors import Refusal
from penstock.intake.staging import digest
from penstock.registry.answer import Answer
from penstock.registry.attempt import Draft
from penstock.registry.registry import Event
from penstock.transactions.record import TransactionRecord, key_of

if TYPE_CHECKING:
    from penstock.node.node import Node

#: What the registry's keys begin with.
KEYS = "decision/"


class Part(msgspec.Struct, frozen=True, array_like=True):
    """What of a batch goes to one topic."""

    topic: str
    incarnation: int
    attempts: tuple[str, ...]


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """The last batch of a query that was decided on, as the registry keeps it."""

    query: str
    batch: int
    parts: tuple[Part, ...]
    changed_ns: int = 0

    def part(self, topic: str | None) -> Part | None:
        """Return what goes to a topic."""
        return next((part for part in self.parts if part.topic == topic), None)


class Decisions:
    """Those that the registry knows."""

    def __init__(self, node: Node, carry_out: Callable[[Decision, Part], None]) -> None:
        self._node = node
        self._carry_out = carry_out

    def start(self) -> None:
        """Carry out what is decided from now on."""
        registry = self._node.catalog.registry
        registry.watch(KEYS, registry.revision, self._heard)

    def all(self) -> list[Decision]:
        """Return every query's that can be read."""
        return list(self._node.catalog.each(KEYS, Decision).values())

    def of(self, query: str) -> Decision | None:
        """Return the last of a query; Refusal if it cannot be read."""
        return self._node.catalog.get(_key(query), Decision)

    def here(self, topic: str) -> None:
        """Carry out what was decided for a topic, which is here now."""
        for decision in self.all():
            part = decision.part(topic)
            if part is not None:
                self._carry_out(decision, part)

    def decide(
        self, query: str, batch: int, wanted: Mapping[str, Sequence[str]], *, any_rows: bool
    ) -> Answer[Decision]:
        """Write down that what these attempts staged, by topic, is committed; answer with what stands.

        A batch that was decided before stays as it was; of one before that, its transactions tell.
        """
        catalog = self._node.catalog
        known = {name: catalog.topic(name) for name in wanted}
        parts = tuple(
            Part(name, record.incarnation if record is not None else 0, tuple(wanted[name]))
            for name, record in sorted(known.items())
        )
        decision = Decision(query=query, batch=batch, parts=parts, changed_ns=self._node.clock.now())
        key = _key(query)

        def compose() -> Draft[Decision]:
            entry = catalog.registry.get(key)
            last = self.of(query)
            if last is not None and last.batch == batch and not any_rows:
                _check_same(last, wanted)
            if last is not None and last.batch >= batch:
                return Draft(last)
            if last is not None:
                self._check_begun(last)
            guards = {key: entry.revision if entry is not None else 0}
            return Draft(decision, {key: msgspec.msgpack.encode(decision)}, (), guards, proof=(key,))

        return catalog.attempt(compose)

    def forget(self, before_ns: int) -> None:
        """Drop what was decided long ago."""
        old = [_key(each.query) for each in self.all() if each.changed_ns < before_ns]
        if old:
            self._node.catalog.remove(old)

    def _check_begun(self, last: Decision) -> None:
        """Refuse to follow a batch while a part of it is written down nowhere else."""
        catalog = self._node.catalog
        for part in last.parts:
            topic = catalog.topic(part.topic)
            if topic is None or topic.incarnation != part.incarnation:
                continue  # it was deleted, and what was staged with it
            begun = catalog.get(key_of(last.query, part.topic), TransactionRecord)
            if begun is None or begun.batch < last.batch:
                text = f"batch {last.batch} of query {last.query} is not begun in topic {part.topic} yet; try again"
                raise Refusal("unavailable", text, SECOND)

    def _heard(self, events: Sequence[Event]) -> None:
        for event in events:
            catalog = self._node.catalog
            decision = catalog.reader.read(event.key, catalog.registry.get(event.key), Decision)
            if decision is not None and not self._node.stopping:
                for part in decision.parts:
                    self._node.guarded(f"decision {event.key}", partial(self._carry_out, decision, part))


def _check_same(last: Decision, wanted: Mapping[str, Sequence[str]]) -> None:
    """Refuse a batch that was decided with other topics: it is another one."""
    there = {part.topic for part in last.parts}
    if there != set(wanted):
        other = sorted(there ^ set(wanted))[0]
        text = f"batch {last.batch} of query {last.query} was committed {'with' if other in there else 'without'} rows"
        raise Refusal(
            "conflict",
            f"{text} for topic {other}; what comes under this number now is another batch: nothing of it is written. "
            "If it is the same query, and its rows come out otherwise each time, set option repeats to any",
        )


def _key(query: str) -> str:
    return KEYS + digest(query)
