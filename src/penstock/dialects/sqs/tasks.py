"""Message move tasks, in Amazon's words: dead letters go back to their queues, or to one that is named."""

from __future__ import annotations

from base64 import b64decode, b64encode

import msgspec

from penstock.callers import Caller
from penstock.clock import MILLISECOND
from penstock.dialects.sqs.codec import shapes
from penstock.dialects.sqs.faults import Fault, within
from penstock.dialects.sqs.queues import QUEUE, Queue, Queues
from penstock.moves.tasks import TASKS_MAX, Task
from penstock.registry.answer import Answer


class Handle(msgspec.Struct, frozen=True, rename="camel"):
    """What the handle of a move holds; opaque to clients."""

    task_id: str
    source_arn: str


class Tasks:
    """The moves of one node."""

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self._node = queues.node
        self._tasks = queues.node.tasks

    def start(self, caller: Caller, asked: shapes.StartMessageMoveTask) -> Answer[shapes.TaskHandle]:
        """Begin to move what is visible in a dead-letter queue."""
        source = self._of_arn(caller, asked.source_arn)
        target = self._name_of(caller, asked.destination_arn, "DestinationArn") if asked.destination_arn else None
        rate = within("MaxNumberOfMessagesPerSecond", asked.max_number_of_messages_per_second, 1, 500)
        if not any(settings.dead_letter == source.name for _, settings in self._queues.all()):
            raise Fault("InvalidParameterValue", "Source queue must be configured as a Dead Letter Queue.")
        if source.name in self._node.redrives:
            text = "There is already a task running. Only one active task is allowed for a source queue arn at a time."
            raise Fault("InvalidParameterValue", text)
        if target is not None:
            caller.check("publish", target)
        begun = self._tasks.start(source.topic, QUEUE, target, None, lambda name: caller.may("publish", name), rate)
        return begun.then_make(lambda task: shapes.TaskHandle(task_handle=self._handle(task)))

    def cancel(self, caller: Caller, asked: shapes.CancelMessageMoveTask) -> shapes.Cancelled:
        """Move nothing more."""
        handle = _read(asked.task_handle)
        found = next((task for task in self._tasks.all() if self._handle(task) == asked.task_handle), None)
        if found is not None:
            caller.check("receive", found.source)
        elif (name := self._queues.names.of_arn(handle.source_arn)) is not None:
            caller.check("receive", name)
            self._queues.known(name)  # another node may have it, and the task
        if found is None or not self._tasks.cancel(found):
            raise Fault("ResourceNotFoundException", "Task does not exist, or is over.")
        return shapes.Cancelled(approximate_number_of_messages_moved=self._tasks.moved(found))

    def list(self, caller: Caller, asked: shapes.ListMessageMoveTasks) -> shapes.MoveTasks:
        """Tell how the latest tasks of a queue go."""
        most = within("MaxResults", asked.max_results, 1, TASKS_MAX) or 1
        source = self._of_arn(caller, asked.source_arn)
        tasks = self._tasks.of(source.topic)[:most]
        return shapes.MoveTasks(results=[self._shown(task) for task in tasks])

    def _shown(self, task: Task) -> shapes.MoveTask:
        arn = self._queues.names.arn
        return shapes.MoveTask(
            task_handle=self._handle(task) if task.status == "RUNNING" else None,
            status=task.status,
            source_arn=arn(task.source),
            destination_arn=arn(task.target) if task.target is not None else None,
            max_number_of_messages_per_second=task.rate,
            approximate_number_of_messages_moved=self._tasks.moved(task),
            approximate_number_of_messages_to_move=task.wanted,
            failure_reason=task.problem if task.status == "FAILED" else None,
            started_timestamp=task.started_ns // MILLISECOND,
        )

    def _handle(self, task: Task) -> str:
        held = Handle(task.id, self._queues.names.arn(task.source))
        return b64encode(msgspec.json.encode(held)).decode("ascii")

    def _of_arn(self, caller: Caller, arn: str) -> Queue:
        queue = self._queues.known(self._name_of(caller, arn, "SourceArn"))
        if queue is None:
            raise _none("SourceArn")
        return queue

    def _name_of(self, caller: Caller, arn: str, parameter: str) -> str:
        """Return the name of a queue that must exist, on whichever node."""
        name = self._queues.names.of_arn(arn)
        if name is not None:
            caller.check("receive", name)
        if name is None or not self._queues.is_queue(name):
            raise _none(parameter)
        return name


def _none(parameter: str) -> Fault:
    text = f"The resource that you specified for the {parameter} parameter does not exist."
    return Fault("ResourceNotFoundException", text)


def _read(handle: str) -> Handle:
    """Return what a handle says; one of a task that is over, or of none, is another matter."""
    try:
        return msgspec.json.decode(b64decode(handle, validate=True), type=Handle)
    except (ValueError, RecursionError):
        raise Fault("InvalidParameterValue", "Value for parameter TaskHandle is invalid.") from None
