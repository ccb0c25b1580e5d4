"""A routing policy that changes in etcd: from the put until the filters of every subscription judge by it."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from statistics import median

from bench.peers import Server
from bench.plan import Plan
from bench.ports import free_port
from bench.report import Result, at_most, table_row
from bench.supply import Missing
from penstock.clock import LoopClock
from penstock.config import Config, EventsConfig, RoutingConfig, ZoneConfig
from penstock.disk import LocalDisk
from penstock.m3 import routing
from penstock.node.node import Node
from penstock.node.policy import Policy
from penstock.registry.etcd.client import Client
from penstock.registry.etcd.policy import Follower
from penstock.settings import SubscriptionSettings, TrafficSettings

TOPICS = 20
SUBSCRIPTIONS = 5
CHANGES = 300
MILLISECONDS = 1e3


class Etcd(Server):
    """One member of etcd with its defaults."""

    name = "etcd"
    dialect = "etcd"

    def __init__(self) -> None:
        super().__init__()
        self.peer_port = free_port()

    @classmethod
    def find(cls) -> Path:
        found = shutil.which("etcd")
        if found is None:
            raise Missing("etcd is missing: apt-get install etcd-server")
        return Path(found)

    def command(self) -> list[str]:
        client, peer = f"http://127.0.0.1:{self.port}", f"http://127.0.0.1:{self.peer_port}"
        return [
            *(str(self.program), "--data-dir", str(self.data / "etcd"), "--name", "one"),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"one={peer}"),
        ]


class Heard:
    """Tells a node's policy, and that it was told."""

    def __init__(self, policy: Policy) -> None:
        self.keys = policy.keys
        self.deleted, self.current, self.away = policy.deleted, policy.current, policy.away
        self.told = asyncio.Event()
        self._policy = policy

    @property
    def in_force(self) -> Mapping[str, int]:
        """The mapping that counts."""
        return self._policy.in_force

    def put(self, key: str, value: bytes, revision: int) -> None:
        """Hear of a value."""
        self._policy.put(key, value, revision)
        self.told.set()


def run(plan: Plan) -> Iterator[Result]:
    """Add a type and take it away, again and again; the median of the rounds counts."""
    work = f"routing policy put into etcd until {TOPICS * SUBSCRIPTIONS} filters go by it, {CHANGES} changes"
    try:
        etcd = Etcd()
    except Missing as missing:
        yield table_row("policy", work, {}, [at_most(50, None, " ms", "p99 ")], {"etcd": str(missing)})
        return
    try:
        etcd.start()
        rounds = [_quantiles(sorted(asyncio.run(_changes(etcd, turn)))) for turn in range(plan.rounds)]
        p99, p50 = (median(values) for values in zip(*rounds, strict=True))
    finally:
        etcd.remove()
    words = {"penstock": f"p50 {p50:.2g} ms, p99 {p99:.2g} ms"}
    yield table_row("policy", work, words, [at_most(50, p99, " ms", "p99 ")], {})


def _quantiles(took_ms: list[float]) -> tuple[float, float]:
    """Return the 99th percentile, and the median."""
    return took_ms[len(took_ms) * 99 // 100], took_ms[len(took_ms) // 2]


async def _changes(etcd: Etcd, turn: int) -> list[float]:
    loop = asyncio.get_running_loop()
    config = Config(
        data_dir=str(etcd.data / f"node{turn}"),
        events=EventsConfig(mode="off"),
        routing=RoutingConfig(key="routing-policy"),
    )
    disk = LocalDisk(loop)
    node = Node(config, LoopClock(loop), disk, Random(1))
    await _subscribe(node)
    assert node.routing.policy is not None
    client = Client("default", ZoneConfig(endpoints=(f"127.0.0.1:{etcd.port}",)))
    heard = Heard(node.routing.policy)
    follower = Follower(client, heard)
    try:
        await follower.begin()
        return [await _change(client, heard, node, number) for number in range(CHANGES)]
    finally:
        await follower.close()
        await client.close()
        node.close()
        disk.close()


async def _subscribe(node: Node) -> None:
    filtered = SubscriptionSettings(traffic=TrafficSettings(("production",)))
    for number in range(TOPICS):
        topic = await node.create_topic(f"topic{number}")
        for name in range(SUBSCRIPTIONS):
            await topic.subscribe(f"service{name}", filtered)


async def _change(client: Client, heard: Heard, node: Node, number: int) -> float:
    """Return how many milliseconds one change took."""
    types: Mapping[str, int] = {"production": 0, "staging": 1} if number % 2 else {"production": 0}
    heard.told.clear()
    began = time.perf_counter()
    putting = asyncio.ensure_future(client.put(heard.keys[0].encode(), routing.encode(types)))
    await heard.told.wait()
    took = time.perf_counter() - began
    await putting
    if node.routing.mapping != types:
        raise AssertionError(f"{node.routing.mapping} is in force, not {types}")
    return took * MILLISECONDS
