"""A relay whose etcd is away, at its start or later, or holds what cannot be used, says so, and goes on by itself."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

from penstock.m3 import placement, topic
from penstock.m3.placement import Instance, Placement, Shard
from penstock.m3.topic import ConsumerService, ServiceId, Topic
from tests.cli.program import Node, inside
from tests.etcd.servers import Cluster, wait_for
from tests.m3msg.receiver import Receiver
from tests.m3msg.test_out import published

TOPIC = "/topic/default_env/metrics"
PLACEMENT = "_sd.placement/default_env/s"
SAID = topic.encode(
    Topic(
        name="metrics",
        shards=1,
        services=(ConsumerService(service_id=ServiceId("s", "default_env", "default"), consumption="shared"),),
    )
)


def options(path: Path, etcd: Cluster) -> tuple[str, ...]:
    (path / "penstock.toml").write_text(
        f'[etcd.zones.default]\nendpoints = ["{etcd.endpoints[0]}"]\n[m3msg_relay]\ntopics = ["metrics"]\n'
    )
    return "--config", str(path / "penstock.toml")


def figure(node: Node, name: str) -> float:
    with urllib.request.urlopen(f"{node.url}/metrics", timeout=60) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith((f"penstock_m3msg_relay_{name}{{", f"penstock_m3msg_relay_{name} ")):
                return float(line.rsplit(" ", 1)[1])
    raise AssertionError(f"there is no {name}")


def degraded(node: Node) -> list[str]:
    with urllib.request.urlopen(f"{node.url}/readyz", timeout=60) as answer:
        found: list[str] = json.load(answer)["degraded"]
        return found


def test_a_relay_whose_etcd_is_away_says_so_and_goes_on_once_it_is_there(tmp_path: Path) -> None:
    etcd = Cluster(tmp_path / "etcd")
    try:
        with Receiver() as receiver:
            etcd.ctl("put", TOPIC, stdin=SAID)
            only = Instance(id="x", endpoint=receiver.endpoint, shards=(Shard(0, "available"),))
            etcd.ctl("put", PLACEMENT, stdin=placement.encode(Placement(instances={"x": only}, is_sharded=True)))
            chosen = options(tmp_path, etcd)
            etcd.members[0].kill()
            with Node(tmp_path, *chosen) as node:
                for losses in (1, 2):
                    wait_for(lambda: bool(degraded(node)), "the node to say that etcd is away")
                    assert "M3's topics and placements are as etcd last said" in degraded(node)[0]
                    assert "M3's topics and placements" in node.ok("status").out
                    assert (figure(node, "topology_current"), figure(node, "topology_losses_total")) == (0, losses)
                    etcd.members[0].start()
                    etcd.wait()
                    wait_for(lambda: not degraded(node), "the node to find etcd again")
                    assert figure(node, "topology_current") == 1
                    published(node, "metrics", [b"%d" % losses])
                    wait_for(lambda losses=losses: receiver.got[b"%d" % losses] > 0, "a message")  # type: ignore[misc]
                    if losses == 1:
                        etcd.members[0].kill()
                assert node.errors().count("cannot be read from etcd") == 2
                for refused, key in enumerate((TOPIC, PLACEMENT), 1):
                    etcd.ctl("put", key, stdin=b"\xff\xff garbage")
                    wait_for(lambda refused=refused: figure(node, "unreadable_values_total") == refused, "a count")  # type: ignore[misc]
                published(node, "metrics", [b"still"])
                wait_for(lambda: receiver.got[b"still"] > 0, "a message")
    finally:
        etcd.close()


def test_the_doctor_asks_the_etcd_of_a_relay_and_of_a_routing_policy(tmp_path: Path, one: Cluster) -> None:
    chosen = options(tmp_path, one)
    found = {each["what"]: each for each in inside("doctor", "--json", *chosen, cwd=tmp_path).json}
    assert found[f"etcd {one.endpoints[0]}"]["found"].endswith("M3's topics and placements")
    (tmp_path / "penstock.toml").write_text(
        '[etcd.zones.far]\nendpoints = ["127.0.0.1:1"]\n[routing]\nkey = "k"\nzone = "far"\n'
    )
    found = {each["what"]: each for each in inside("doctor", "--json", *chosen, cwd=tmp_path).json}
    far = found["etcd 127.0.0.1:1"]
    assert (far["verdict"], "[etcd.zones.far]" in far["todo"]) == ("FAIL", True)


def test_a_relay_whose_zone_is_not_there_is_refused_before_it_starts(tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text('[m3msg_relay]\ntopics = ["metrics"]\nzone = "defualt"\n')
    checked = inside("config", "check", "--config", "penstock.toml", cwd=tmp_path)
    assert checked.code == 2
    assert 'm3msg_relay.zone = "defualt": there is no [etcd.zones.defualt]' in checked.error
    assert "did you mean default?" in checked.error
    (tmp_path / "penstock.toml").write_text('[m3msg_relay]\nzone = "none"\n')
    assert inside("config", "check", "--config", "penstock.toml", cwd=tmp_path).code == 0
