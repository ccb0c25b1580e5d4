"""Three real nodes that share topics, on a real etcd and a real Kafka: each may be killed, paused and started again.

On a network of their own, where there is one, each may be cut off, too.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from bench.ports import free_ports
from penstock.cli.table import TABLE
from penstock.client import Client, PenstockError
from penstock.client.connection import Access, Connection
from penstock.config import Config, endpoints
from tests.cluster.network import Network
from tests.etcd.servers import Cluster as Etcds
from tests.kafka.brokers import Brokers
from tests.proofs.process import Process

#: A node that says nothing for so long has lost what it owned; short, so that a proof is.
LEASE_S = 3
SLOTS = 12
#: Longer than anything here takes on a slow machine.
PATIENCE_S = 90.0


class Member:
    """One node, always on the same ports."""

    def __init__(
        self, folder: Path, name: str, ports: dict[str, int], settings: list[str], network: Network | None = None
    ) -> None:
        self.name = name
        self.number = int(name.removeprefix("n")) - 1
        self.host = network.nodes[self.number] if network is not None else "127.0.0.1"
        before = network.inside(self.number) if network is not None else []
        self.ports = ports
        chosen = [f"{key}={port}" for key, port in self.ports.items()]
        self.process = Process(
            folder / name, *settings, f"cluster.node={name}", *chosen, *self._addresses(), before=before, host=self.host
        )
        self.is_up = False
        self.is_paused = False

    def _addresses(self) -> list[str]:
        keys = {endpoint.address_key for endpoint in endpoints(Config(), TABLE)} | {"cluster.address"}
        return [f"{key}={self.host}" for key in sorted(keys)] + ["insecure=true"] * (self.host != "127.0.0.1")

    @property
    def url(self) -> str:
        """Where its Flight listener is."""
        return f"grpc://{self.host}:{self.ports['flight.port']}"

    def start(self) -> None:
        """Start it, or start it again."""
        self.process.start()
        self.is_up = True

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        self.process.kill()
        self.is_up = False

    def stop(self) -> int:
        """Ask it to end, which gives what it has to the others first."""
        code = self.process.stop()
        self.is_up = False
        return code

    def pause(self) -> None:
        """Stop it, and wait until it stands."""
        os.kill(self.process.pid, signal.SIGSTOP)
        stat = Path(f"/proc/{self.process.pid}/stat")
        wait_for(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", f"{self.name} to stand")
        self.is_paused = True

    def resume(self) -> None:
        """Let it go on."""
        if self.is_paused:
            os.kill(self.process.pid, signal.SIGCONT)
            self.is_paused = False

    def ready(self) -> dict[str, Any] | None:
        """Return what it says of itself; None while it does not answer."""
        connection = HTTPConnection(self.host, self.ports["api.port"], timeout=5)
        try:
            connection.request("GET", "/readyz")
            answer = connection.getresponse()
            return {"status": answer.status, "text": answer.read().decode(errors="replace")}
        except (OSError, HTTPException):
            return None
        finally:
            connection.close()

    def own(self) -> set[str]:
        """Return the topics that it has open."""
        try:
            with Connection(Access(self.url), 5) as connection:
                return {info.name for info in connection.topics() if not info.location and info.shards}
        except PenstockError:
            return set()


class Trio:
    """Three nodes of one cluster."""

    def __init__(
        self,
        folder: Path,
        name: str,
        etcd: Etcds,
        kafka: Brokers,
        *settings: str,
        network: Network | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        secret = folder / "secret"
        secret.write_text("three nodes and nobody else\n")
        shared = [
            "registry.kind=etcd",
            f"etcd.zones.default.endpoints={','.join(etcd.endpoints)}",
            f"registry.prefix={name}",
            f"cluster.name={name}",
            f"cluster.lease={LEASE_S}s",
            f"cluster.slots={SLOTS}",
            f"cluster.secret_file={secret}",
            f"shared_log.brokers={kafka.addresses}",
            "topic.log=kafka",
            "events.mode=off",
            "log.level=info",
            *settings,
        ]
        self.etcd, self.kafka, self.network = etcd, kafka, network
        keys = list(dict.fromkeys([*(endpoint.key for endpoint in endpoints(Config(), TABLE)), "cluster.port"]))
        ports = free_ports(3 * len(keys))
        self.members = [
            Member(folder, f"n{number + 1}", dict(zip(keys, ports[number::3], strict=True)), shared, network)
            for number in range(3)
        ]

    def start(self) -> None:
        """Start all nodes, and wait until each has a share."""
        for member in self.members:
            member.start()
        self.wait()

    def wait(self) -> None:
        """Wait until every node says that it is ready."""
        end = time.monotonic() + PATIENCE_S
        while not self.is_well():
            said = [(member.name, member.ready()) for member in self.members]
            assert time.monotonic() < end, f"waited {PATIENCE_S:.0f} s for all nodes to be ready: {said}"
            time.sleep(0.05)

    def is_well(self) -> bool:
        """Tell whether every node says that it is ready."""
        return all((said := member.ready()) is not None and said["status"] == 200 for member in self.members)

    def cut(self, member: Member, *others: str, only_hears_nothing: bool = False) -> None:
        """Lose all packets between a node and `etcd`, `kafka`, its `peers`; or those that come to it alone."""
        assert self.network is not None, "nodes that share the machine's network cannot be cut off"
        addresses = {
            "etcd": [self.network.etcd],
            "kafka": [self.network.kafka],
            "peers": [each.host for each in self.members if each is not member],
        }
        found = [address for other in others for address in addresses[other]]
        self.network.cut(member.number, found, only_hears_nothing=only_hears_nothing)

    def settle(self) -> None:
        """Wait until every node has its share, so that nothing moves by itself."""
        self.wait()
        wait_for(self._is_even, "every node to have as much as the others")

    def _is_even(self) -> bool:
        nodes = self.members[0].process.call("GET", "/cluster")["nodes"]
        slots = [node["slots"] for node in nodes]
        return len(slots) == len(self.members) and sum(slots) == SLOTS and max(slots) - min(slots) <= 1

    def heal(self) -> None:
        """Let everything run again."""
        if self.network is not None:
            for member in self.members:
                self.network.mend(member.number)
        self.kafka.heal()
        self.etcd.heal()
        for member in self.members:
            member.resume()
            if not member.is_up:
                member.start()

    @property
    def url(self) -> str:
        """All of them, as a client takes it."""
        return ",".join(member.url for member in self.members)

    def client(self, **options: Any) -> Client:
        """Return a client that knows all nodes."""
        return Client(self.url, **options)

    def owner(self, topic: str) -> Member:
        """Return the node that has a topic, once one has it."""
        found: list[Member] = []

        def is_found() -> bool:
            found[:] = [member for member in self.members if member.is_up and topic in member.own()]
            return bool(found)

        wait_for(is_found, f"somebody to have topic {topic}")
        return found[0]

    def close(self) -> None:
        """Leave nothing running."""
        for member in self.members:
            member.process.abandon()


def wait_for(holds: Callable[[], bool], what: str, seconds: float = PATIENCE_S) -> None:
    """Wait until something is true."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"waited {seconds:.0f} s for {what}"
        time.sleep(0.02)
