"""Redrives as resources: dead letters on their way back to the queues they came from, or to one that is named."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.dialects.dynamiq.queue import NAME, Queue
from penstock.dialects.dynamiq.v2 import shapes
from penstock.dialects.dynamiq.v2.endpoint import V2, Call, Endpoint
from penstock.dialects.dynamiq.v2.queues import QueueResource
from penstock.errors import Refusal
from penstock.moves.tasks import Task
from penstock.registry.answer import Answer
from penstock.rest.reading import Nothing
from penstock.units import times

if TYPE_CHECKING:
    from penstock.node.node import Node


class RedriveResource:
    """What is done with redrives."""

    def __init__(self, node: Node, queues: QueueResource) -> None:
        self._tasks = node.tasks
        self._queues = queues

    def endpoints(self) -> list[Endpoint]:
        """Return the rows of the table."""
        many = V2 + "/queues/{queue}/redrives"
        one = many + "/{id}"
        return [
            Endpoint(
                "POST",
                many,
                self.start_redrive,
                "Begin to move dead letters of a queue back",
                shapes.Redrive,
                body=shapes.RedriveIn,
                status=202,
            ),
            Endpoint("GET", many, self.list_redrives, "List the latest redrives of a queue", shapes.RedriveList),
            Endpoint("GET", one, self.show_redrive, "Show how a redrive goes", shapes.Redrive),
            Endpoint("DELETE", one, self.cancel_redrive, "Move nothing more", shapes.Redrive),
        ]

    def start_redrive(self, call: Call[Nothing, shapes.RedriveIn]) -> Answer[shapes.Redrive]:
        """Begin; it goes on if the client hangs up, and after a crash nothing is moved twice."""
        queue, caller = self._queue(call), call.caller
        if call.body.to is not None:
            self._queues.check(caller, "publish", call.body.to)

        def may_go(topic: str) -> bool:
            return caller.may("publish", topic)

        return self._tasks.start(queue.topic, NAME, call.body.to, call.body.max, may_go).then_make(self._shown)

    def list_redrives(self, call: Call[Nothing, None]) -> shapes.RedriveList:
        """Show the latest ones."""
        return shapes.RedriveList([self._shown(task) for task in self._tasks.of(self._queue(call).topic)])

    def show_redrive(self, call: Call[Nothing, None]) -> shapes.Redrive:
        """Show one."""
        return self._shown(self._task(call))

    def cancel_redrive(self, call: Call[Nothing, None]) -> shapes.Redrive:
        """Begin with no more letters."""
        task = self._task(call)
        if not self._tasks.cancel(task):
            raise Refusal("conflict", f"redrive {task.id} of queue {task.source} is over: {task.status.lower()}")
        return self._shown(task)

    def _queue(self, call: Call[Nothing, shapes.RedriveIn] | Call[Nothing, None]) -> Queue:
        return self._queues.named(call.caller, "receive", call.names["queue"])

    def _task(self, call: Call[Nothing, None]) -> Task:
        queue, id_ = self._queue(call), call.names["id"]
        for task in self._tasks.of(queue.topic):
            if task.id == id_:
                return task
        raise Refusal("not_found", f"there is no redrive {id_[:40]!r} of queue {queue.topic.name}, or it is long over")

    def _shown(self, task: Task) -> shapes.Redrive:
        return shapes.Redrive(
            task.id,
            task.source,
            task.target,
            task.status.lower(),
            task.wanted,
            self._tasks.moved(task),
            times.shown(task.started_ns),
            task.problem,
        )
