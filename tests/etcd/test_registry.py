"""The registry in etcd when something goes wrong on the way: nothing is done twice, guessed, or held for too long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from penstock.cli.etcd import Etcd
from penstock.clock import SECOND, LoopClock
from penstock.config import Config, EtcdConfig, ZoneConfig
from penstock.errors import ConfigError, Refusal
from penstock.registry import Event
from penstock.registry.attempt import attempt
from penstock.registry.etcd import members
from penstock.registry.etcd import registry as etcd_registry
from penstock.registry.etcd.client import Client
from penstock.registry.etcd.registry import EtcdRegistry
from penstock.registry.registry import UnknownOutcomeError
from tests.etcd.relay import Relay
from tests.etcd.servers import PATIENCE_S, Cluster
from tests.registry.test_conformance import counted


@asynccontextmanager
async def registry_of(endpoints: Sequence[str], prefix: str) -> AsyncIterator[EtcdRegistry]:
    client = Client("default", ZoneConfig(endpoints=tuple(endpoints)))
    registry = EtcdRegistry(client, LoopClock(asyncio.get_running_loop()), prefix)
    try:
        await until(lambda: registry.mirror.is_current)
        yield registry
    finally:
        await registry.close()
        await client.close()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():
            await asyncio.sleep(0.01)


def test_no_number_is_given_twice_whatever_becomes_of_members_and_connections(three: Cluster, prefix: str) -> None:
    async def main() -> None:
        async with Relay(three.members[0].port) as relay:
            endpoints = (f"127.0.0.1:{relay.port}", *three.endpoints[1:])
            async with registry_of(endpoints, prefix) as registry, registry_of(three.endpoints, prefix) as other:
                done = asyncio.Event()
                given: dict[int, int] = {}

                async def count(owner: int, mine: EtcdRegistry) -> None:
                    while not done.is_set():
                        try:
                            number = await attempt(mine, mine.clock, counted(mine, owner))
                        except Refusal as refusal:
                            assert refusal.code == "unavailable"
                            await asyncio.sleep(0.1)
                        else:
                            assert number not in given
                            given[number] = owner
                            await asyncio.sleep(0.01)

                counting = [
                    asyncio.create_task(count(owner, mine)) for owner, mine in enumerate([registry, other, registry])
                ]

                async def goes_on() -> None:
                    most = len(given)
                    await until(lambda: len(given) > most + 3)

                await goes_on()
                for trouble in ("kill", "pause", "hold", "hang up"):
                    healths = await other.client.health()
                    leader = next((at for at, health in enumerate(healths) if health.is_leader), 0)
                    if trouble == "hold":
                        relay.hold()
                    elif trouble == "hang up":
                        await relay.hang_up()
                    else:
                        getattr(three.members[leader], trouble)()
                    await goes_on()
                    relay.flow()
                    await asyncio.to_thread(three.heal)
                    await goes_on()
                done.set()
                await asyncio.gather(*counting)
                listed = (await other.client.list(f"{prefix}/mine/".encode())).entries
                owners = {int(key.rpartition(b"/")[2]): int(entry.value) for key, entry in listed.items()}
                assert given.items() <= owners.items()
                assert sorted(owners) == list(range(1, len(owners) + 1))
                await until(lambda: registry.list("") == other.list(""))

    asyncio.run(main())


def test_a_change_whose_answer_is_lost_is_unknown_and_one_that_cannot_be_sent_is_refused(
    one: Cluster, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "TRY_S", 1.0)
    monkeypatch.setattr(etcd_registry, "AWAY_S", 1.0)

    async def main() -> None:
        async with (
            Relay(one.members[0].port) as relay,
            registry_of([f"127.0.0.1:{relay.port}"], prefix) as registry,
        ):
            relay.hold()
            with pytest.raises(UnknownOutcomeError):
                await registry.propose({"a": b"1"})
            await until(lambda: bool(registry.problems()))
            with pytest.raises(Refusal, match=r"does not answer.*Nothing was changed") as caught:
                await registry.propose({"b": b"1"})
            assert caught.value.code == "unavailable"
            assert registry.get("b") is None
            relay.flow()
            await until(lambda: not registry.problems())
            await registry.propose({"b": b"2"})
            entry = registry.get("b")
            assert entry is not None
            assert entry.value == b"2"

    asyncio.run(main())


def test_a_holder_that_cannot_renew_is_fenced_by_its_own_clock(one: Cluster, prefix: str) -> None:
    async def main() -> None:
        async with (
            Relay(one.members[0].port) as relay,
            registry_of([f"127.0.0.1:{relay.port}"], prefix) as registry,
            registry_of(one.endpoints, prefix) as other,
        ):
            lease = await registry.lease(3 * SECOND)
            await registry.propose({"mine": b""}, (), {}, lease)
            await until(lambda: other.get("mine") is not None)
            freed: list[bool] = []
            other.watch("mine", other.revision, lambda events: freed.append(lease.is_over))
            relay.hold()
            renewed = lease.renew()
            await until(lambda: bool(freed))
            assert freed == [True]
            relay.flow()
            await until(lambda: renewed.is_given)
            with pytest.raises((Refusal, UnknownOutcomeError)):
                await renewed
            assert lease.is_over
            with pytest.raises(Refusal) as caught:
                await lease.renew()
            assert caught.value.code == "gone"

    asyncio.run(main())


def test_a_lease_that_etcd_took_away_is_over_with_the_next_renewal(one: Cluster, prefix: str) -> None:
    async def main() -> None:
        async with registry_of(one.endpoints, prefix) as registry:
            lease = await registry.lease(60 * SECOND)
            (key,) = registry.list("lease/")
            one.ctl("lease", "revoke", key.removeprefix("lease/"))
            with pytest.raises(Refusal) as caught:
                await lease.renew()
            assert caught.value.code == "gone"
            assert lease.is_over

    asyncio.run(main())


def test_a_watcher_hears_what_is_different_after_etcd_forgot_what_happened(one: Cluster, prefix: str) -> None:
    async def main() -> None:
        async with (
            Relay(one.members[0].port) as relay,
            registry_of([f"127.0.0.1:{relay.port}"], prefix) as registry,
            registry_of(one.endpoints, prefix) as other,
        ):
            await registry.propose({"t/a": b"1", "t/b": b"1", "u": b""})
            seen: list[Event] = []
            from_revision = registry.revision
            registry.watch("t/", from_revision, seen.extend)
            relay.hold()
            await relay.hang_up()
            await other.propose({"t/a": b"2"})
            await other.propose({"t/a": b"3"}, ["t/b", "u"])
            await other.client.compact(await other.propose({"v": b""}))
            relay.flow()
            await until(lambda: len(seen) == 2)
            assert {event.key: event.value for event in seen} == {"t/a": b"3", "t/b": None}
            assert registry.list("") == other.list("")
            assert registry.mirror.relists == 1
            with pytest.raises(Refusal) as caught:
                registry.watch("t/", from_revision, seen.extend)
            assert caught.value.code == "gone"

    asyncio.run(main())


@pytest.mark.parametrize(("user", "password"), [("root", "wrong"), ("poor", "secret")])
def test_a_start_does_not_wait_for_a_password_or_a_role_to_become_right(
    guarded: Cluster, tmp_path: Path, user: str, password: str
) -> None:
    zone = ZoneConfig(endpoints=guarded.endpoints, user=user, password=password)
    config = Config(data_dir=str(tmp_path), etcd=EtcdConfig(zones={"default": zone}))

    async def main() -> None:
        etcd = Etcd(config)
        try:
            with pytest.raises(ConfigError, match=rf"refuses user '{user}'.*\[etcd.zones.default\]"):
                await etcd.open_registry()
        finally:
            await etcd.close()

    asyncio.run(main())
    assert not (tmp_path / "registry.owner").exists()


def test_keys_of_others_beside_the_prefix_are_not_seen(one: Cluster, prefix: str) -> None:
    async def main() -> None:
        async with registry_of(one.endpoints, prefix) as registry:
            one.ctl("put", f"{prefix}!", "beside")
            one.ctl("put", f"{prefix}/a", "inside")
            await until(lambda: registry.get("a") is not None)
            assert list(registry.list("")) == ["a"]

    asyncio.run(main())
