"""The operator of a node whose registry is far away: it asks, goes on, and believes what it is answered.

Between the question and the answer, and after an answer that never came, the book takes both for possible: what was
before and what was asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec

from penstock.errors import Refusal
from penstock.node.node import Node
from penstock.node.topic import Topic
from penstock.registry.answer import Answer
from penstock.registry.attempt import UnansweredError
from penstock.settings import SubscriptionSettings
from tests.simulation.choices import some_filter
from tests.simulation.model import SubscriptionModel, TopicModel
from tests.simulation.operator import SHARDS_MAX, Operator


class FarOperator(Operator):
    """Changes topics and subscriptions under way, one change of a topic at a time."""

    _asked: frozenset[tuple[int, str]] = frozenset()

    @property
    def waits(self) -> bool:
        """Whether something is not answered yet."""
        return any(life == self.world.book.life for life, _ in self._asked)

    def act(self, node: Node) -> None:
        """Do one thing to one subscription or topic of which nothing is asked."""
        book = self.world.book
        topics = [topic for topic in node.topics.values() if topic.name in book.topics and not self.rests]
        topics = [topic for topic in topics if (book.life, topic.name) not in self._asked]
        if not topics:
            return
        topic = self.random.choice(topics)
        model = book.bind(topic.name, topic.record.number, topic.settings)
        subscription = self._any(topic, model)
        if subscription is None or self.random.random() < 0.4:
            self._change_topic(node, topic, model)
        elif self.random.random() < 0.5:
            chosen = self.random.choice((self._paused, self._paused, self._resumed, self._resumed, self._filtered))
            self._ask_subscription(topic, subscription, chosen(subscription))
        else:
            actions = (self._seek, self._empty, self._ack_up_to, self._remove)
            self._here(subscription, self.random.choice(actions), topic, subscription)

    def _here(self, model: TopicModel | SubscriptionModel, action: Callable[..., None], *what: object) -> None:
        """Do what needs no registry."""
        before, model.doubtful = model.doubtful, True
        try:
            action(*what)
        except Refusal as refusal:
            self.world.book.record("refusal", str(refusal)[:60])
        model.doubtful = before

    def _change_topic(self, node: Node, topic: Topic, model: TopicModel) -> None:
        actions, weights = ["roll", "retain", "pause", "resume"], [2, 2, 3, 5]
        if self._grows and len(topic.shards) < SHARDS_MAX:
            actions.append("grow")
            weights.append(8)
        action = self.random.choices(actions, weights)[0]
        if action == "grow":
            self._here(model, self._grow, node, topic, model)
        elif action in ("roll", "retain"):
            self._here(model, self._roll if action == "roll" else self._retain, node, topic, model)
        else:
            self._ask_pause(topic, model, paused=action == "pause")

    def _ask_pause(self, topic: Topic, model: TopicModel, *, paused: bool) -> None:
        book, before, asked_ns = self.world.book, model.gate_ns, self.world.book.now_ns
        book.record("ask pause" if paused else "ask resume", topic.name)
        model.doubtful, model.gate_ns = True, None
        self._upheaval(model)

        def told(known: bool, done: bool) -> None:
            model.doubtful = not known
            self._upheaval(model)
            if not done:
                model.gate_ns = before
            elif paused:
                model.gate_ns = asked_ns if before is None else before

        self._ask(topic, topic.pause(paused=paused), told)

    def _paused(self, model: SubscriptionModel) -> SubscriptionSettings:
        return msgspec.structs.replace(model.settings, paused=True)

    def _resumed(self, model: SubscriptionModel) -> SubscriptionSettings:
        return msgspec.structs.replace(model.settings, paused=False)

    def _filtered(self, model: SubscriptionModel) -> SubscriptionSettings:
        return msgspec.structs.replace(model.settings, traffic=some_filter(self.random))

    def _ask_subscription(self, topic: Topic, model: SubscriptionModel, settings: SubscriptionSettings) -> None:
        book, before = self.world.book, model.paused_ns
        book.record("ask", topic.name, model.name, settings.paused, settings.traffic)
        rule = book.rule(settings)
        model.doubtful, model.paused_ns, model.upheaval_ns = True, None, book.now_ns
        model.unsettled.append(rule)

        def told(known: bool, done: bool) -> None:
            model.doubtful, model.upheaval_ns = not known, book.now_ns
            model.paused_ns = before
            if done:
                model.rules += [replace(each, since_ns=book.now_ns) for each in model.unsettled]
                model.unsettled.clear()
                book.adopt(model, settings)
                model.paused_ns = book.now_ns if settings.paused else None
            elif known:
                model.unsettled.remove(rule)

        self._ask(topic, topic.update_subscription(model.name, settings), told)

    def _ask(self, topic: Topic, answer: Answer[Any], told: Callable[[bool, bool], None]) -> None:
        """Wait for an answer: whether it is known what became of it, and whether it was done."""
        book, key = self.world.book, (self.world.book.life, topic.name)
        self._asked |= {key}

        def came(_: object, error: Exception | None) -> None:
            self._asked -= {key}
            if key[0] == book.life:
                book.record("told", topic.name, str(error)[:60] if error is not None else "done")
                told(not isinstance(error, UnansweredError), error is None)

        answer.then(came)
