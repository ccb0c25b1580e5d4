"""A real node that keeps its registry in a real etcd: what it does while etcd is there, away, and back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.ports import free_port
from tests.cli.program import ANY_PORTS, Node, Running, inside
from tests.etcd.servers import Cluster, wait_for


@pytest.fixture
def own(folder: Path) -> Iterator[Cluster]:
    """An etcd that this test may kill."""
    cluster = Cluster(folder / "etcd")
    yield cluster
    cluster.close()


def on(cluster: Cluster, prefix: str = "penstock/blue") -> tuple[str, ...]:
    """Return the options of a node on an etcd."""
    endpoints = ",".join(cluster.endpoints)
    return (
        "--set=registry.kind=etcd",
        f"--set=registry.prefix={prefix}",
        f"--set=etcd.zones.default.endpoints={endpoints}",
    )


def problems(node: Node) -> list[str]:
    document = json.loads(node.call("status", "--json", "--every", "1ms").raw)
    assert bool(document["problems"]) != document["ready"]
    found: list[str] = document["problems"]
    return found


def metrics(node: Node) -> str:
    with urllib.request.urlopen(f"{node.url}/metrics", timeout=60) as reply:
        return str(reply.read().decode())


def test_topics_are_in_etcd_and_are_there_in_the_next_life(three: Cluster, tmp_path: Path) -> None:
    options = on(three, "penstock/next-life")
    with Node(tmp_path, *options) as node:
        node.ok("pub", "orders", "one")
        node.ok("sub", "orders", "audit", "--max", "1")
        node.ok("pub", "orders", "two")
        assert node.end() == 0
    assert json.loads(inside("log", "verify", "orders", "--data", "data", "--json", cwd=tmp_path).raw)
    keys = three.ctl("get", "--prefix", "--keys-only", "penstock/next-life/").split()
    assert "penstock/next-life/topic/orders" in keys
    assert not (tmp_path / "data/registry").exists()
    with Node(tmp_path, *options) as node:
        assert "two" in node.ok("sub", "orders", "audit", "--max", "1").out
        node.ok("topic", "delete", "orders", "--yes")
        assert problems(node) == []
        assert node.end() == 0
    assert "penstock/next-life/topic/orders" not in three.ctl("get", "--prefix", "--keys-only", "penstock/").split()


def test_a_node_that_loses_etcd_serves_what_it_has_and_goes_on_by_itself(own: Cluster, tmp_path: Path) -> None:
    with Node(tmp_path, *on(own)) as node:
        node.ok("pub", "orders", "one")
        node.ok("sub", "orders", "audit", "--max", "1")
        own.members[0].kill()
        wait_for(lambda: bool(problems(node)), "the node to say that etcd is away")
        (problem,) = problems(node)
        assert own.endpoints[0] in problem
        assert "nothing can be made, changed or deleted until it is back" in problem
        node.ok("pub", "orders", "two")
        assert "two" in node.ok("sub", "orders", "audit", "--max", "1").out
        refused = node.call("pub", "another", "three")
        assert refused.code != 0
        assert "does not answer" in refused.error
        assert "Nothing was changed" in refused.error
        assert "penstock_registry_up 0" in metrics(node)
        own.members[0].start()
        wait_for(lambda: not problems(node), "the node to find etcd again")
        node.ok("pub", "another", "three")
        assert "penstock_registry_up 1" in metrics(node)
        assert "three" in node.ok("sub", "another", "audit", "--max", "1").out
        assert node.end() == 0


def test_a_start_waits_for_etcd_and_says_so(own: Cluster, tmp_path: Path) -> None:
    own.members[0].kill()
    with Running("up", "--data", "data", *ANY_PORTS, *on(own), cwd=tmp_path) as node:
        wait_for(lambda: "waiting for etcd" in node.errors(), "a word about what it waits for")
        assert own.endpoints[0] in node.errors()
        assert node.process.poll() is None
        own.members[0].start()
        node.line(b"Stop with Ctrl-C.")
        assert node.end() == 0


def test_a_start_without_etcd_ends_with_a_sentence(tmp_path: Path) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    options = ("--set=registry.kind=etcd", f"--set=etcd.zones.default.endpoints={nobody}")
    with Running("up", "--data", "data", *ANY_PORTS, *options, "--set=registry.start_timeout=1s", cwd=tmp_path) as node:
        assert node.process.wait(60) == 2
        (line,) = [line for line in node.errors().splitlines() if line.startswith("penstock: ")]
    assert line.startswith(f"penstock: etcd ({nobody}) does not answer: ")
    assert "registry.start_timeout" in line


def test_a_node_is_not_shown_the_registry_of_another(one: Cluster, tmp_path: Path) -> None:
    options = on(one, "penstock/mine")
    one.ctl("put", "penstock/mine/owner", "somebody")
    with Running("up", "--data", "other", *ANY_PORTS, *options, cwd=tmp_path) as stranger:
        assert stranger.process.wait(60) == 2
        assert "the registry penstock/mine in etcd" in stranger.errors()
        assert "belongs to a node with another data directory than other" in stranger.errors()


def test_a_node_moves_its_registry_to_etcd_and_back_by_a_command(three: Cluster, tmp_path: Path) -> None:
    options = on(three, "penstock/moved")
    with Node(tmp_path) as node:
        node.ok("pub", "orders", "one")
        node.ok("pub", "orders", "two")
        assert node.ok("sub", "orders", "audit", "--max", "1").out == "one\n"
        node.ok("routing", "set", "production=7")
        assert node.end() == 0
    with Running("up", "--data", "data", *ANY_PORTS, *options, cwd=tmp_path) as hasty:
        assert hasty.process.wait(60) == 2
        assert "moves there by `penstock registry move etcd`" in hasty.errors()
    done = inside("registry", "move", "etcd", "--data", "data", *options, "--json", cwd=tmp_path)
    assert done.code == 0, done
    assert done.json["entries"] >= 4
    assert "penstock/moved/topic/orders" in three.ctl("get", "--prefix", "--keys-only", "penstock/moved/").split()
    with Node(tmp_path, *options) as node:
        assert node.ok("sub", "orders", "audit", "--max", "1").out == "two\n"
        assert "production" in node.ok("routing", "show").out
        node.ok("pub", "later", "three")
        running = inside("registry", "move", "embedded", "--data", "data", *options, cwd=tmp_path)
        assert "in use by another Penstock" in running.error
        assert node.end() == 0
    done = inside("registry", "move", "embedded", "--data", "data", *options, cwd=tmp_path)
    assert done.code == 0, done
    assert 'registry.kind = "embedded"' in done.out
    assert three.ctl("get", "--prefix", "--keys-only", "penstock/moved/").split() == []
    with Node(tmp_path) as node:
        assert node.ok("sub", "later", "audit", "--max", "1").out == "three\n"
        assert "production" in node.ok("routing", "show").out
        assert problems(node) == []
        assert node.end() == 0


def connections(node: Node, port: int) -> int:
    """Return how many connections of a node go to a port of this machine."""
    folder = Path(f"/proc/{node.process.pid}")
    own = {os.readlink(each) for each in (folder / "fd").iterdir() if each.exists() or each.is_symlink()}
    tables = [(folder / "net" / name).read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
    rows = [line.split() for table in tables for line in table]
    return sum(row[2].endswith(f":{port:04X}") and f"socket:[{row[9]}]" in own for row in rows)


def test_all_that_asks_one_etcd_shares_one_client(one: Cluster, tmp_path: Path) -> None:
    (tmp_path / "relay.toml").write_text('[m3msg_relay]\ntopics = ["metrics"]\nenvironment = "shares"\n')
    options = (*on(one, "penstock/shares"), "--set=routing.key=shares", "--config", "relay.toml")
    with Node(tmp_path, *options) as node:
        node.ok("routing", "set", "production=7")
        assert connections(node, one.members[0].port) == 1
        assert node.end() == 0


def test_the_doctor_names_every_member_and_how_it_is(three: Cluster, tmp_path: Path) -> None:
    three.members[2].kill()
    three.wait()
    done = inside("doctor", "--json", "--set=data_dir=data", *ANY_PORTS, *on(three), cwd=tmp_path)
    found = {each["what"]: each for each in done.json if each["what"].startswith("etcd")}
    assert len(found) == 3
    verdicts = [found[f"etcd {endpoint}"]["verdict"] for endpoint in three.endpoints]
    assert verdicts == ["OK", "OK", "WARN"]
    assert sum("leads" in each["found"] for each in found.values()) <= 1


def test_a_node_on_its_own_registry_does_not_load_grpc(tmp_path: Path) -> None:
    program = (
        "import sys, asyncio\n"
        "from penstock.cli.daemon import Daemon\n"
        "from penstock.cli.table import load\n"
        "async def main():\n"
        "    daemon = Daemon(load(flags=FLAGS).config, asyncio.get_running_loop())\n"
        "    await daemon.listen()\n"
        "    await daemon.stop()\n"
        "asyncio.run(main())\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules} & {'grpc', 'google'}))\n"
    )
    flags = {
        "data_dir": str(tmp_path),
        **{option.removeprefix("--set=").partition("=")[0]: "0" for option in ANY_PORTS},
    }
    done = subprocess.run(
        [sys.executable, "-c", program.replace("FLAGS", repr(flags))], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["[]"]
