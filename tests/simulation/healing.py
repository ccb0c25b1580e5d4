"""The end of a run: everything heals, good consumers come, and what must be true then is checked."""

from __future__ import annotations

from random import Random
from typing import Protocol

from penstock.clock import MILLISECOND, SECOND
from penstock.errors import REASONS
from penstock.node import Node
from penstock.topic import Topic
from tests.simulation.admin import Operator
from tests.simulation.book import Book
from tests.simulation.clients import Drain, NsqClient, Surroundings
from tests.simulation.model import SubscriptionModel
from tests.simulation.network import Weather
from tests.simulation.overhear import unanswered
from tests.simulation.plan import Ending, Plan
from tests.simulation.survival import DEATH, missing

#: Everything must have arrived this long after everything has healed: the longest delay is 1 s, the longest lease 2 s.
HEAL_NS = 20 * SECOND


class Healed(Surroundings, Protocol):
    """What is needed of the world to make it well."""

    book: Book
    node: Node | None
    plan: Plan
    weather: Weather
    operator: Operator
    clients: list[NsqClient]

    def random(self, what: str) -> Random:
        """Return randomness of its own for one part of the world."""

    def make_space(self) -> None:
        """Let the disk be full no more."""

    def live(self, ending: Ending) -> None:
        """Go on until the node ends in this way, and start it again."""

    def take_census(self, topic: Topic) -> None:
        """Read everything a topic's log holds and compare it with the book."""


def heal(world: Healed) -> None:
    """Let everything be well, see that what must arrive does, and that nothing comes again after one more crash."""
    scheduler, book = world.scheduler, world.book
    scheduler.run_until(scheduler.time_ns + 100 * MILLISECOND)
    world.busy = False
    book.record("heal")
    world.make_space()
    world.weather.latency_ns, world.weather.cut_odds = 50_000, 0.0
    for client in world.clients:
        client.stop()
    world.clients.clear()
    scheduler.run_until(scheduler.time_ns + 50 * MILLISECOND)
    world.operator.resume_all(_node(world))
    _drain(world)
    check_arrived(_node(world), book)
    check_sums(_node(world), book)
    for topic in list(_node(world).topics.values()):
        world.take_census(topic)
    if world.plan.crash_at_end:
        world.live(Ending(DEATH, book.slack_ns + MILLISECOND, 0, None, MILLISECOND, 0))
        _drain(world)
        check_arrived(_node(world), book)


def _node(world: Healed) -> Node:
    assert world.node is not None
    return world.node


def _drain(world: Healed) -> None:
    """Let consumers that ack everything take all there is."""
    end_ns = world.scheduler.time_ns + HEAL_NS
    while world.scheduler.time_ns < end_ns:
        _attend(world)
        world.scheduler.run_until(world.scheduler.time_ns + 60 * MILLISECOND)
        if _is_calm(_node(world), world.book):
            return


def _attend(world: Healed) -> None:
    """Have one such consumer in every subscription; a topic without one gets its first."""
    there = {(client.topic, client.channel) for client in world.clients if isinstance(client, Drain)}
    for topic in _node(world).topics.values():
        for name in topic.subscriptions or ("final",):
            if (topic.name, name) not in there:
                random = world.random(f"drain {topic.name} {name}")
                world.clients.append(Drain(world, random, topic.name, name))


def _is_calm(node: Node, book: Book) -> bool:
    for topic in node.topics.values():
        if not topic.subscriptions:
            return False
        for subscription in topic.subscriptions.values():
            if subscription.depth() or subscription.in_flight() or subscription.waiting():
                return False
    return not any(missing(book, model) for model in book.subscriptions())


def check_arrived(node: Node, book: Book) -> None:
    """Check that nothing is owed to anybody."""
    for model in book.subscriptions():
        owed = missing(book, model)
        if owed:
            names = ", ".join(f"{row.message.name}({row.state.value})" for row in owed[:10])
            book.fail("everything arrives", f"{model.topic.name}/{model.name} owes {len(owed)}: {names}")
    for topic in node.topics.values():
        for subscription in topic.subscriptions.values():
            left = (subscription.depth(), subscription.in_flight(), subscription.waiting())
            if any(left):
                book.fail("everything arrives", f"{topic.name}/{subscription.name} still says {left}")
    waiting = unanswered(book)
    if waiting:
        book.fail("every publish is answered", "; ".join(waiting[:5]))


def check_sums(node: Node, book: Book) -> None:
    """Check both sums of the ledger."""
    for topic in node.topics.values():
        model = book.topics.get(topic.name)
        if model is None or model.number != topic.record.number:
            continue
        for subscription in topic.subscriptions.values():
            _check_passed(book, topic, subscription.counts(), model.subscriptions.get(subscription.name))
        # Rows under way are offered and neither stored nor refused; dead letters are not offered by anybody outside.
        under_way = any(not message.answered and message.life == book.life for message in model.messages.values())
        if topic.name in book.buriers or topic.name in book.reused or under_way:
            continue
        refused = sum(node.ledger.total(reason, topic.name) for reason in (*REASONS, "duplicate"))
        if model.offered != topic.published + refused:
            book.fail(
                "published = stored + refused + discarded",
                f"{topic.name}: {model.offered} offered, {topic.published} stored, {refused} refused or repeated",
            )


def _check_passed(book: Book, topic: Topic, counts: dict[str, int], model: SubscriptionModel | None) -> None:
    who = f"{topic.name}/{model.name if model is not None else '?'}"
    parts = {reason: count for reason, count in counts.items() if reason != "passed"}
    if counts["passed"] != sum(parts.values()) or min(parts.values()) < 0:
        book.fail("passed = acked + held + ...", f"{who}: {counts}")
    certain = model is not None and not any(connection.checks for connection in book.connections.values())
    if model is not None and certain and model.acked not in (None, counts["acked"]):
        book.fail("passed = acked + held + ...", f"{who} counts {counts}, {model.acked} were acked")
