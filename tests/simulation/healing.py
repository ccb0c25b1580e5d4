"""The end of a run: everything heals, good consumers come, and what must be true then is checked."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Protocol

from penstock.clock import MILLISECOND, SECOND
from penstock.errors import REASONS
from penstock.node.node import Node
from penstock.node.topic import Topic
from tests.simulation.book import REMAP_NS, Book
from tests.simulation.clients import DialectClient, Surroundings
from tests.simulation.consumers import Drain, Sulker
from tests.simulation.lookup import Elsewhere
from tests.simulation.model import Belongs, Presence, Row, State, SubscriptionModel
from tests.simulation.network import Weather
from tests.simulation.operator import Operator
from tests.simulation.overhear import unanswered
from tests.simulation.plan import Ending, Plan
from tests.simulation.survival import DEATH, missing
from tests.simulation.taste import Taste
from tests.simulation.topics import topics_of
from tests.simulation.trouble import Trouble

#: Everything must have arrived this long after everything has healed: the longest delay is 1 s, the longest lease 2 s.
HEAL_NS = 20 * SECOND

#: Nothing is on its way from or to a registry elsewhere for longer.
FAR_NS = 2 * SECOND


class Healed(Surroundings, Protocol):
    """What is needed of the world to make it well."""

    book: Book
    node: Node | None
    plan: Plan
    weather: Weather
    operator: Operator
    trouble: Trouble
    elsewhere: Elsewhere
    clients: list[DialectClient]

    def random(self, what: str) -> Random:
        """Return randomness of its own for one part of the world."""

    def keep_away(self, *, away: bool) -> None:
        """Let the registry be far away, or near."""

    def live(self, ending: Ending) -> None:
        """Go on until the node ends in this way, and start it again."""

    def read_log(self, topic: Topic) -> None:
        """Read everything a topic's log holds and compare it with the book."""


def heal(world: Healed) -> None:
    """Let everything be well, see that what must arrive does, and that nothing comes again after one more crash."""
    scheduler, book = world.scheduler, world.book
    scheduler.run_until(scheduler.time_ns + 100 * MILLISECOND)
    if world.plan.far is not None:  # what was asked for before is answered, or comes too late
        world.operator.rests = True
        world.keep_away(away=False)
        scheduler.run_until(scheduler.time_ns + FAR_NS)
        scheduler.run_until(scheduler.time_ns + HEAL_NS, lambda: not world.operator.waits)
    world.busy = False
    book.record("heal")
    world.trouble.make_space()
    world.trouble.mend()
    world.keep_away(away=False)
    world.weather.latency_ns, world.weather.cut_odds = 50_000, 0.0
    for client in world.clients:
        client.stop()
    world.clients.clear()
    scheduler.run_until(scheduler.time_ns + 50 * MILLISECOND)
    if world.plan.sulking:
        _sulk(world, world.plan.sulking)
    world.operator.resume_all(_node(world))
    if world.plan.sulking:
        _drain_around(world, world.plan.sulking)
    _drain(world)
    check_arrived(_node(world), book)
    check_sums(_node(world), book)
    check_filtered(_node(world), book)
    world.elsewhere.heal()
    for topic in sorted(topics_of(_node(world)), key=lambda topic: topic.name not in book.buriers):
        world.read_log(topic)
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


def _sulk(world: Healed, tag: str) -> None:
    """Let somebody ask for a tag in every subscription, and take nothing."""
    for topic in topics_of(_node(world)):
        for name in topic.subscriptions:
            random = world.random(f"sulker {topic.name} {name}")
            world.clients.append(Sulker(world, random, topic.name, name, Taste(extend=True, tag=tag)))
    world.scheduler.run_until(world.scheduler.time_ns + 200 * MILLISECOND)


def _drain_around(world: Healed, tag: str) -> None:
    """See that everything arrives but the rows of a tag that is asked for and not taken; then let those go, too."""
    end_ns = world.scheduler.time_ns + HEAL_NS
    while world.scheduler.time_ns < end_ns and any(_stalled(world.book, tag)):
        _attend(world)
        world.scheduler.run_until(world.scheduler.time_ns + 60 * MILLISECOND)
    for model, owed in _stalled(world.book, tag):
        names = ", ".join(f"{row.message.name}({row.state.value})" for row in owed[:10])
        text = f"{model.topic.name}/{model.name} owes {len(owed)} although only {tag!r} has to wait: {names}"
        world.book.fail("a tagged row stalls nobody", text)
    for client in world.clients:
        if isinstance(client, Sulker):
            client.stop()


def _stalled(book: Book, tag: str) -> Iterator[tuple[SubscriptionModel, list[Row]]]:
    """Go through the subscriptions that owe rows of no tag or another one, where order leaves them free to go."""
    for model in book.subscriptions():
        if model.settings.order == "none":
            owed = [row for row in missing(book, model) if row.message.extras.tag != tag]
            if owed:
                yield model, owed


def _attend(world: Healed) -> None:
    """Have one such consumer in every subscription; a topic without one gets its first."""
    there = {(client.topic, client.channel) for client in world.clients if isinstance(client, Drain)}
    for topic in topics_of(_node(world)):
        for name in topic.subscriptions or ("final",):
            if (topic.name, name) not in there:
                random = world.random(f"drain {topic.name} {name}")
                world.clients.append(Drain(world, random, topic.name, name, Taste()))


def _is_calm(node: Node, book: Book) -> bool:
    for topic in topics_of(node):
        if not topic.subscriptions:
            return False
        for subscription in topic.subscriptions.values():
            if subscription.depth() or subscription.in_flight() or subscription.waiting():
                return False
    # What a client sent just before it vanished may come late, and is stored in its own time.
    return not unanswered(book) and not any(missing(book, model) for model in book.subscriptions())


def check_arrived(node: Node, book: Book) -> None:
    """Check that nothing is owed to anybody."""
    for model in book.subscriptions():
        owed = missing(book, model)
        if owed:
            names = ", ".join(f"{row.message.name}({row.state.value})" for row in owed[:10])
            book.fail("everything arrives", f"{model.topic.name}/{model.name} owes {len(owed)}: {names}")
    for topic in topics_of(node):
        for subscription in topic.subscriptions.values():
            left = (subscription.depth(), subscription.in_flight(), subscription.waiting())
            if any(left):
                book.fail("everything arrives", f"{topic.name}/{subscription.name} still says {left}")
    waiting = unanswered(book)
    if waiting:
        book.fail("every publish is answered", "; ".join(waiting[:5]))


def check_filtered(node: Node, book: Book) -> None:
    """Check that what filters refused in this life of the node was counted so."""
    for model in book.subscriptions():
        topic = model.topic
        if model.filtered_from is None or topic.tight or topic.was_shaken or topic.settings.durability == "memory":
            continue
        low = high = 0
        for message in topic.messages.values():
            row = model.row(message)
            if row.belongs is Belongs.NO or message.presence is Presence.REFUSED:
                continue
            some, every = model.takes(message, book.now_ns, REMAP_NS)
            sure = row.belongs is Belongs.MUST and row.state is State.NEW and message.stored and not row.maybe
            low += sure and not some and message.life == book.life
            high += not every or model.may_be_refused(message)
        counted = node.topics[topic.name].subscriptions[model.name].counts()["filtered"] - model.filtered_from
        book.record("filtered", topic.name, model.name, low, counted, high)
        if not low <= counted <= high:
            text = f"{topic.name}/{model.name} counts {counted} more as filtered, which must be {low} to {high}"
            book.fail("passed = acked + held + ...", text)


def check_sums(node: Node, book: Book) -> None:
    """Check both sums of the ledger."""
    for topic in topics_of(node):
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
