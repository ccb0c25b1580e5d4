"""A cluster to be measured: an etcd, brokers of Kafka, and nodes, all on loopback.

Knows how they are started and which node has what. Knows no row and no target.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar
from urllib.request import Request, urlopen

import msgspec

from bench.peers import Kafka, Penstock, Server
from bench.ports import free_port
from bench.supply import Missing

S = TypeVar("S", bound=Server)

#: Of the nodes; what a take-over costs is counted from its end on.
LEASE_S = 5
#: Longer than anything here takes on a slow machine.
PATIENCE_S = 120.0
LOOK_S = 0.1


class Etcd(Server):
    """One etcd."""

    name = "etcd"

    @classmethod
    def find(cls) -> Path:
        found = shutil.which("etcd")
        if found is None:
            raise Missing("there is no etcd here")
        return Path(found)

    def command(self) -> list[str]:
        client, peer = f"http://127.0.0.1:{self.port}", f"http://127.0.0.1:{free_port()}"
        return [
            *(str(self.program), "--data-dir", str(self.data / "etcd")),
            *("--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer),
            *("--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"),
        ]


class Member(Penstock):
    """One node of a cluster, whose topics have their logs on Kafka."""

    name = "penstock on Kafka"
    ports = (*Penstock.ports, 7075)
    #: It waits for etcd and Kafka, which share the machine with it.
    start_seconds_max = PATIENCE_S

    def __init__(self, label: str, secret: Path, etcd: Etcd, brokers: str, settings: Mapping[str, str]) -> None:
        super().__init__()
        self.label = label
        #: Other nodes whose CPU time counts along with this one's.
        self.along: tuple[Member, ...] = ()
        self.settings = {
            "cluster.name": "bench",
            "cluster.node": label,
            "cluster.lease": f"{LEASE_S}s",
            "cluster.secret_file": str(secret),
            "registry.kind": "etcd",
            "registry.prefix": "bench",
            "etcd.zones.default.endpoints": f"127.0.0.1:{etcd.port}",
            "shared_log.brokers": brokers,
            "topic.log": "kafka",
            **settings,
        }

    def command(self) -> list[str]:
        return [*super().command(), *(f"--set={key}={value}" for key, value in self.settings.items())]

    def pids(self) -> tuple[int, ...]:
        return (self.pid, *(each.pid for each in self.along))

    def topic(self) -> str:
        """Return the name of a topic that this node has: it takes Kafka a moment to make its own."""
        made = super().topic()
        self.load("pub", topic=made, count=1)
        return made

    def make(self, topic: str, shards: int) -> None:
        """Make a topic here."""
        self._asked("/api/v1/topics", msgspec.json.encode({"name": topic, "settings": {"shards": shards}}))

    def owned(self) -> dict[str, int]:
        """Return how many slots each node has, as this one sees it; empty while it does not answer."""
        try:
            told = msgspec.json.decode(self._asked("/api/v1/cluster"))
        except OSError:
            return {}
        return {each["name"]: each["slots"] for each in told["nodes"]}

    def is_ready(self) -> bool:
        """Tell whether it says so."""
        try:
            self._asked("/readyz")
        except OSError:
            return False
        return True

    def _asked(self, path: str, body: bytes | None = None) -> bytes:
        kind = {"Content-Type": "application/json"}
        with urlopen(Request(f"http://127.0.0.1:{7070 + self.offset}{path}", body, kind), timeout=PATIENCE_S) as answer:
            found: bytes = answer.read()
        return found


class Cluster:
    """Nodes that share an etcd and a Kafka."""

    def __init__(self) -> None:
        self._servers: list[Server] = []
        self.brokers: list[Kafka] = []
        self.nodes: list[Member] = []

    @property
    def addresses(self) -> str:
        """Where Kafka is."""
        return ",".join(f"127.0.0.1:{broker.port}" for broker in self.brokers)

    def start(self, nodes: Sequence[Mapping[str, str]], brokers: int, slots: int) -> None:
        """Start all of it, and wait until each node has its share."""
        etcd = self._added(Etcd())
        etcd.start()
        self.brokers += [self._added(Kafka()) for _ in range(brokers)]
        for broker in self.brokers:
            broker.join(self.brokers)
            broker.start(wait=False)
        for broker in self.brokers:  # each waits for the others
            broker.await_port()
        secret = etcd.data / "secret"
        secret.touch(0o600)
        secret.write_text("everybody knows it\n" * 2)
        for number, settings in enumerate(nodes, 1):  # one after the other: each takes ports that are free
            chosen = {**settings, "cluster.slots": str(slots)}
            node = self._added(Member(f"n{number}", secret, etcd, self.addresses, chosen))
            self.nodes.append(node)
            node.start()
        for node in self.nodes:
            await_until(partial(self._is_dealt, node, slots // len(nodes)), f"{node.label} and its share")

    def _is_dealt(self, node: Member, share: int) -> bool:
        counts = node.owned()
        return node.is_ready() and len(counts) == len(self.nodes) and min(counts.values()) >= share

    def remove(self) -> None:
        """Leave nothing of it."""
        for server in reversed(self._servers):
            server.remove()

    def _added(self, server: S) -> S:
        self._servers.append(server)
        return server


@contextlib.contextmanager
def cluster(*nodes: Mapping[str, str], brokers: int = 1, slots: int = 8) -> Iterator[Cluster]:
    """Start a cluster with a node for each set of settings; raises Missing where a part cannot be had."""
    made = Cluster()
    try:
        made.start(nodes, brokers, slots)
        yield made
    finally:
        made.remove()


def await_until(holds: Callable[[], bool], what: str) -> None:
    """Wait until something is so."""
    end = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > end:
            raise Missing(f"waited {PATIENCE_S:.0f} s for {what}")
        time.sleep(LOOK_S)
