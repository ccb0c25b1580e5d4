"""M3Msg in: aggregated metrics from one producer, each acked once it is stored; beside NATS JetStream's publish."""

from __future__ import annotations

import contextlib
import resource
import socket
import subprocess
import time
from collections.abc import Iterator

import msgspec

from bench import supply
from bench.generator import LoadFailed, Run
from bench.measure import Sample, interleaved
from bench.peers import Durability, Nats, PenstockM3Msg, PenstockRelay, Server, fleet
from bench.plan import Plan
from bench.ports import free_port
from bench.report import Result, at_least, rate, ratio, result
from bench.supply import Missing

#: A metric with an id of 45 bytes.
SIZE = 100
#: ... and one of 9, for what goes through: values of as many bytes as the target says.
THROUGH_SIZE = 64
#: NATS refuses publishes beyond a limit of its own.
WINDOW = 1000


def run(plan: Plan) -> Iterator[Result]:
    """Publish without waiting; every ack is counted, and a run ends with the last of them."""

    def turn(server: Server) -> Sample:
        window = WINDOW if isinstance(server, Nats) else 0
        return server.sample("pub", topic=server.topic(), size=SIZE, window=window, seconds=plan.seconds)

    with fleet(Nats, PenstockM3Msg) as made:
        numbers = interleaved(plan.rounds, made.each(turn))
    goals = [at_least(2, ratio(rate(numbers, "penstock"), rate(numbers, "nats")))]
    yield result("m3msg-in", f"M3Msg in with acks, {SIZE}-byte metrics", numbers, goals, made.missing)


def run_through(plan: Plan) -> Iterator[Result]:
    """Send metrics in, relay them to a service, and count what that acks; M3's own producer sends to its own consumer.

    The peer's CPU is that of both its processes, ours that of the node. Both clocks run from the first message that is
    produced to the last ack.
    M3 keeps nothing but in memory, so a topic that does the same is the second row.
    """
    yield from _through(plan, "m3msg-through", "os", "stored", 2)
    yield from _through(plan, "m3msg-through-memory", "memory", "kept in memory", 2.5)


def _through(plan: Plan, name: str, durability: Durability, kept: str, target: float) -> Iterator[Result]:
    count = plan.deliver_ours // 2

    def turn(server: Server) -> Sample:
        assert isinstance(server, PenstockRelay)
        return server.measured(lambda: server.through(count, THROUGH_SIZE))

    with fleet(PenstockRelay, durability=durability) as made:
        turns = made.each(turn)
        try:
            program = supply.m3msg()
            turns["m3"] = lambda: m3_sample(str(program), count, THROUGH_SIZE)
        except Missing as reason:
            made.missing["m3"] = str(reason)
        numbers = interleaved(plan.rounds, turns)
    goals = [at_least(target, ratio(rate(numbers, "penstock"), rate(numbers, "m3")))]
    work = f"M3Msg in, {kept}, out to a service and acked, {THROUGH_SIZE}-byte values, first produce to last ack"
    work += "; peer: M3's producer to its consumer"
    yield result(name, work, numbers, goals, made.missing)


def m3_sample(program: str, count: int, size: int) -> Sample:
    """Let M3's producer send to its consumer, both in processes of their own."""
    address = f"127.0.0.1:{free_port()}"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    consumer = subprocess.Popen([program, "consume", address, str(count)], stdout=subprocess.PIPE)
    wait_for_port(address)
    sent = subprocess.run(
        [program, "produce", address, str(PenstockRelay.shards), str(count), str(size)], capture_output=True, check=True
    )
    consumer.communicate()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    run = msgspec.json.decode(sent.stdout.splitlines()[-1], type=Run)
    return Sample(run.rate, spent * 1e6 / count)


def wait_for_port(address: str) -> None:
    """Wait until somebody listens."""
    host, _, port = address.partition(":")
    end = time.monotonic() + 30
    while time.monotonic() < end:
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 1):
            return
        time.sleep(0.02)
    raise LoadFailed(f"nobody listens at {address}")
