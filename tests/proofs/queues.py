"""Proof that `kill -9` at any moment breaks no promise of a queue: of SQS, of SQS with order, and of Dynamiq.

Clients send, receive and delete over HTTP while the node is killed again and again. A message whose delete was answered
never comes back; one that was acknowledged and not deleted always does; none is handed out twice within its visibility;
a group of a FIFO queue comes in order, and each of its messages is stored once, however often its sender has to try.

    python -m tests.proofs.queues --kills 60
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from tests.proofs.checks import Checks
from tests.proofs.process import Died, Process

#: How long a message that was received is invisible: longer than a life, so that most leases outlive the node.
VISIBLE_S = 6.0
#: A delete counts if it was answered so much before its message was visible again.
MARGIN_S = 1.0
#: Leases end by one clock and are measured by another, in steps of 10 ms.
CLOCKS_S = 0.1
ANSWER_S = 30.0
DRAIN_S_MAX = 180.0
#: Of a partition, which is locked for as long as a message is invisible: at the end a backlog of thousands must go.
AT_ONCE, AT_ONCE_IN_THE_END = 10, 200

PLAIN, FIFO, PARTITIONED = "orders", "orders.fifo", "jobs"
GROUPS = ("a", "b", "c")
PARTITIONS = 8


class Gone(Exception):
    """The node died before it answered."""


class Got(NamedTuple):
    """A message as a client received it."""

    body: str
    #: Its receipt handle, or its id.
    handle: str


class History:
    """What all clients of one queue saw over all lives."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.lock = threading.Lock()
        self.acknowledged: set[str] = set()
        self.offered: set[str] = set()
        #: When a delete was answered in time; those that may have been carried out or not.
        self.deleted_s: dict[str, float] = {}
        self.deleting: set[str] = set()
        #: When a message may have been handed out at the earliest, unless it was given back since.
        self.out_s: dict[str, float] = {}
        #: How many of each group were deleted, from its first on.
        self._done: Counter[str] = Counter()
        self.received = 0
        self.broken: list[tuple[str, str]] = []

    def owed(self) -> set[str]:
        """Return what must come back."""
        return self.acknowledged - self.deleting - self.deleted_s.keys()

    def got(self, found: Sequence[Got], asked_s: float, answered_s: float) -> None:
        """Judge what one receive brought."""
        with self.lock:
            here: list[str] = []
            for body, _ in found:
                self.received += 1
                if body not in self.offered:
                    self.broken.append(("bodies", f"{body} of {self.queue} was never sent"))
                if self.deleted_s.get(body, asked_s) < asked_s:
                    self.broken.append(("back", f"{body} of {self.queue} was deleted and came back"))
                if body in here or answered_s < min(self.out_s.get(body, -VISIBLE_S), asked_s) + VISIBLE_S - CLOCKS_S:
                    self.broken.append(("twice", f"{body} of {self.queue} came again within its visibility"))
                if self.queue == FIFO:
                    self._check_order(body, here)
                self.out_s[body] = asked_s
                self.acknowledged.add(body)
                if self.queue != PARTITIONED:  # there a delete that is still under way has its effect
                    self.deleting.discard(body)
                here.append(body)

    def _check_order(self, body: str, here: Sequence[str]) -> None:
        """Check that everything before a message of a group is deleted, or came with it."""
        group, _, number = body.partition("-")
        while (first := f"{group}-{self._done[group]}") in self.deleted_s:
            self._done[group] += 1
        for before in range(self._done[group], int(number)):
            other = f"{group}-{before}"
            if other not in self.deleting and other not in self.deleted_s and other not in here:
                self.broken.append(("order", f"{body} came before {other} was deleted; {first} is the first"))
                return


class Client:
    """One connection to one service of the node."""

    def __init__(self, port: int) -> None:
        self._connection = HTTPConnection("127.0.0.1", port, timeout=ANSWER_S)

    def close(self) -> None:
        """Hang up."""
        self._connection.close()

    def aws(self, operation: str, queue: str, **said: Any) -> Any:
        """Ask SQS for something."""
        said["QueueUrl"] = f"http://127.0.0.1/000000000000/{queue}"
        headers = {"X-Amz-Target": f"AmazonSQS.{operation}", "Content-Type": "application/x-amz-json-1.0"}
        status, answer = self.ask("POST", "/", json.dumps(said).encode(), headers)
        if status != 200:
            raise Died(f"{operation} was answered with {status}: {answer.decode(errors='replace')}")
        return json.loads(answer)

    def ask(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Ask for something and return what is answered."""
        try:
            self._connection.request(method, path, body, headers or {})
            answer = self._connection.getresponse()
            return answer.status, answer.read()
        except TimeoutError as error:
            raise Died(f"{method} {path} was not answered within {ANSWER_S:.0f} s") from error
        except (OSError, HTTPException) as error:
            raise Gone from error


class Sqs:
    """A queue of SQS, as clients use it."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.port = "sqs.port"

    def make(self, client: Client) -> None:
        """Make the queue."""
        attributes = {"VisibilityTimeout": f"{VISIBLE_S:.0f}"}
        if self.history.queue == FIFO:
            attributes["FifoQueue"] = "true"
        client.aws("CreateQueue", self.history.queue, QueueName=self.history.queue, Attributes=attributes)

    def send(self, client: Client, bodies: Sequence[str]) -> list[str]:
        """Send messages together; return those that are stored."""
        entries: list[dict[str, str]] = [{"Id": str(number), "MessageBody": body} for number, body in enumerate(bodies)]
        if self.history.queue == FIFO:
            for entry, body in zip(entries, bodies, strict=True):
                entry |= {"MessageGroupId": body.partition("-")[0], "MessageDeduplicationId": body}
        sent = client.aws("SendMessageBatch", self.history.queue, Entries=entries)
        return [bodies[int(entry["Id"])] for entry in sent["Successful"]]

    def receive(self, client: Client, wait_s: int = 0) -> list[Got]:
        """Receive what is there."""
        answer = client.aws("ReceiveMessage", self.history.queue, MaxNumberOfMessages=10, WaitTimeSeconds=wait_s)
        return [Got(each["Body"], each["ReceiptHandle"]) for each in answer.get("Messages") or []]

    def delete(self, client: Client, got: Sequence[Got]) -> None:
        """Delete messages."""
        entries = [{"Id": str(number), "ReceiptHandle": each.handle} for number, each in enumerate(got)]
        client.aws("DeleteMessageBatch", self.history.queue, Entries=entries)

    def left(self, client: Client) -> int:
        """Return how many messages the node says there are."""
        told = client.aws("GetQueueAttributes", self.history.queue, AttributeNames=["All"])["Attributes"]
        return sum(int(told[f"ApproximateNumberOfMessages{what}"]) for what in ("", "NotVisible", "Delayed"))


class Dynamiq:
    """A queue of Dynamiq."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.port = "dynamiq.port"
        self._path = f"/v1/queues/{history.queue}"

    def make(self, client: Client) -> None:
        """Make the queue."""
        client.ask("PUT", self._path)
        settings = {"visibility_timeout": VISIBLE_S, "min_partitions": PARTITIONS, "max_partitions": PARTITIONS}
        status, answer = client.ask("PATCH", self._path, json.dumps(settings).encode())
        if status != 200:
            raise Died(f"the settings of {self.history.queue} were answered with {status}: {answer!r}")
        while json.loads(client.ask("GET", self._path)[1])["partitions"] != PARTITIONS:
            time.sleep(0.02)  # they are in force from the next sync on

    def send(self, client: Client, bodies: Sequence[str]) -> list[str]:
        """Send messages one by one; return those that are stored."""
        stored = []
        for body in bodies:
            status, id_ = client.ask("PUT", f"{self._path}/message", body.encode())
            if status != 200 or not id_.isdigit():
                raise Died(f"a message was answered with {status}: {id_!r}")
            stored.append(body)
        return stored

    def receive(self, client: Client, wait_s: int = 0) -> list[Got]:
        """Receive what a partition has."""
        status, answer = client.ask("GET", f"{self._path}/messages/{AT_ONCE_IN_THE_END if wait_s else AT_ONCE}")
        if status not in (200, 204):
            raise Died(f"a receive was answered with {status}: {answer!r}")
        return [Got(each["body"], each["id"]) for each in json.loads(answer or b"[]")]

    def delete(self, client: Client, got: Sequence[Got]) -> None:
        """Delete messages."""
        client.ask("DELETE", f"{self._path}/messages/{','.join(each.handle for each in got)}")

    def left(self, client: Client) -> int:
        """Return nothing: Dynamiq does not count."""
        return 0


Queue = Sqs | Dynamiq


class Trial:
    """One data directory, its many lives, and what was seen."""

    def __init__(self, path: Path, random: Random) -> None:
        self.random = random
        settings = ("dynamiq.sync_interval=50ms", "topic.segment_bytes=64KiB", "log.level=warning")
        self.process = Process(path / "data", *settings)
        self.queues: list[Queue] = [Sqs(History(PLAIN)), Sqs(History(FIFO)), Dynamiq(History(PARTITIONED))]
        self.tally: Counter[str] = Counter()
        self.surprises: list[str] = []
        self._dying = threading.Event()
        self._over = threading.Event()
        #: The next number of each sender, whose last message may not be stored yet.
        self._next: Counter[str] = Counter()

    def begin(self) -> None:
        """Start the first node and make the queues."""
        self.process.start()
        for queue in self.queues:
            client = Client(self.process.ports[queue.port])
            queue.make(client)
            client.close()

    def live(self) -> None:
        """Keep the node busy and kill it."""
        self._dying.clear()
        self._over.clear()
        jobs: list[tuple[Queue, Callable[[Queue, Client, Random], None]]] = []
        for queue in self.queues:
            jobs += [(queue, self._sender(sender)) for sender in GROUPS]
            jobs += [(queue, self._receiver), (queue, self._receiver)]
        threads = [
            threading.Thread(target=self._work, args=(queue, job, Random(self.random.random())), daemon=True)
            for queue, job in jobs
        ]
        for thread in threads:
            thread.start()
        time.sleep(self.random.uniform(0.05, 0.8))
        self._dying.set()
        self.process.kill()
        self._over.set()
        for thread in threads:
            thread.join(ANSWER_S)
        self.tally["kills"] += 1

    def drain(self) -> None:
        """Receive and delete everything in a life that nobody disturbs."""
        end_s = time.monotonic() + DRAIN_S_MAX
        for queue in self.queues:
            client, random = Client(self.process.ports[queue.port]), Random(0)
            while time.monotonic() < end_s:
                if not self._take(queue, client, random, all_of_it=True, wait_s=1):
                    if not queue.history.owed() and not queue.left(client):
                        break
                    time.sleep(0.02)
            client.close()
            for body in sorted(queue.history.owed()):
                queue.history.broken.append(("lost", f"{body} of {queue.history.queue} never came"))

    def listen(self) -> None:
        """Receive once more after the last kill, when everything that was out is visible again."""
        time.sleep(VISIBLE_S)
        for queue in self.queues:
            client = Client(self.process.ports[queue.port])
            for _ in range(PARTITIONS):
                self._take(queue, client, Random(0), all_of_it=True)
            client.close()

    # --- what clients do ------------------------------------------------------------------------------------------

    def _work(self, queue: Queue, job: Callable[[Queue, Client, Random], None], random: Random) -> None:
        client = Client(self.process.ports[queue.port])
        try:
            while not self._over.is_set():
                job(queue, client, random)
        except Gone as gone:
            if not self._dying.is_set():
                self.surprises.append(f"the living node hung up: {gone.__cause__!r}")
        except Exception as error:
            self.surprises.append(repr(error))
        finally:
            client.close()

    def _sender(self, sender: str) -> Callable[[Queue, Client, Random], None]:
        def send(queue: Queue, client: Client, random: Random) -> None:
            history, place = queue.history, f"{queue.history.queue} {sender}"
            first, count = self._next[place], random.randint(1, 5) if isinstance(queue, Sqs) else 1
            bodies = [f"{sender}-{first + number}" for number in range(count)]
            with history.lock:
                history.offered.update(bodies)
            if history.queue != FIFO:  # where nobody knows the ones that were sent already, none is sent again
                self._next[place] += count
            stored = queue.send(client, bodies)
            with history.lock:
                history.acknowledged.update(stored)
            if history.queue == FIFO:
                self._next[place] += count
            self._over.wait(random.choice((0, 0.002, 0.01)))

        return send

    def _receiver(self, queue: Queue, client: Client, random: Random) -> None:
        if not self._take(queue, client, random, all_of_it=False):
            self._over.wait(0.01)

    def _take(self, queue: Queue, client: Client, random: Random, *, all_of_it: bool, wait_s: int = 0) -> int:
        """Receive, and delete most of it or all; return how much came."""
        history, asked_s = queue.history, time.monotonic()
        found = queue.receive(client, wait_s)
        history.got(found, asked_s, time.monotonic())
        chosen = [each for each in found if all_of_it or random.random() < 0.7]
        if queue.history.queue == FIFO:  # in order, as far as it goes
            chosen = found[: len(chosen)]
        if chosen:
            bodies = {each.body for each in chosen}
            with history.lock:
                history.deleting |= bodies
            queue.delete(client, chosen)
            answered_s = time.monotonic()
            if answered_s < asked_s + VISIBLE_S - MARGIN_S or isinstance(queue, Dynamiq):
                with history.lock:
                    history.deleted_s |= dict.fromkeys(bodies, answered_s)
        return len(found)


def prove(trial: Trial, kills: int) -> None:
    """Make all lives, and judge at the end."""
    trial.begin()
    for _ in range(kills):
        trial.live()
        trial.process.start()
    trial.drain()
    trial.process.kill()
    trial.tally["kills"] += 1
    trial.process.start()
    trial.listen()


def report(trial: Trial, checks: Checks) -> None:
    """Print one line per check."""
    histories = [queue.history for queue in trial.queues]
    sent = sum(len(history.acknowledged) for history in histories)
    deleted = sum(len(history.deleted_s) for history in histories)
    received = sum(history.received for history in histories)
    each = ", ".join(f"{history.queue} {len(history.acknowledged)}" for history in histories)
    print(f"     {trial.tally['kills']} kills; {sent} messages ({each}), received {received} times")
    checks.check(all(history.acknowledged for history in histories), "every queue took messages")
    lines = (
        ("lost", f"{sent} messages were acknowledged, and whichever was not deleted came back"),
        ("back", f"{deleted} deletes were answered, and none of these messages came back"),
        ("twice", f"none was handed out twice within {VISIBLE_S:.0f} s, whichever life it was in"),
        ("order", "groups of the FIFO queue came in order, and one receive at a time had a group"),
        ("bodies", "every body is one that was sent"),
    )
    for rule, text in lines:
        found = [what for history in histories for broken, what in history.broken if broken == rule]
        checks.check(not found, text, f"{len(found)} times", *found)
    checks.check(not trial.surprises, "no client got an answer it should not have", *trial.surprises)
    errors = [line for line in trial.process.log.read_text().splitlines() if " error " in line[:40]]
    checks.check(not errors, "the node reported no bug of its own", *errors)


def main() -> int:
    """Run the proof and print one line per check."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    args = parser.parse_args()
    print(f"     seed {args.seed}", flush=True)
    checks = Checks()
    path = Path(tempfile.mkdtemp(prefix="penstock-queues-"))
    trial = Trial(path, Random(args.seed))
    try:
        prove(trial, args.kills)
        report(trial, checks)
    except (Died, Gone) as died:
        checks.check(False, str(died) or "the node hung up")
    finally:
        trial.process.abandon()
    if checks.failed:
        print(f"     what the node left is in {path}")
    else:
        shutil.rmtree(path)
    return checks.code()


if __name__ == "__main__":
    sys.exit(main())
