"""A real node that relays to real sockets, as etcd or a file says."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
from pathlib import Path

import msgspec
import pytest

from penstock.m3 import placement
from penstock.m3.placement import Instance, Placement, Shard
from penstock.m3.topic import ConsumerService, ServiceId, Topic, encode
from penstock.registry.etcd.client import Client
from penstock.registry.etcd.mirror import Edit, Mirror
from tests.cli.program import Done, Node, inside
from tests.etcd.servers import Cluster, wait_for
from tests.m3msg.receiver import Receiver

BODIES = [b"metric %d" % number for number in range(2000)]
#: A topology that needs but a placement.
ONE = '[topics.metrics]\nshards = 1\n[[topics.metrics.services]]\nname = "s"\n'


def published(node: Node, topic: str, bodies: list[bytes]) -> None:
    """Publish over NSQ's HTTP."""
    content = b"\n".join(bodies)
    with socket.create_connection(("127.0.0.1", node.port("nsq.http_port")), 60) as connection:
        head = f"POST /mpub?topic={topic} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n\r\n"
        connection.sendall(head.encode() + content)
        assert b" 200 OK" in connection.recv(4096)


class Relayed:
    """A node whose relay reads etcd, and commands that write there."""

    def __init__(self, path: Path, etcd: Cluster, environment: str) -> None:
        self.path = path
        self.file = path / "penstock.toml"
        self.environment = environment
        endpoints = ", ".join(f'"{endpoint}"' for endpoint in etcd.endpoints)
        self.file.write_text(
            f"[etcd.zones.default]\nendpoints = [{endpoints}]\n"
            f'[m3msg_relay]\ntopics = ["metrics"]\nenvironment = "{environment}"\nretry_initial = "500ms"\n'
        )

    def m3(self, *words: str) -> Done:
        return inside("m3", *words, "--config", self.file, cwd=self.path)

    def ok(self, *words: str) -> str:
        done = self.m3(*words)
        assert done.code == 0, done
        return done.out

    def node(self) -> Node:
        return Node(self.path, "--config", self.file)


@pytest.fixture
def relayed(tmp_path: Path, one: Cluster) -> Relayed:
    return Relayed(tmp_path, one, f"env-{tmp_path.name}")


def test_services_get_what_is_published_as_etcd_places_them_also_over_a_kill(relayed: Relayed) -> None:
    with Receiver() as first, Receiver() as second, Receiver() as third:
        relayed.ok("topic", "init", "metrics", "--shards", "16")
        relayed.ok("topic", "add", "metrics", "storage", "--consumption", "replicated")
        relayed.ok("topic", "add", "metrics", "alerts")
        relayed.ok("placement", "init", "storage", f"a={first.endpoint}", f"b={second.endpoint}", "--shards", "16",
                   "--replicas", "2")  # fmt: skip
        relayed.ok("placement", "init", "alerts", f"x={third.endpoint}", "--shards", "16")
        with relayed.node() as node:
            wait_for(lambda: "m3msg.default." in node.ok("subscription", "list", "metrics").out, "subscriptions")
            published(node, "metrics", BODIES[:1000])
            for receiver in (first, second, third):
                wait_for(lambda receiver=receiver: set(receiver.got) == set(BODIES[:1000]), "messages")  # type: ignore[misc]
            published(node, "metrics", BODIES[1000:])
            node.end(signal.SIGKILL)
        with relayed.node() as node:
            for receiver in (first, second, third):
                wait_for(lambda receiver=receiver: set(receiver.got) == set(BODIES), "messages")  # type: ignore[misc]
            assert node.end() == 0


def test_an_instance_that_is_added_gets_its_share_while_the_node_runs(relayed: Relayed) -> None:
    with Receiver() as first, Receiver() as second:
        relayed.ok("topic", "init", "metrics", "--shards", "8")
        relayed.ok("topic", "add", "metrics", "storage")
        relayed.ok("placement", "init", "storage", f"a={first.endpoint}", "--shards", "8")
        with relayed.node() as node:
            published(node, "metrics", BODIES[:500])
            wait_for(lambda: set(first.got) == set(BODIES[:500]), "messages")
            relayed.ok("placement", "add", "storage", f"b={second.endpoint}")
            wait_for(lambda: node.ok("status", "--json").code == 0 and _open(node) == 8, "its connections")
            published(node, "metrics", BODIES[500:])
            wait_for(lambda: set(first.got) | set(second.got) == set(BODIES), "messages")
            assert second.got
            assert not set(second.got) & set(BODIES[:500])


def _open(node: Node) -> int:
    import urllib.request

    with urllib.request.urlopen(f"{node.url}/metrics", timeout=60) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith("penstock_m3msg_relay_connections{"):
                return int(float(line.rsplit(" ", 1)[1]))
    return 0


def test_what_etcd_holds_is_shown_and_what_cannot_be_is_refused_with_a_reason(relayed: Relayed) -> None:
    assert "there is no" in relayed.m3("topic", "show", "metrics").error
    assert "`penstock m3 topic init metrics` makes it" in relayed.m3("topic", "add", "metrics", "s").error
    assert "65,537 shards; there may be 65,536" in relayed.m3("topic", "init", "metrics", "--shards", "65537").error
    assert "shards; there may be" in relayed.m3("placement", "init", "s", "a=h:1", "--shards", "99999999999").error
    relayed.ok("topic", "init", "metrics", "--shards", "4")
    assert "is in etcd already" in relayed.m3("topic", "init", "metrics").error
    assert relayed.m3("topic", "add", "metrics", "s", "--consumption", "both").code == 2
    relayed.ok("topic", "add", "metrics", "s", "--ttl", "5m")
    shown = relayed.ok("topic", "show", "metrics")
    assert "s" in shown
    assert "5m" in shown
    assert "consumes metrics already" in relayed.m3("topic", "add", "metrics", "s").error
    done = relayed.m3("placement", "init", "s", "a=nonsense", "--shards", "4")
    assert (done.code != 0, '"nonsense" is no address; write HOST:PORT' in done.error) == (True, True)
    done = relayed.m3("placement", "init", "s", "a=h:1", "--shards", "4", "--replicas", "2")
    assert "2 replicas need as many instances" in done.error
    relayed.ok("placement", "init", "s", "a=h:1", "b=h:2", "--shards", "4")
    assert "0..1" in relayed.ok("placement", "show", "s") or "0, 2" in relayed.ok("placement", "show", "s")
    assert "is no address" in relayed.m3("placement", "add", "s", "c=h").error
    assert "there is no instance c" in relayed.m3("placement", "remove", "s", "c").error
    assert "0..3" in relayed.ok("placement", "remove", "s", "b")
    relayed.ok("topic", "remove", "metrics", "s")
    assert "has no services" in relayed.ok("topic", "show", "metrics")


def test_a_service_is_removed_in_its_own_zone_and_environment_and_no_other(relayed: Relayed, one: Cluster) -> None:
    env = relayed.environment
    ids = [
        ServiceId("s"),
        *(ServiceId("s", env, zone) for zone in ("default", "east", "west")),
        ServiceId("t", "e", "z"),
    ]
    services = tuple(ConsumerService(service_id=each, consumption="shared") for each in ids)
    value = encode(Topic(name="metrics", shards=4, services=services))
    one.ctl("put", f"/topic/{env}/metrics", stdin=value)
    relayed.ok("topic", "remove", "metrics", "s")
    assert left(relayed) == ["s", f"east/{env}/s", f"west/{env}/s", "z/e/t"]
    relayed.ok("topic", "remove", "metrics", "s")
    refused = relayed.m3("topic", "remove", "metrics", "s")
    assert (refused.code, f"more than one s consumes metrics: east/{env}/s, west/{env}/s" in refused.error) == (1, True)
    relayed.ok("topic", "remove", "metrics", f"east/{env}/s")
    relayed.ok("topic", "remove", "metrics", "t")
    assert left(relayed) == [f"west/{env}/s"]
    assert f"those that do: west/{env}/s" in relayed.m3("topic", "remove", "metrics", "z/s").error


def left(relayed: Relayed) -> list[str]:
    found = json.loads(relayed.ok("topic", "show", "metrics", "--json"))
    return [str(msgspec.convert(each["service_id"], ServiceId)) for each in found["services"]]


def test_m3msg_case_47_a_topic_is_changed_as_it_was_seen_and_its_end_is_told(relayed: Relayed, one: Cluster) -> None:
    key = f"/topic/{relayed.environment}/metrics"

    def version() -> int:
        said = json.loads(one.ctl("get", key, "--write-out=json"))
        return int(said["kvs"][0]["version"])

    relayed.ok("topic", "init", "metrics", "--shards", "4")
    assert version() == 1
    assert "is in etcd already" in relayed.m3("topic", "init", "metrics", "--shards", "4").error
    relayed.ok("topic", "add", "metrics", "store")
    assert version() == 2

    async def follow() -> None:
        seen: list[Edit] = []
        client = Client("default", one.zone())
        mirror = Mirror(client, key.encode(), seen.extend, is_prefix=False)
        try:
            async with asyncio.timeout(60):
                await mirror.is_ready.wait()
                entry = mirror.entries[key.encode()]
                stale = await client.change({key.encode(): b""}, guards={key.encode(): entry.revision - 1})
                assert stale.conflicts
                await asyncio.to_thread(one.ctl, "del", key)
                while not seen:
                    await asyncio.sleep(0.01)
                assert [edit.value for edit in seen] == [None]
        finally:
            await mirror.close()
            await client.close()

    asyncio.run(follow())
    relayed.ok("topic", "init", "metrics", "--shards", "8")
    assert version() == 1


def test_a_file_may_say_what_etcd_would(tmp_path: Path) -> None:
    with Receiver() as first, Receiver() as second:
        (tmp_path / "m3.toml").write_text(
            "[topics.metrics]\nshards = 4\n"
            '[[topics.metrics.services]]\nname = "storage"\n'
            f'[placements.storage.instances.a]\nendpoint = "{first.endpoint}"\nshards = "0..1"\n'
            f'[placements.storage.instances.b]\nendpoint = "{second.endpoint}"\nshards = "2..3"\n'
        )
        (tmp_path / "c.toml").write_text('[m3msg_relay]\ntopics = ["metrics"]\ntopology = "m3.toml"\n')
        with Node(tmp_path, "--config", tmp_path / "c.toml") as node:
            published(node, "metrics", BODIES)
            wait_for(lambda: set(first.got) | set(second.got) == set(BODIES), "messages")
            assert first.got
            assert second.got
            assert node.end() == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[topics.metrics]\n", "shards"),
        ("[topics.metrics]\nshards = 0\n", "has no shards"),
        (ONE, "there is no [placements.s]"),
        ("[topics.other]\nshards = 1\n", "names metrics, which is not in"),
        (f'{ONE}[placements.s.instances.a]\nendpoint = "nonsense"\n', "instance a: "),
        ("[topics.metrics]\nshards = 65537\n", "topic metrics has 65,537 shards; there may be 65,536"),
        (
            f'{ONE}[placements.s.instances.a]\nendpoint = "h:1"\nshards = "0..4294967295"\n',
            "instance a: shard 4294967295 is above the last one there may be, 65535",
        ),
        ("nonsense", "m3.toml"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_before_the_node_starts(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "m3.toml").write_text(text)
    (tmp_path / "c.toml").write_text('[m3msg_relay]\ntopics = ["metrics"]\ntopology = "m3.toml"\n')
    done = inside("config", "check", "--config", tmp_path / "c.toml", cwd=tmp_path)
    assert done.code == 2
    assert said in done.error


def test_the_placement_of_a_service_is_read_in_its_own_zone_and_environment(
    relayed: Relayed, one: Cluster, tmp_path: Path
) -> None:
    east, env = Cluster(tmp_path / "east"), relayed.environment
    with relayed.file.open("a") as file:
        file.write(f'[etcd.zones.east]\nendpoints = ["{east.endpoints[0]}"]\n')
    names = [("here", env, "default"), ("there", env, "east"), ("bare", "", ""), ("lost", env, "west")]
    services = tuple(ConsumerService(service_id=ServiceId(*each), consumption="shared") for each in names)
    try:
        with Receiver() as here, Receiver() as there, Receiver() as bare, Receiver() as nobody:
            for etcd, place, receiver in (
                (one, f"{env}/here", here),
                (one, f"{env}/there", nobody),
                (one, f"{env}/lost", nobody),
                (one, f"{env}/bare", nobody),
                (one, "bare", bare),
                (east, f"{env}/there", there),
                (east, f"{env}/here", nobody),
            ):
                only = Instance(id="x", endpoint=receiver.endpoint, shards=(Shard(0, "available"),))
                placed = Placement(instances={"x": only}, is_sharded=True)
                etcd.ctl("put", f"_sd.placement/{place}", stdin=placement.encode(placed))
            one.ctl("put", f"/topic/{env}/metrics", stdin=encode(Topic(name="metrics", shards=1, services=services)))
            with relayed.node() as node:
                wait_for(lambda: "m3msg.east." in node.ok("subscription", "list", "metrics").out, "subscriptions")
                published(node, "metrics", BODIES[:10])
                for receiver in (here, there, bare):
                    wait_for(lambda receiver=receiver: set(receiver.got) == set(BODIES[:10]), "messages")  # type: ignore[misc]
                assert "service west/" in node.errors()
                assert "there is no [etcd.zones.west]" in node.errors()
            assert not nobody.got
    finally:
        one.ctl("del", "_sd.placement/bare")
        east.close()
