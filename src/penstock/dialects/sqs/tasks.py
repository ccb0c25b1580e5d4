"""Message move tasks: dead letters go back to their queues, or to one that is named. The core's redrive does the work.

What is under way survives the node, what tasks there were does not.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections import deque
from uuid import uuid4

import msgspec

from penstock.callers import Caller
from penstock.clock import MILLISECOND
from penstock.dialects.sqs.codec import shapes
from penstock.dialects.sqs.faults import Fault, within
from penstock.dialects.sqs.queues import QUEUE, Queue, Queues
from penstock.moves.redrive import Redriven, redrive
from penstock.registry.answer import Answer

#: Tasks that are remembered of one queue, as Amazon lists them, and queues of which some are.
TASKS_MAX = 10
QUEUES_MAX = 1000


class Handle(msgspec.Struct, frozen=True, rename="camel"):
    """What the handle of a move holds; opaque to clients."""

    task_id: str
    source_arn: str


class Task(msgspec.Struct):
    """One move."""

    handle: str
    source: str
    target: str | None
    rate: int | None
    wanted: int
    started_ms: int
    status: str = "RUNNING"
    moved: int = 0
    problem: str | None = None


class Tasks:
    """The moves of one node."""

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self._node = queues.node
        #: By the name of the queue that letters are moved from, the latest first.
        self._tasks: dict[str, deque[Task]] = {}

    def start(self, caller: Caller, asked: shapes.StartMessageMoveTask) -> Answer[shapes.TaskHandle]:
        """Begin to move what is visible in a dead-letter queue."""
        source = self._of_arn(caller, asked.source_arn)
        target = self._of_arn(caller, asked.destination_arn, "DestinationArn").name if asked.destination_arn else None
        rate = within("MaxNumberOfMessagesPerSecond", asked.max_number_of_messages_per_second, 1, 500)
        if not any(queue.subscription.settings.dead_letter == source.name for queue in self._queues.all()):
            raise Fault("InvalidParameterValue", "Source queue must be configured as a Dead Letter Queue.")
        if source.name in self._node.redrives:
            text = "There is already a task running. Only one active task is allowed for a source queue arn at a time."
            raise Fault("InvalidParameterValue", text)
        if target is not None:
            caller.check("publish", target)
        handle = b64encode(msgspec.json.encode(Handle(str(uuid4()), asked.source_arn))).decode("ascii")
        wanted = source.subscription.depth()
        task = Task(handle, source.name, target, rate, wanted, self._node.clock.now() // MILLISECOND)

        def done(result: Redriven) -> None:
            task.moved = result.moved
            task.problem = result.problem
            is_cancelled = task.status == "CANCELLING"
            task.status = "CANCELLED" if is_cancelled else "FAILED" if result.problem else "COMPLETED"

        begun = redrive(
            self._node, source.topic, target, max(wanted, 1), done, lambda name: caller.may("publish", name), QUEUE
        )

        def note(_: None) -> shapes.TaskHandle:
            while len(self._tasks) >= QUEUES_MAX and source.name not in self._tasks:
                del self._tasks[next(iter(self._tasks))]
            self._tasks.setdefault(source.name, deque(maxlen=TASKS_MAX)).appendleft(task)
            return shapes.TaskHandle(task_handle=handle)

        return begun.then_make(note)

    def cancel(self, caller: Caller, asked: shapes.CancelMessageMoveTask) -> shapes.Cancelled:
        """Move nothing more."""
        _read(asked.task_handle)
        tasks = [task for of_one in self._tasks.values() for task in of_one]
        found = next((task for task in tasks if task.handle == asked.task_handle), None)
        running = self._node.redrives.get(found.source) if found is not None else None
        if found is None or running is None or found.status != "RUNNING":
            raise Fault("ResourceNotFoundException", "Task does not exist, or is over.")
        caller.check("receive", found.source)
        found.status = "CANCELLING"
        running.stop()
        return shapes.Cancelled(approximate_number_of_messages_moved=running.moved)

    def list(self, caller: Caller, asked: shapes.ListMessageMoveTasks) -> shapes.MoveTasks:
        """Tell how the latest tasks of a queue go."""
        most = within("MaxResults", asked.max_results, 1, TASKS_MAX) or 1
        source = self._of_arn(caller, asked.source_arn)
        tasks = list(self._tasks.get(source.name, ()))[:most]
        return shapes.MoveTasks(results=[self._shown(task) for task in tasks])

    def _shown(self, task: Task) -> shapes.MoveTask:
        running = self._node.redrives.get(task.source) if task.status in ("RUNNING", "CANCELLING") else None
        arn = self._queues.names.arn
        return shapes.MoveTask(
            task_handle=task.handle if task.status == "RUNNING" else None,
            status=task.status,
            source_arn=arn(task.source),
            destination_arn=arn(task.target) if task.target is not None else None,
            max_number_of_messages_per_second=task.rate,
            approximate_number_of_messages_moved=running.moved if running is not None else task.moved,
            approximate_number_of_messages_to_move=task.wanted,
            failure_reason=task.problem if task.status == "FAILED" else None,
            started_timestamp=task.started_ms,
        )

    def _of_arn(self, caller: Caller, arn: str, parameter: str = "SourceArn") -> Queue:
        name = self._queues.names.of_arn(arn)
        if name is not None:
            caller.check("receive", name)
        queue = self._queues.known(name) if name is not None else None
        if queue is None:
            text = f"The resource that you specified for the {parameter} parameter does not exist."
            raise Fault("ResourceNotFoundException", text)
        return queue


def _read(handle: str) -> None:
    """Refuse what is no handle; one of a task that is over, or of none, is another matter."""
    try:
        msgspec.json.decode(b64decode(handle, validate=True), type=Handle)
    except (ValueError, RecursionError):
        raise Fault("InvalidParameterValue", "Value for parameter TaskHandle is invalid.") from None
