"""Large work stops the loop for one piece at a time, whoever has how much of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.errors import Refusal
from penstock.node.slices import Slices
from tests.fakes import FakeClock


def work(name: str, pieces: int, log: list[str]) -> Callable[[], bool]:
    """Return work of so many pieces."""
    done = 0

    def step() -> bool:
        nonlocal done
        done += 1
        log.append(f"{name}{done}")
        return done == pieces

    return step


def test_works_are_done_piece_by_piece_in_turn() -> None:
    clock = FakeClock()
    slices, log = Slices(clock), list[str]()
    long, short = slices.do(work("a", 4, log)), slices.do(work("b", 2, log))
    assert log == []
    clock.run()
    assert log == ["a1", "b1", "a2", "b2", "a3", "a4"]
    assert long.is_given
    assert short.is_given


def test_one_piece_is_done_in_a_turn_of_the_loop() -> None:
    clock = FakeClock()
    slices, log = Slices(clock), list[str]()
    for name in "abc":
        slices.do(work(name, 2, log))
    clock.call_soon(lambda: log.append("somebody else"))
    clock.run()
    assert log[:2] == ["a1", "somebody else"]


def test_work_that_fails_costs_the_others_nothing() -> None:
    clock = FakeClock()
    slices, log = Slices(clock), list[str]()

    def fail() -> bool:
        raise Refusal("bad_request", "line 3 is none")

    failed, other = slices.do(fail), slices.do(work("a", 2, log))
    clock.run()
    with pytest.raises(Refusal, match="line 3"):
        failed.now()
    assert other.is_given
    assert log == ["a1", "a2"]
