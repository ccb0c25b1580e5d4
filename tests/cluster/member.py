"""A node that listens, as the only one of a cluster: with real slots, over its own registry."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.cluster.slots import Slots
from penstock.config import ClusterConfig
from penstock.registry.answer import Answer
from penstock.registry.registry import Figure
from tests.served import Served


class Member:
    """What a node has that is not alone."""

    def __init__(self, served: Served) -> None:
        config = ClusterConfig(name="blue", node="n1", slots=4, advertise="10.0.0.1:7075")
        node = served.node
        self.slots = Slots(
            node.registry, node.clock, config, "life", lambda *_: None, lambda _: None, lambda _: Answer.of(None)
        )
        self.slots.start().now()

    def problems(self) -> list[str]:
        return ["slot 3: Kafka is away"]

    def unreadable(self) -> list[str]:
        return []

    def figures(self) -> Iterator[Figure]:
        return self.slots.figures()


@contextmanager
def joined(served: Served) -> Iterator[Member]:
    """Let a node be a member of a cluster for a while."""

    def join() -> Member:
        member = Member(served)
        served.node.share = member  # type: ignore[assignment]
        return member

    def leave() -> None:
        served.node.share = None
        member.slots.close().now()

    member = served.do(join)
    try:
        yield member
    finally:
        served.do(leave)
