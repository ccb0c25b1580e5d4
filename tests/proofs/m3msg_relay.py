"""Proof that a relay to M3's consumer services loses nothing, whoever is killed: the second part of `make prove-m3msg`.

A node relays a topic to two services, a replicated and a shared one, as etcd, a cluster of three, says. Publishers send
while the node, a consumer and etcd's leader are killed as by `kill -9`, in turns; after each leader, the shared service
is placed anew. In the end each service has everything that was answered, and nothing that nobody sent.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from bench.ports import free_ports
from penstock.m3 import placement, topic
from penstock.m3.placement import Instance, Placement, Shard
from penstock.m3.topic import ConsumerService, ServiceId, Topic
from tests.cli.program import Node
from tests.etcd.servers import Cluster, wait_for
from tests.proofs.checks import Checks
from tests.proofs.etcd import leader

NAME, SHARDS, PUBLISHERS, BATCH = "proof", 16, 2, 50
STORES, ALERTS = ("store-a", "store-b"), ("alert-a", "alert-b")
#: As publishers write them.
VALUE_BYTES = len(b"0.000000.00")
PATIENCE_S = 120.0


class Load:
    """Publishers of values that are never the same."""

    def __init__(self) -> None:
        self.port = 0
        self.answered: set[bytes] = set()
        self.sent: set[bytes] = set()
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._publish, args=(number,)) for number in range(PUBLISHERS)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def more(self) -> None:
        """Wait until some more were answered."""
        before = len(self.answered)
        wait_for(lambda: len(self.answered) > before + 10 * BATCH, "answers")

    def _publish(self, number: int) -> None:
        count = 0
        while not self._over.wait(0.01):
            count += 1
            values = [b"%d.%06d.%02d" % (number, count, row) for row in range(BATCH)]
            self.sent.update(values)
            connection = HTTPConnection("127.0.0.1", self.port, timeout=30)
            try:
                connection.request("POST", f"/mpub?topic={NAME}", b"\n".join(values))
                if connection.getresponse().status == 200:
                    self.answered.update(values)
            except (OSError, HTTPException):  # the node is being killed
                self._over.wait(0.05)
            finally:
                connection.close()


class Consumers:
    """The instances of all services, each a process with a file of what it got."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.ports = dict(zip((*STORES, *ALERTS), free_ports(4), strict=True))
        self._processes = {name: self._started(name) for name in self.ports}

    def kill(self, name: str) -> None:
        """Kill one, and begin it again on the same port."""
        self._processes[name].kill()
        self._processes[name].wait()
        self._processes[name] = self._started(name)

    def got(self, *names: str) -> Counter[bytes]:
        """Return what these got."""
        found: Counter[bytes] = Counter()
        for name in names:
            if (path := self._path(name)).exists():
                # A kill may leave half a line, of a batch that was not acked.
                found.update(line for line in path.read_bytes().split(b"\n") if len(line) == VALUE_BYTES)
        return found

    def close(self) -> None:
        """End them all."""
        for process in self._processes.values():
            process.kill()
            process.wait()

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.got"

    def _started(self, name: str) -> subprocess.Popen[bytes]:
        words = ("-m", "tests.proofs.m3msg_consumer", str(self.ports[name]), str(self._path(name)))
        return subprocess.Popen([sys.executable, *words])


def prove(folder: Path, checks: Checks, rounds: int) -> None:
    """Kill everybody so many times, and look who has what."""
    etcd = Cluster(folder / "etcd", 3)
    consumers = Consumers(folder)
    try:
        _run(folder, etcd, consumers, checks, rounds)
    finally:
        consumers.close()
        etcd.close()


def _run(folder: Path, etcd: Cluster, consumers: Consumers, checks: Checks, rounds: int) -> None:
    services = [
        ConsumerService(service_id=ServiceId("store", "default_env", "default"), consumption="replicated"),
        ConsumerService(service_id=ServiceId("alert", "default_env", "default"), consumption="shared"),
    ]
    said = topic.encode(Topic(name=NAME, shards=SHARDS, services=tuple(services)))
    etcd.ctl("put", f"/topic/default_env/{NAME}", stdin=said)
    every = dict.fromkeys(STORES, range(SHARDS))
    _place(etcd, consumers, "store", every)
    _place(etcd, consumers, "alert", _split(0))
    file = folder / "penstock.toml"
    file.write_text(
        f"[etcd.zones.default]\nendpoints = {list(etcd.endpoints)}\n"
        f'[m3msg_relay]\ntopics = ["{NAME}"]\nretry_initial = "1s"\n'
    )
    load, node = Load(), Node(folder, "--config", file)
    wait_for(lambda: node.ok("subscription", "list", NAME).out.count("m3msg.") == 3, "subscriptions")
    load.port = node.port("nsq.http_port")
    load.start()
    try:
        for number in range(rounds):
            load.more()
            node.__exit__(None, None, None)
            node = Node(folder, "--config", file)
            load.port = node.port("nsq.http_port")
            load.more()
            consumers.kill((*STORES, *ALERTS)[number % 4])
            load.more()
            etcd.members[leader(etcd)].kill()
            load.more()
            _place(etcd, consumers, "alert", _split(number + 1))
            load.more()
            etcd.heal()
    finally:
        load.stop()
    try:
        _books(load, consumers, checks, rounds)
        figures = node.ok("subscription", "list", NAME, "--json").json
        left = [f"{each['name']}: {each['depth']}" for each in figures if each["depth"]]
        checks.check(not left, "nothing waits any more", *left)
    finally:
        node.__exit__(None, None, None)


def _books(load: Load, consumers: Consumers, checks: Checks, rounds: int) -> None:
    """Wait until everybody has everything, or for long enough, and print who has what."""
    groups = {"store-a": STORES[:1], "store-b": STORES[1:], "alert": ALERTS}
    try:
        wait_for(lambda: all(load.answered <= consumers.got(*each).keys() for each in groups.values()), "", PATIENCE_S)
    except AssertionError:
        pass  # the books say what is missing
    kills = f"{rounds} times node, consumer and etcd's leader killed"
    print(f"     {len(load.sent)} values tried, {len(load.answered)} answered; {kills}")
    for name, group in groups.items():
        got = consumers.got(*group)
        missing = sorted(load.answered - got.keys())
        again = sum(got.values()) - len(got)
        text = (
            f"{name} has all of the {len(load.answered)}, {len(got) - len(load.answered)} without answer, {again} again"
        )
        checks.check(not missing, text, *map(repr, missing))
        strange = sorted(got.keys() - load.sent)
        checks.check(not strange, f"{name} has nothing that nobody sent", *map(repr, strange))


def _split(number: int) -> dict[str, range]:
    """Return who of the shared service has which shards, another way each time."""
    cut = (5 + 7 * number) % SHARDS
    return {ALERTS[0]: range(cut), ALERTS[1]: range(cut, SHARDS)}


def _place(etcd: Cluster, consumers: Consumers, service: str, owned: dict[str, range]) -> None:
    instances = {
        name: Instance(
            id=name,
            endpoint=f"127.0.0.1:{consumers.ports[name]}",
            shards=tuple(Shard(shard, "available") for shard in shards),
        )
        for name, shards in owned.items()
    }
    value = placement.encode(Placement(instances=instances, shards=SHARDS, is_sharded=True))

    def put() -> bool:
        try:
            etcd.ctl("put", f"_sd.placement/default_env/{service}", stdin=value)
        except AssertionError:  # etcd chooses a leader
            return False
        return True

    wait_for(put, "etcd to take a placement")
