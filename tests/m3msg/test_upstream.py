"""M3's own producer and consumer, built from its module, against this node."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from bench import supply
from bench.ports import free_port
from tests.cli.program import SECONDS_MAX, Node
from tests.etcd.servers import wait_for

COUNT = 20_000


@pytest.fixture(scope="module")
def m3msg() -> Path:
    return supply.m3msg()


def test_its_producer_sends_to_this_node_and_hears_of_every_message(tmp_path: Path, m3msg: Path) -> None:
    with Node(tmp_path, "--set=m3msg.topic=metrics") as node:
        address = f"127.0.0.1:{node.port('m3msg.port')}"
        sent = subprocess.run(
            [m3msg, "produce", address, "16", str(COUNT), "64"], capture_output=True, timeout=SECONDS_MAX, check=True
        )
        assert json.loads(sent.stdout.splitlines()[-1])["messages"] == COUNT
        said = node.ok("tail", "metrics", "-n", str(COUNT), "--no-follow", "--format", "{body}")
        stored = {line[:8].decode() for line in said.raw.splitlines()}
        assert stored == {f"{number:08d}" for number in range(COUNT)}


def test_its_consumer_hears_from_this_node_and_acks_every_message(tmp_path: Path, m3msg: Path) -> None:
    port = free_port()
    (tmp_path / "m3.toml").write_text(
        '[topics.metrics]\nshards = 16\n[[topics.metrics.services]]\nname = "service"\n'
        f'[placements.service.instances.a]\nendpoint = "127.0.0.1:{port}"\n'
    )
    (tmp_path / "c.toml").write_text('[m3msg_relay]\ntopics = ["metrics"]\ntopology = "m3.toml"\n')
    consumer = subprocess.Popen([m3msg, "consume", f"127.0.0.1:{port}", "1000"], stdout=subprocess.PIPE)
    try:
        with Node(tmp_path, "--config", tmp_path / "c.toml") as node:
            lines = "".join(f"metric {number}\n" for number in range(1000))
            node.ok("pub", "metrics", stdin=lines.encode())
            out, _ = consumer.communicate(timeout=SECONDS_MAX)
            assert json.loads(out.splitlines()[-1])["messages"] == 1000
            wait_for(lambda: _waiting(node) == 0, "the last acks")
    finally:
        consumer.kill()
        consumer.communicate()


def _waiting(node: Node) -> int:
    found = node.ok("subscription", "show", "metrics", "m3msg.service", "--json").json
    return int(found["depth"]) + int(found["in_flight"])
