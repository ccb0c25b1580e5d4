"""Redrives that somebody began and may look after: how each goes, and its end.

What is under way survives the node, what tasks there were does not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING
from uuid import uuid4

import msgspec

from penstock.moves.redrive import Redriven, redrive
from penstock.registry.answer import Answer

if TYPE_CHECKING:
    from penstock.node.node import Node
    from penstock.node.topic import Topic

#: Tasks that are remembered of one topic, as Amazon lists them, and topics of which some are.
TASKS_MAX = 10
TOPICS_MAX = 1000


class Task(msgspec.Struct):
    """One redrive."""

    id: str
    source: str
    #: Of the topic, which may be another one of the same name later.
    incarnation: int
    target: str | None
    wanted: int
    started_ns: int
    #: RUNNING, CANCELLING, CANCELLED, FAILED or COMPLETED.
    status: str = "RUNNING"
    moved: int = 0
    problem: str | None = None
    #: How many letters are moved in a second at most.
    rate: int | None = None

    @property
    def is_over(self) -> bool:
        """Whether it moves nothing more."""
        return self.status not in ("RUNNING", "CANCELLING")


class Tasks:
    """The redrives of one node that were begun as tasks."""

    def __init__(self, node: Node) -> None:
        self._node = node
        #: By the name of the topic that letters are moved from, the latest first.
        self._tasks: dict[str, deque[Task]] = {}

    def start(
        self,
        source: Topic,
        subscription: str,
        target: str | None,
        most: int | None,
        is_open: Callable[[str], bool],
        rate: int | None = None,
    ) -> Answer[Task]:
        """Begin to move what is ready in a topic of dead letters: all of it, or so many."""
        wanted = source.subscription(subscription).depth()
        wanted = wanted if most is None else min(wanted, most)
        task = Task(str(uuid4()), source.name, source.incarnation, target, wanted, self._node.clock.now(), rate=rate)

        def done(result: Redriven) -> None:
            task.moved = result.moved
            task.problem = result.problem
            is_cancelled = task.status == "CANCELLING"
            task.status = "CANCELLED" if is_cancelled else "FAILED" if result.problem else "COMPLETED"

        def noted(_: None) -> Task:
            while len(self._tasks) >= TOPICS_MAX and source.name not in self._tasks:
                del self._tasks[next(iter(self._tasks))]
            self._tasks.setdefault(source.name, deque(maxlen=TASKS_MAX)).appendleft(task)
            return task

        begun = redrive(self._node, source, target, max(wanted, 1), done, is_open, subscription, rate)
        return begun.then_make(noted)

    def of(self, source: Topic) -> list[Task]:
        """Return the latest tasks of a topic, the last one first."""
        return [task for task in self._tasks.get(source.name, ()) if task.incarnation == source.incarnation]

    def all(self) -> Iterator[Task]:
        """Yield every task that is remembered."""
        for tasks in self._tasks.values():
            yield from tasks

    def moved(self, task: Task) -> int:
        """Return how many letters went back so far."""
        running = None if task.is_over else self._node.redrives.get(task.source)
        return running.moved if running is not None else task.moved

    def cancel(self, task: Task) -> bool:
        """Move nothing more; False if it was over."""
        running = self._node.redrives.get(task.source)
        if running is None or task.status != "RUNNING":
            return False
        task.status = "CANCELLING"
        running.stop()
        return True
