"""Proof that a timeline on three nodes goes on when a rack of its consumers is lost, and when its node is.

Three nodes on an etcd of three members and a Kafka; one timeline that is dealt with regard to racks; twenty consumers,
ten in each of two racks, a rack being a process; and a producer. Under load one rack is killed with -9 and comes back,
then the node that has the topic; the next node that has it stands still for longer than its lease. In the end
everything that was stored was delivered, nothing before it was due, nothing to two consumers at a time, nothing again
whose delete was answered, and every bucket was served by the rack that was left. Prints for how long nobody got
anything.

    python -m tests.proofs.racks
    python -m tests.proofs.racks --short
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from bench import supply
from penstock.client import Timeline
from penstock.client.timeline import Scheduled
from tests.cluster.trio import LEASE_S, PATIENCE_S, Trio, wait_for
from tests.etcd.servers import Cluster as Etcds
from tests.kafka.brokers import Brokers
from tests.proofs.checks import Checks

TOPIC = "racks"
RACKS = ("A", "B")
CONSUMERS = 10
BUCKETS = 64
#: Of a message. Longer than a topic is away with its node, so that nobody who lives loses what it has.
MESSAGE_LEASE_S = 30
#: Messages are created in bursts, and are due one after the other until the next.
BURST, BURST_S = 60, 0.2
#: Everything has come by then, whatever was on lease to the dead.
DRAIN_S_MAX = 300.0


class Taken(NamedTuple):
    """One lease, as its consumer saw it."""

    id: str
    consumer: str
    bucket: int
    due_ms: int
    expires_ms: int
    taken_ms: float


# --- a rack ---------------------------------------------------------------------------------------------------------


def be_a_rack(rack: str, url: str) -> None:
    """Be ten consumers: say what comes, delete it, and say when that was answered; until killed."""
    threads = [threading.Thread(target=_consume, args=(rack, f"{rack}{number}", url)) for number in range(CONSUMERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _consume(rack: str, name: str, url: str) -> None:
    with (
        Timeline(TOPIC, url, patience=PATIENCE_S) as timeline,
        timeline.consumer(name, rack=rack, lease=MESSAGE_LEASE_S, buffer=10) as consumer,
    ):
        for message in consumer:
            ident, times = message.id.decode(), f"{message.due_ms} {message.expires_ms} {time.time() * 1000}"
            print(f"took {ident} {name} {message.bucket} {times}\n", end="", flush=True)
            refused = consumer.refused
            message.delete()
            consumer.flush()
            if consumer.refused == refused:
                print(f"deleted {ident} {name} {time.time() * 1000}\n", end="", flush=True)


# --- the proof ------------------------------------------------------------------------------------------------------


class Proof:
    """The clients of one timeline, and what they saw."""

    def __init__(self, trio: Trio) -> None:
        self.trio = trio
        self.stored: dict[str, int] = {}
        self.taken: list[Taken] = []
        #: When the delete of each was answered, by its id and consumer.
        self.deleted: dict[tuple[str, str], float] = {}
        self.surprises: list[str] = []
        self._racks: dict[str, subprocess.Popen[str]] = {}
        self._threads: list[threading.Thread] = []
        self._over = threading.Event()
        self.timeline = Timeline(TOPIC, trio.url, patience=PATIENCE_S)

    def begin(self) -> None:
        """Make the topic, and let everybody work."""
        self.timeline.create(dealer="rack", bucket_count=BUCKETS, time_window_ms=500)
        for rack in RACKS:
            self.start_rack(rack)
        self._start(self._produce)
        self.flows(time.time() * 1000)

    def start_rack(self, rack: str) -> None:
        """Start ten consumers, and wait until the node knows them."""
        there = sum(each.poll() is None for each in self._racks.values()) * CONSUMERS
        command = [sys.executable, "-m", "tests.proofs.racks", "--rack", rack, self.trio.url]
        self._racks[rack] = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._start(self._listen, self._racks[rack])
        wait_for(lambda: self.timeline.info().get("consumers", 0) == there + CONSUMERS, f"rack {rack}")

    def kill_rack(self, rack: str) -> None:
        """kill -9 all of its consumers at once."""
        self._racks[rack].kill()
        self._racks[rack].wait()

    def _start(self, work: Callable[..., None], *about: object) -> None:
        def run() -> None:
            try:
                work(*about)
            except Exception as error:
                self.surprises.append(repr(error))

        self._threads.append(threading.Thread(target=run, daemon=True))
        self._threads[-1].start()

    def _listen(self, rack: subprocess.Popen[str]) -> None:
        assert rack.stdout is not None
        with rack.stdout:
            for line in rack.stdout:
                match line.split():
                    case ["took", ident, consumer, bucket, due_ms, expires_ms, at_ms]:
                        self.taken.append(
                            Taken(ident, consumer, int(bucket), int(due_ms), int(expires_ms), float(at_ms))
                        )
                    case ["deleted", ident, consumer, at_ms]:
                        self.deleted[ident, consumer] = float(at_ms)

    def _produce(self) -> None:
        with self.timeline.producer("shop") as producer:
            while not self._over.wait(BURST_S):
                first_ms = int(time.time() * 1000) + 500
                due = [first_ms + number * round(BURST_S * 1000) // BURST for number in range(BURST)]
                ids = producer.create([Scheduled(b"an order", due=each * 1_000_000) for each in due])
                self.stored.update(zip([each.decode() for each in ids], due, strict=True))

    def flows(self, since_ms: float) -> None:
        """Wait until messages of every bucket came that were due after a moment."""

        def is_served() -> bool:
            return len({each.bucket for each in list(self.taken) if each.due_ms >= since_ms}) == BUCKETS

        wait_for(is_served, f"all of {BUCKETS} buckets to be served", DRAIN_S_MAX)

    def drain(self) -> None:
        """Create nothing more, and wait until all is done."""
        self._over.set()
        wait_for(lambda: self.timeline.count() == 0, "everything to be delivered and deleted", DRAIN_S_MAX)
        wait_for(lambda: self.stored.keys() <= {each.id for each in self.taken}, "consumers to say so", 10)

    def close(self) -> None:
        """Leave nobody running."""
        self._over.set()
        for rack in self._racks.values():
            rack.kill()
            rack.wait()
        for thread in self._threads:
            thread.join(PATIENCE_S)
        self.timeline.close()

    # --- what is left ---------------------------------------------------------------------------------------------

    def silence_ms(self, since_ms: float, until_ms: float) -> float:
        """Return for how long at most nobody got anything between two moments."""
        times = sorted(each.taken_ms for each in self.taken if since_ms <= each.taken_ms <= until_ms)
        return max(later - earlier for earlier, later in zip([since_ms, *times], [*times, until_ms], strict=True))

    def judge(self, checks: Checks) -> None:
        """Look at what consumers saw."""
        came = {each.id for each in self.taken}
        lost = sorted(self.stored.keys() - came)
        print(
            f"     {len(self.stored)} messages were stored, {len(self.taken)} leases taken, {len(came)} messages came"
        )
        checks.check(not lost, "every message that was stored came to a consumer", f"{len(lost)} did not", *lost)
        early = [
            f"{each.id}: {each.due_ms - each.taken_ms:.1f} ms" for each in self.taken if each.taken_ms < each.due_ms
        ]
        checks.check(not early, "none came before it was due", f"{len(early)} did", *early)
        two, back = self._leases()
        checks.check(not two, "none was on lease to two consumers at a time", f"{len(two)} were", *two)
        checks.check(not back, "none came again once its delete was answered", f"{len(back)} did", *back)
        checks.check(not self.surprises, "no client was left behind", *self.surprises)

    def _leases(self) -> tuple[list[str], list[str]]:
        """Return messages with two active leases, and those that came after their delete was answered."""
        two, back = [], []
        by_id: dict[str, list[Taken]] = defaultdict(list)
        for each in sorted(self.taken, key=lambda each: each.taken_ms):
            by_id[each.id].append(each)
        for leases in by_id.values():
            for first, second in pairwise(leases):
                if self.deleted.get((first.id, first.consumer), second.taken_ms) < second.taken_ms:
                    back.append(f"{first} and {second}")
                elif first.consumer != second.consumer and second.taken_ms < first.expires_ms:
                    two.append(f"{first} and {second}")
        return two, back


def run(folder: Path, rounds: int, checks: Checks) -> None:
    """Kill a rack and a node so many times."""
    with ExitStack() as running:
        etcd = Etcds(folder / "etcd", 3)
        running.callback(etcd.close)
        (folder / "kafka").mkdir()
        kafka = Brokers(supply.kafka(), folder / "kafka", 1)
        running.callback(kafka.close)
        trio = Trio(folder / "nodes", TOPIC, etcd, kafka)
        running.callback(trio.close)
        proof = Proof(trio)
        running.callback(proof.close)
        trio.start()
        proof.begin()
        for number in range(rounds):
            lost, left = RACKS[::-1] if number % 2 == 0 else RACKS
            killed_ms = time.time() * 1000
            proof.kill_rack(lost)
            proof.flows(killed_ms)
            served_ms = time.time() * 1000
            by = {each.consumer[0] for each in proof.taken if each.taken_ms >= killed_ms + 1000}
            checks.check(by <= {left}, f"rack {lost} was killed, and rack {left} served all {BUCKETS} buckets")
            print(f"     nobody got anything for {proof.silence_ms(killed_ms, served_ms):.0f} ms at most")
            proof.start_rack(lost)
            for how in ("killed", "stopped with SIGSTOP"):
                owner = trio.owner(TOPIC)
                since_ms = time.time() * 1000
                if how == "killed":
                    owner.kill()
                else:
                    owner.pause()
                proof.flows(since_ms)
                silent_ms = proof.silence_ms(since_ms, time.time() * 1000)
                others = [member for member in trio.members if member is not owner]
                moved = any(TOPIC in member.own() for member in others)
                checks.check(moved, f"node {owner.name} was {how}, and another had the topic")
                print(
                    f"     nobody got anything for {silent_ms:.0f} ms at most, of which the lease is {LEASE_S * 1000}"
                )
                trio.heal()
                trio.wait()
        proof.drain()
        proof.judge(checks)


def main() -> int:
    """Run the proof, or be one rack of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="how often a rack and a node are killed")
    parser.add_argument("--short", action="store_true", help="once")
    parser.add_argument("--rack", nargs=2, metavar=("RACK", "URL"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.rack:
        be_a_rack(*asked.rack)
        return 0
    checks = Checks()
    folder = Path(tempfile.mkdtemp(prefix="racks-"))
    try:
        run(folder, 1 if asked.short else asked.rounds, checks)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return checks.code()


if __name__ == "__main__":
    sys.exit(main())
