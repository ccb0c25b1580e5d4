"""A node ends beside its loop: nothing is lost, and no sync keeps the loop waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from penstock.cli import daemon
from penstock.config import Config
from penstock.node.ending import Ending
from penstock.settings import TopicSettings
from tests.site import Site


def busy(site: Site) -> None:
    """Let there be something to write down in several topics."""
    for number in range(4):
        durability = ("os", "fsync", "memory", "os")[number]
        topic = site.node.create_topic(f"t{number}", TopicSettings(durability=durability, shards=2)).now()  # type: ignore[arg-type]
        got = site.consume(topic, "audit")
        site.publish(topic, b"one", b"two", b"three")
        assert len(got) == 3
        ids = [1, 2] if topic.shards[0].end else [(1 << 48) + 1, (1 << 48) + 2]
        assert site.seat.ack(ids) == []
        site.seat.close()
    site.machine.run(2)  # until what was counted has a topic


def end(site: Site) -> tuple[Ending, list[bool]]:
    done: list[bool] = []
    ending = Ending(site.node, lambda: done.append(True))
    ending.start()
    return ending, done


@pytest.mark.parametrize("seed", range(6))
def test_ended_node_has_lost_nothing_after_a_power_loss(seed: int) -> None:
    site = Site(Config(data_dir="data"), seed)
    busy(site)
    ending, done = end(site)
    site.machine.run(10)
    assert done == [True]
    assert ending.closed == ending.shards > 0
    site.lose_power()
    for name in ("t0", "t1", "t3"):
        topic = site.node.topic(name)
        assert sum(shard.rows_between(0, shard.end) for shard in topic.shards) == 3
        assert topic.subscription("audit").depth() == 1
        assert all(shard.cut_bytes == 0 for shard in topic.shards)
    assert site.node.bugs == 0


def test_no_sync_runs_on_the_loop_while_a_node_ends() -> None:
    site = Site(Config(data_dir="data"))
    busy(site)
    inside: list[bool] = []
    on_loop: list[str] = []
    real = site.machine.disk.submit

    def submit(pool: str, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        def marked() -> Any:
            inside.append(True)
            try:
                return work()
            finally:
                inside.pop()

        real(pool, marked, done)

    def fails(path: str) -> bool:
        if not inside:
            on_loop.append(path)
        return False

    site.machine.disk.submit = submit  # type: ignore[method-assign]
    site.machine.platter.fails = fails
    syncs = site.machine.platter.syncs
    _, done = end(site)
    site.machine.run(10)
    assert done == [True]
    assert site.machine.platter.syncs > syncs
    assert on_loop == []


def test_progress_can_be_watched() -> None:
    site = Site(Config(data_dir="data"))
    busy(site)
    ending, done = end(site)
    seen = []
    while not done:
        seen.append((ending.steps, ending.closed))
        site.machine.run(0.0002)
    assert len(set(seen)) > 3
    assert seen == sorted(seen)


@pytest.mark.parametrize("seed", range(6))
def test_syncs_that_fail_while_a_node_ends_are_made_up_for(seed: int) -> None:
    site = Site(Config(data_dir="data"), seed)
    busy(site)
    site.machine.fail_syncs(2, "topics")
    _, done = end(site)
    site.machine.run(10)
    assert done == [True]
    site.lose_power()
    for name in ("t0", "t1", "t3"):
        topic = site.node.topic(name)
        assert sum(shard.rows_between(0, shard.end) for shard in topic.shards) == 3
        assert topic.subscription("audit").depth() == 1
    assert site.node.bugs == 0


def test_topic_that_cannot_be_closed_keeps_no_other_from_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a bug in one topic")

    site = Site(Config(data_dir="data"))
    busy(site)
    monkeypatch.setattr(site.node.topic("t1"), "close_later", fail)
    _, done = end(site)
    site.machine.run(10)
    assert done == [True]
    assert site.node.bugs == 1


def test_daemon_does_not_wait_for_a_disk_that_does_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(daemon, "STALL_S", 0.01)
    site = Site(Config(data_dir="data"))  # its disk does something only when the test lets time pass
    busy(site)

    async def stop() -> bool:
        ending = daemon.Daemon.__new__(daemon.Daemon)
        ending.node, ending._loop = site.node, asyncio.get_running_loop()
        return await ending._end()

    assert asyncio.run(stop()) is False
    assert "0 of 9 shards are closed, and the disk does not answer" in caplog.text
