"""How the simulation speaks a dialect: who serves it, who talks to it, and what was said in the words of the tap.

The tap and the book know publishes, subscribes, credit, acks and deliveries, under NSQ's names for them. Whatever
dialect says these things can be simulated: its clients send `Command`s, its reader makes `Frame`s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import Protocol

from penstock.config import Config
from penstock.dialects.nsq.config import NsqConfig
from penstock.dialects.nsq.tcp.server import Server
from penstock.node.node import Node
from tests.simulation.clients import DialectClient, Producer, Surroundings
from tests.simulation.consumers import Consumer
from tests.simulation.network import Reader
from tests.simulation.plan import Plan
from tests.simulation.wire import FrameReader

Connect = Callable[[], asyncio.BaseProtocol]


class Speech(Protocol):
    """One dialect, as it is simulated."""

    name: str
    #: Whether clients and topics must agree on headers before they talk.
    headers: bool
    #: Whether its messages are answered for by receipt, on any connection.
    by_receipt: bool

    def is_spoken(self, plan: Plan) -> bool:
        """Tell whether a run has clients of it."""

    def configured(self, config: Config) -> Config:
        """Return the configuration with what the dialect shall be told."""

    def serve(self, node: Node, config: Config) -> Connect:
        """Return what makes the protocol of a new connection."""

    def drain(self) -> None:
        """Let nobody wait any longer: the node is about to stop."""

    def lease_ns(self, config: Config) -> int:
        """Return how long a client may hold a message unless it asks for something else."""

    def reader(self) -> Reader:
        """Return what reads the node's side of a connection."""

    def people(self, world: Surroundings, plan: Plan, random: Callable[[str], Random]) -> Sequence[DialectClient]:
        """Return the clients of a run."""


class NsqSpeech:
    """NSQ over TCP."""

    name = "nsq"
    headers = True
    by_receipt = False

    def is_spoken(self, plan: Plan) -> bool:
        """Be there always."""
        return True

    def configured(self, config: Config) -> Config:
        """Take what the plan says."""
        return config

    def serve(self, node: Node, config: Config) -> Connect:
        """Return what makes the protocol of a new connection."""
        return Server(node, config.of(NsqConfig)).connect

    def drain(self) -> None:
        """Do nothing: nobody waits."""

    def lease_ns(self, config: Config) -> int:
        """Return what is configured."""
        return config.of(NsqConfig).msg_timeout_ns

    def reader(self) -> Reader:
        """Return what reads frames."""
        return FrameReader()

    def people(self, world: Surroundings, plan: Plan, random: Callable[[str], Random]) -> Sequence[DialectClient]:
        """Return producers and consumers as the plan has them."""
        clients: list[DialectClient] = []
        for number, (topics, window, gap_ns, headed) in enumerate(plan.producers):
            clients.append(Producer(world, random(f"producer {number}"), topics, window, gap_ns, headed))
        for number, (topic, channel, taste, temper, other) in enumerate(plan.consumers):
            clients.append(Consumer(world, random(f"consumer {number}"), topic, channel, taste, temper, other))
        return clients


NSQ = NsqSpeech()
