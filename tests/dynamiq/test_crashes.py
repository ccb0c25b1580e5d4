"""A queue on a simulated machine whose node dies at any write: what clients were told holds, seed after seed."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from penstock.config import Config
from penstock.config.tree import EventsConfig
from penstock.dialects import DIALECTS
from penstock.dialects.dynamiq.config import DynamiqConfig
from penstock.dialects.dynamiq.running import Dynamiq
from penstock.node.node import Node
from tests.http.line import Line
from tests.simulation.disk import Died
from tests.simulation.machine import Machine

SECOND = 1_000_000_000
VISIBILITY_S = 5
#: Leases end so much before their lock at most.
GRAIN_S = 0.011


class Run:
    """One seed: clients that send, receive and delete, and a node that dies now and then."""

    def __init__(self, seed: int) -> None:
        self.random = Random(f"queue {seed}")
        self.machine = Machine(seed)
        self.config = Config(
            data_dir="data", parts=(DynamiqConfig(sync_interval_ns=SECOND),), events=EventsConfig(mode="off")
        )
        #: What was promised: id -> body; ids whose delete was answered; ids and bodies of which nothing is known.
        self.sent: dict[str, str] = {}
        self.deleted: set[str] = set()
        self.maybe_sent: set[str] = set()
        self.maybe_deleted: set[str] = set()
        self.received_s: dict[str, float] = {}
        self.bodies = self.kills = self.received = 0
        self.start()

    def start(self) -> None:
        self.machine.start()
        clock = self.machine.clock
        self.node = Node(self.config, clock, self.machine.disk, Random(self.kills), dialects=DIALECTS)
        self.line = Line(Dynamiq(self.node, self.config).listener)

    @property
    def now_s(self) -> float:
        return self.machine.scheduler.time_ns / SECOND

    def ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes] | None:
        """Send a request; None if the node died over it, and nobody knows how far it came."""
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        try:
            self.line.send(head.encode() + body)
            for _ in range(100):
                if not self.machine.clock.alive:  # the parser makes another error of it
                    raise Died
                if self.line.out:
                    status, _, content = self.line.answer()
                    return status, content
                self.machine.run(0.001)
        except Died:
            self.kill()
            return None
        raise AssertionError(f"{method} {path} was never answered")

    def kill(self) -> None:
        self.kills += 1
        self.start()

    # --- what clients do ------------------------------------------------------------------------------------------

    def send(self) -> None:
        self.bodies += 1
        body = f"m{self.bodies}"
        answer = self.ask("PUT", "/v1/queues/q/message", body.encode())
        if answer is None:
            self.maybe_sent.add(body)
        else:
            assert answer[0] == 200
            assert answer[1]
            self.sent[answer[1].decode()] = body

    def receive(self, limit: int) -> list[str]:
        answer = self.ask("GET", f"/v1/queues/q/messages/{limit}")
        if answer is None:
            return []
        assert answer[0] == 200
        found = msgspec.json.decode(answer[1], type=list[dict[str, str]])
        for each in found:
            self.check(each["id"], each["body"])
        return [each["id"] for each in found]

    def check(self, id_: str, body: str) -> None:
        self.received += 1
        assert id_ not in self.deleted, f"{body} came back although it was deleted"
        if id_ not in self.sent:
            assert body in self.maybe_sent, f"{body} was never sent"
            self.maybe_sent.discard(body)
            self.sent[id_] = body
        assert self.sent[id_] == body
        before_s = self.received_s.get(id_)
        assert before_s is None or self.now_s - before_s > VISIBILITY_S - GRAIN_S, f"{body} came twice"
        self.received_s[id_] = self.now_s

    def delete(self, ids: list[str]) -> None:
        if not ids:
            return
        answer = self.ask("DELETE", f"/v1/queues/q/messages/{','.join(ids)}")
        if answer is None:
            self.maybe_deleted.update(ids)
            return
        count = msgspec.json.decode(answer[1])["deleted"]
        fresh = [id_ for id_ in ids if id_ not in self.deleted]
        certain = [id_ for id_ in fresh if id_ not in self.maybe_deleted]
        assert len(certain) <= count <= len(fresh)
        self.deleted.update(ids)

    def step(self) -> None:
        draw = self.random.random()
        if draw < 0.45:
            self.send()
        elif draw < 0.7:
            got = self.receive(self.random.choice((1, 3, 20)))
            self.delete([id_ for id_ in got if self.random.random() < 0.7])
        elif draw < 0.8 and self.sent:
            self.delete(self.random.sample(sorted(self.sent), min(2, len(self.sent))))  # also what nobody has
        elif draw < 0.85:
            least = self.random.randint(1, 4)
            settings = {"min_partitions": least, "max_partitions": least + self.random.randint(0, 4)}
            self.ask("PATCH", "/v1/queues/q", msgspec.json.encode(settings))
        elif draw < 0.9:
            self.machine.platter.fuse = self.random.randint(1, 6)  # it dies over one of the next writes
        else:
            try:
                self.machine.run(self.random.random() * 3)
            except Died:
                self.kill()

    def live(self, steps: int) -> None:
        self.ask("PUT", "/v1/queues/q")
        self.ask("PATCH", "/v1/queues/q", b'{"visibility_timeout":%d}' % VISIBILITY_S)
        self.machine.run(1.1)
        for _ in range(steps):
            self.step()

    def heal(self) -> None:
        """Let nobody die any more, and receive and delete everything."""
        self.kill()
        empty = 0
        while empty < 3:
            self.machine.run(VISIBILITY_S + 0.1)
            got = [id_ for _ in range(9) for id_ in self.receive(1000)]
            self.delete(got)
            empty = 0 if got else empty + 1
        left = set(self.sent) - self.deleted - self.maybe_deleted
        assert not left, f"{len(left)} messages never came back"
        assert self.node.bugs == 0
        assert self.node.topics["q"].subscription("queue").depth() == 0


@pytest.mark.parametrize("seed", range(8))
def test_what_was_deleted_never_comes_back_and_the_rest_always_does(seed: int) -> None:
    run = Run(seed)
    run.live(150)
    run.heal()
    assert run.kills > 1
    assert run.received > 20
