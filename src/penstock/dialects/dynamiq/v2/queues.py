"""Queues as resources: made, listed, shown, changed, emptied and deleted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import msgspec
from msgspec import UNSET

from penstock.callers import Action, Caller
from penstock.dialects.dynamiq.choices import DynamiqChoices
from penstock.dialects.dynamiq.codec import is_name
from penstock.dialects.dynamiq.queue import NAME, Queue
from penstock.dialects.dynamiq.queues import Queues
from penstock.dialects.dynamiq.v2 import shapes
from penstock.dialects.dynamiq.v2.endpoint import V2, Call, Endpoint
from penstock.errors import Refusal
from penstock.registry.answer import Answer
from penstock.rest.problem import BadField
from penstock.rest.reading import Nothing
from penstock.settings import SECOND_NS, SubscriptionSettings
from penstock.units import times

if TYPE_CHECKING:
    from penstock.dialects.dynamiq.stats import Stats
    from penstock.node.node import Node

#: Settings that are the topic's choices; the others are the subscription's.
_CHOICES = ("visibility_timeout", "min_partitions", "max_partitions", "max_partition_age", "compressed_messages")


class QueueResource:
    """What is done with queues."""

    def __init__(self, node: Node, queues: Queues, stats: Stats | None) -> None:
        self._node = node
        self._queues = queues
        self._stats = stats

    def endpoints(self) -> list[Endpoint]:
        """Return the rows of the table."""
        one = V2 + "/queues/{queue}"
        return [
            Endpoint(
                "GET", V2 + "/queues", self.list_queues, "List queues by name", shapes.QueuePage, shapes.QueueQuery
            ),
            Endpoint(
                "POST", V2 + "/queues", self.create_queue, "Make a queue", shapes.Queue, body=shapes.QueueIn, status=201
            ),
            Endpoint("GET", one, self.show_queue, "Show a queue with its settings and counts", shapes.Queue),
            Endpoint(
                "PATCH", one, self.change_queue, "Change settings of a queue", shapes.Queue, body=shapes.SettingsIn
            ),
            Endpoint("DELETE", one, self.delete_queue, "Delete a queue with its messages", shapes.Deleted),
            Endpoint("GET", f"{one}/counts", self.count_queue, "Count the messages of a queue", shapes.Counts),
            Endpoint("DELETE", f"{one}/messages", self.purge_queue, "Delete all messages of a queue", shapes.Deleted),
            Endpoint(
                "GET",
                f"{one}/dead-letters",
                self.show_dead_letters,
                "Show where messages go that were received too often",
                shapes.DeadLetters,
            ),
        ]

    def named(self, caller: Caller, action: Action, name: str) -> Queue:
        """Return a queue that must exist to somebody who may do this with it."""
        caller.check(action, name)
        queue = self._queues.get(name)
        if queue is None:
            raise _none(name)
        return queue

    def check(self, caller: Caller, action: Action, name: str) -> None:
        """Refuse a queue that exists on no node, or with which somebody may not do this."""
        caller.check(action, name)
        if not self._queues.is_queue(name):
            raise _none(name)

    # --- handlers -------------------------------------------------------------------------------------------------

    def list_queues(self, call: Call[shapes.QueueQuery, None]) -> Answer[shapes.QueuePage]:
        """Show queues by name; in a cluster those of all nodes."""
        node, query, away = self._node, call.query, call.request.connection.listener.away
        known = [name for name in self._queues.names(call.caller) if not query.here or name in node.topics]
        names, following = page_of(known, query)
        found = [self._queues.get(name) for name in names if name in node.topics]
        shown = {queue.topic.name: self._shown(queue) for queue in found if queue is not None}
        missing = [name for name in names if name not in shown]
        if not missing or away is None:
            return Answer.of(shapes.QueuePage([shown[name] for name in names if name in shown], following))
        asked = {"here": "true", "prefix": query.prefix, "after": query.after, "limit": shapes.PAGE_MAX}
        told = away.ask_owners(missing, call.caller, f"{V2}/queues?{urlencode(asked)}")

        def complete(pages: dict[str, bytes | Refusal]) -> shapes.QueuePage:
            for owner, content in pages.items():
                if not isinstance(content, Refusal):
                    for queue in msgspec.json.decode(content, type=_Enveloped).data.items:
                        queue.node = owner
                        shown[queue.name] = queue
            for name in missing:
                if name not in shown:
                    shown[name] = self._absent(name, pages)
            return shapes.QueuePage([shown[name] for name in names], following)

        return told.then_make(complete)

    def _absent(self, name: str, pages: Mapping[str, bytes | Refusal]) -> shapes.Queue:
        """Return what the registry knows of a queue whose node cannot be asked."""
        owner, places = self._node.elsewhere(name) or "", self._node.places
        record = self._node.known.record(name)
        chosen = self._node.known.chosen(name, DynamiqChoices) or DynamiqChoices()
        settings = self._node.known.subscription(name, NAME) or SubscriptionSettings()
        created = times.shown(record.created_ns) if record is not None else ""
        problem = str(pages.get(owner) or (places and places.refusal(name)) or "it is gone")
        none = shapes.Counts(0, 0, 0, 0)
        return shapes.Queue(name, created, _settings(chosen, settings), 0, none, owner, problem)

    def create_queue(self, call: Call[Nothing, shapes.QueueIn]) -> Answer[shapes.Queue]:
        """Make a queue of a name that no queue has."""
        name, given = call.body.name, call.body.settings
        call.caller.check("create", name)
        if self._queues.get(name) is not None:
            raise Refusal("conflict", f"there is a queue {name} already; PATCH {V2}/queues/{name} changes it")
        self._checked(DynamiqChoices(), given)
        self._with_dead_letters(call.caller, name, given, SubscriptionSettings())
        created = self._queues.create(call.caller, name)
        return created.then_ask(lambda _: self._change(call.caller, name, given))

    def show_queue(self, call: Call[Nothing, None]) -> shapes.Queue:
        """Show a queue."""
        return self._shown(self.named(call.caller, "see", call.names["queue"]))

    def change_queue(self, call: Call[Nothing, shapes.SettingsIn]) -> Answer[shapes.Queue]:
        """Choose other settings: all of them or none, in force when this is answered."""
        call.caller.check_not_own(call.names["queue"])
        queue = self.named(call.caller, "change", call.names["queue"])
        return self._change(call.caller, queue.topic.name, call.body)

    def delete_queue(self, call: Call[Nothing, None]) -> Answer[shapes.Deleted]:
        """Remove a queue, its topic and all messages."""
        queue = self.named(call.caller, "delete", call.names["queue"])
        return self._node.delete_topic(queue.topic.name).then_make(lambda _: shapes.Deleted(1))

    def count_queue(self, call: Call[Nothing, None]) -> shapes.Counts:
        """Count messages, exactly."""
        return counts(self.named(call.caller, "see", call.names["queue"]))

    def purge_queue(self, call: Call[Nothing, None]) -> shapes.Deleted | Answer[shapes.Deleted]:
        """Delete all messages there are, also those that are delayed or out."""
        queue = self.named(call.caller, "change", call.names["queue"])
        total = counts(queue).total
        queue.subscription.empty()
        if self._stats is not None:
            self._stats.deleted(queue.topic.name, total)
        return queue.subscription.keeping.kept(shapes.Deleted(total))

    def show_dead_letters(self, call: Call[Nothing, None]) -> shapes.DeadLetters:
        """Show where dead letters go and come from, as far as somebody may see that."""
        queue = self.named(call.caller, "see", call.names["queue"])
        most, target = _dead_letters(queue.subscription.settings)
        is_here = target is not None and target in self._node.topics and call.caller.may("see", target)
        there = self._queues.get(target) if target is not None and is_here else None
        sources = [
            name
            for name in self._queues.names(call.caller)
            if (settings := self._node.known.subscription(name, NAME)) is not None
            and settings.max_attempts
            and settings.dead_letter == queue.topic.name
        ]
        return shapes.DeadLetters(target, most, counts(there) if there is not None else None, sources)

    # --- settings -------------------------------------------------------------------------------------------------

    def _change(self, caller: Caller, name: str, given: shapes.SettingsIn) -> Answer[shapes.Queue]:
        queue = self._queues.get(name)
        if queue is None:
            raise Refusal("gone", f"queue {name} was deleted meanwhile")
        chosen = self._checked(queue.topic.chosen.of(DynamiqChoices), given)
        settings = self._with_dead_letters(caller, name, given, queue.subscription.settings)
        changed = self._queues.update(queue, lambda _: chosen)
        if settings != queue.subscription.settings:
            changed = changed.then_ask(lambda _: queue.topic.update_subscription(NAME, settings)).then_make(
                lambda _: None
            )

        def in_force(_: None) -> shapes.Queue:
            queue.sync()
            return self._shown(queue)

        return changed.then_make(in_force)

    def _checked(self, before: DynamiqChoices, given: shapes.SettingsIn) -> DynamiqChoices:
        fields = {name: value for name in _CHOICES if (value := getattr(given, name)) is not UNSET}
        try:
            after = before.patched(fields, strict=True)
            after.check(before)
        except Refusal as refusal:
            raise BadField(refusal.code, str(refusal), str(refusal).partition(" ")[0]) from None
        return after

    def _with_dead_letters(
        self, caller: Caller, name: str, given: shapes.SettingsIn, before: SubscriptionSettings
    ) -> SubscriptionSettings:
        most, target = _dead_letters(before)
        most = most if given.max_receives is UNSET else given.max_receives
        target = target if given.dead_letter_queue is UNSET else given.dead_letter_queue
        if (most, target) == _dead_letters(before):
            return before
        if bool(most) != bool(target):
            text = f"queue {name}: set max_receives and dead_letter_queue together, or 0 and null to have neither"
            raise BadField("bad_request", text, "dead_letter_queue" if most else "max_receives")
        if target is not None:
            if target == name:
                text = f"queue {name} cannot be its own dead_letter_queue; name another"
                raise BadField("bad_request", text, "dead_letter_queue")
            caller.check("publish", target)
            if not self._queues.is_queue(target):
                text = f"there is no queue {target} for dead letters; make it first"
                raise BadField("bad_request", text, "dead_letter_queue")
        return msgspec.structs.replace(before, max_attempts=most, dead_letter=target or "")

    def _shown(self, queue: Queue) -> shapes.Queue:
        settings = _settings(queue.in_force, queue.subscription.settings)
        created = times.shown(queue.topic.record.created_ns)
        return shapes.Queue(queue.topic.name, created, settings, queue.partitions, counts(queue))


class _Enveloped(msgspec.Struct):
    data: shapes.QueuePage


def counts(queue: Queue) -> shapes.Counts:
    """Return how many messages a queue has, by where they are."""
    backlog = queue.topic.backlog(queue.subscription)
    return shapes.Counts(*backlog, sum(backlog))


def page_of(names: list[str], query: shapes.PageQuery) -> tuple[list[str], str | None]:
    """Return some of the names, which are in order, and where the next page begins."""
    rest = [name for name in names if is_name(name) and name.startswith(query.prefix) and name > query.after]
    some = rest[: query.limit]
    return some, some[-1] if len(some) < len(rest) else None


def _settings(chosen: DynamiqChoices, settings: SubscriptionSettings) -> shapes.Settings:
    most, target = _dead_letters(settings)
    return shapes.Settings(
        chosen.visibility_ns / SECOND_NS,
        chosen.min_partitions,
        chosen.max_partitions,
        chosen.max_partition_age_ns / SECOND_NS,
        chosen.compressed,
        most,
        target,
    )


def _none(name: str) -> Refusal:
    return Refusal("not_found", f"there is no queue {name}; POST {V2}/queues makes one")


def _dead_letters(settings: SubscriptionSettings) -> tuple[int, str | None]:
    return settings.max_attempts, settings.dead_letter or None
