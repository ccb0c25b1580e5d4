"""Proof that `kill -9` at any moment loses nothing that was promised.

A node with small segments, `ack_flush = 0` and a restless retention is kept busy by NSQ clients and killed again and
again: at random moments, while it seals, while it compacts a journal, while retention drops segments, and while it
recovers from the kill before. `History` judges what all clients saw over all lives, and the log itself is read from
disk beside the running node.

    python -m tests.proofs.crash --kills 300
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random

from penstock.log.reader import Reader
from penstock.log.verify import verify
from tests.proofs.checks import Checks
from tests.proofs.client import Client
from tests.proofs.history import History, Place
from tests.proofs.load import Consumer, Life, Producer, Worker
from tests.proofs.process import PENSTOCK, Died, Process
from tests.proofs.watch import Watch

#: A restart takes a second or two on a busy machine; more than this is a node that does not come back.
RESTART_S_MAX = 20.0
DRAIN_S_MAX = 60.0
#: Nothing may come back in the last life; this long nobody can say that it was only slow.
QUIET_S = 0.5
#: An aim that finds nothing to shoot at does it anyway.
AIM_S_MAX = 1.5

#: Topics by what they are read by; those that are not read keep everything.
SUBSCRIPTIONS: dict[str, tuple[str, ...]] = {
    "read-os": ("a", "b"),
    "read-fsync": ("a",),
    "kept-os": (),
    "kept-fsync": (),
}
#: History of the topics that are read: next to none, and two segments.
RETENTION = {"read-os": "4KiB", "read-fsync": "128KiB"}
KEPT = ("kept-os", "kept-fsync")
SETTINGS = ("node.ack_flush=0", "node.retention_check=20ms", "topic.segment_bytes=64KiB", "log.level=warning")

#: A kill that has an aim waits until a file of this name appears.
NAMES = {
    "seal": re.compile(r".*\.(arrows|index)\.new|.*\.1\.(arrows|index)"),
    "compaction": re.compile(r".*\.[1-9]\d*\.journal"),
    "retention": re.compile(r"manifest(\.new)?"),
}
#: The aims of a round of kills.
ROUND = ("moment", "moment", "moment", "moment", "seal", "compaction", "compaction", "retention", "recovery")

#: A short run may miss what takes only a moment; so many kills more try for it.
EXTRA_MAX = 30


class Trial:
    """One data directory, its many lives, and what was seen."""

    def __init__(self, path: Path, random: Random) -> None:
        self.random = random
        self.history = History(SUBSCRIPTIONS)
        self.process = Process(path / "data", *SETTINGS)
        self.tally: Counter[str] = Counter()
        self.findings: list[str] = []
        self.verified = 0
        #: What the last life began with, although everything had been finished.
        self.left_at_last: list[str] = []
        self._shards: dict[str, Path] = {}
        self._starts: dict[Path, int] = {}
        self._read_to = dict.fromkeys(KEPT, 0)

    def begin(self) -> None:
        """Start the first node and make the topics."""
        self.process.start()
        for topic, names in SUBSCRIPTIONS.items():
            settings: dict[str, object] = {"durability": topic.partition("-")[2]}
            if names:
                settings["retention_bytes"] = RETENTION[topic]
            number = self.process.call("POST", "/topics", {"name": topic, "settings": settings})["number"]
            for name in names:
                self.process.call("POST", f"/topics/{topic}/subscriptions", {"name": name})
            self._shards[topic] = self.process.data / "topics" / str(number) / "0"
            self._starts[self._shards[topic]] = 0

    def live(self, aim: str) -> None:
        """Keep the node busy and kill it."""
        life = Life(self.process.ports["nsq.tcp_port"])
        workers = self._workers(life)
        with Watch(self._shards.values()) as watch:
            for worker in workers:
                worker.start()
            if self._hits(aim, watch):
                self.tally[aim] += 1
            self._end(life, workers)
        self._look()

    def die_while_recovering(self) -> None:
        """Start the node and kill it while it writes to a shard's directory, before it listens."""
        with Watch(self._shards.values()) as watch:
            self.process.spawn()
            hit = watch.wait(lambda _: self.random.random() < 0.4, AIM_S_MAX)
            self.tally["recovery"] += hit is not None and not self.process.listening
            self.process.kill()
        self.tally["kills"] += 1

    def read(self, *, whole: bool = False) -> None:
        """Read the topics that keep everything from disk, beside the node: all of it, or what is new."""
        for topic in KEPT:
            reader = Reader(str(self._shards[topic]))
            found = set()
            for batch in reader.batches(0 if whole else self._read_to[topic], columns=("offset", "body")):
                offsets, bodies = batch.column(0).to_pylist(), batch.column(1).to_pylist()
                for offset, body in zip(offsets, bodies, strict=True):
                    found.add(self.history.stored(topic, offset, body))
                self._read_to[topic] = offsets[-1] + 1
            self.findings += [f"{topic}: {damage}" for damage in reader.damaged]
            if whole:
                lost = self.history.acknowledged[topic] - found
                self.history.violations["lost"] += [f"{key} of {topic}" for key in sorted(lost)]
                self.tally["read back"] += len(self.history.acknowledged[topic] & found)

    def verify(self) -> None:
        """Check every file on disk."""
        self.verified += 1
        for shard in verify(str(self.process.data)).shards:
            bad = [f"{segment.name}: {bad}" for segment in shard.segments for bad in segment.bad]
            self.findings += [f"{shard.directory}: {what}" for what in (*shard.problems, *bad)]

    def verify_by_command(self) -> None:
        """Check every file on disk as an operator does, beside the running node."""
        command = [*PENSTOCK, "log", "verify", "--data", str(self.process.data)]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=RESTART_S_MAX, check=False)
        self.verified += 1
        if answer.returncode:
            self.findings += [f"penstock log verify: exit code {answer.returncode}", answer.stdout, answer.stderr]

    def drain(self) -> None:
        """Let thorough consumers finish everything in a life that nobody disturbs, and kill the node."""
        life = Life(self.process.ports["nsq.tcp_port"])
        consumers = [
            Consumer(life, self.history, Random(self.random.random()), place, KEPT, thorough=True)
            for place in self.history.owed
        ]
        for consumer in consumers:
            consumer.start()
        end = time.monotonic() + DRAIN_S_MAX
        while True:
            owing = self.history.owing()
            settled = all(consumer.settled for consumer in consumers)
            if (settled and not owing and not self.left()) or time.monotonic() > end:
                break
            time.sleep(0.02)
        self.history.violations["lost"] += owing
        self._end(life, consumers)

    def left(self) -> list[str]:
        """Return which subscriptions still have something to deliver or to finish, as the node itself tells."""
        found = []
        for topic, name in self.history.owed:
            info = self.process.call("GET", f"/topics/{topic}/subscriptions/{name}")
            rest = {what: info[what] for what in ("depth", "in_flight", "waiting") if info[what]}
            if rest:
                found.append(f"{topic}/{name}: {rest}")
        return found

    def listen(self) -> None:
        """Subscribe everywhere after the last kill; whatever comes was finished before."""
        for place in self.history.owed:
            client = Client(self.process.ports["nsq.tcp_port"])
            try:
                client.identify(heartbeat_interval=60_000)
                client.subscribe(*place, 1)
                client.socket.settimeout(QUIET_S)
                message = client.message()
                self.history.delivered(place, message.id, message.body, time.time_ns())
            except TimeoutError:
                continue
            finally:
                client.close()

    def missed(self) -> list[str]:
        """Return what no kill has interrupted yet."""
        return [aim for aim in (*NAMES, "recovery") if not self.tally[aim]]

    def _workers(self, life: Life) -> list[Worker]:
        history, random = self.history, self.random
        topics = list(SUBSCRIPTIONS)
        workers: list[Worker] = []
        for first in (*topics, *random.sample(topics, 2)):
            # One that publishes to two topics mixes durabilities on one connection.
            chosen = (first, random.choice(topics))
            workers.append(Producer(life, history, Random(random.random()), random.choice(Producer.WAYS), chosen))
        places: list[Place] = [*history.owed, ("read-os", "a")]
        workers += [Consumer(life, history, Random(random.random()), place, topics) for place in places]
        random.shuffle(workers)
        return workers

    def _hits(self, aim: str, watch: Watch) -> bool:
        """Return when it is time to kill: whether what the kill aims at has just begun."""
        if aim == "moment":
            time.sleep(self.random.uniform(0.01, 0.4))
            return False
        # The load must have begun, so that something is on its way when the node dies.
        time.sleep(self.random.uniform(0, 0.2))
        hit = watch.wait(lambda path: self._wanted(aim, path), AIM_S_MAX) is not None
        time.sleep(self.random.choice((0, 0, 0, 0.0005, 0.002)))
        return hit

    def _wanted(self, aim: str, path: Path) -> bool:
        if not NAMES[aim].fullmatch(path.name):
            return False
        if aim == "retention":
            return _start(path) > _start(path.with_name("manifest")) or _start(path) > self._starts[path.parent]
        # Not always the first of a burst. A compaction is over in a moment, so there the first it is.
        return aim == "compaction" or self.random.random() < 0.3

    def _end(self, life: Life, workers: Sequence[Worker]) -> None:
        life.dying.set()
        self.process.kill()
        life.over.set()
        for worker in workers:
            worker.join(RESTART_S_MAX)
            if worker.is_alive():
                self.history.surprise(f"{type(worker).__name__} outlived its node")

    def _look(self) -> None:
        """Count what the kill left half done, as the files tell."""
        self.tally["kills"] += 1
        for path in self._shards.values():
            names = [entry.name for entry in path.iterdir()]
            self.tally["half a seal"] += any(re.fullmatch(r".*\.(arrows|index)\.new", name) for name in names)
            journals = Counter(name.rsplit(".", 2)[0] for name in names if name.endswith(".journal"))
            self.tally["two journals"] += any(count > 1 for count in journals.values())
            self.tally["half a manifest"] += "manifest.new" in names
            start = _start(path / "manifest")
            self.tally["retained"] += start > self._starts[path]
            self._starts[path] = start


def _start(path: Path) -> int:
    """Return the first offset kept, as a manifest tells it; -1 while it is being written."""
    try:
        start: int = json.loads(path.read_bytes())["start"]
        return start
    except (FileNotFoundError, ValueError):
        return -1


def prove(trial: Trial, kills: int) -> None:
    """Make all lives, and judge at the end."""
    random = trial.random
    trial.begin()
    aims: list[str] = []
    while trial.tally["kills"] < kills or (trial.missed() and trial.tally["kills"] < kills + EXTRA_MAX):
        aims = aims or random.sample(ROUND, len(ROUND))
        aim = aims.pop() if trial.tally["kills"] < kills else trial.missed()[0]
        trial.live("moment" if aim == "recovery" else aim)
        if aim == "recovery":
            trial.die_while_recovering()
        if random.random() < 0.2:
            trial.verify()
        trial.process.start()
        if random.random() < 0.2:
            trial.read()
    trial.drain()
    trial.verify()
    trial.process.start()
    trial.left_at_last = trial.left()
    trial.listen()
    trial.read(whole=True)
    trial.verify_by_command()
    trial.history.check_order()


def report(trial: Trial, checks: Checks) -> None:
    """Print one line per check."""
    history, tally, broken = trial.history, trial.tally, trial.history.violations
    published = sum(map(len, history.acknowledged.values()))
    final = sum(map(len, history.final.values()))
    print(
        f"     {tally['kills']} kills left {tally['half a seal']} seals, {tally['two journals']} compactions and "
        f"{tally['half a manifest']} manifests half done; retention dropped segments {tally['retained']} times"
    )
    aimed = ", ".join(f"{aim} {tally[aim]}" for aim in (*NAMES, "recovery"))
    missed = trial.missed()
    checks.check(not missed, f"kills that hit what they aimed at: {aimed}", f"not hit: {missed}")
    starts_s = sorted(trial.process.starts_s)
    checks.check(
        starts_s[-1] <= RESTART_S_MAX,
        f"{len(starts_s)} starts, half of them within {starts_s[len(starts_s) // 2]:.1f} s, the slowest "
        f"in {starts_s[-1]:.1f} s",
    )
    lines = (
        ("answers", f"no client got an answer it should not have, {history.counts['deliveries']} deliveries"),
        ("lost", f"{published} acknowledged publishes, all readable; {tally['read back']} of them once from disk"),
        ("twice", "no message is stored twice"),
        ("back", f"{final} FINs followed by an answered PUB, no message came back"),
        ("reused", "no offset named two messages"),
        ("bodies", "every body is one that was sent, byte by byte"),
        ("early", "no message came before it was due"),
        ("order", "each connection's messages are in the log in the order it sent them"),
    )
    for rule, text in lines:
        checks.check(not broken[rule], text, f"{len(broken[rule])} times", *broken[rule])
    text = "after the last kill no subscription has anything left"
    checks.check(not trial.left_at_last, text, *trial.left_at_last)
    errors = [line for line in trial.process.log.read_text().splitlines() if " error " in line[:40]]
    checks.check(not errors, "the node reported no bug of its own", *errors)
    found = f"log verify found nothing in {trial.verified} looks"
    checks.check(not trial.findings, found, *trial.findings)


def main() -> int:
    """Run the proof and print one line per check."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    args = parser.parse_args()
    print(f"     seed {args.seed}", flush=True)
    checks = Checks()
    path = Path(tempfile.mkdtemp(prefix="penstock-crash-"))
    trial = Trial(path, Random(args.seed))
    try:
        prove(trial, args.kills)
        report(trial, checks)
    except Died as died:
        checks.check(False, str(died))
    finally:
        trial.process.abandon()
    if checks.failed:
        print(f"     what the node left is in {path}")
    else:
        shutil.rmtree(path)
    return checks.code()


if __name__ == "__main__":
    sys.exit(main())
