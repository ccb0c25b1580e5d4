"""On a topic that another node may take over, an answer means that what it says is kept, in every dialect."""

from __future__ import annotations

import errno
import random
import select
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.client.wire import Notice
from penstock.config import Config
from penstock.config.tree import EventsConfig
from penstock.delivery.keeping import Keeping
from penstock.delivery.subscription import Subscription
from penstock.dialects import DIALECTS
from penstock.dialects.dynamiq.config import DynamiqConfig
from penstock.dialects.dynamiq.running import Dynamiq
from penstock.dialects.sqs.config import SqsConfig
from penstock.dialects.sqs.running import Sqs
from penstock.errors import Refusal
from penstock.node.node import Node
from tests.fakes import FakeClock, FakeDisk
from tests.flight.parts import Flown
from tests.http.line import Line
from tests.timeline.desk import Desk as TimelineDesk

SECOND = 1_000_000_000


def share(subscription: Subscription) -> Keeping:
    """Treat a subscription as one of a topic whose log other nodes read."""
    keeping = Keeping(subscription.cursors, subscription.host)
    subscription.keeping = subscription.dealer.keeping = keeping
    return keeping


def let_sync(disk: FakeDisk, *, fails: bool = False) -> None:
    """Let syncs that were held back happen, or fail."""
    while disk.work:
        pool, _, done = disk.work[0]
        if fails and pool == "sync":
            disk.work.popleft()
            done(None, OSError(errno.EIO, "another writer has begun"))
        else:
            disk.step()
    disk.eager = True
    disk.clock.run()


class Desk:
    """A node with two queue services, and a queue of each that is shared."""

    def __init__(self, path: Path) -> None:
        self.clock = FakeClock()
        self.disk = FakeDisk(self.clock)
        config = Config(data_dir=str(path), parts=(DynamiqConfig(), SqsConfig()), events=EventsConfig(mode="off"))
        self.node = Node(config, self.clock, self.disk, random.Random(1), dialects=DIALECTS)
        self.sqs_line = Line(Sqs(self.node, config).listener)
        self.dynamiq_line = Line(Dynamiq(self.node, config).listener)

    def queue(self, name: str = "q", messages: int = 3) -> Subscription:
        self.sqs("CreateQueue", QueueName=name)
        subscription = self.node.topic(name).subscription("queue")
        share(subscription)
        for number in range(messages):
            self.sqs("SendMessage", QueueUrl=f"http://localhost/000000000000/{name}", MessageBody=f"m{number}")
        return subscription

    def sqs(self, operation: str, **asked: Any) -> Any:
        status, content = self.answer(*self.asking(operation, **asked))
        assert status == 200, content
        return content

    def asking(self, operation: str, **asked: Any) -> tuple[Line, bytes]:
        body = msgspec.json.encode(asked)
        head = f"POST / HTTP/1.1\r\nHost: localhost\r\nX-Amz-Target: AmazonSQS.{operation}\r\n"
        return self.sqs_line, head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body

    def requesting(self, method: str, path: str, body: object = None) -> tuple[Line, bytes]:
        raw = b"" if body is None else msgspec.json.encode(body)
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(raw)}\r\n\r\n"
        return self.dynamiq_line, head.encode() + raw

    def answer(self, line: Line, request: bytes) -> tuple[int, Any]:
        line.send(request)
        self.clock.run()
        return self.read(line)

    def read(self, line: Line) -> tuple[int, Any]:
        status, _, content = line.answer()
        return status, msgspec.json.decode(content) if content else None

    def received(self, name: str = "q") -> dict[str, Any]:
        """Receive one message, and have its lease kept."""
        found = self.sqs("ReceiveMessage", QueueUrl=name)["Messages"]
        assert len(found) == 1
        message: dict[str, Any] = found[0]
        return message

    def leased(self, name: str = "q") -> str:
        """Receive one by version 2, and return its receipt."""
        status, content = self.answer(*self.requesting("POST", f"/v2/queues/{name}/leases", {"max": 1}))
        assert status == 200, content
        receipt: str = content["data"]["messages"][0]["receipt"]
        return receipt


Asked = Callable[[Desk], tuple[Line, bytes]]


def of_receipt(operation: str, **more: Any) -> Asked:
    return lambda desk: desk.asking(operation, QueueUrl="q", ReceiptHandle=desk.received()["ReceiptHandle"], **more)


def of_entry(operation: str, **more: Any) -> Asked:
    def asked(desk: Desk) -> tuple[Line, bytes]:
        entry = {"Id": "1", "ReceiptHandle": desk.received()["ReceiptHandle"], **more}
        return desk.asking(operation, QueueUrl="q", Entries=[entry])

    return asked


#: Requests that are answered with something that has to be kept.
QUEUES: dict[str, Asked] = {
    "SQS receive": lambda desk: desk.asking("ReceiveMessage", QueueUrl="q"),
    "SQS receive, waiting": lambda desk: desk.asking("ReceiveMessage", QueueUrl="q", WaitTimeSeconds=1),
    "SQS delete": of_receipt("DeleteMessage"),
    "SQS delete batch": of_entry("DeleteMessageBatch"),
    "SQS change": of_receipt("ChangeMessageVisibility", VisibilityTimeout=60),
    "SQS give back": of_receipt("ChangeMessageVisibility", VisibilityTimeout=0),
    "SQS change batch": of_entry("ChangeMessageVisibilityBatch", VisibilityTimeout=60),
    "SQS purge": lambda desk: desk.asking("PurgeQueue", QueueUrl="q"),
    "Dynamiq receive": lambda desk: desk.requesting("GET", "/v1/queues/q/messages/1"),
    "Dynamiq delete": lambda desk: desk.requesting("DELETE", f"/v1/queues/q/message/{first_id(desk)}"),
    "Dynamiq delete many": lambda desk: desk.requesting("DELETE", f"/v1/queues/q/messages/{first_id(desk)}"),
    "v2 receive": lambda desk: desk.requesting("POST", "/v2/queues/q/leases", {"max": 2}),
    "v2 delete": lambda desk: desk.requesting("DELETE", f"/v2/queues/q/leases/{desk.leased()}"),
    "v2 delete by id": lambda desk: desk.requesting("DELETE", f"/v2/queues/q/messages/{first_id(desk)}"),
    "v2 extend": lambda desk: desk.requesting("PATCH", f"/v2/queues/q/leases/{desk.leased()}", {"visibility": 60}),
    "v2 release": lambda desk: desk.requesting("POST", f"/v2/queues/q/leases/{desk.leased()}/release", {}),
    "v2 delete many": lambda desk: desk.requesting(
        "POST", "/v2/queues/q/leases/delete", {"receipts": [desk.leased(), desk.leased()]}
    ),
    "v2 purge": lambda desk: desk.requesting("DELETE", "/v2/queues/q/messages"),
}


def first_id(desk: Desk) -> str:
    status, found = desk.answer(*desk.requesting("GET", "/v1/queues/q/messages/1"))
    assert status == 200
    id_: str = found[0]["id"]
    return id_


@pytest.mark.parametrize("fails", [False, True], ids=["synced", "failed"])
@pytest.mark.parametrize("row", QUEUES)
def test_queue_services_answer_after_the_sync_and_never_well_if_it_failed(
    tmp_path: Path, row: str, *, fails: bool
) -> None:
    desk = Desk(tmp_path / "data")
    desk.queue()
    line, request = QUEUES[row](desk)
    desk.disk.eager = False
    line.send(request)
    desk.clock.advance(2 * SECOND)
    assert line.out == b"", "nobody may hear of it before it is kept"
    let_sync(desk.disk, fails=fails)
    status, content = desk.read(line)
    assert status >= 500 if fails else status == 200, content
    assert desk.node.bugs == 0


def test_what_a_receive_found_and_nobody_heard_of_is_there_for_others(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "data")
    subscription = desk.queue(messages=1)
    line, request = desk.asking("ReceiveMessage", QueueUrl="q", WaitTimeSeconds=20)
    desk.disk.eager = False
    line.send(request)
    desk.clock.run()
    assert subscription.in_flight() == 1
    line.close()
    let_sync(desk.disk)
    assert subscription.in_flight() == 0
    assert subscription.depth() == 1


def test_leases_that_were_told_of_are_there_after_a_power_loss_and_others_are_not(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "data")
    subscription = desk.queue(messages=2)
    first = desk.received()
    kept = {path: path.read_bytes() for path in (tmp_path / "data").rglob("*.journal")}
    desk.disk.eager = False
    line, request = desk.asking("ReceiveMessage", QueueUrl="q")
    line.send(request)
    desk.clock.run()
    assert subscription.in_flight() == 2
    assert line.out == b""
    for path, content in kept.items():
        path.write_bytes(content)
    desk.clock._soon.clear()
    desk.clock._later.clear()
    again = Node(desk.node.config, desk.clock, FakeDisk(desk.clock), random.Random(2), dialects=DIALECTS)
    found = again.topic("q").subscription("queue")
    assert found.in_flight() == 1
    assert found.depth() == 1
    assert first["Body"] == "m0"


# --- timelines ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fails", [False, True], ids=["synced", "failed"])
@pytest.mark.parametrize("command", ["delete", "extend-lease", "release"])
def test_timelines_answer_after_the_sync(tmp_path: Path, command: str, *, fails: bool) -> None:
    desk = TimelineDesk(tmp_path / "data")
    desk.topic()
    share(desk.node.topic("t").subscription("timeline"))
    consumer = desk.consumer()
    (id_,) = desk.made(desk.producer(), ("a", 0))
    desk.advance(0.05)
    (message,) = consumer.take()
    told: list[list[int]] = []

    def ask() -> None:
        try:
            told.append(desk.kinds(command, consumer.session, (id_, message["version"]), new_ms=5_000))
        except Refusal as refusal:
            assert refusal.code == "unavailable"
            told.append([-1])

    desk.disk.eager = False
    settle, desk.settle = desk.settle, lambda: hold_then(desk, settle, fails=fails)  # type: ignore[method-assign]
    ask()
    assert told == [[-1]] if fails else told == [[0]]


def hold_then(desk: TimelineDesk, settle: Callable[[], None], *, fails: bool) -> None:
    settle()
    assert any(pool == "sync" for pool, _, _ in desk.disk.work), "the answer must wait for a sync"
    let_sync(desk.disk, fails=fails)


def test_a_consumer_of_a_timeline_hears_of_a_lease_once_it_is_kept(tmp_path: Path) -> None:
    desk = TimelineDesk(tmp_path / "data")
    desk.topic()
    subscription = desk.node.topic("t").subscription("timeline")
    share(subscription)
    consumer = desk.consumer(room=2)
    producer = desk.producer()
    desk.disk.eager = False
    desk.made(producer, ("a", 0), ("b", 0), ("c", 0))
    desk.advance(1)
    assert subscription.in_flight() == 2
    consumer.status(2)  # it has got nothing, so it has as much room as before
    desk.advance(1)
    assert consumer.take() == []
    assert subscription.in_flight() == 2, "what is on its way takes up room"
    let_sync(desk.disk)
    assert sorted(consumer.ids()) == ["a", "b"]


# --- over sockets -------------------------------------------------------------------------------------------------


class HeldSyncs:
    """Holds back what a running node would sync, while it is told to. Everything here runs on the node's loop."""

    def __init__(self, node: Node) -> None:
        self._submit = node.disk.submit
        self._held: list[tuple[Any, ...]] = []
        self.holding = False
        node.disk.submit = self.submit  # type: ignore[method-assign]

    def submit(self, pool: str, work: Any, done: Any) -> None:
        if self.holding and pool == "sync":
            self._held.append((pool, work, done))
        else:
            self._submit(pool, work, done)

    def hold(self) -> None:
        self.holding = True

    def let_go(self, *, fails: bool) -> None:
        self.holding = False
        held, self._held = self._held, []
        for pool, work, done in held:
            if fails:
                done(None, OSError(errno.EIO, "another writer has begun"))
            else:
                self._submit(pool, work, done)


@pytest.fixture(scope="module")
def flown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flown]:
    with Flown(tmp_path_factory.mktemp("kept") / "data") as node:
        yield node


@pytest.fixture(scope="module")
def syncs(flown: Flown) -> HeldSyncs:
    return flown.do(lambda: HeldSyncs(flown.node))


def opened(flown: Flown, topic: str) -> Keeping:
    """Make a topic with messages and a shared subscription `s`."""

    async def made() -> Keeping:
        return share(await (await flown.node.obtain(topic)).subscribe("s"))

    keeping = flown.run(made())
    flown.publish(topic, "a", "b", "c")
    return keeping


def receipt_of(flown: Flown, topic: str) -> str:
    (message,) = flown.lease(topic, "s", max=1)
    receipt: str = message["receipt"]
    return receipt


#: What is posted to the API about a subscription.
POSTED: dict[str, Callable[[Flown, str], tuple[str, object]]] = {
    "lease": lambda flown, topic: ("lease", {"max": 2}),
    "ack": lambda flown, topic: ("ack", {"receipts": [receipt_of(flown, topic)]}),
    "extend": lambda flown, topic: ("extend", {"receipts": [receipt_of(flown, topic)]}),
    "release": lambda flown, topic: ("release", {"receipts": [receipt_of(flown, topic)]}),
    "ack-up-to": lambda flown, topic: ("ack-up-to", {"id": receipt_of(flown, topic).partition("-")[0]}),
    "remove": lambda flown, topic: ("remove", {"ids": [receipt_of(flown, topic).partition("-")[0]]}),
    "empty": lambda flown, topic: ("empty", None),
    "seek": lambda flown, topic: ("seek", {"to": "earliest"}),
}


@pytest.mark.parametrize("fails", [False, True], ids=["synced", "failed"])
@pytest.mark.parametrize("act", [*POSTED, "nsq empty", "nsq setoffset"])
def test_the_api_and_nsqs_answer_after_the_sync(flown: Flown, syncs: HeldSyncs, act: str, *, fails: bool) -> None:
    topic = f"{act.replace(' ', '-')}-{fails}"
    keeping = opened(flown, topic)
    if act in POSTED:
        path, document = POSTED[act](flown, topic)
        port, target = flown.api.port, f"/api/v1/topics/{topic}/subscriptions/s/{path}"
        body = msgspec.json.encode(document) if document is not None else b""
    else:
        port, target = flown.ports["nsq.http_port"], f"/channel/{act.partition(' ')[2]}?topic={topic}&channel=s"
        body = b"special:-1" if act == "nsq setoffset" else b""
    flown.do(syncs.hold)
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        head = f"POST {target} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        client.sendall(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        flown.until(lambda: keeping._is_syncing)
        flown.do(lambda: None)  # whatever that turn wrote is at the socket now
        assert select.select([client], [], [], 0)[0] == [], "nobody may hear of it before it is kept"
        flown.do(lambda: syncs.let_go(fails=fails))
        status = int(client.recv(65536).split()[1])
    assert status >= 500 if fails else status == 200


@pytest.mark.parametrize("fails", [False, True], ids=["synced", "failed"])
def test_flight_confirms_acks_after_the_sync(flown: Flown, syncs: HeldSyncs, *, fails: bool) -> None:
    topic = f"flight-{fails}"
    keeping = opened(flown, topic)
    with flown.subscribe(topic, "s") as held, ThreadPoolExecutor(1) as thread:
        held.order(credit=1)
        (row,) = held.rows(1)
        flown.do(syncs.hold)
        held.order(ack=[[row["id"], row["id"]]], credit=0, ping=1)
        said = thread.submit(held.next)
        flown.until(lambda: keeping._is_syncing)
        flown.do(lambda: None)
        assert not said.done()
        flown.do(lambda: syncs.let_go(fails=fails))
        notice = said.result(60)
    assert isinstance(notice, Notice)
    if fails:
        assert notice.pong is None
        assert (notice.end or "").startswith("unavailable")
    else:
        assert notice.pong == 1


@pytest.mark.parametrize("fails", [False, True], ids=["synced", "failed"])
def test_flight_answers_a_seek_after_the_sync(flown: Flown, syncs: HeldSyncs, *, fails: bool) -> None:
    topic = f"flight-seek-{fails}"
    keeping = opened(flown, topic)
    flown.do(syncs.hold)
    with ThreadPoolExecutor(1) as thread:
        answer = thread.submit(flown.act, "seek", topic=topic, subscription="s", offset=0, shard=0)
        flown.until(lambda: keeping._is_syncing)
        flown.do(lambda: None)
        assert not answer.done()
        flown.do(lambda: syncs.let_go(fails=fails))
        if fails:
            with pytest.raises(Exception, match="not known whether"):
                answer.result(60)
        else:
            assert answer.result(60) == {}
