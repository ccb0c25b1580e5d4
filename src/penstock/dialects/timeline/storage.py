"""Where messages of timelines are, as the overseer sees it: topics of this node.

Everything may be asked for twice. A topic of another creation is never touched in the name of a new one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from penstock.callers import Caller
from penstock.cluster.entries import Settings
from penstock.dialects.timeline.choices import TimelineChoices
from penstock.dialects.timeline.timeline import NAME, subscription_settings
from penstock.errors import Refusal
from penstock.registry.answer import Answer

if TYPE_CHECKING:
    from penstock.node.node import Node
    from penstock.node.topic import Topic


class Storage:
    """Topics with buckets on one node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        #: Who asked for a topic that is being made: it counts in their quota.
        self.askers: dict[str, Caller] = {}

    def check_room(self, choices: TimelineChoices) -> None:
        """Refuse a topic that cannot be made here now, before anybody hears that it is made."""
        share = self._node.share
        if share is not None:
            share.fitting(share.settled(choices.put(self._node.config.topic.settings())))

    def provision(self, ident: str, incarnation: str, settings: Settings) -> Answer[None]:
        """Make a topic and its subscription; a topic that is no timeline yet becomes one, with what is in it."""
        known = msgspec.convert(dict(settings), TimelineChoices)
        choices = msgspec.structs.replace(known, is_timeline=True, incarnation=incarnation)
        topic = self._node.topics.get(ident)
        if topic is None:
            made = self._made(ident, choices)
        else:
            there = topic.chosen.of(TimelineChoices)
            if not there.is_timeline:
                made = topic.update(choices.put(topic.settings)).then_make(lambda _: topic)
            elif there.incarnation == incarnation:
                made = Answer.of(topic)
            else:  # what is left of one that was deleted
                made = self._node.delete_topic(ident).then_ask(lambda _: self._made(ident, choices))
        subscribed = made.then_ask(lambda found: found.subscribe(NAME, subscription_settings(choices)))
        return subscribed.then_make(lambda _: None)

    def _made(self, ident: str, choices: TimelineChoices) -> Answer[Topic]:
        settings = choices.put(self._node.config.topic.settings())
        asker = self.askers.get(ident)
        return self._node.obtain(ident, settings) if asker is None else self._node.make_for(asker, ident, settings)

    def fence(self, ident: str, incarnation: str) -> Answer[None]:
        """Drop a topic, after which nobody reads or writes what it had."""
        known = self._node.known.chosen(ident, TimelineChoices)
        if known is None or known.incarnation != incarnation:
            return Answer.of(None)
        if ident not in self._node.topics:
            return Answer.refused(Refusal("unavailable", f"topic {ident} is dropped by the node that has it"))
        return self._node.delete_topic(ident)

    def purge(self, ident: str, incarnation: str, step: int) -> Answer[bool]:
        """Tell that nothing is left: the files of a topic go when it does, and a sweep takes what could not go then."""
        return Answer.of(True)
