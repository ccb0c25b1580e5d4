"""Two real nodes of one cluster in one loop, on one registry; a topic is where it was made."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, Self
from unittest.mock import patch

import uvloop

from penstock.cli import daemon
from penstock.clock import SECOND
from penstock.config import ClusterConfig, Config
from penstock.disk import LocalDisk
from penstock.errors import Elsewhere, Refusal
from penstock.log.kafka.engine import Engine
from penstock.log.kafka.threads import RealThreads
from penstock.node.known import Places
from penstock.peers.reception import Reception
from penstock.peers.running import Running
from tests.cluster.fake_store import FakeStore
from tests.served import PATIENCE_S, Served

SECRET = "the secret that both nodes know"


class Told:
    """What a node knows of its cluster, unless a test says otherwise."""

    def __init__(self, share: Places, host: str) -> None:
        self._share = share
        self._host = host
        #: What is said of topics in spite of the truth.
        self.lies: dict[str, str] = {}
        #: Nodes that are not there.
        self.gone: set[str] = set()
        #: Topics that go from one node to another.
        self.leaving: set[str] = set()

    def refusal(self, name: str) -> Refusal | None:
        if name in self.leaving:
            return Refusal("unavailable", f"topic {name} cannot be used now: nobody has it yet", SECOND)
        return Elsewhere(name, self.lies[name]) if name in self.lies else self._share.refusal(name)

    def address(self, node: str) -> str | None:
        found = None if node in self.gone else self._share.address(node)
        return found.replace("127.0.0.1", self._host) if found is not None else None

    def listeners(self, node: str) -> Mapping[str, str]:
        return self._share.listeners(node)


class FakeLogs:
    """The shared log of both nodes, in memory."""

    def __init__(self, store: FakeStore, config: Config, loop: asyncio.AbstractEventLoop) -> None:
        self._store = store
        self._threads = RealThreads(loop)

    def engine(self, cache: LocalDisk) -> Engine:
        return Engine(self._store, self._threads, cache)

    def close(self) -> None:
        self._threads.close()


class Pair:
    """Nodes n1 and n2, and more where they are named."""

    def __init__(
        self,
        path: Path,
        *,
        cluster: Mapping[str, Any] | None = None,
        host: str = "127.0.0.1",
        names: Sequence[str] = ("n1", "n2"),
        **config: Any,
    ) -> None:
        self.host = host
        path.mkdir(parents=True, exist_ok=True)
        secret = path / "secret"
        secret.write_text(SECRET + "\n")
        self.nodes: dict[str, Served] = {}
        for number, name in enumerate(names, 1):
            chosen = {"secret_file": str(secret), **(cluster or {})}
            own = ClusterConfig(name="test", node=name, port=0, lease_ns=2 * SECOND, slots=len(names), **chosen)
            self.nodes[name] = Served(path / name, cluster=own, seed=number, **config)
        self.n1, self.n2 = list(self.nodes.values())[:2]
        self._thread = threading.Thread(target=self._run, name="nodes")
        self._started: Future[None] = Future()

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.result(PATIENCE_S)
        return self

    def __exit__(self, *_: object) -> None:
        for node in self.nodes.values():
            node.hang_up()
        if self._thread.is_alive() and not self._started.exception():
            self.n1._loop.call_soon_threadsafe(self._end)
            self._thread.join(PATIENCE_S)
            assert not self._thread.is_alive(), "the nodes did not end"

    def _end(self) -> None:
        for node in self.nodes.values():
            node._end.set()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            try:
                with patch.object(daemon, "SharedLogs", partial(FakeLogs, FakeStore())):
                    runner.run(self._lives())
            except BaseException as error:
                if self._started.done():
                    raise
                self._started.set_exception(error)

    async def _lives(self) -> None:
        lives = []
        for node in self.nodes.values():
            begun: Future[None] = Future()
            if node is not self.n1:
                node.registry = self.n1.node.registry
            lives.append(asyncio.ensure_future(node._life(begun)))
            started = asyncio.wrap_future(begun)
            await asyncio.wait({lives[-1], started}, return_when=asyncio.FIRST_COMPLETED)
            if lives[-1].done():
                await lives[-1]
            node._thread = self._thread
        for node in self.nodes.values():
            assert node.node.share is not None
            node.node.places = Told(node.node.share, self.host)
        self._started.set_result(None)
        await asyncio.gather(*lives)

    def told(self, node: Served) -> Told:
        """Return what a node is told of the others."""
        places = node.node.places
        assert isinstance(places, Told)
        return places

    def name(self, node: Served) -> str:
        """Return what the cluster calls a node."""
        return next(name for name, each in self.nodes.items() if each is node)

    def kill(self, node: Served) -> None:
        """Let a node be gone for the others at once, in the middle of whatever it does for them."""
        name = self.name(node)

        def gone() -> None:
            for other in self.nodes.values():
                if other is not node:
                    self.told(other).gone.add(name)
            reception_of(node).close()

        node.do(gone)


def running_of(node: Served) -> Running:
    """Return a node's side of the way between nodes."""
    running = node.node.served["peers"].running
    assert isinstance(running, Running)
    return running


def reception_of(node: Served) -> Reception:
    """Return where other nodes come in."""
    return running_of(node).reception
