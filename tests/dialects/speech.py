"""The line protocol as clients of the simulation speak it; apart from the dialect, so that each checks the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from urllib.parse import unquote_to_bytes

import msgspec

from penstock.clock import MILLISECOND
from penstock.config import Config
from penstock.dialects.nsq.config import NsqConfig
from penstock.node.node import Node
from tests.dialects.line import Line, LineConfig, Server
from tests.simulation.clients import DialectClient, Surroundings
from tests.simulation.network import Link, Reader
from tests.simulation.plan import Plan
from tests.simulation.speech import Connect
from tests.simulation.wire import ERROR, MESSAGE, PLAIN, RESPONSE, Command, Frame

#: What the tap calls the commands.
WORDS = {"ACK": "FIN"}


class LineReader:
    """Lines as frames."""

    def __init__(self) -> None:
        self.form = PLAIN
        self._rest = b""

    def feed(self, data: bytes) -> list[tuple[Frame, int]]:
        """Return the frames that are whole now, each with how many of the new bytes it needed."""
        at, found = -len(self._rest), []
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            at += len(line) + 1
            found.append((_frame(line), at))
        return found


def _frame(line: bytes) -> Frame:
    word, _, rest = line.partition(b" ")
    if word == b"MSG":
        id_, attempts, time_ns, text = rest.split(b" ", 3)
        return Frame(MESSAGE, unquote_to_bytes(text), int(time_ns), int(attempts), int(id_, 16))
    if word == b"ERR":
        _, said, why = rest.decode().split(" ", 2)
        name = WORDS.get(said, said)
        return Frame(ERROR, f"E_{name}_FAILED {name} {why}".encode())
    return Frame(RESPONSE, line)


class LineClient(DialectClient):
    """Publishes to a topic and consumes one of its subscriptions, over the same line."""

    speech = "line"

    def __init__(self, world: Surroundings, random: Random, topic: str, name: str) -> None:
        self.topic, self.name = topic, name
        super().__init__(world, random)

    def connected(self, link: Link) -> None:
        """Begin."""
        if self.name:
            link.send(Command("SUB", f"SUB {self.topic} {self.name}\n".encode(), self.topic, self.name))
            self._want(link)
        self._step(link)

    def _step(self, link: Link) -> None:
        if self.link is not link:
            return
        draw = self.random.random()
        if draw < 0.5 and self.world.busy:
            body = self.world.body()
            text = body.replace(b"%", b"%25").replace(b"\r", b"%0D").replace(b"\n", b"%0A")
            data = b"PUB %b %b\n" % (self.topic.encode(), text)
            link.send(Command("PUB", data, self.topic, bodies=[body]))
        elif draw < 0.6 and self.name:
            self._want(link)
        elif draw < 0.63:
            self.leave()
            return
        self.world.scheduler.after(int(self.random.random() * 60 * MILLISECOND), partial(self._step, link))

    def _want(self, link: Link) -> None:
        number = self.random.choice((0, 1, 3, 20))
        link.send(Command("RDY", b"WANT %d\n" % number, number=number))

    def on_frame(self, frame: Frame) -> None:
        """Ack most of what comes, after a while; now and then what somebody else has."""
        link = self.link
        if frame.kind != MESSAGE or link is None:
            return
        self.world.seen(frame.id)
        id_ = self.world.some_id() if self.random.random() < 0.05 else frame.id
        if self.random.random() < 0.9:
            delay_ns = int(self.random.expovariate(1 / (5 * MILLISECOND)))
            self.world.scheduler.after(delay_ns, partial(self._ack, link, id_))

    def _ack(self, link: Link, id_: int) -> None:
        if self.link is link:
            link.send(Command("FIN", b"ACK %016x\n" % id_, id=id_))


class LineSpeech:
    """Lines over TCP."""

    name = "line"
    headers = False
    by_receipt = False

    def is_spoken(self, plan: Plan) -> bool:
        """Be there always."""
        return True

    def drain(self) -> None:
        """Do nothing: nobody waits."""

    def configured(self, config: Config) -> Config:
        """Hold messages as long as NSQ's clients do, so that leases end here as well."""
        own = LineConfig(lease_ns=config.of(NsqConfig).msg_timeout_ns)
        return msgspec.structs.replace(config, parts=(*config.parts, own))

    def serve(self, node: Node, config: Config) -> Connect:
        """Return what makes the protocol of a new connection."""
        return partial(Line, Server(node, config), "line.port")

    def lease_ns(self, config: Config) -> int:
        """Return what is configured."""
        return config.of(LineConfig).lease_ns

    def reader(self) -> Reader:
        """Return what reads lines."""
        return LineReader()

    def people(self, world: Surroundings, plan: Plan, random: Callable[[str], Random]) -> Sequence[DialectClient]:
        """Return clients beside NSQ's in their subscriptions, some in one of their own, and one that only publishes."""
        topics = list(plan.topics)
        names = ("s0", "s1", "lines", "lines", "")
        clients = []
        for number, name in enumerate(names):
            topic = random(f"line topic {number}").choice(topics)
            if name and plan.far is not None:
                # One that a registry elsewhere is slow to make begins at some message that nobody can tell.
                topic, name, _ = random(f"line name {number}").choice(plan.subscriptions)
            clients.append(LineClient(world, random(f"line {number}"), topic, name))
        return clients


LINE = LineSpeech()
