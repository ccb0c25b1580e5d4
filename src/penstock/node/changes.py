"""What is changed about a topic while it works: the record in the registry, then the topic.

The registry may be far away, so what must hold at once (a gate, a measure) is done before it is asked and made right by
its answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from penstock.dialect import Chosen, chosen, measure_of
from penstock.errors import Refusal
from penstock.node import growth, making
from penstock.registry.answer import Answer
from penstock.registry.records import Growth, Measured
from penstock.settings import TopicSettings

if TYPE_CHECKING:
    from penstock.node.topic import Topic


class Changes:
    """Changes of one topic."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic

    def pause(self, *, paused: bool) -> Answer[None]:
        """Keep what comes from now on in the topic, or let it flow again."""
        if paused and self._topic.record.gate is not None:
            return Answer.of(None)  # a second pause must not let through what came since the first
        settings = msgspec.structs.replace(self._topic.settings, paused=paused)
        gate = tuple(shard.end for shard in self._topic.shards) if paused else None
        if gate is not None:  # at once, so that nothing passes while the registry is asked
            self._gate(gate)
        changed = self.change(settings=settings, gate=gate)
        changed.then(lambda _, __: self._gate(self._topic.record.gate))
        return changed.then_make(lambda _: self._topic.pump_all())

    def _gate(self, gate: tuple[int, ...] | None) -> None:
        for subscription in self._topic.subscriptions.values():
            subscription.gate(gate)

    def update(self, settings: TopicSettings) -> Answer[None]:
        """Change settings that may change while messages flow."""
        problem = ""
        if settings.durability != self._topic.settings.durability:
            problem = f"topic {self._topic.name} is {self._topic.settings.durability!r} for good; make a new one"
        elif settings.paused != self._topic.settings.paused:
            problem = "use pause and resume for that"
        elif settings.shards < len(self._topic.shards):
            problem = growth.no_fewer(self._topic, settings.shards)
        if problem:
            return Answer.refused(Refusal("bad_request", problem))
        if settings.shards > len(self._topic.shards):
            return growth.grow(self._topic, settings.shards).then_ask(lambda _: self.update(settings))
        dialects = self._topic.node.dialects
        try:
            measure = measure_of(chosen(settings, dialects, self._topic.settings), dialects)
        except Refusal as refusal:
            return Answer.refused(refusal)
        measured = None
        if measure is not None:
            measured = Measured(measure, tuple(shard.end for shard in self._topic.shards))
            for shard in self._topic.shards:  # at once, so that what comes while the registry is asked weighs so
                if shard.measure != measure:
                    shard.weigh_by((*shard.measures, (shard.end, measure)))
        changed = self.change(settings=settings, measured=measured)
        changed.then(lambda _, __: self._weigh())
        return changed.then_make(lambda _: self._updated())

    def _updated(self) -> None:
        settings = self._topic.settings
        self._topic.intake.configure(settings)
        self._topic.storage.quota.bytes_max = settings.quota_bytes
        for shard in self._topic.shards:
            shard.settings = settings
        self._topic.node.tell("changed", self._topic)

    def _weigh(self) -> None:
        for shard in self._topic.shards:
            shard.weigh_by(making.measures(self._topic.record, shard.number))

    def change(
        self,
        *,
        settings: TopicSettings | None = None,
        gate: tuple[int, ...] | msgspec.UnsetType | None = msgspec.UNSET,
        orphan_from: tuple[int, ...] | None = None,
        measured: Measured | None = None,
        grown: tuple[Growth, ...] | None = None,
    ) -> Answer[None]:
        """Change the topic's record; it is up to date here when the answer is told."""
        # An ephemeral topic's place is known here alone, so it is said again with every change of the record.
        kept = orphan_from or (self._topic.record.orphan_from if self._topic.settings.ephemeral else None)
        changed = self._topic.node.catalog.update_topic(
            self._topic.name, settings=settings, gate=gate, orphan_from=kept, measured=measured, grown=grown
        )
        return changed.then_make(lambda _: self.follow())

    def follow(self) -> None:
        """Take the record as the registry has it: answers may come in another order than the changes were made."""
        record = self._topic.node.catalog.known(self._topic.name)
        if record is not None and record.number == self._topic.record.number:
            kept = record.orphan_from
            if self._topic.settings.ephemeral:
                kept = (*self._topic.record.orphan_from, *kept[len(self._topic.record.orphan_from) :])
            if record.settings.dialects != self._topic.settings.dialects:
                self._topic.chosen = Chosen(record.settings, self._topic.node.dialects)
            self._topic.record = msgspec.structs.replace(record, orphan_from=kept)

    def empty(self) -> Answer[None]:
        """Let go of what no subscription has yet: all of it if there is none, else what a pause keeps back."""
        ends = tuple(shard.end for shard in self._topic.shards)
        if self._topic.settings.ephemeral:
            self._topic.record = msgspec.structs.replace(self._topic.record, orphan_from=ends)
            self._skip_to(ends)
            return self._kept(Answer.of(None))
        return self._kept(self.change(orphan_from=ends).then_make(lambda _: self._skip_to(ends)))

    def _skip_to(self, ends: tuple[int, ...]) -> None:
        if self._topic.record.gate is None:
            return
        for subscription in self._topic.subscriptions.values():
            subscription.skip(self._topic.record.gate, ends)

    def _kept(self, answer: Answer[None]) -> Answer[None]:
        """Return an answer that comes when all subscriptions have kept what was done to them before it."""
        for subscription in self._topic.subscriptions.values():
            answer = subscription.keeping.after(answer)
        return answer
