"""Nothing that a node of a cluster does on its loop waits for the shared log."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from penstock.clock import SECOND
from penstock.log.kafka import part
from penstock.node.since import since
from penstock.registry.answer import Answer
from penstock.settings import SubscriptionSettings, TopicSettings
from tests.node.test_share import LEASE_NS, ClockThreads, Cluster, Consumer, made, publish

T = TypeVar("T")


class Watched(Cluster):
    """Notes who asks the store without a thread."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(path)
        self.threads = 0
        self.asked: list[str] = []
        ask, submit = self.store._ask, ClockThreads.submit

        def asked() -> None:
            if not self.threads:
                self.asked.append("".join(traceback.format_stack(limit=12)[:-1]))
            ask()

        def counted(
            each: ClockThreads, pool: str, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]
        ) -> None:
            def inside() -> T:
                self.threads += 1
                try:
                    return work()
                finally:
                    self.threads -= 1

            submit(each, pool, inside, done)

        monkeypatch.setattr(self.store, "_ask", asked)
        monkeypatch.setattr(ClockThreads, "submit", counted)

    def told(self, answer: Answer[T]) -> T:
        self.run()
        return answer.now()


def test_nothing_on_the_loop_waits_for_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # What is in a note is not read by a take-over, but when somebody asks for it.
    monkeypatch.setattr(part, "NOTE_ALONG_BYTES", 1 << 14)
    monkeypatch.setattr(part, "NOTE_BYTES", 1 << 15)
    cluster = Watched(tmp_path, monkeypatch)
    one, two = cluster.start("one"), cluster.start("two")
    cluster.run()
    topic = made(cluster, one, "t", TopicSettings(log="kafka", shards=2, segment_bytes=1 << 16))
    times = []
    for _ in range(10):
        times.append(cluster.clock.now())
        publish(topic, *(b"x" * 1000 for _ in range(100)))
        cluster.run(SECOND // 10)
    consumer = Consumer(cluster, topic)
    consumer.seat.ack(consumer.ids[:100])
    cluster.told(topic.create_subscription("second", earliest=True))
    cluster.told(topic.create_subscription("passing", SubscriptionSettings(ephemeral=True)))
    cluster.told(topic.delete_subscription("second"))
    cluster.told(topic.pause(paused=True))
    cluster.told(topic.pause(paused=False))
    cluster.told(topic.update(msgspec.structs.replace(topic.settings, shards=4)))
    publish(topic, *(b"x" * 1000 for _ in range(100)))
    cluster.stop("one")
    cluster.run(LEASE_NS + 5 * SECOND)
    moved = two.topic("t")
    assert [cluster.told(since(moved, [0], time_ns + 1))[0][1] > 0 for time_ns in times] == [True] * len(times)
    moved.backlog(moved.subscription("s"))
    cluster.told(moved.create_subscription("third", earliest=True))
    assert len(Consumer(cluster, moved).bodies) >= 900
    for shard in moved.shards:
        shard.roll()
    cluster.run()
    assert all(shard.drop_oldest() for shard in moved.shards[:2])
    cluster.run()
    cluster.told(two.delete_topic("t"))
    cluster.run()
    assert "\n".join(cluster.asked) == ""
