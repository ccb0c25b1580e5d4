"""Proof that three nodes on etcd and Kafka keep what one node promises, whatever of them dies.

Publishers and consumers of NSQ (through lookup), SQS and the SDK are at work, each with any node, while nodes are
killed with -9, stopped, restarted one by one, paused for longer than their lease, and cut off from all others, from
etcd or from Kafka; brokers of Kafka and members of etcd are killed one at a time, and the whole etcd is away for a
minute. In the end nothing that was acknowledged is lost, no offset names two messages, what the SDK published is there
once, a message of SQS is with one receiver at a time and never comes back once its delete was answered, keys come in
order, and every topic is empty for its consumers.

    python -m tests.proofs.cluster_broker --troubles 12
    python -m tests.proofs.cluster_broker --short
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from bench import supply
from penstock.client import Client as Sdk
from penstock.client import PenstockError, Refusal
from tests.cluster import network
from tests.cluster.trio import LEASE_S, PATIENCE_S, Member, Trio
from tests.etcd.servers import Cluster as Etcds
from tests.kafka.brokers import Brokers
from tests.proofs import client as nsq
from tests.proofs.checks import Checks
from tests.proofs.queues import PLAIN, VISIBLE_S, Got, History

#: One of each dialect on every node, so that each trouble meets all of them.
NSQ, SDK, SQS = ("nsq.a", "nsq.b", "nsq.c"), ("sdk.a", "sdk.b", "sdk.c"), ("sqs-a", "sqs-b", "sqs-c")
KINDS = {"NSQ": NSQ, "SDK": SDK, "SQS": SQS}
SUBSCRIPTION = "proof"
KEYS = 4
#: A node that stands still is not waited for longer than this.
ANSWER_S = 5.0
#: Some wait for a node that stands still until it goes on: what it says then must not be what another says, too.
PATIENT_S = 20.0
#: Between two publishes of one client: the nodes are to be killed, not measured.
PACE_S = 0.03
#: What a client of SQS hears while a topic is on its way to another node.
PASSING = (421, 429, 500, 502, 503, 507)
AWAY_S = 60.0
#: From whom a node is cut off; a deaf one still sends, and hears nothing.
CUTS = {
    "cut": ("etcd", "kafka", "peers"),
    "deaf": ("etcd", "kafka", "peers"),
    "cut-etcd": ("etcd",),
    "cut-kafka": ("kafka",),
}
DRAIN_S_MAX = 300.0
#: No delivery for so long after a trouble is a finding.
SILENCE_S_MAX = 120.0


class Seen(NamedTuple):
    """A message as a consumer got it."""

    id: int
    body: str
    at_s: float


class Book:
    """What all clients of one topic saw."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.lock = threading.Lock()
        self.offered: set[str] = set()
        self.acknowledged: dict[str, float] = {}
        #: Where the SDK was told that a message is.
        self.places: dict[tuple[int, int], str] = {}
        self.came: list[Seen] = []
        self.bodies: set[str] = set()
        self.broken: list[str] = []

    def offer(self, bodies: list[str]) -> None:
        with self.lock:
            self.offered.update(bodies)

    def acknowledge(self, bodies: list[str]) -> None:
        with self.lock:
            self.acknowledged.update(dict.fromkeys(bodies, time.monotonic()))

    def deliver(self, found: list[tuple[int, str]]) -> None:
        now_s = time.monotonic()
        with self.lock:
            for id_, body in found:
                if body not in self.offered:
                    self.broken.append(f"{body} of {self.topic} was never sent")
                self.came.append(Seen(id_, body, now_s))
                self.bodies.add(body)

    def first_after(self, start_s: float, looked: dict[str, int]) -> float | None:
        """Return when the first message came that was acknowledged after a moment; `looked` is how far was looked."""
        with self.lock:
            new = self.came[looked[self.topic] :]
            for seen in new:
                if self.acknowledged.get(seen.body, 0.0) >= start_s:
                    return seen.at_s
            # Those of the last second may be acknowledged yet: their publisher hears later than their consumer.
            looked[self.topic] += sum(seen.at_s < time.monotonic() - 1 for seen in new)
        return None

    def owed(self) -> list[str]:
        """Return what was acknowledged and never came."""
        with self.lock:
            return sorted(self.acknowledged.keys() - self.bodies)


class Proof:
    """Three nodes, their clients, and what these saw."""

    def __init__(self, trio: Trio, random: Random) -> None:
        self.trio = trio
        self.random = random
        self.books = {name: Book(name) for name in (*NSQ, *SDK, *SQS)}
        self.queues = {name: History(PLAIN) for name in SQS}
        self.surprises: list[str] = []
        self.refused: dict[str, int] = defaultdict(int)
        self._over = threading.Event()
        self._draining = threading.Event()
        self._numbers: dict[str, int] = defaultdict(int)
        self._threads: list[threading.Thread] = []
        #: How much had come of each topic when the last trouble began.
        self._looked: dict[str, int] = {}

    # --- a run ----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Make the topics, some at each node, and let clients work."""
        for place, (first, second, third) in enumerate(zip(NSQ, SDK, SQS, strict=True)):
            member = self.trio.members[place]
            for topic in (first, second):
                _made(member, topic)
            wanted = {"name": SUBSCRIPTION, "settings": {"order": "key"}}
            member.process.call("POST", f"/topics/{second}/subscriptions", wanted)
            attributes = {"VisibilityTimeout": f"{VISIBLE_S:.0f}"}
            _aws(member, "CreateQueue", {"QueueName": third, "Attributes": attributes})
        for number, name in enumerate(NSQ):
            self._start(self._publish_nsq, name, number)
            self._start(self._consume_nsq, name, number)
        for name in SDK:
            self._start(self._publish_sdk, name)
            self._start(self._consume_sdk, name)
        for name in SQS:
            self._start(self._send_sqs, name)
            for patience_s in (ANSWER_S, ANSWER_S, PATIENT_S):
                self._start(self._receive_sqs, name, patience_s)
        self.more("the beginning")

    def _start(self, work: Callable[..., None], *about: Any) -> None:
        def run() -> None:
            try:
                work(*about)
            except Exception as error:
                self.surprises.append(f"{work.__name__} of {about[0]}: {error!r}")

        thread = threading.Thread(target=run, daemon=True)
        self._threads.append(thread)
        thread.start()

    def more(self, what: str, since_s: float | None = None) -> None:
        """Wait until each topic had a message that was published after a moment; tell how long that took."""
        start_s = time.monotonic() if since_s is None else since_s
        took: dict[str, float] = {}
        looked = {name: len(book.came) for name, book in self.books.items()} if since_s is None else self._looked
        end_s = time.monotonic() + SILENCE_S_MAX
        while len(took) < len(self.books):
            for name, book in self.books.items():
                if name not in took and (at_s := book.first_after(start_s, looked)) is not None:
                    took[name] = at_s - start_s
            if time.monotonic() > end_s:
                silent = sorted(self.books.keys() - took.keys())
                self.surprises.append(f"{', '.join(silent)}: nothing came within {SILENCE_S_MAX:.0f} s of {what}")
                return
            time.sleep(0.05)
        if since_s is not None:
            each = ", ".join(f"{kind} {max(took[name] for name in names):.1f} s" for kind, names in KINDS.items())
            print(f"     {what}: next delivery of every topic after {each}", flush=True)

    def trouble(self, kind: str) -> None:
        """Break something, wait until everything flows, and mend it."""
        random, trio = self.random, self.trio
        self._look()
        if kind in ("kill", "pause"):
            member = random.choice(trio.members)
            owned = sorted(member.own())
            since_s = time.monotonic()
            if kind == "kill":
                member.kill()
            else:
                member.pause()
            self.more(f"{kind} {member.name} ({len(owned)} topics)", since_s)
            if kind == "pause":
                time.sleep(max(since_s + 2.5 * LEASE_S - time.monotonic(), 0))
                member.resume()
                since_s = time.monotonic()
                self.more(f"{member.name} goes on", since_s)
            else:
                member.start()
        elif kind in CUTS:
            self._cut(kind)
        elif kind == "stop":
            self._restart(random.choice(trio.members))
        elif kind == "restart all":
            for member in random.sample(trio.members, len(trio.members)):
                self._look()
                self._restart(member)
                trio.wait()
        elif kind == "kafka":
            broker = random.choice(trio.kafka.members)
            since_s = time.monotonic()
            broker.kill()
            self.more(f"kill broker {broker.id} of Kafka", since_s)
            trio.kafka.heal()
        elif kind == "etcd":
            etcd = random.choice(trio.etcd.members)
            since_s = time.monotonic()
            etcd.kill()
            self.more(f"kill member {etcd.name} of etcd", since_s)
            trio.etcd.heal()
        elif kind == "away":
            for each in trio.etcd.members:
                each.pause()
            time.sleep(AWAY_S)
            since_s = time.monotonic()
            for each in trio.etcd.members:
                each.resume()
            self.more(f"etcd back after {AWAY_S:.0f} s", since_s)

    def _restart(self, member: Member) -> None:
        """Let a node end in order, wait until the others have what it had, and start it again."""
        since_s = time.monotonic()
        if (code := member.stop()) != 0:
            self.surprises.append(f"{member.name} ended with {code}: {member.process.last_words()[-500:]}")
        self.more(f"stop {member.name}", since_s)
        member.start()

    def _look(self) -> None:
        self._looked = {name: len(book.came) for name, book in self.books.items()}

    def _cut(self, kind: str) -> None:
        """Cut a node off, and wait until the others have what it had; mend it, and wait until everything flows."""
        trio = self.trio
        member = self.random.choice(trio.members)
        owned = sorted(member.own())
        since_s = time.monotonic()
        trio.cut(member, *CUTS[kind], only_hears_nothing=kind == "deaf")
        if CUTS[kind] == ("kafka",):
            self._say_why(member)  # its lease lasts, so nothing moves
        else:
            if "kafka" in CUTS[kind]:  # else it serves what it has until its lease is over
                self.more(f"{kind} {member.name} ({len(owned)} topics)", since_s)
            time.sleep(max(since_s + 2.5 * LEASE_S - time.monotonic(), 0))
            self._look()
            self.more(f"{kind} {member.name}, whose lease is over", time.monotonic())
        self._look()
        since_s = time.monotonic()
        trio.heal()
        self.more(f"{member.name} is no longer cut off from {', '.join(CUTS[kind])}", since_s)

    def _say_why(self, member: Member) -> None:
        end_s = time.monotonic() + PATIENCE_S
        while (said := member.ready()) is None or said["status"] == 200 or "Kafka" not in said["text"]:
            if time.monotonic() > end_s:
                self.surprises.append(f"{member.name} has no Kafka, and says {said}")
                return
            time.sleep(0.1)

    def end(self) -> None:
        """Stop publishing, and let consumers have the rest."""
        self._draining.set()
        end_s = time.monotonic() + DRAIN_S_MAX
        while time.monotonic() < end_s and any(self._owed(name) for name in self.books):
            time.sleep(0.05)
        time.sleep(VISIBLE_S)  # what comes again comes now
        self._over.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def _owed(self, name: str) -> list[str]:
        owed = self.books[name].owed()
        return owed + sorted(self.queues[name].owed()) if name in self.queues else owed

    def _publishing(self) -> bool:
        return not self._draining.is_set() and not self._over.is_set()

    def _bodies(self, name: str, count: int, mark: str = "") -> list[str]:
        first = self._numbers[name + mark]
        self._numbers[name + mark] += count
        bodies = [f"{name}/{mark}/{first + number}" for number in range(count)]
        self.books[name].offer(bodies)
        return bodies

    # --- the SDK --------------------------------------------------------------------------------------------------

    def _publish_sdk(self, name: str) -> None:
        book = self.books[name]
        with self.trio.client(patience=SILENCE_S_MAX) as sdk:
            while self._publishing():
                key = str(self.random.randrange(KEYS))
                bodies = self._bodies(name, 3, key)
                receipt = sdk.publish(name, bodies, key=key)
                book.acknowledge(bodies)
                places = [(shard, first + row) for _, shard, first, rows in receipt.places for row in range(rows)]
                with book.lock:
                    for place, body in zip(places, bodies, strict=True):
                        if book.places.setdefault(place, body) != body:
                            book.broken.append(f"{place} of {name} is {book.places[place]} and {body}")
                self._over.wait(PACE_S)

    def _consume_sdk(self, name: str) -> None:
        book = self.books[name]
        with (
            self.trio.client(patience=SILENCE_S_MAX) as sdk,
            sdk.subscribe(name, SUBSCRIPTION, credit=100, lease=10) as subscription,
        ):
            while not self._over.is_set():
                batch = subscription.take(0.2)
                if batch is not None:
                    book.deliver([(message.id, message.body.decode()) for message in batch])
                    batch.ack()

    # --- NSQ ------------------------------------------------------------------------------------------------------

    @contextmanager
    def _passing(self, what: str) -> Iterator[None]:
        """Take note of what a client has to bear while nodes die."""
        try:
            yield
        except (OSError, HTTPException, nsq.Refused, _Refused) as error:
            self.refused[f"{what}: {type(error).__name__}"] += 1
            self._over.wait(0.05)

    def _publish_nsq(self, name: str, number: int) -> None:
        while self._publishing():
            with self._passing("NSQ publish"):
                number += 1
                member = self.trio.members[number % 3]
                one = nsq.Client(member.ports["nsq.tcp_port"], ANSWER_S, member.host)
                try:
                    while self._publishing():
                        bodies = self._bodies(name, 3)
                        one.command(nsq.mpub(name, [body.encode() for body in bodies]))
                        self.books[name].acknowledge(bodies)
                        self._over.wait(PACE_S)
                finally:
                    one.close()

    def _consume_nsq(self, name: str, number: int) -> None:
        while not self._over.is_set():
            with self._passing("NSQ consume"):
                number += 1
                self._follow_nsq(name, *self._looked_up(name, self.trio.members[number % 3]))

    def _looked_up(self, name: str, member: Member) -> tuple[str, int]:
        """Return where a node's lookup says that a topic is."""
        status, answer = _asked(member, "nsq.lookup_http_port", "GET", f"/lookup?topic={name}")
        producers = json.loads(answer).get("producers", []) if status == 200 else []
        if not producers:
            raise _Refused(f"lookup answered {status} and names nobody")
        chosen = self.random.choice(producers)
        return chosen["broadcast_address"], int(chosen["tcp_port"])

    def _follow_nsq(self, name: str, host: str, port: int) -> None:
        one = nsq.Client(port, ANSWER_S, host)
        try:
            one.identify(heartbeat_interval=1000)
            one.subscribe(name, SUBSCRIPTION, 50)
            while not self._over.is_set():
                if (frame := one.ready_frame()) is None:
                    one.receive()  # a heartbeat comes every second, or nobody is there
                    continue
                kind, data = frame
                if kind != nsq.MESSAGE:
                    raise _Refused(data.decode(errors="replace"))
                message = nsq.Message.read(data)
                self.books[name].deliver([(int(message.id, 16), message.body.decode())])
                one.send(nsq.fin(message.id))
        finally:
            one.close()

    # --- SQS ------------------------------------------------------------------------------------------------------

    def _send_sqs(self, name: str) -> None:
        queue = self.queues[name]
        while self._publishing():
            with self._passing("SQS send"):
                bodies = self._bodies(name, 3)
                with queue.lock:
                    queue.offered.update(bodies)
                entries = [{"Id": str(number), "MessageBody": body} for number, body in enumerate(bodies)]
                sent = _aws(self.random.choice(self.trio.members), "SendMessageBatch", _queue(name, Entries=entries))
                stored = [bodies[int(entry["Id"])] for entry in sent["Successful"]]
                self.books[name].acknowledge(stored)
                with queue.lock:
                    queue.acknowledged.update(stored)
                self._over.wait(PACE_S)

    def _receive_sqs(self, name: str, patience_s: float) -> None:
        queue = self.queues[name]
        while not self._over.is_set():
            with self._passing("SQS receive"):
                asked_s = time.monotonic()
                wanted = _queue(name, MaxNumberOfMessages=10, WaitTimeSeconds=1)
                answer = _aws(self.random.choice(self.trio.members), "ReceiveMessage", wanted, patience_s)
                found = [Got(each["Body"], each["ReceiptHandle"]) for each in answer.get("Messages") or []]
                queue.got(found, asked_s, time.monotonic())
                self.books[name].deliver([(0, each.body) for each in found])
                if not found:
                    continue
                bodies = {each.body for each in found}
                with queue.lock:
                    queue.deleting |= bodies
                entries = [{"Id": str(number), "ReceiptHandle": each.handle} for number, each in enumerate(found)]
                told = _aws(self.random.choice(self.trio.members), "DeleteMessageBatch", _queue(name, Entries=entries))
                answered_s = time.monotonic()
                done = {found[int(entry["Id"])].body for entry in told["Successful"]}
                if answered_s < asked_s + VISIBLE_S - 1:
                    with queue.lock:
                        queue.deleted_s |= dict.fromkeys(done, answered_s)

    # --- what is left ---------------------------------------------------------------------------------------------

    def judge(self, checks: Checks) -> None:
        """Compare what clients saw with what the log has."""
        offered = sum(len(book.offered) for book in self.books.values())
        told = sum(len(book.acknowledged) for book in self.books.values())
        came = sum(len(book.came) for book in self.books.values())
        print(f"     {told} of {offered} messages were acknowledged, {came} came, again included")
        print(f"     what clients had to bear: {dict(sorted(self.refused.items()))}")
        lost, twice, named, order = [], [], [], []
        with self.trio.client() as sdk:
            for name, book in self.books.items():
                stored = _stored(sdk, name)
                bodies = list(stored.values())
                lost += [f"{body} of {name}" for body in sorted(book.acknowledged.keys() - set(bodies))]
                if name in SDK:
                    known = set(bodies)
                    twice += [f"{name} has {len(bodies)} rows, of {len(known)} messages"] * (len(known) < len(bodies))
                    order += _disorder(name, stored, book)
                named += [
                    f"{place} of {name} was {body}" for place, body in book.places.items() if stored.get(place) != body
                ]
                named += _named_twice(book)
        silent = [body for name in self.books for body in self._owed(name)]
        checks.check(not lost, f"{told} messages were acknowledged, and all of them are in the log", *lost)
        checks.check(not silent, "each of them came to its consumers", f"{len(silent)} did not", *silent)
        checks.check(not named, "no offset names two messages", *named)
        checks.check(not twice, "what the SDK published is there once", *twice)
        checks.check(not order, "keys came in order", *order)
        broken = [what for book in self.books.values() for what in book.broken]
        checks.check(not broken, "every body is one that was sent, and has one place", *broken)
        for rule, text in (
            ("back", "no message of SQS came back after its delete was answered"),
            ("twice", f"no lease was given twice at one time: none was with two receivers within {VISIBLE_S:.0f} s"),
        ):
            found = [what for queue in self.queues.values() for kind, what in queue.broken if kind == rule]
            checks.check(not found, text, f"{len(found)} times", *found)
        self._judge_books(checks)
        checks.check(not self.surprises, "no client was left waiting", *self.surprises)
        bugs = [line for member in self.trio.members for line in _errors(member)]
        checks.check(not bugs, "no node reported a bug of its own", *bugs)

    def _judge_books(self, checks: Checks) -> None:
        """Every message is finished for its consumers: nothing waits, nothing is out."""
        left: list[str] = []
        for name in (*NSQ, *SDK):
            owner = self.trio.owner(name)
            told = owner.process.call("GET", f"/topics/{name}/subscriptions/{SUBSCRIPTION}")
            if told.get("depth") or told.get("in_flight"):
                left.append(f"{name}: {told}")
        checks.check(not left, "the books balance: nothing waits and nothing is out", *left)


def _stored(sdk: Sdk, name: str) -> dict[tuple[int, int], str]:
    """Return what the log has of a topic, by shard and offset."""
    found: dict[tuple[int, int], str] = {}
    for shard in sdk.topic(name).shards:
        for batch in sdk.read(name, shard=shard.shard, columns=["offset", "body"]):
            for offset, body in zip(*(batch.column(column).to_pylist() for column in ("offset", "body")), strict=True):
                found[shard.shard, offset] = body.decode()
    return found


def _named_twice(book: Book) -> list[str]:
    """Return ids under which two messages came."""
    names: dict[int, str] = {}
    return [
        f"{seen.id} of {book.topic} was {names[seen.id]} and {seen.body}"
        for seen in book.came
        if seen.id and names.setdefault(seen.id, seen.body) != seen.body
    ]


def _disorder(name: str, stored: dict[tuple[int, int], str], book: Book) -> list[str]:
    """Return where messages of a key stand, or first came, behind a later one of that key."""
    found = []
    for what, bodies in (
        ("stands", [stored[place] for place in sorted(stored)]),
        ("came", [seen.body for seen in book.came]),
    ):
        last: dict[str, int] = {}
        seen: set[str] = set()
        for body in bodies:
            _, key, number = body.rsplit("/", 2)
            if body not in seen:
                seen.add(body)
                if int(number) < last.get(key, -1):
                    found.append(f"{body} {what} behind {last[key]} of {name}")
                last[key] = max(int(number), last.get(key, -1))
    return found


def _made(member: Member, topic: str) -> None:
    """Make a topic at a node, which may just give some of its slots to another that has come."""
    end_s = time.monotonic() + PATIENCE_S
    is_unsure = False
    with Sdk(member.url) as sdk:
        while True:
            try:
                sdk.create_topic(topic, shards=2)
                return
            except Refusal as refusal:
                if refusal.code == "conflict" and is_unsure:
                    return  # a try that was refused had made it: its slot went while it was opened
                if not refusal.reason.retry or time.monotonic() > end_s:
                    raise
                is_unsure = True
                time.sleep(0.1)


class _Refused(Exception):
    """A node said no, for the moment."""


def _aws(member: Member, operation: str, said: dict[str, Any], patience_s: float = ANSWER_S) -> Any:
    headers = {"X-Amz-Target": f"AmazonSQS.{operation}", "Content-Type": "application/x-amz-json-1.0"}
    status, answer = _asked(member, "sqs.port", "POST", "/", json.dumps(said).encode(), headers, patience_s)
    if status in PASSING:
        raise _Refused(f"{operation} was answered with {status}")
    if status != 200:
        raise AssertionError(f"{operation} was answered with {status}: {answer.decode(errors='replace')}")
    return json.loads(answer)


def _queue(name: str, **said: Any) -> dict[str, Any]:
    return {"QueueUrl": f"http://127.0.0.1/000000000000/{name}", **said}


def _asked(
    member: Member,
    port: str,
    method: str,
    path: str,
    body: bytes = b"",
    headers: dict[str, str] | None = None,
    patience_s: float = ANSWER_S,
) -> tuple[int, bytes]:
    connection = HTTPConnection(member.host, member.ports[port], timeout=patience_s)
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def _errors(member: Member) -> list[str]:
    with suppress(FileNotFoundError):
        lines = member.process.log.read_text(errors="replace").splitlines()
        # That a log is given up, because Kafka or etcd said nothing for long, is what a paused node should say.
        return [f"{member.name}: {line}" for line in lines if " error " in line[:40] and " is given up: " not in line]
    return []


def troubles_of(count: int) -> list[str]:
    """Return what goes wrong, in turns."""
    turns = ["kill", "pause", "cut", "kafka", "etcd", "cut-etcd", "stop", "deaf", "kill", "cut-kafka", "away"]
    turns.append("restart all")
    if not network.is_possible():
        print("     nobody is cut off: that needs root, and `ip`", flush=True)
        turns = [turn for turn in turns if turn not in CUTS]
    return [turns[number % len(turns)] for number in range(count)]


def main() -> int:
    """Run the proof and print one line per check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--troubles", type=int, default=14)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--short", action="store_true", help="one broker, one member, a kill and a pause")
    parser.add_argument("--keep", action="store_true", help="leave what the nodes wrote, also if all is well")
    parser.add_argument("--kinds", help="which troubles, with commas between")
    args = parser.parse_args()
    print(f"     seed {args.seed}", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # it leaves nothing running
    checks = Checks()
    folder = Path(tempfile.mkdtemp(prefix="penstock-cluster-"))
    count = 1 if args.short else 3
    kinds = args.kinds.split(",") if args.kinds else ["kill", "pause"] if args.short else troubles_of(args.troubles)
    supply.java()
    with ExitStack() as stack:
        own = network.Network(3) if set(kinds) & CUTS.keys() else None
        if own is not None:
            stack.callback(own.close)
        etcd = Etcds(folder / "etcd", count, host=own.etcd if own is not None else "127.0.0.1")
        stack.callback(etcd.close)
        (folder / "kafka").mkdir()
        kafka = Brokers(supply.kafka(), folder / "kafka", count, own.kafka if own is not None else "127.0.0.1")
        stack.callback(kafka.close)
        trio = Trio(folder / "nodes", "proof", etcd, kafka, network=own)
        stack.callback(trio.close)
        run(Proof(trio, Random(args.seed)), kinds, checks)
    if checks.failed or args.keep:
        print(f"     what the nodes left is in {folder}")
    else:
        shutil.rmtree(folder)
    return checks.code()


def run(proof: Proof, kinds: list[str], checks: Checks) -> None:
    """Make all troubles, and judge at the end."""
    began = time.monotonic()
    proof.trio.start()
    proof.begin()
    for kind in kinds:
        print(f"     {time.monotonic() - began:.0f} s: {kind}", flush=True)
        proof.trouble(kind)
        proof.trio.wait()
    print(f"     {time.monotonic() - began:.0f} s: the end", flush=True)
    proof.end()
    print(f"     {time.monotonic() - began:.0f} s: nothing more comes", flush=True)
    try:
        proof.judge(checks)
    except (PenstockError, AssertionError) as error:
        checks.check(False, f"the end could not be judged: {error}")


if __name__ == "__main__":
    sys.exit(main())
