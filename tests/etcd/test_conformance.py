"""What every registry must do, by one etcd and by a cluster of three: the same tests as for the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest
import uvloop

from penstock.clock import Clock, LoopClock
from penstock.registry.etcd.client import Client
from penstock.registry.etcd.registry import EtcdRegistry
from tests.etcd.servers import PATIENCE_S, Cluster
from tests.registry import test_conformance as conformance
from tests.registry.test_conformance import *  # noqa: F403

# These have an embedded registry of their own, whatever the place is.
del test_no_change_is_made_twice_or_lost_whatever_becomes_of_the_answers  # noqa: F821
del test_a_registry_that_never_answers_is_given_up  # noqa: F821


class EtcdPlace(conformance.Place):
    """A registry in a real etcd, and the time that really passes."""

    # etcd counts in seconds, and a loaded machine may be late by some.
    ttl_s = 3.0

    def __init__(self, cluster: Cluster, prefix: str) -> None:
        self._cluster = cluster
        self._prefix = prefix
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self._opened: list[tuple[EtcdRegistry, Client]] = []
        self.open()
        self.base = self.registry.revision

    @property
    def clock(self) -> Clock:
        return LoopClock(self._runner.get_loop())

    def open(self) -> None:
        async def opened() -> EtcdRegistry:
            await self._hang_up()
            client = Client("default", self._cluster.zone())
            registry = EtcdRegistry(client, self.clock, self._prefix)
            self._opened.append((registry, client))
            async with asyncio.timeout(PATIENCE_S):
                await registry.mirror.is_ready.wait()
            return registry

        self.registry = self._runner.run(opened())

    def run(self, seconds: float) -> None:
        self._runner.run(asyncio.sleep(seconds))

    def until(self, holds: Callable[[], bool]) -> None:
        async def held() -> None:
            async with asyncio.timeout(PATIENCE_S):
                while not holds():
                    await asyncio.sleep(0.002)

        self._runner.run(held())

    def close(self) -> None:
        self._runner.run(self._hang_up())
        self._runner.close()

    async def _hang_up(self) -> None:
        while self._opened:
            registry, client = self._opened.pop()
            await registry.close()
            await client.close()


@pytest.fixture(params=["one", "shared_three"])  # type: ignore[no-redef]
def place(request: pytest.FixtureRequest, prefix: str) -> Iterator[EtcdPlace]:
    place = EtcdPlace(request.getfixturevalue(request.param), prefix)
    yield place
    place.close()
