"""SQS and Dynamiq as they are simulated: the listener and application of each, without a socket."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import msgspec

from penstock.clock import MILLISECOND
from penstock.config import Config
from penstock.dialects.dynamiq.config import DynamiqConfig
from penstock.dialects.dynamiq.running import Dynamiq
from penstock.dialects.sqs.running import Sqs
from penstock.node.node import Node
from tests.simulation.clients import DialectClient, Surroundings
from tests.simulation.network import Reader
from tests.simulation.plan import Plan
from tests.simulation.queues.clients import DynamiqClient, SqsClient, V2Client
from tests.simulation.queues.wire import ReplyReader
from tests.simulation.speech import Connect


class _OverHttp:
    """What both have in common."""

    headers = False
    by_receipt = True

    def lease_ns(self, config: Config) -> int:
        """Return nothing: a queue says how long."""
        return 0

    def reader(self) -> Reader:
        """Return what reads answers."""
        return ReplyReader()


class SqsSpeech(_OverHttp):
    """SQS in JSON."""

    name = "sqs"

    def __init__(self) -> None:
        self._sqs: Sqs | None = None

    def is_spoken(self, plan: Plan) -> bool:
        """Tell whether a run has clients of it."""
        return any(queue.sqs for queue in plan.queues)

    def configured(self, config: Config) -> Config:
        """Take what the plan says."""
        return config

    def serve(self, node: Node, config: Config) -> Connect:
        """Return what makes the protocol of a new connection."""
        self._sqs = Sqs(node, config)
        return self._sqs.listener.connect

    def drain(self) -> None:
        """Let nobody wait any longer."""
        if self._sqs is not None:
            self._sqs.api.receiver.polls.stop()

    def people(self, world: Surroundings, plan: Plan, random: Callable[[str], Random]) -> Sequence[DialectClient]:
        """Return the clients of each queue."""
        return [
            SqsClient(world, random(f"sqs {queue.topic} {number}"), queue)
            for queue in plan.queues
            for number in range(queue.sqs)
        ]


class DynamiqSpeech(_OverHttp):
    """Dynamiq, both versions."""

    name = "dynamiq"

    def __init__(self) -> None:
        self._dynamiq: Dynamiq | None = None

    def is_spoken(self, plan: Plan) -> bool:
        """Tell whether a run has clients of it."""
        return any(queue.dynamiq or queue.v2 for queue in plan.queues)

    def configured(self, config: Config) -> Config:
        """Let changed settings be in force soon."""
        own = DynamiqConfig(sync_interval_ns=100 * MILLISECOND)
        return msgspec.structs.replace(config, parts=(*config.parts, own))

    def serve(self, node: Node, config: Config) -> Connect:
        """Return what makes the protocol of a new connection."""
        self._dynamiq = Dynamiq(node, config)
        return self._dynamiq.listener.connect

    def drain(self) -> None:
        """Let nobody wait any longer."""
        if self._dynamiq is not None:
            self._dynamiq.queues.polls.stop()

    def people(self, world: Surroundings, plan: Plan, random: Callable[[str], Random]) -> Sequence[DialectClient]:
        """Return the clients of each queue, which know each other's ids."""
        clients: list[DialectClient] = []
        for queue in plan.queues:
            seen: list[str] = []
            for number in range(queue.dynamiq):
                clients.append(DynamiqClient(world, random(f"dynamiq {queue.topic} {number}"), queue, seen))
            for number in range(queue.v2):
                clients.append(V2Client(world, random(f"v2 {queue.topic} {number}"), queue))
        return clients
