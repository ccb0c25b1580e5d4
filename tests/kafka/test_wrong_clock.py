"""A node whose clock is slow, and which hears nothing, takes its lease for good: Kafka itself shuts it out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.clock import SECOND
from penstock.log.kafka.librdkafka import KafkaStore
from tests.cluster.nodes import Way
from tests.fakes import FakeTimer
from tests.kafka.brokers import Brokers
from tests.kafka.test_shared_log import config
from tests.node.test_share import LEASE_NS, Cluster, Consumer, NodeClock, made, publish
from tests.node.test_share_moves import share_of, slot_of_topic


class SlowClock(NodeClock):
    """A clock that is right, until it hardly goes on."""

    _since_ns = 0
    _by = 1

    def slow_down(self, by: int) -> None:
        self._since_ns, self._by = self.common.monotonic(), by

    def monotonic(self) -> int:
        now_ns = self.common.monotonic()
        return now_ns if self._by == 1 else self._since_ns + (now_ns - self._since_ns) // self._by

    def call_at(self, monotonic_ns: int, call: Callable[[], None]) -> FakeTimer:
        timer = FakeTimer(call)

        def due() -> None:
            if self.monotonic() < monotonic_ns:
                left_ns = (monotonic_ns - self.monotonic()) * self._by
                self.common.call_at(self.common.monotonic() + left_ns, due)
            else:
                self._call(lambda: timer.call() if timer.call else None)

        self.common.call_at(self.common.monotonic() + (monotonic_ns - self.monotonic()) * self._by, due)
        return timer


class InTurn:
    """A store whose writers have no threads of their own."""

    def __init__(self, store: KafkaStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def writer(self, name: str) -> Any:
        writer = self._store.writer(name)
        writer.send_soon = lambda *_: False  # type: ignore[method-assign]
        return writer


def test_a_node_whose_lease_is_over_but_not_by_its_clock_answers_nobody_with_ok(one: Brokers, tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    store = KafkaStore(config(one), "c")
    cluster.store = InTurn(store)  # type: ignore[assignment]
    clock = SlowClock(cluster.clock)
    former = cluster.start("one", clock, Way)
    try:
        cluster.run()
        topic = made(cluster, former, "t")
        heard = publish(topic, b"kept")
        cluster.run()
        assert heard.oks == 1
        clock.slow_down(1000)
        assert isinstance(former.registry, Way)
        former.registry.is_cut = True
        owner = cluster.start("two")
        cluster.run(3 * LEASE_NS)
        assert "t" in owner.topics
        assert share_of(former).slots.is_mine(slot_of_topic(former, "t")), "by its own clock"
        late = publish(former.topic("t"), b"late")
        cluster.run(10 * SECOND)
        assert (len(late), late.oks) == (1, 0)
        assert "t" not in former.topics
        heard = publish(owner.topic("t"), b"more")
        cluster.run()
        assert heard.oks == 1
        assert Consumer(cluster, owner.topic("t")).bodies == [b"kept", b"more"]
    finally:
        for node in cluster.nodes.values():
            share_of(node).holdings.close()
        store.close()
