"""Topics as resources, with the queues that are subscribed to them: what is published is copied to each queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.callers import Action, Caller
from penstock.dialects.dynamiq.queues import Queues
from penstock.dialects.dynamiq.v2 import shapes
from penstock.dialects.dynamiq.v2.endpoint import V2, Call, Endpoint
from penstock.dialects.dynamiq.v2.messages import Drafts, MessageResource
from penstock.dialects.dynamiq.v2.queues import QueueResource, page_of
from penstock.errors import Refusal
from penstock.intake.receipt import PartRefusal
from penstock.peers.far import Reached
from penstock.registry.answer import Answer
from penstock.rest.problem import Problem, problem_of
from penstock.rest.reading import Nothing
from penstock.shown import shown_id

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.fanout.fanouts import Copies
    from penstock.http import Request
    from penstock.node.node import Node


class TopicResource:
    """What is done with topics."""

    def __init__(
        self,
        node: Node,
        all_queues: Queues,
        queues: QueueResource,
        messages: MessageResource,
        publisher: Callable[[Request], object],
        report: Callable[[BaseException, Request], None],
    ) -> None:
        self._fanouts = node.fanouts
        self._all_queues = all_queues
        self._queues = queues
        self._messages = messages
        self._publisher = publisher
        self._report = report

    def endpoints(self) -> list[Endpoint]:
        """Return the rows of the table."""
        one = V2 + "/topics/{topic}"
        fed = f"{one}/subscriptions"
        return [
            Endpoint(
                "GET", V2 + "/topics", self.list_topics, "List topics by name", shapes.TopicPage, shapes.PageQuery
            ),
            Endpoint(
                "POST", V2 + "/topics", self.create_topic, "Make a topic", shapes.Topic, body=shapes.TopicIn, status=201
            ),
            Endpoint("GET", one, self.show_topic, "Show a topic with its queues", shapes.Topic),
            Endpoint("DELETE", one, self.delete_topic, "Delete a topic; its queues stay", shapes.Deleted),
            Endpoint(
                "POST",
                f"{one}/messages",
                self.publish_to_topic,
                "Publish messages to every queue of a topic",
                shapes.CopiedAll,
                body=shapes.MessagesInShown,
                takes_messages=True,
            ),
            Endpoint("GET", fed, self.list_subscriptions, "List queues of a topic", shapes.NamePage, shapes.PageQuery),
            Endpoint("PUT", fed + "/{queue}", self.subscribe_queue, "Let a queue get copies", shapes.Subscription),
            Endpoint("DELETE", fed + "/{queue}", self.unsubscribe_queue, "Let it get no more", shapes.Deleted),
        ]

    # --- topics ---------------------------------------------------------------------------------------------------

    def list_topics(self, call: Call[shapes.PageQuery, None]) -> shapes.TopicPage:
        """Show topics by name."""
        seen = [name for name in self._fanouts.names() if call.caller.may("see", name)]
        names, following = page_of(seen, call.query)
        return shapes.TopicPage([self._shown(name) for name in names], following)

    def create_topic(self, call: Call[Nothing, shapes.TopicIn]) -> Answer[shapes.Topic]:
        """Make a topic."""
        name = call.body.name
        call.caller.check("create", name, "fan-out")
        if self._fanouts.get(name) is not None:
            raise Refusal("conflict", f"there is a topic {name} already")
        return self._fanouts.create(name).then_make(lambda _: self._shown(name))

    def show_topic(self, call: Call[Nothing, None]) -> shapes.Topic:
        """Show a topic."""
        return self._shown(self._named(call.caller, "see", call.names["topic"]))

    def delete_topic(self, call: Call[Nothing, None]) -> Answer[shapes.Deleted]:
        """Remove a topic."""
        name = self._named(call.caller, "delete", call.names["topic"])
        return self._fanouts.delete(name).then_make(lambda _: shapes.Deleted(1))

    # --- subscriptions --------------------------------------------------------------------------------------------

    def list_subscriptions(self, call: Call[shapes.PageQuery, None]) -> shapes.NamePage:
        """Show the queues of a topic."""
        name = self._named(call.caller, "see", call.names["topic"])
        return shapes.NamePage(*page_of(self._fed(name), call.query))

    def subscribe_queue(self, call: Call[Nothing, None]) -> Answer[shapes.Subscription]:
        """Let a queue get copies, once however often it is asked for."""
        name, queue = self._pair(call)
        found = self._queues.named(call.caller, "change", queue)
        return self._fanouts.add(name, found.topic).then_make(lambda _: shapes.Subscription(name, queue))

    def unsubscribe_queue(self, call: Call[Nothing, None]) -> Answer[shapes.Deleted]:
        """Let a queue get no more copies."""
        name, queue = self._pair(call)
        if queue not in self._fed(name):
            raise Refusal("not_found", f"queue {queue} is not subscribed to topic {name}")
        return self._fanouts.remove(name, queue).then_make(lambda _: shapes.Deleted(1))

    def _pair(self, call: Call[Nothing, None]) -> tuple[str, str]:
        name, queue = call.names["topic"], call.names["queue"]
        call.caller.check("change", name, f"fan-out to {queue}")
        call.caller.check("change", queue, f"fan-out from {name}")
        call.caller.check_not_own(queue)
        return self._named(call.caller, "change", name), queue

    def _named(self, caller: Caller, action: Action, name: str) -> str:
        caller.check(action, name, "fan-out")
        if self._fanouts.get(name) is None:
            raise Refusal("not_found", f"there is no topic {name}; POST {V2}/topics makes one")
        return name

    def _shown(self, name: str) -> shapes.Topic:
        return shapes.Topic(name, self._fed(name))

    def _fed(self, name: str) -> list[str]:
        return sorted(topic.name for topic in self._fanouts.topics(name))

    # --- publishing -----------------------------------------------------------------------------------------------

    def publish_to_topic(self, call: Call[Nothing, None]) -> Answer[shapes.CopiedAll]:
        """Store copies of messages in every queue of a topic."""
        name = call.names["topic"]
        call.caller.check("publish", name)
        if self._fanouts.get(name) is None:
            raise Refusal("not_found", f"there is no topic {name}; POST {V2}/topics makes one")
        drafts = self._messages.drafts(call.request.body)
        topics = self._all_queues.among(self._fanouts.topics(name))
        told: Answer[shapes.CopiedAll] = Answer()

        def done(copies: Copies) -> None:
            for error in {str(copy): copy for copy in copies.values() if isinstance(copy, BaseException)}.values():
                self._report(error, call.request)
            told.give(self._copied(drafts, topics, copies))

        call.request.let_go()
        if not drafts.rows.count:
            done({})
        else:
            if "dedup" in drafts.rows.columns:
                for topic in topics:
                    topic.intake.pass_time()
            self._fanouts.publish(topics, call.caller, drafts.rows, self._publisher(call.request), done)
        return told

    def _copied(self, drafts: Drafts, topics: list[Reached], copies: Copies) -> shapes.CopiedAll:
        results = [
            shapes.Copied(error=drafts.problems[place]) if place in drafts.problems else shapes.Copied(ids={})
            for place in range(drafts.total)
        ]
        rows = [results[place] for place in drafts.places()]
        stored = 0
        for topic in topics:
            copy = copies.get(topic.name)
            if copy is None:
                continue
            if isinstance(copy, BaseException):
                ids = copy.ids if isinstance(copy, PartRefusal) else {}
            else:
                ids = dict(enumerate(copy.ids()))
            problem = _problem(copy) if isinstance(copy, BaseException) else None
            for row, result in enumerate(rows):
                if row in ids and result.ids:
                    result.ids[topic.name] = str(shown_id(ids[row], topic.incarnation))
                elif row in ids:
                    result.ids = {topic.name: str(shown_id(ids[row], topic.incarnation))}
                elif problem is not None:
                    result.errors = {**(result.errors or {}), topic.name: problem}
            self._messages.sent(topic.name, len(ids))
            stored += len(ids)
        return shapes.CopiedAll(stored, len(drafts.problems), results)


def _problem(error: BaseException) -> Problem:
    if isinstance(error, Refusal):
        return problem_of(error)
    return Problem("internal", "the node failed inside; its log says more")
