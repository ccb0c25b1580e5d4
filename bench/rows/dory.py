"""Dory in: datagrams beside a bare loop, a stream, what a sender waits beside a busy node, and senders that are quiet.

The sender is `examples/c/penstock_dory.h`. Nobody answers it, so a turn ends when the node says that it has stored all.
"""

from __future__ import annotations

import contextlib
import re
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from urllib.request import urlopen

import msgspec

from bench import generator, measure, supply
from bench.generator import LoadFailed, Run
from bench.measure import Sample, interleaved
from bench.peers import PenstockDory, Server, fleet
from bench.plan import Plan
from bench.report import Result, at_least, at_most, rate, rate_words, ratio, result, table_row
from penstock.dory import encode

SIZE = 100
LOOP = "recv loop"
#: Datagrams a second of the sender that is looked at.
PACE = 5_000
PATIENCE_S = 60.0
_connected = re.compile(r"^penstock_dory_connections ([0-9.e+]+)$", re.MULTILINE).search


def run(plan: Plan) -> Iterator[Result]:
    """Send datagrams as fast as they are taken, one call each."""
    count = plan.deliver_peer
    with fleet(PenstockDory) as made:
        turns = made.each(lambda server: _stored(server, "datagrams", count))
        turns[LOOP] = lambda: thrown_away(count)
        numbers = interleaved(plan.rounds, turns)
    goals = [at_least(0.6, ratio(rate(numbers, "penstock"), rate(numbers, LOOP)))]
    work = f"Dory's UNIX datagrams in, stored, {SIZE}-byte messages; peer: a bare recv loop in Python"
    yield result("dory", work, numbers, goals, made.missing)


def run_stream(plan: Plan) -> Iterator[Result]:
    """Send messages over one connection, many to a write."""
    with fleet(PenstockDory) as made:
        turns = made.each(lambda server: _stored(server, "stream", plan.deliver_ours))
        numbers = interleaved(plan.rounds, turns)
    found = rate(numbers, "penstock")
    goals = [at_least(1.5, found / 1e6 if found else None, " M/s")]
    work = f"Dory's UNIX stream in, stored, {SIZE}-byte messages, one connection"
    yield result("dory-stream", work, numbers, goals, made.missing)


def run_beside(plan: Plan) -> Iterator[Result]:
    """Send 5,000 datagrams a second while a connection of NSQ's pipelines PUB; both must be stored, every one."""
    runs: list[Run] = []
    with fleet(PenstockDory) as made:
        for server in made.servers.values():
            assert isinstance(server, PenstockDory)
            _beside(server, 1)  # first uses and first pages are no part of a steady rate
            for _ in range(plan.rounds):
                measure.quiet()
                runs.append(_beside(server, plan.seconds + 1))
    p999_ms = median(each.p999_us for each in runs) / 1000 if runs else None
    cpu_us = median(each.cpu_us for each in runs) if runs else None
    said = {}
    if runs:
        p50_ms, p99_ms = (median(each) / 1000 for each in zip(*((run.p50_us, run.p99_us) for run in runs), strict=True))
        said["penstock"] = (
            f"a datagram takes p50 / p99 / p99.9 {p50_ms:.3g} / {p99_ms:.3g} / {p999_ms:.3g} ms beside "
            f"{rate_words(median(each.rate for each in runs))} of PUB, {cpu_us:.3g} µs of the sender's CPU"
        )
    goals = [at_most(1, p999_ms, " ms", "p99.9 "), at_most(3, cpu_us, " µs", "CPU of the sender ")]
    work = f"Dory's UNIX datagrams from a sender in C, {PACE:,} a second, while a connection pipelines PUB"
    yield table_row("dory-beside", work, said, goals, made.missing)


def run_idle(plan: Plan) -> Iterator[Result]:
    """Connect senders by UNIX stream and see what is resident; then let each send a message, and see again."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    count, each_kb, sent_kb, said = plan.senders, None, None, {}
    with fleet(PenstockDory) as made, contextlib.ExitStack() as stack:
        for server in made.servers.values():
            assert isinstance(server, PenstockDory)
            before = _resident(server)
            lines = [stack.enter_context(_connection(server)) for _ in range(count)]
            _await_connections(server, count)
            each_kb = (_resident(server) - before) / count / 1000
            topic = server.topic()
            for line in lines:
                line.sendall(encode(topic, b"x" * SIZE))
            server.await_stored(topic, count)
            sent_kb = (_resident(server) - before) / count / 1000
            said[server.name] = f"{each_kb:.3g} kB each, {sent_kb:.3g} kB after a message of each"
    work = f"{count:,} senders of Dory's that are connected by UNIX stream and quiet"
    yield table_row("dory-idle", work, said, [at_most(8, each_kb, " kB", "each ")], made.missing)


def thrown_away(count: int) -> Sample:
    """Send datagrams to a loop that throws them away, from the same sender."""
    with tempfile.TemporaryDirectory() as place:
        path = f"{place}/socket"
        words = [sys.executable, "-m", "bench.recv_loop", path, str(count)]
        loop = subprocess.Popen(words, stdout=subprocess.PIPE, cwd=supply.ROOT)
        try:
            end = time.monotonic() + PATIENCE_S
            while not Path(path).exists() and loop.poll() is None and time.monotonic() < end:
                time.sleep(0.01)
            sent = generator.load("datagrams", dialect="dory", path=path, topic="bench1", count=count, size=SIZE)
            told = msgspec.json.decode(loop.communicate(timeout=PATIENCE_S)[0])
        finally:
            loop.kill()
            loop.communicate()
    return Sample(count / (told["ended_at"] - sent.first_at), told["cpu"] * 1e6 / count)


def _stored(server: Server, mode: str, count: int) -> Sample:
    assert isinstance(server, PenstockDory)
    return server.measured(lambda: server.stored(mode, count, SIZE))


def _beside(server: PenstockDory, seconds: float) -> Run:
    topic, path = server.topic(), str(server.paths["datagrams"])
    seen = server.load("fire", topic=topic, path=path, rate=PACE, size=SIZE, seconds=seconds)
    server.await_stored(topic, seen.messages + seen.fired)
    return seen


def _resident(server: Server) -> int:
    measure.settle(server.pid)
    return measure.rss_bytes(server.pid)


def _connection(server: PenstockDory) -> socket.socket:
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    line.connect(str(server.paths["stream"]))
    return line


def _await_connections(server: PenstockDory, count: int) -> None:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        with urlopen(f"http://127.0.0.1:{7070 + server.offset}/metrics", timeout=PATIENCE_S) as answer:
            found = _connected(answer.read().decode())
        if found and int(float(found[1])) == count:
            return
        time.sleep(0.1)
    raise LoadFailed(f"{found[1] if found else 'none'} of {count} senders are connected; is `ulimit -n` large enough?")
