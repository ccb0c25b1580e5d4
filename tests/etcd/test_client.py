"""The client of etcd, against real servers: what it reads and changes, whom it asks, what it does when one fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from bench.ports import free_port
from penstock.config import ZoneConfig
from penstock.errors import Refusal
from penstock.registry.etcd.client import Client, end_of
from penstock.registry.etcd.mirror import Edit, Mirror
from penstock.registry.registry import Entry, UnknownOutcomeError
from tests.etcd.relay import Relay
from tests.etcd.servers import PATIENCE_S, Cluster
from tests.nsq.certificates import certificates


@asynccontextmanager
async def client_of(zone: ZoneConfig) -> AsyncIterator[Client]:
    client = Client("default", zone)
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def mirror_of(client: Client, key: bytes, past: int = 0, *, is_prefix: bool = True) -> AsyncIterator[Seen]:
    seen = Seen()
    seen.mirror = Mirror(
        client,
        key,
        seen.edits.extend,
        is_prefix=is_prefix,
        past_revisions=past,
        on_past=seen.past.extend,
        on_state=seen.states.append,
    )
    try:
        async with asyncio.timeout(PATIENCE_S):
            await seen.mirror.is_ready.wait()
        await until(lambda: seen.mirror.is_current)
        yield seen
    finally:
        await seen.mirror.close()


class Seen:
    """What a mirror told."""

    def __init__(self) -> None:
        self.mirror: Mirror
        self.edits: list[Edit] = []
        self.past: list[Edit] = []
        self.states: list[bool] = []

    @property
    def values(self) -> list[bytes | None]:
        return [edit.value for edit in self.edits]


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():
            await asyncio.sleep(0.01)


async def insist(ask: Callable[[], Awaitable[object]]) -> None:
    """Ask until it is answered: what was lost on the way may be asked for again here."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                await ask()
                return
            except (UnknownOutcomeError, Refusal):
                await asyncio.sleep(0.05)


def test_what_is_put_is_read_listed_and_removed(one: Cluster, prefix: str) -> None:
    async def main() -> None:
        async with client_of(one.zone()) as client:
            key = f"{prefix}/a".encode()
            assert await client.get(key) is None
            revision = await client.put(key, b"\x00\xff")
            assert await client.get(key) == Entry(b"\x00\xff", revision)
            assert one.ctl("get", "--hex", key.decode()).strip().endswith(r"\x00\xff")
            many = {f"{prefix}/b/{number:03}".encode(): b"%d" % number for number in range(250)}
            for some in range(0, 250, 125):
                await client.change(dict(list(many.items())[some : some + 125]))
            listing = await client.list(f"{prefix}/b/".encode())
            assert {key: entry.value for key, entry in listing.entries.items()} == many
            assert listing.revision == revision + 2
            assert await client.delete(key)
            assert not await client.delete(key)

    asyncio.run(main())


def test_a_guarded_change_is_made_or_says_what_stands_against_it(one: Cluster, prefix: str) -> None:
    async def main() -> None:
        async with client_of(one.zone()) as client:
            a, b = (f"{prefix}/{name}".encode() for name in "ab")
            first = await client.change({a: b"1"}, (), {a: 0})
            assert first.has_effect
            assert not first.conflicts
            refused = await client.change({a: b"2", b: b"2"}, (), {a: 0, b: 0})
            assert refused.conflicts == {a: first.revision}
            assert await client.get(b) is None
            gone = await client.change({}, [a, b], {a: first.revision})
            assert gone.has_effect
            assert not (await client.change({}, [a])).has_effect
            assert (await client.change({b: b""}, (), {a: first.revision})).conflicts == {a: 0}

    asyncio.run(main())


@pytest.mark.parametrize(("prefix", "end"), [(b"a", b"b"), (b"a\xff", b"b"), (b"\xff", b"\0"), (b"", b"\0")])
def test_a_prefix_ends_before_the_next_key_that_does_not_start_so(prefix: bytes, end: bytes) -> None:
    assert end_of(prefix) == end


def test_a_mirror_tells_every_change_in_order_and_shows_what_is_there(one: Cluster, prefix: str) -> None:
    async def main() -> None:
        async with client_of(one.zone()) as client:
            base = f"{prefix}/".encode()
            await client.put(base + b"before", b"0")
            async with mirror_of(client, base) as seen:
                assert list(seen.mirror.entries) == [base + b"before"]
                for number in range(20):
                    await client.put(base + b"%d" % (number % 3), b"%d" % number)
                await client.put(prefix.encode() + b"0", b"a neighbour")
                await client.delete(base + b"before")
                await until(lambda: len(seen.edits) == 21)
                assert seen.values == [*(b"%d" % number for number in range(20)), None]
                assert seen.mirror.entries == (await client.list(base)).entries

    asyncio.run(main())


def test_a_mirror_of_one_key_hears_of_no_other(one: Cluster, prefix: str) -> None:
    async def main() -> None:
        async with client_of(one.zone()) as client:
            key = prefix.encode()
            async with mirror_of(client, key, is_prefix=False) as seen:
                one.ctl("put", prefix + "/other", "no")
                one.ctl("put", prefix, "yes")
                await until(lambda: len(seen.edits) == 1)
                assert seen.values == [b"yes"]

    asyncio.run(main())


def test_a_mirror_goes_on_where_it_was_after_the_server_was_killed(folder: Path) -> None:
    cluster = Cluster(folder)

    async def main() -> None:
        async with client_of(cluster.zone()) as client, mirror_of(client, b"k/") as seen:
            await client.put(b"k/a", b"1")
            await until(lambda: seen.values == [b"1"])
            member = cluster.members[0]
            member.kill()
            await until(lambda: not seen.mirror.is_current)
            assert seen.mirror.why
            member.start()
            await insist(lambda: client.put(b"k/a", b"2"))
            await until(lambda: b"2" in seen.values)
            await until(lambda: seen.mirror.is_current)
            assert seen.values[:2] == [b"1", b"2"]
            assert seen.mirror.relists == 0
            assert seen.states[:3] == [True, False, True]

    try:
        asyncio.run(main())
    finally:
        cluster.close()


def test_what_etcd_forgot_while_the_mirror_was_away_is_told_as_the_difference(one: Cluster, prefix: str) -> None:
    async def main() -> None:
        async with Relay(one.members[0].port) as relay, client_of(one.zone()) as direct:
            zone = ZoneConfig(endpoints=(f"127.0.0.1:{relay.port}",))
            async with client_of(zone) as client:
                a, b, c = (f"{prefix}/{name}".encode() for name in "abc")
                await direct.change({a: b"1", b: b"1"})
                async with mirror_of(client, f"{prefix}/".encode()) as seen:
                    relay.hold()
                    await relay.hang_up()
                    await until(lambda: not seen.mirror.is_current)
                    await direct.put(a, b"2")
                    await direct.put(a, b"3")
                    await direct.delete(b)
                    await direct.put(c, b"1")
                    await direct.compact(await direct.put(c, b"2"))
                    relay.flow()
                    await until(lambda: len(seen.edits) == 3)
                    assert {edit.key: edit.value for edit in seen.edits} == {a: b"3", b: None, c: b"2"}
                    assert seen.mirror.relists == 1
                    await direct.put(a, b"4")
                    await until(lambda: seen.values[-1] == b"4")
                    assert seen.mirror.entries == (await direct.list(f"{prefix}/".encode())).entries

    asyncio.run(main())


def test_a_server_that_lost_its_data_is_believed_and_the_difference_told(folder: Path) -> None:
    cluster = Cluster(folder)

    async def main() -> None:
        async with client_of(cluster.zone()) as client:
            for number in range(5):
                await client.put(b"k/%d" % number, b"")
            async with mirror_of(client, b"k/") as seen:
                member = cluster.members[0]
                member.kill()
                member.folder = member.folder / "empty"
                member.start()
                await until(lambda: len(seen.edits) == 5)
                assert seen.values == [None] * 5
                await insist(lambda: client.put(b"k/new", b"1"))
                await until(lambda: seen.values[-1] == b"1")

    try:
        asyncio.run(main())
    finally:
        cluster.close()


def test_a_mirror_tells_what_was_before_as_far_as_etcd_knows_it(one: Cluster, prefix: str) -> None:
    async def main() -> None:
        async with client_of(one.zone()) as client:
            key = f"{prefix}/a".encode()
            revisions = [await client.put(key, b"%d" % number) for number in range(6)]
            await client.compact(revisions[2])
            async with mirror_of(client, key, past=1000) as seen:
                await until(lambda: len(seen.past) == 3)
                assert [edit.value for edit in seen.past] == [b"3", b"4", b"5"]
                assert seen.mirror.told_from == revisions[2]
                await client.put(key, b"6")
                await until(lambda: seen.values == [b"6"])

    asyncio.run(main())


async def leader_of(cluster: Cluster, client: Client) -> int:
    """Return which member leads, once one does."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = [at for at, health in enumerate(await client.health()) if health.is_leader]
            if found:
                return found[0]


@pytest.mark.parametrize("trouble", ["kill", "pause"])
def test_a_leader_that_dies_or_stands_still_is_left_for_another(three: Cluster, prefix: str, trouble: str) -> None:
    async def main() -> None:
        async with client_of(three.zone()) as client:
            key = f"{prefix}/a".encode()
            leader = await leader_of(three, client)
            order = (*three.endpoints[leader:], *three.endpoints[:leader])
        async with client_of(ZoneConfig(endpoints=order)) as client, mirror_of(client, key) as seen:
            await client.put(key, b"1")
            await until(lambda: seen.values == [b"1"])
            getattr(three.members[leader], trouble)()
            await insist(lambda: client.put(key, b"2"))
            await until(lambda: b"2" in seen.values)
            assert client.members.moves >= 1
            assert seen.mirror.relists == 0
            assert seen.values[0] == b"1"
            assert set(seen.values[1:]) == {b"2"}

    asyncio.run(main())


def test_what_nobody_heard_is_asked_elsewhere_and_refused_when_there_is_nobody(one: Cluster, prefix: str) -> None:
    async def main() -> None:
        dead = f"127.0.0.1:{free_port()}"
        async with client_of(ZoneConfig(endpoints=(dead, *one.endpoints))) as client:
            assert await client.put(prefix.encode(), b"") > 0  # a put is sent on only because it was never sent
        async with client_of(ZoneConfig(endpoints=(dead,))) as client:
            with pytest.raises(Refusal, match=r"does not answer: .*refused") as caught:
                await client.change({prefix.encode(): b""}, patience_s=0.5)
            assert caught.value.code == "unavailable"

    asyncio.run(main())


def test_a_lease_ends_unless_it_is_kept_alive(one: Cluster, prefix: str) -> None:
    async def main() -> None:
        async with client_of(one.zone()) as client:
            lease, ttl_s = await client.grant(60)
            assert ttl_s == 60
            await client.put(prefix.encode(), b"", lease)
            assert await client.keep_alive(lease) == 60
            await client.revoke(lease)
            assert await client.get(prefix.encode()) is None
            assert await client.keep_alive(lease) == 0
            with pytest.raises(Refusal) as caught:
                await client.put(prefix.encode(), b"", lease)
            assert caught.value.code == "gone"

    asyncio.run(main())


def test_health_names_every_member_and_who_leads(three: Cluster) -> None:
    async def main() -> None:
        three.members[1].kill()
        await asyncio.to_thread(three.wait)
        async with client_of(three.zone()) as client:
            leader = await leader_of(three, client)
            healths = await client.health()
            assert [health.endpoint for health in healths] == list(three.endpoints)
            assert [bool(health.problem) for health in healths] == [False, True, False]
            assert [bool(health.version) for health in healths] == [True, False, True]
            assert leader != 1

    asyncio.run(main())


# Users and certificates


def test_a_user_shows_its_password_and_a_token_that_is_over_is_replaced(guarded: Cluster, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("secret\n")
    zone = msgspec.structs.replace(guarded.zone(), user="root", password_file=str(tmp_path / "password"))

    async def main() -> None:
        async with client_of(zone) as client:
            await client.put(b"a", b"1")
            async with mirror_of(client, b"a") as seen:
                client.members._token = "nobody.1"
                await client.put(b"a", b"2")
                await until(lambda: seen.values == [b"2"])
        async with client_of(zone) as client:
            client.members._token = "nobody.1"
            async with mirror_of(client, b"a") as seen:
                assert seen.mirror.entries[b"a"].value == b"2"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("user", "password", "match"),
    [
        ("root", "wrong", "refuses user 'root'.*authentication failed"),
        ("poor", "secret", "refuses user 'poor'.*permission"),
    ],
)
def test_who_may_not_is_told_which_setting_to_look_at(guarded: Cluster, user: str, password: str, match: str) -> None:
    zone = msgspec.structs.replace(guarded.zone(), user=user, password=password)

    async def main() -> None:
        async with client_of(zone) as client:
            with pytest.raises(Refusal, match=match) as caught:
                await client.put(b"a", b"")
            assert caught.value.code == "forbidden"
            assert "[etcd.zones.default]" in str(caught.value)

    asyncio.run(main())


def test_a_client_without_a_user_is_refused_where_users_are_asked_for(guarded: Cluster) -> None:
    async def main() -> None:
        async with client_of(guarded.zone()) as client:
            with pytest.raises(Refusal, match="a client without user"):
                await client.get(b"a")

    asyncio.run(main())


def test_certificates_are_checked_both_ways(folder: Path) -> None:
    files = certificates()
    tls = ["--cert-file", str(files.server), "--key-file", str(files.server_key)]
    asks = ["--client-cert-auth", "--trusted-ca-file", str(files.authority)]
    cluster = Cluster(folder, flags=[*tls, *asks], tls=True)
    trusting = ZoneConfig(endpoints=cluster.endpoints, tls=True, tls_ca=str(files.authority))
    shown = msgspec.structs.replace(trusting, tls_cert=str(files.client), tls_key=str(files.client_key))
    strict = ZoneConfig(endpoints=cluster.endpoints, tls=True)

    async def main() -> None:
        async with client_of(shown) as client:
            assert await client.put(b"a", b"1") > 1
        for wrong in (trusting, strict):
            async with client_of(wrong) as client:
                with pytest.raises(Refusal) as caught:
                    await client.change({b"a": b"2"}, patience_s=1.5)
                assert caught.value.code == "unavailable"

    try:
        asyncio.run(main())
    finally:
        cluster.close()
