"""Upstream's nsq_stat reads the figures of our node, directly and through our lookup service."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.foreign.nodes import fill, running, stats
from tests.nsq.lookup.programs import PATIENCE_S, until, upstream
from tests.proofs.client import Client, fin, req


def figures(command: list[str], cwd: Path) -> dict[str, int]:
    """Run nsq_stat to its end and return its line of figures, each under its heading."""
    done = subprocess.run(command, cwd=cwd, timeout=PATIENCE_S, capture_output=True, text=True, check=True)
    _, headings, numbers = done.stdout.splitlines()
    names = headings.replace("|", " ").split()
    return dict(zip(names, map(int, numbers.replace("|", " ").split()), strict=True))


def test_nsq_stat_prints_what_the_channel_holds(tmp_path: Path) -> None:
    nsq_stat = upstream("nsq_stat")
    with running(tmp_path) as nodes:
        fill(nodes.first, "t", [b"message %d" % number for number in range(10)])
        consumer = Client(nodes.first.port("TCP"))
        consumer.subscribe("t", "ch", 4)
        received = [consumer.message() for _ in range(4)]
        consumer.send(b"RDY 0\n" + fin(received[0].id) + req(received[1].id, 60_000))
        until(lambda: stats(nodes.first, "t")["channels"][0]["deferred_count"] == 1)
        flags = ["--topic=t", "--channel=ch", "--count=1", "--interval=100ms"]
        for place in (f"--nsqd-http-address={nodes.first.http}", f"--lookupd-http-address={nodes.lookup.http}"):
            found = figures([*nsq_stat, *flags, place], tmp_path)
            # The node keeps every message in its log, which nsqd calls disk.
            depth = {"total": 6, "mem": 0, "disk": 6, "inflt": 2, "def": 1}
            assert found == {"ingress": 0, "egress": 0, **depth, "req": 1, "t-o": 0, "msgs": 10, "clients": 1}
        consumer.close()
