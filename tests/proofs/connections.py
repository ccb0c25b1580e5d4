"""Proof that many, slow and rude NSQ connections cost a node little and its other clients nothing.

One node, and a neighbour that publishes and consumes all the while:

- idle: connections that identified and subscribed, and answer heartbeats; memory and CPU for each, and what a heartbeat
  costs. The neighbour goes on.
- slow: a consumer with RDY 2500 that never reads; the node's memory stays bounded and the consumer is cut off.
- mute: clients that connect, send one byte and wait; they are cut off after a minute (`--mute-s 0` skips that wait).
- rude: connects and resets, as many a second as asked for; afterwards no file and no memory is left of them.

    python -m tests.proofs.connections [--idle 10000] [--resets 1000] [--seconds 5] [--mute-s 75]
"""

from __future__ import annotations

import argparse
import json
import resource
import selectors
import socket
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from tests.proofs.checks import Checks
from tests.proofs.client import Client, Refused, fin, mpub, pub
from tests.proofs.costs import cpu_ns, open_files, pss_bytes
from tests.proofs.process import Died, Process

IDLE, RESETS, SECONDS, MUTE_S = 10_000, 1_000, 5.0, 75.0
#: Short, so that a proof sees many; nsqd's default, and ours, is 30 s. A crowd in Python needs longer to answer.
BEAT_S = 2.0
CROWD_BEAT_S = 5.0
MUTES = 100
#: Against 128 MiB by default: what is kept of the log shall not hide what is kept for a connection.
CACHE = "8MiB"

#: Bounds on what is printed, far above what was measured: they catch a leak or a buffer per connection.
IDLE_BYTES_MAX = 40_000
SLOW_BYTES_MAX = 64_000_000
LEFT_BYTES_MAX = 20_000_000
LEFT_FILES_MAX = 5
WAIT_S_MAX = 5.0

#: The kernel's number for the state of a connection that both sides keep.
ESTABLISHED = 1

_HEARTBEAT = struct.pack(">II", 15, 0) + b"_heartbeat_"
_RESET = struct.pack("ii", 1, 0)


class Neighbour(threading.Thread):
    """Publishes one message at a time, consumes and finishes it, and notes how long that took."""

    def __init__(self, port: int) -> None:
        super().__init__(name="neighbour")
        self._port = port
        self._end = threading.Event()
        self._seen: list[float] = []
        #: Set while the node's own CPU is measured.
        self.rests = threading.Event()
        self.failure: BaseException | None = None

    def run(self) -> None:
        """Go round and round until told to end."""
        try:
            publisher, consumer = Client(self._port), Client(self._port)
            consumer.subscribe("neighbour", "ch", 1)
            while not self._end.wait(0.005):
                if self.rests.is_set():
                    continue
                began = time.monotonic()
                publisher.command(pub("neighbour", b"x" * 100))
                consumer.send(fin(consumer.message().id))
                self._seen.append(time.monotonic() - began)
            publisher.close()
            consumer.close()
        except (OSError, Refused) as failure:
            self.failure = failure

    def report(self, checks: Checks, when: str) -> None:
        """Check that it was served since the last report."""
        seen, self._seen = sorted(self._seen), []
        held = self.failure is None and len(seen) > 0 and seen[-1] < WAIT_S_MAX
        words = (
            f"{median(seen) * 1e3:.1f} ms, at most {seen[-1] * 1e3:.0f} ms" if seen else f"nothing: {self.failure!r}"
        )
        checks.check(held, f"  neighbour {when}: {len(seen)} messages, from PUB to delivery {words}")

    def finish(self) -> None:
        """End it."""
        self._end.set()
        self.join(WAIT_S_MAX)


class Crowd:
    """Idle connections in one thread, which answer heartbeats."""

    def __init__(self, port: int, count: int) -> None:
        self._selector = selectors.DefaultSelector()
        self.beats = 0
        self.lost = 0
        wishes = json.dumps({"heartbeat_interval": int(CROWD_BEAT_S * 1000), "client_id": "idle"}).encode()
        hello = b"  V2IDENTIFY\n" + struct.pack(">I", len(wishes)) + wishes + b"SUB crowd ch\nRDY 1\n"
        for number in range(count):
            line = socket.create_connection(("127.0.0.1", port), 30)
            line.sendall(hello)
            self._selector.register(line, selectors.EVENT_READ)
            if number % 100 == 99:
                self.answer(0.0)

    def answer(self, seconds: float) -> None:
        """Answer heartbeats for a while."""
        end = time.monotonic() + seconds
        while True:
            for key, _ in self._selector.select(max(0.0, min(0.1, end - time.monotonic()))):
                line = key.fileobj
                assert isinstance(line, socket.socket)
                try:
                    data = line.recv(4096)
                except OSError:
                    data = b""
                beats = data.count(_HEARTBEAT)
                self.beats += beats
                if not data:
                    self.lost += 1
                    self._selector.unregister(line)
                elif beats:
                    line.sendall(b"NOP\n" * beats)
            if time.monotonic() >= end:
                return

    def close(self) -> None:
        """Hang up everywhere."""
        for key in list(self._selector.get_map().values()):
            self._selector.unregister(key.fileobj)
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()
        self._selector.close()


def idle(node: Process, count: int, seconds: float, neighbour: Neighbour, checks: Checks) -> None:
    """Open many connections and let them do nothing."""
    port, pid = node.ports["nsq.tcp_port"], node.pid
    before = pss_bytes(pid)
    time.sleep(seconds)
    neighbour.report(checks, "alone")
    neighbour.rests.set()
    rested_ns = _cpu_over(pid, seconds)
    neighbour.rests.clear()
    crowd = Crowd(port, count)
    crowd.answer(CROWD_BEAT_S)
    each = (pss_bytes(pid) - before) / count
    neighbour.rests.set()
    crowd.beats = 0
    began = time.monotonic()
    start_ns = cpu_ns(pid)
    crowd.answer(max(seconds, 2 * CROWD_BEAT_S))
    took = time.monotonic() - began
    used_ns = cpu_ns(pid) - start_ns - rested_ns * took / seconds
    beats = crowd.beats
    neighbour.rests.clear()
    crowd.answer(seconds)
    checks.check(
        crowd.lost == 0 and beats >= count,
        f"{count:,} idle connections: {crowd.lost} lost, {beats:,} heartbeats answered",
    )
    cost_us = used_ns / 1e3 / max(beats, 1)
    checks.check(
        each <= IDLE_BYTES_MAX,
        f"  {each / 1e3:.1f} kB of memory each, {cost_us:.0f} us of CPU for a heartbeat and its answer: "
        f"{100 * cost_us * count / 30e6:.1f} % of a core at one every 30 s",
    )
    neighbour.report(checks, "beside them")
    crowd.close()


def slow(node: Process, neighbour: Neighbour, checks: Checks) -> None:
    """Subscribe, show life, and never read."""
    port = node.ports["nsq.tcp_port"]
    control = _growth(node, "nobody")
    consumer = Client(port)
    consumer.identify(heartbeat_interval=int(BEAT_S * 1000))
    consumer.subscribe("slow", "ch", 2500)
    began = time.monotonic()
    grown = _growth(node, "slow", consumer)
    end = time.monotonic() + 10 * BEAT_S
    while _lives(consumer) and time.monotonic() < end:
        time.sleep(0.05)
    cut = not _lives(consumer)
    checks.check(
        cut and grown - control <= SLOW_BYTES_MAX,
        f"a consumer that never reads {'was cut off' if cut else 'stayed'} {time.monotonic() - began:.1f} s after its "
        f"first message, heartbeats every {BEAT_S:.0f} s; at most the node grew by {grown / 1e6:.0f} MB while 250 MB "
        f"were published to it ({control / 1e6:.0f} MB without a consumer)",
    )
    neighbour.report(checks, "meanwhile")
    consumer.close()
    node.call("DELETE", "/topics/slow")
    node.call("DELETE", "/topics/nobody")


def _growth(node: Process, topic: str, consumer: Client | None = None) -> int:
    """Publish 250 MB while a consumer shows life, and return how much a node grew at most meanwhile."""
    before = most = pss_bytes(node.pid)
    publisher = Client(node.ports["nsq.tcp_port"])
    for _ in range(50):
        publisher.command(mpub(topic, [b"x" * 100_000] * 50))
        most = max(most, pss_bytes(node.pid))
        if consumer is not None:
            _lives(consumer)
    publisher.close()
    return most - before


def _lives(client: Client) -> bool:
    """Show life, and tell whether the node still has the connection: the kernel knows that without a read."""
    if client.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != ESTABLISHED:
        return False
    try:
        client.send(b"NOP\n")
    except OSError:
        return False
    return True


def mute(node: Process, patience_s: float, neighbour: Neighbour, checks: Checks) -> None:
    """Connect, send one byte, wait."""
    port = node.ports["nsq.tcp_port"]
    before = open_files(node.pid)
    lines = [socket.create_connection(("127.0.0.1", port), 5) for _ in range(MUTES)]
    for line in lines:
        line.sendall(b" ")
    taken = _files_until(node.pid, lambda files: files >= before + MUTES, WAIT_S_MAX) - before
    if patience_s:
        left = _files_until(node.pid, lambda files: files <= before, patience_s) - before
        checks.check(
            taken >= MUTES and left <= 0,
            f"{taken} clients that send one byte and wait: {left} left after {patience_s:.0f} s at most",
        )
        neighbour.report(checks, "meanwhile")
    for line in lines:
        line.close()


def _files_until(pid: int, enough: Callable[[int], bool], patience_s: float) -> int:
    """Wait until a process has a number of files open, for so long at most; return how many it has."""
    end = time.monotonic() + patience_s
    while not enough(files := open_files(pid)) and time.monotonic() < end:
        time.sleep(0.1)
    return files


def rude(node: Process, a_second: int, seconds: float, neighbour: Neighbour, checks: Checks) -> None:
    """Connect and reset, over and over."""
    port, pid = node.ports["nsq.tcp_port"], node.pid
    _resets(port, 200, 200)
    settle_files(pid)
    files, memory = open_files(pid), pss_bytes(pid)
    began = time.monotonic()
    _resets(port, int(a_second * seconds), a_second)
    rate = a_second * seconds / (time.monotonic() - began)
    settle_files(pid)
    left_files, left = open_files(pid) - files, pss_bytes(pid) - memory
    checks.check(
        left_files <= LEFT_FILES_MAX and left <= LEFT_BYTES_MAX,
        f"{rate:.0f} connects and resets a second for {seconds:.0f} s: {max(left_files, 0)} files and "
        f"{left / 1e6:.1f} MB left of {a_second * seconds:.0f}",
    )
    neighbour.report(checks, "meanwhile")


def _resets(port: int, count: int, a_second: int) -> None:
    """Open connections, in every state that is quick to reach, and reset each."""
    beginnings = (b"", b" ", b"  V2", b"  V2PUB neigh", b"  V2SUB rude ch\nRDY 10\n")
    start = time.monotonic()
    for number in range(count):
        early_s = start + number / a_second - time.monotonic()
        if early_s > 0:
            time.sleep(early_s)
        line = socket.create_connection(("127.0.0.1", port), 5)
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        if beginning := beginnings[number % len(beginnings)]:
            line.send(beginning)
        line.close()


def settle_files(pid: int) -> None:
    """Wait until a node has closed what its clients have left."""
    few = open_files(pid)
    for _ in range(20):
        time.sleep(0.1)
        now = open_files(pid)
        if now >= few:
            return
        few = now


def _cpu_over(pid: int, seconds: float) -> int:
    start_ns = cpu_ns(pid)
    time.sleep(seconds)
    return cpu_ns(pid) - start_ns


def main() -> int:
    """Run the proof and print one line per check."""
    parser = argparse.ArgumentParser(description="Many, slow and rude connections cost little.")
    parser.add_argument("--idle", type=int, default=IDLE, help="idle connections")
    parser.add_argument("--resets", type=int, default=RESETS, help="connects and resets a second")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="how long each part lasts")
    parser.add_argument("--mute-s", type=float, default=MUTE_S, help="how long mute clients may take to go, 0 to skip")
    asked = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    checks = Checks()
    with tempfile.TemporaryDirectory(prefix="penstock-connections-") as path:
        # They all come from one address, which may not have so many by default.
        room = f"limits.connections_per_address={2 * asked.idle}", f"limits.connections={2 * asked.idle}"
        node = Process(Path(path, "data"), f"memory.cache_bytes={CACHE}", *room)
        neighbour = None
        try:
            node.start()
            neighbour = Neighbour(node.ports["nsq.tcp_port"])
            neighbour.start()
            idle(node, asked.idle, asked.seconds, neighbour, checks)
            slow(node, neighbour, checks)
            rude(node, asked.resets, asked.seconds, neighbour, checks)
            mute(node, asked.mute_s, neighbour, checks)
            neighbour.finish()
            code = node.stop()
            checks.check(code == 0, f"the node stopped with {code}")
        except (Died, Refused, OSError) as failure:
            checks.check(False, f"{type(failure).__name__}: {failure}; the node said: {node.last_words()[-500:]}")
        finally:
            if neighbour is not None:
                neighbour.finish()
            node.abandon()
    return checks.code()


if __name__ == "__main__":
    sys.exit(main())
