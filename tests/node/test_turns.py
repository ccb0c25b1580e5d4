"""Work that stops the loop leaves most of the time to others."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.clock import MILLISECOND, SECOND
from penstock.errors import Refusal
from penstock.node.turns import BURST_NS, PART, WAITING_MAX, Turns
from tests.fakes import FakeClock
from tests.nsq.parts import Broker, pub


class Desk:
    """Work of 10 ms each."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.turns = Turns(self.clock)
        self.done: list[int] = []

    def ask(self) -> None:
        self.turns.next().then(self._work)

    def _work(self, _: object, error: Exception | None) -> None:
        assert error is None
        began_ns = self.clock.monotonic()
        self.clock._move(began_ns + 10 * MILLISECOND)
        self.turns.spent(began_ns)
        self.done.append(began_ns)


def test_a_few_are_done_at_once() -> None:
    desk = Desk()
    for _ in range(10):
        desk.ask()
    assert len(desk.done) == 10


def test_many_take_a_part_of_the_time_and_all_come_to_their_turn() -> None:
    desk = Desk()
    began_ns = desk.clock.monotonic()
    for _ in range(200):
        desk.ask()
    assert len(desk.done) < 50
    desk.clock.advance(SECOND)
    most_ns = BURST_NS + (desk.clock.monotonic() - began_ns) // PART + 20 * MILLISECOND
    assert len(desk.done) * 10 * MILLISECOND <= most_ns
    desk.clock.advance(20 * SECOND)
    assert len(desk.done) == 200


def test_too_many_are_refused_and_an_end_lets_everybody_go() -> None:
    turns = Turns(FakeClock())
    turns._left_ns = -SECOND
    waiting = [turns.next() for _ in range(WAITING_MAX)]
    with pytest.raises(Refusal, match="try again later"):
        turns.next().now()
    turns.stop()
    for answer in waiting:
        with pytest.raises(Refusal, match="stopping"):
            answer.now()


def test_who_needs_new_topics_waits_and_who_has_its_own_does_not(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    good, flood = broker.client(), broker.client()
    good.pub("there", b"1")
    broker.node.lifecycle._turns._left_ns = -SECOND
    flood.send(pub("new", b"x") + pub("there", b"2"))
    good.pub("there", b"3")
    assert (good.replies(), flood.replies()) == (["OK", "OK"], [])
    assert "new" not in broker.node.topics
    broker.advance(2 * PART)
    assert flood.replies() == ["OK", "OK"]
    assert broker.node.topic("there").intake.published == 3
