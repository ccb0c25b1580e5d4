"""The fan-outs of a node: made, changed and published to. They are records in the registry and hold no messages.

A fan-out may have the name of a topic and has nothing to do with it. Copies are stored one by one, each with an id of
its own: a target that refuses its copy keeps none of the others from theirs.
Invariant: a topic that is deleted gets nothing more, nor does a later one of its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.callers.rights import OWN
from penstock.errors import Refusal
from penstock.fanout.record import FanoutRecord
from penstock.fanout.record import Target as Copied
from penstock.peers.far import Unreached, reached
from penstock.registry.answer import Answer
from penstock.registry.attempt import Draft
from penstock.registry.records import check_name, encoded

if TYPE_CHECKING:
    from penstock.callers import Caller
    from penstock.delivery.subscription import Subscription
    from penstock.intake.receipt import Receipt
    from penstock.message import Rows
    from penstock.node.node import Change, Node
    from penstock.node.topic import Topic
    from penstock.peers.far import Reached, Target

FANOUTS = "fanout/"

#: A message is copied so often at most; the record of a fan-out must stay small, too.
TARGETS_MAX = 1000
FANOUTS_MAX = 10_000

#: What became of each copy, by topic.
Copies = Mapping[str, "Receipt | BaseException"]


class Fanouts:
    """All fan-outs, by name."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._catalog = node.catalog
        self._registry = node.catalog.registry
        node.watchers.append(self._heard)

    def names(self) -> list[str]:
        """Return the names, in order, of those that can be read."""
        return [key[len(FANOUTS) :] for key in self._catalog.each(FANOUTS, FanoutRecord)]

    @property
    def is_whole(self) -> bool:
        """Whether all of them can be read."""
        return len(self.names()) == len(self._registry.list(FANOUTS))

    def get(self, name: str) -> FanoutRecord | None:
        """Return the fan-out of this name, or None; Refusal if it cannot be read."""
        return self._catalog.get(FANOUTS + name, FanoutRecord)

    def topics(self, name: str) -> list[Reached]:
        """Return the topics that get copies, also those that refuse them now; none of a fan-out that is not there."""
        record = self.get(name)
        found = (
            [(reached(self._node, each.topic), each.number) for each in record.targets] if record is not None else []
        )
        return [topic for topic, number in found if topic is not None and _is_it(topic, number)]

    # --- changes --------------------------------------------------------------------------------------------------

    def create(self, name: str, dialects: dict[str, dict[str, Any]] | None = None) -> Answer[FanoutRecord]:
        """Make a fan-out of a name that is free, with what dialects know of it."""
        key = FANOUTS + name

        def compose() -> Draft[FanoutRecord]:
            check_name(name, "fan-out")
            if self._registry.get(key):
                raise Refusal("conflict", f"there is a fan-out {name} already")
            if len(self._registry.list(FANOUTS)) >= FANOUTS_MAX:
                raise Refusal("limit_reached", f"there are {FANOUTS_MAX} fan-outs, no more fit; delete one")
            record = FanoutRecord(name=name, dialects=dialects or {}, created_ns=self._node.clock.now())
            return Draft(record, {key: encoded(record)}, (), {key: 0})

        return self._catalog.attempt(compose)

    def delete(self, name: str) -> Answer[FanoutRecord]:
        """Remove a fan-out and answer with what it was; its topics stay."""

        def compose() -> Draft[FanoutRecord]:
            record, revision = self._known(name)
            return Draft(record, {}, [FANOUTS + name], {FANOUTS + name: revision})

        return self._catalog.attempt(compose)

    def add(self, name: str, topic: Target) -> Answer[FanoutRecord]:
        """Let a topic get copies, once however often it is added."""
        if topic.name.startswith(OWN):
            raise Refusal("forbidden", f"topic {topic.name} is the node's own and gets no copies")
        target = Copied(topic.name, topic.record.number)

        def added(record: FanoutRecord) -> FanoutRecord:
            if target in record.targets:
                return record
            others = tuple(each for each in record.targets if each.topic != topic.name)
            if len(others) >= TARGETS_MAX:
                raise Refusal("limit_reached", f"fan-out {name} has {TARGETS_MAX} topics, no more fit")
            return msgspec.structs.replace(record, targets=(*others, target))

        return self.change(name, added)

    def remove(self, name: str, topic: str) -> Answer[FanoutRecord]:
        """Let a topic get no more copies; it need not get any now."""
        return self.change(name, lambda record: without(record, lambda target: target.topic == topic))

    def change(self, name: str, changed: Callable[[FanoutRecord], FanoutRecord]) -> Answer[FanoutRecord]:
        """Make something else of a fan-out: what is asked may be asked again, of what others made of it meanwhile."""

        def compose() -> Draft[FanoutRecord]:
            before, revision = self._known(name)
            record = changed(before)
            if record == before:
                return Draft(record)
            return Draft(record, {FANOUTS + name: encoded(record)}, (), {FANOUTS + name: revision})

        return self._catalog.attempt(compose)

    def _known(self, name: str) -> tuple[FanoutRecord, int]:
        entry, record = self._registry.get(FANOUTS + name), self.get(name)
        if entry is None or record is None:
            raise Refusal("not_found", f"there is no fan-out {name}")
        return record, entry.revision

    def _heard(self, event: Change, topic: Topic, subscription: Subscription | None) -> None:
        """Forget a topic that is gone; if the registry refuses that, its number still tells it from later ones."""
        if event != "deleted" or subscription is not None:
            return
        number = topic.record.number
        for name in self.names():
            record = self.get(name)
            if record is not None and any(each.number == number for each in record.targets):
                self.change(name, partial(without, gone=lambda target: target.number == number))

    # --- publishing -----------------------------------------------------------------------------------------------

    def publish(
        self, topics: Sequence[Reached], caller: Caller, rows: Rows, publisher: object, done: Callable[[Copies], None]
    ) -> None:
        """Store a copy of rows in each topic and tell what became of them once that is known of all."""
        from penstock.node.admission import admit

        clock, copies = self._node.clock, dict[str, "Receipt | BaseException"]()
        if not topics:
            done(copies)
            return

        def stored(topic: str, receipt: Receipt | None, error: BaseException | None) -> None:
            copies[topic] = receipt if receipt is not None else error or Refusal("gone", f"topic {topic} went away")
            if len(copies) < len(topics):
                return
            found = {each.name: copies[each.name] for each in topics}
            if until_ns > clock.monotonic():
                clock.call_at(until_ns, partial(done, found))
            else:
                done(found)

        until_ns = 0
        try:
            until_ns = clock.monotonic() + admit(clock, caller, [rows] * len(topics))
        except Refusal as refusal:
            for topic in topics:
                topic.intake.refuse(refusal, rows.count, partial(stored, topic.name))
            return
        for topic in topics:
            topic.publish(msgspec.structs.replace(rows), publisher, partial(stored, topic.name))


def _is_it(topic: Reached, number: int) -> bool:
    if isinstance(topic, Unreached) and topic.record is None:
        return True  # nobody knows, and what was published must not be lost in silence
    return topic.record is not None and topic.record.number == number


def without(record: FanoutRecord, gone: Callable[[Copied], bool]) -> FanoutRecord:
    """Return a fan-out without some of its topics."""
    return msgspec.structs.replace(record, targets=tuple(each for each in record.targets if not gone(each)))
