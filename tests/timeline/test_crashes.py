"""A timeline on a simulated machine whose node dies at any write: what clients were told holds, seed after seed."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest

from penstock.config import Config
from penstock.config.tree import EventsConfig
from penstock.dialects import DIALECTS
from penstock.dialects.timeline.config import TimelineConfig
from penstock.dialects.timeline.running import Timelines
from penstock.node.node import Node
from tests.http.line import Line
from tests.simulation.disk import Died
from tests.simulation.machine import Machine

LEASE_MS = 5000


class Run:
    """One seed: producers, two consumers, and a node that dies now and then."""

    def __init__(self, seed: int) -> None:
        self.random = Random(f"timeline {seed}")
        self.machine = Machine(seed)
        self.config = Config(data_dir="data", parts=(TimelineConfig(),), events=EventsConfig(mode="off"))
        self.count = self.kills = self.leased = 0
        #: What was promised: ids that are stored and when each is due, and that are deleted; and what nobody knows.
        self.sent: dict[str, int] = {}
        self.deleted: set[str] = set()
        self.maybe_sent: dict[str, int] = {}
        self.maybe_deleted: set[str] = set()
        #: Who has a lease of what, in which version, until when, as it was told.
        self.leases: dict[str, tuple[str, int, int]] = {}
        self.sessions: dict[str, str] = {}
        self.start()

    def start(self) -> None:
        self.machine.start()
        self.sessions.clear()
        clock = self.machine.clock
        self.node = Node(self.config, clock, self.machine.disk, Random(self.kills), dialects=DIALECTS)
        self.line = Line(Timelines(self.node, self.config).listener)

    @property
    def now_ms(self) -> int:
        return self.machine.clock.now() // 1_000_000

    def ask(self, method: str, path: str, **document: object) -> Any:
        """Send a request; None if the node died over it, and nobody knows how far it came."""
        raw = msgspec.json.encode(document)
        head = f"{method} /v1/{path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(raw)}\r\n\r\n"
        try:
            self.line.send(head.encode() + raw)
            for _ in range(400):
                if not self.machine.clock.alive:  # the parser makes another error of it
                    raise Died
                if self.line.out:
                    status, _, content = self.line.answer()
                    told = msgspec.json.decode(content)
                    assert status == 200 or told["error"]["kind"] in (401, 402), told
                    return told
                self.machine.run(0.001)
        except Died:
            self.kill()
            return None
        raise AssertionError(f"{method} {path} was never answered")

    def session(self, name: str) -> str | None:
        """Greet, if that is not done yet in this life of the node."""
        if name not in self.sessions:
            if name == "p":
                self.ask("PUT", "topics/t", bucket_count=8, prefetch_max_ms=0, rqs_limit_per_client=1_000_000)
                told = self.ask("POST", "producer-handshake", topic_id="t", producer_group_id="g", producer_id="p")
            else:
                told = self.ask("POST", "consumer-handshake", topic_id="t", consumer_id=name, lease_timeout_ms=LEASE_MS)
            if told is None or not told.get("session_id"):
                return None
            self.sessions[name] = told["session_id"]
        return self.sessions[name]

    # --- what clients do ------------------------------------------------------------------------------------------

    def create(self) -> None:
        session = self.session("p")
        if session is None:
            return
        ids = [f"m{self.count + number}" for number in range(self.random.randrange(1, 30))]
        self.count += len(ids)
        due = {each: self.now_ms + self.random.choice((0, 0, 500, 3000)) for each in ids}
        told = self.ask(
            "POST", "messages", session_id=session, messages=[{"id": name, "due_ms": at} for name, at in due.items()]
        )
        (self.maybe_sent if told is None else self.sent).update(due)

    def lease(self, limit: int) -> int:
        name = self.random.choice(("c0", "c1"))
        session = self.session(name)
        told = None
        if session is not None:
            told = self.ask("POST", "lease", session_id=session, limit=limit, fresh=True)
        for row in told["messages"] if told is not None else ():
            self.check(name, row)
        return len(told["messages"]) if told is not None else 0

    def check(self, consumer: str, row: dict[str, Any]) -> None:
        self.leased += 1
        name = row["message_id"]
        assert name not in self.deleted, f"{name} came back although it was deleted"
        if name not in self.sent:
            self.sent[name] = self.maybe_sent.pop(name)
        assert self.sent[name] <= self.now_ms, f"{name} came before it was due"
        before = self.leases.get(name)
        assert before is None or before[2] <= self.now_ms, f"{name} is on lease to {before}"
        assert before is None or before[1] != row["version"], f"{name} has the version of its last lease"
        self.leases[name] = (consumer, row["version"], row["expiration_ts_ms"])

    def delete(self) -> None:
        held = [
            (name, lease)
            for name, lease in self.leases.items()
            if lease[2] > self.now_ms + 1000 and name not in self.deleted and name not in self.maybe_deleted
        ]
        if not held:
            return
        consumer = self.random.choice(held)[1][0]
        some = [(name, lease[1]) for name, lease in held if lease[0] == consumer][: self.random.randrange(1, 20)]
        session = self.session(consumer)
        if session is None:
            return
        messages = [{"id": name, "version": version} for name, version in some]
        told = self.ask("POST", "messages/delete", session_id=session, messages=messages)
        names = {name for name, _ in some}
        if told is None:
            self.maybe_deleted |= names
        else:
            assert [each.get("error") for each in told["messages"]] == [None] * len(names), "a lease was lost"
            self.deleted |= names

    def wait(self, seconds: float) -> None:
        try:
            self.machine.run(seconds)
        except Died:
            self.kill()

    def kill(self) -> None:
        self.kills += 1
        self.start()

    def step(self) -> None:
        if self.random.random() < 0.15:
            self.machine.platter.fuse = self.random.randint(1, 12)  # it dies over one of the next writes
        self.random.choices((self.create, lambda: self.lease(20), self.delete), (3, 4, 3))[0]()
        self.wait(self.random.choice((0.0, 0.01, 0.5, 2.0)))

    def heal(self) -> None:
        """Let nobody die any more, everything be due and every lease be over: what is left comes, nothing else does."""
        self.kill()
        self.wait(LEASE_MS / 1000 + 4)
        began_ms = self.now_ms
        while self.lease(1000):
            pass
        left = set(self.sent) - self.deleted - self.maybe_deleted
        came = {name for name, lease in self.leases.items() if lease[2] >= began_ms + LEASE_MS}
        assert left <= came, f"{len(left - came)} messages never came back"
        assert self.node.bugs == 0


@pytest.mark.parametrize("seed", range(5))
def test_what_clients_were_told_holds_whatever_write_the_node_dies_at(seed: int) -> None:
    run = Run(seed)
    for _ in range(80):
        run.step()
    run.heal()
    assert run.leased > 50
    assert run.deleted
    assert run.kills > 1
