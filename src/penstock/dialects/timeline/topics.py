"""Topics of timelines on one node: made and dropped by the overseer, and put to work where their storage is.

Invariant: a timeline at work is of the creation that the overseer has, and of the subscription that the node has.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import TYPE_CHECKING

import msgspec

from penstock.callers import Caller
from penstock.client.timeline import wire
from penstock.client.timeline.wire import Kind
from penstock.cluster.entries import Entry
from penstock.cluster.overseer import Overseer
from penstock.cluster.tables import Tables
from penstock.dealing.table import Table
from penstock.dialects.timeline.choices import TimelineChoices
from penstock.dialects.timeline.errors import Fault
from penstock.dialects.timeline.names import TOPIC_BYTES_MAX, check_cluster, check_name
from penstock.dialects.timeline.sessions import Sessions
from penstock.dialects.timeline.storage import Storage
from penstock.dialects.timeline.timeline import NAME, Timeline
from penstock.errors import Elsewhere, Refusal
from penstock.registry.answer import Answer

if TYPE_CHECKING:
    from penstock.delivery.subscription import Subscription
    from penstock.node.node import Change, Node
    from penstock.node.topic import Topic

#: What clients call a setting: its name here. 0 means the default, but for those below.
_SETTINGS = {
    "replica_count": "replica_count",
    "max_seconds_future_allowed": "max_seconds_future",
    "max_seconds_lease": "max_seconds_lease",
    "checksum_bodies": "checksum_bodies",
    "max_body_size_bytes": "max_body_bytes",
    "rqs_limit_per_client": "rqs_limit_per_client",
    "minimum_protocol_version": "min_protocol_version",
    "minimum_driver_version": "min_driver_version",
    "bucket_count": "bucket_count",
    "time_window_ms": "time_window_ms",
    "prefetch_max_ms": "prefetch_max_ms",
    "prefetch_max_count": "prefetch_max_count",
    "dealer": "dealer",
}
_MAY_BE_0 = ("max_seconds_future_allowed", "prefetch_max_ms")


class Topics:
    """Those of one node, and what is at work for each."""

    def __init__(
        self,
        node: Node,
        overseer: Overseer,
        storage: Storage,
        sessions: Sessions,
        tables: Tables,
        random: Random,
    ) -> None:
        self._node = node
        self._random = random
        self._overseer = overseer
        self._storage = storage
        self._sessions = sessions
        self._tables = tables
        self._timelines: dict[str, Timeline] = {}
        tables.watch(self._table_holds)
        node.watchers.append(self._heard)
        self._unwatch = overseer.watch(self._changed)
        for entry in overseer.topics():
            self._changed("live" if entry.state == "live" else "gone", entry)

    def close(self) -> None:
        """Put nothing to work any more."""
        self._unwatch()
        if self._heard in self._node.watchers:
            self._node.watchers.remove(self._heard)
        for timeline in self._timelines.values():
            timeline.close()

    # --- by command -----------------------------------------------------------------------------------------------

    def create(self, caller: Caller, asked: wire.TimelineCreate) -> Answer[wire.Done]:
        """Make a topic, or find it made with the same settings."""
        check_cluster(asked.cluster, self._overseer.cluster)
        return self.make(caller, asked.id, _choices_of(asked)).then_make(lambda _: wire.Done())

    def make(self, caller: Caller, ident: str, choices: TimelineChoices) -> Answer[Entry]:
        """Make a topic with these settings, or find it."""
        check_name("the id of a topic", ident, TOPIC_BYTES_MAX)
        choices.check(None)
        self._node.health.check("admin")
        topic = self._node.find(ident)
        if topic is not None and not topic.chosen.of(TimelineChoices).is_timeline:
            caller.check("change", ident, "becomes a timeline")
        caller.check("create", ident)
        if topic is None:
            self._storage.check_room(choices)
        self._storage.askers[ident] = caller
        made = self._overseer.create(ident, _settings_of(choices))

        def over(_: Entry | None, __: Exception | None) -> None:
            self._storage.askers.pop(ident, None)

        made.then(over)
        return made

    def delete(self, caller: Caller, asked: wire.TimelineDeleteTopic) -> Answer[wire.Done]:
        """Drop a topic; its data goes in a while."""
        check_cluster(asked.cluster, self._overseer.cluster)
        caller.check("delete", asked.id)
        self.check_here(asked.id)  # one that nobody has now is gone all the same, and its data goes once somebody does
        self._node.health.check("admin")
        return self._overseer.delete(asked.id).then_make(lambda _: wire.Done())

    def redeal(self, caller: Caller, asked: wire.Redeal) -> Answer[wire.Redealt]:
        """Deal the buckets of a topic anew, from the next window on."""
        check_cluster(asked.cluster, self._overseer.cluster)
        caller.check("change", asked.topic_id)
        self._overseer.find(asked.topic_id)
        self._node.health.check("admin")
        return self._tables.redeal(asked.topic_id).then_make(lambda is_dealt: wire.Redealt(is_dealt=is_dealt))

    # --- at work --------------------------------------------------------------------------------------------------

    def find(self, ident: str) -> Timeline:
        """Return a topic at work, or refuse what there is instead."""
        entry = self._overseer.find(ident)
        timeline = self._timelines.get(ident)
        if timeline is None:
            self._changed("live", entry)
            timeline = self._timelines.get(ident)
        if timeline is None:
            self._node.find(ident)  # which raises where it is, or that it comes
        if timeline is None or timeline.topic.deleted:
            raise Fault(Kind.STORAGE_OFFLINE, f"what topic {ident} stores is not on this node")
        return timeline

    def check_here(self, ident: str) -> None:
        """Refuse what another node has, and say which."""
        node = self._node.elsewhere(ident)
        if node is not None:
            raise Elsewhere(ident, node)

    @property
    def by_name(self) -> Mapping[str, Timeline]:
        """Those at work here."""
        return self._timelines

    def all(self) -> list[Timeline]:
        """Return all that are at work here."""
        return list(self._timelines.values())

    # --- what is heard of them ------------------------------------------------------------------------------------

    def _changed(self, what: str, entry: Entry) -> None:
        """Put a topic to work, or let it go with everybody who uses it."""
        there = self._timelines.get(entry.id)
        if what != "live":
            if there is not None and there.choices.incarnation == entry.incarnation:
                self._drop(entry.id)
            return
        topic = self._node.topics.get(entry.id)
        if topic is None or topic.chosen.of(TimelineChoices).incarnation != entry.incarnation:
            return
        subscription = topic.subscriptions.get(NAME)
        if subscription is None or (there is not None and there.subscription is subscription):
            return
        if there is not None:
            self._drop(entry.id)
        timeline = self._timelines[entry.id] = Timeline(self._node, topic, subscription, self._random.getrandbits(64))
        timeline.use_windows()
        for table in (self._tables.at_present(entry.id), self._tables.coming(entry.id)):
            if table is not None:
                timeline.adopt(table)

    def _table_holds(self, entry: Entry, table: Table) -> None:
        timeline = self._timelines.get(entry.id)
        if timeline is not None:
            timeline.adopt(table)

    def _drop(self, ident: str, *, has_left: bool = False) -> None:
        timeline = self._timelines.pop(ident, None)
        for session in self._sessions.of(ident):
            if has_left:
                why = f"topic {ident} went to another node; greet that one"
                self._sessions.close(session, why, Kind.CLUSTER_OFFLINE)
            else:
                self._sessions.close(session, f"topic {ident} was deleted")
        if timeline is not None:
            timeline.close()

    def _heard(self, event: Change, topic: Topic, subscription: Subscription | None) -> None:
        """Hear that a topic went by another way than the overseer's, or to another node, or came from one."""
        if event == "left" and topic.name in self._timelines and self._timelines[topic.name].topic is topic:
            self._drop(topic.name, has_left=True)
        if event == "created" and topic.chosen.of(TimelineChoices).is_timeline:
            self._came(topic.name)
        if event == "deleted" and (subscription is None or subscription.name == NAME):
            timeline = self._timelines.get(topic.name)
            if timeline is not None and timeline.topic is topic:
                incarnation = topic.chosen.of(TimelineChoices).incarnation
                self._drop(topic.name)
                self._node.clock.call_soon(lambda: self._lost(topic.name, incarnation))

    def _came(self, ident: str) -> None:
        """Put a topic to work that another node had, so that its ids are known before anybody asks."""
        try:
            entry = self._overseer.find(ident)
        except Refusal:
            return  # it is being made
        self._changed("live", entry)

    def _lost(self, ident: str, incarnation: str) -> None:
        try:
            entry = self._overseer.find(ident)
        except Refusal:
            return
        if entry.incarnation == incarnation:
            self._overseer.delete(ident)


def _choices_of(asked: wire.TimelineCreate) -> TimelineChoices:
    if asked.checksum_bodies:
        text = "checksum_bodies is not offered: every message keeps its own body; leave it out"
        raise Fault(Kind.UNSUPPORTED, text)
    given = {name: getattr(asked, said) for said, name in _SETTINGS.items()
             if getattr(asked, said) or (said in _MAY_BE_0 and getattr(asked, said) is not None)}  # fmt: skip
    try:
        return msgspec.convert(given, TimelineChoices)
    except msgspec.ValidationError as error:
        raise Fault(Kind.PROTOCOL, f"these settings cannot be used: {error}") from None


def _settings_of(choices: TimelineChoices) -> dict[str, int | bool | str]:
    """Return all that was chosen, as the overseer keeps and compares it."""
    return {name: getattr(choices, name) for name in _SETTINGS.values()}
