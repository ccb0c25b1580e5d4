"""The routing policy in a real etcd: written with etcdctl, followed by a node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from bench.ports import free_port
from penstock.config import ZoneConfig
from penstock.errors import Refusal
from penstock.m3 import routing
from penstock.node.policy import Policy
from penstock.registry.etcd.client import Client
from penstock.registry.etcd.policy import Follower
from penstock.registry.records import RoutingMapping
from tests.etcd.servers import PATIENCE_S, Cluster
from tests.m3.vectors import POLICY, POLICY_BYTES


class Following:
    """A policy that follows etcd."""

    def __init__(self, zone: ZoneConfig, *keys: str) -> None:
        self.mapping: dict[str, int] | None = None
        self.policy = Policy("default", keys, RoutingMapping(), self._take)
        self.client = Client("default", zone)
        self.follower = Follower(self.client, self.policy)

    def _take(self, mapping: object) -> None:
        assert isinstance(mapping, dict)
        self.mapping = mapping

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not holds():
                await asyncio.sleep(0.01)


@asynccontextmanager
async def following(zone: ZoneConfig, *keys: str, seconds: float = PATIENCE_S) -> AsyncIterator[Following]:
    made = Following(zone, *keys)
    try:
        await made.follower.begin(seconds)
        yield made
    finally:
        await made.follower.close()
        await made.client.close()


async def ctl(cluster: Cluster, *words: str, stdin: bytes = b"") -> None:
    await asyncio.to_thread(cluster.ctl, *words, stdin=stdin)


def test_a_value_put_with_etcdctl_is_in_force_before_the_start_and_after(one: Cluster, prefix: str) -> None:
    async def main() -> None:
        key = f"_kv/{prefix}/routing-policy"
        await ctl(one, "put", key, stdin=POLICY_BYTES)
        async with following(one.zone(), key) as made:
            assert made.mapping == POLICY
            await ctl(one, "put", key, stdin=routing.encode({"production": 5}))
            await made.until(lambda: made.mapping == {"production": 5})
            await ctl(one, "put", key, stdin=b"not a policy")
            await made.until(lambda: made.policy.counts["unreadable"] == 1)
            await ctl(one, "del", key)
            await made.until(lambda: made.policy.counts["deleted"] == 1)
            assert made.mapping == {"production": 5}
            await made.client.put(key.encode(), b"")
            await made.until(lambda: made.mapping == {})
            assert made.policy.counts["empty"] == 1

    asyncio.run(main())


def test_of_two_keys_the_one_that_was_put_last_counts(one: Cluster, prefix: str) -> None:
    async def main() -> None:
        first, second = routing.keys(prefix, "p", "rp")
        await ctl(one, "put", first, stdin=routing.encode({"a": 1}))
        async with following(one.zone(), first, second) as made:
            assert made.mapping == {"a": 1}
            await ctl(one, "put", second, stdin=routing.encode({"a": 2}))
            await made.until(lambda: made.mapping == {"a": 2})
            assert made.policy.key == second

    asyncio.run(main())


def test_etcd_that_is_away_at_the_start_is_told_and_followed_once_it_is_there(folder: Path, prefix: str) -> None:
    cluster = Cluster(folder)
    cluster.members[0].kill()

    async def main() -> None:
        async with following(cluster.zone(), prefix, seconds=0.3) as made:
            assert (made.mapping, made.policy.is_current, made.policy.counts["away"]) == (None, False, 1)
            cluster.members[0].start()
            await asyncio.to_thread(cluster.wait)
            await ctl(cluster, "put", prefix, stdin=POLICY_BYTES)
            await made.until(lambda: made.mapping == POLICY and made.policy.is_current)
            cluster.members[0].kill()
            await made.until(lambda: not made.policy.is_current)
            assert made.mapping == POLICY
            assert made.policy.counts["away"] >= 2  # a slow machine may lose it once more in between
            cluster.members[0].start()
            await asyncio.to_thread(cluster.wait)
            await ctl(cluster, "put", prefix, stdin=routing.encode({"a": 1}))
            await made.until(lambda: made.mapping == {"a": 1})

    try:
        asyncio.run(main())
    finally:
        cluster.close()


def test_a_policy_is_written_and_moving_a_bit_needs_force(one: Cluster, prefix: str) -> None:
    async def main() -> None:
        async with following(one.zone(), prefix) as made:
            assert made.policy.counts["absent"] == 1
            await made.follower.write(POLICY)
            assert made.mapping == POLICY
            entry = await made.client.get(prefix.encode())
            assert entry is not None
            assert entry.value == POLICY_BYTES
            with pytest.raises(Refusal, match="staging moves from bit 1 to 2") as refused:
                await made.follower.write({**POLICY, "staging": 2})
            assert refused.value.code == "conflict"
            await made.follower.write({**POLICY, "staging": 2}, force=True)
            assert made.mapping == {**POLICY, "staging": 2}
            with pytest.raises(Refusal, match="somebody else changed"):
                await made.follower.write({"lost": 9}, force=True, seen=entry.revision)
            await made.follower.write({**made.mapping, "kept": 9}, seen=made.policy.revision)
            with pytest.raises(Refusal, match="bits are 0 to 63"):
                await made.follower.write({"a": 64}, force=True)
            await ctl(one, "put", prefix, stdin=b"something else")
            with pytest.raises(Refusal, match="holds something else"):
                await made.follower.write({"a": 1})
            await made.follower.write({"a": 1}, force=True)
            assert made.mapping == {"a": 1}

    asyncio.run(main())


def test_moving_a_bit_needs_force_also_where_the_key_was_deleted(one: Cluster, prefix: str) -> None:
    async def main() -> None:
        async with following(one.zone(), prefix) as made:
            await made.follower.write(POLICY)
            await ctl(one, "del", prefix)
            await made.until(lambda: made.policy.counts["deleted"] == 1)
            with pytest.raises(Refusal, match="staging moves from bit 1 to 2"):
                await made.follower.write({**POLICY, "staging": 2})
            assert await made.client.get(prefix.encode()) is None
            await made.follower.write({**POLICY, "staging": 2}, force=True)
            assert made.mapping == {**POLICY, "staging": 2}

    asyncio.run(main())


def test_moving_a_bit_needs_force_also_where_the_mapping_stands_under_the_second_key(one: Cluster, prefix: str) -> None:
    async def main() -> None:
        first, second = routing.keys(prefix, "p", "rp")
        await ctl(one, "put", first, stdin=routing.encode({"a": 1}))
        async with following(one.zone(), first, second) as made:
            await ctl(one, "put", second, stdin=routing.encode({"a": 2}))
            await made.until(lambda: made.mapping == {"a": 2})
            with pytest.raises(Refusal, match="a moves from bit 2 to 1"):
                await made.follower.write({"a": 1})
            await made.follower.write({"a": 2, "b": 3})
            assert (made.mapping, made.policy.key) == ({"a": 2, "b": 3}, first)
            await ctl(one, "put", first, stdin=b"something else")
            with pytest.raises(Refusal, match="holds something else"):
                await made.follower.write({"a": 2, "b": 3})

    asyncio.run(main())


def test_m3msg_case_44_a_policy_that_is_followed_no_more_stays_as_it_was(one: Cluster, prefix: str) -> None:
    async def main() -> None:
        async with following(one.zone(), prefix) as made:
            await made.follower.write(POLICY)
            await made.follower.close()
            await made.follower.close()
            await made.client.put(prefix.encode(), routing.encode({"a": 1}))
            entry = await made.client.get(prefix.encode())
            assert entry is not None
            assert routing.decode(entry.value) == {"a": 1}
            assert made.mapping == POLICY

    asyncio.run(main())


def test_writing_where_nobody_answers_is_refused_with_the_reason() -> None:
    async def main() -> None:
        zone = msgspec.structs.replace(ZoneConfig(), endpoints=(f"127.0.0.1:{free_port()}",))
        async with following(zone, "key", seconds=0.1) as made:
            with pytest.raises(Refusal, match="does not answer"):
                await made.follower.write({"a": 1})

    asyncio.run(main())
