"""The node's memory: parts, what is held for clients that are waited for, and who gives way."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.budget import PART_BYTES_MIN, WINDOW_NS, Budget, Pace, Share, Waiting, sizes_of
from penstock.clock import SECOND
from penstock.config import LimitsConfig, MemoryConfig
from penstock.errors import InvariantError, Refusal
from penstock.resident import memory_bytes
from tests.fakes import FakeClock

MIB = 1 << 20


def test_memory_is_taken_up_to_the_bound_and_given_back() -> None:
    memory = Share("input", 100)
    assert memory.take(60)
    assert memory.take(40)
    assert not memory.take(1)
    memory.give(40)
    assert memory.take(40)
    assert memory.used == 100


def test_refused_memory_is_counted_and_not_taken() -> None:
    memory = Share("input", 100)
    assert memory.take(90)
    assert not memory.take(20)
    assert not memory.take(30)
    assert (memory.used, memory.refused) == (90, 2)


def test_giving_back_more_than_was_taken_is_a_broken_promise() -> None:
    memory = Share("input", 100)
    memory.take(10)
    with pytest.raises(InvariantError, match="11 bytes"):
        memory.give(11)


class Desk:
    """Bytes that clients are waited for, and who was cut."""

    def __init__(self, bytes_max: int, rate: int = 1000, timeout_s: int = 100) -> None:
        self.clock = FakeClock()
        self.waiting = Waiting("body", bytes_max, self.clock, Pace(rate, timeout_s * SECOND))
        self.cut: list[tuple[str, str]] = []

    def wait(self, name: str, size: int, address: str = "a"):  # type: ignore[no-untyped-def]
        def cut(why: Refusal) -> None:
            self.cut.append((name, why.code))

        wait = self.waiting.begin(address, cut)
        self.waiting.hold(wait, size)
        return wait


def test_of_those_who_are_waited_for_the_longest_gives_way() -> None:
    desk = Desk(100)
    desk.wait("first", 40)
    second = desk.wait("second", 40)
    desk.wait("third", 40)
    assert desk.cut == [("first", "memory_full")]
    assert desk.waiting.used == 80
    desk.waiting.hold(second, 90)
    assert desk.cut[1:] == [("second", "memory_full")]  # it was waited for longer than the third
    assert (desk.waiting.used, len(desk.waiting)) == (40, 1)


def test_what_is_kept_for_a_client_begins_with_its_first_byte_and_ends_with_none() -> None:
    desk = Desk(100)
    keep, cut = desk.waiting.keep, desk.cut

    def told(why: Refusal) -> None:
        cut.append(("it", why.code))

    assert keep(None, 0, "a", told) is None
    wait = keep(None, 40, "a", told)
    assert wait is not None
    assert keep(wait, 60, "a", told, paced=False) is wait
    assert not wait.paced
    other = keep(wait, 50, "a", told, fresh=True)
    assert other is not None
    assert (other is not wait, wait.is_over, desk.waiting.used) == (True, True, 50)
    assert keep(other, 101, "a", told) is None  # it is cut for that
    assert (cut, desk.waiting.used, len(desk.waiting)) == ([("it", "memory_full")], 0, 0)
    again = keep(other, 10, "a", told)  # and what comes now is another wait
    assert again is not None
    assert keep(again, 0, "a", told) is None
    assert (desk.waiting.used, len(desk.waiting)) == (0, 0)


def test_bytes_that_are_no_clients_cut_off_no_more_than_all_of_them() -> None:
    desk = Desk(100)
    desk.waiting.used = 150  # a relay has them
    desk.wait("first", 0)
    desk.wait("second", 10)
    assert desk.cut == [("second", "memory_full")]
    assert desk.waiting.used == 150


def test_the_client_that_holds_most_gives_way_and_not_the_one_that_came_first() -> None:
    desk = Desk(100)
    desk.wait("modest", 30, "b")
    for number in range(4):
        desk.wait(f"greedy {number}", 35)
    assert [name for name, _ in desk.cut] == ["greedy 0", "greedy 1"]
    assert desk.waiting.used == 100


def test_what_is_larger_than_everything_gives_way_itself() -> None:
    desk = Desk(100)
    desk.wait("huge", 101)
    assert desk.cut == [("huge", "memory_full")]
    assert desk.waiting.used == 0


def test_an_end_gives_back_what_was_held_once() -> None:
    desk = Desk(100)
    wait = desk.wait("one", 60)
    desk.waiting.end(wait)
    desk.waiting.end(wait)
    assert (desk.waiting.used, len(desk.waiting)) == (0, 0)


def test_who_stops_moving_is_cut_after_the_window_and_who_moves_is_not() -> None:
    desk = Desk(1 * MIB)
    desk.wait("still", 1000)
    moving = desk.wait("moving", 1000)
    for _ in range(WINDOW_NS // SECOND):
        desk.waiting.hold(moving, moving.bytes + 1000)
        desk.clock.advance(SECOND)
    assert desk.cut == [("still", "too_slow")]
    assert desk.waiting.used == moving.bytes


def test_nobody_is_waited_for_longer_than_the_timeout() -> None:
    desk = Desk(1 * MIB)
    moving = desk.wait("moving", 1000)
    for _ in range(100):
        assert not desk.cut
        desk.waiting.hold(moving, moving.bytes + 2000)
        desk.clock.advance(SECOND)
    assert desk.cut == [("moving", "too_slow")]


def test_while_it_is_the_nodes_own_move_no_time_runs() -> None:
    desk = Desk(1 * MIB)
    wait = desk.wait("patient", 1000)
    wait.paced = False
    desk.clock.advance(1000 * SECOND)
    assert not desk.cut
    wait.paced = True
    desk.clock.advance(WINDOW_NS - SECOND)
    assert not desk.cut
    desk.clock.advance(2 * SECOND)
    assert desk.cut == [("patient", "too_slow")]


def test_without_anybody_to_wait_for_no_timer_runs() -> None:
    desk = Desk(100)
    desk.waiting.end(desk.wait("one", 10))
    desk.clock.advance(10 * SECOND)
    assert not desk.clock._later


def test_parts_that_nobody_chose_share_the_budget() -> None:
    sizes = sizes_of(MemoryConfig(budget_bytes=800 * MIB, topic_bytes=1))
    assert sizes == {"body": 100 * MIB, "input": 200 * MIB, "output": 200 * MIB, "topic": 1, "cache": 100 * MIB}
    assert set(sizes_of(MemoryConfig(budget_bytes=1)).values()) == {PART_BYTES_MIN}


def test_without_a_budget_it_is_half_of_the_memory_and_not_much_on_a_large_machine() -> None:
    budget = Budget(MemoryConfig(), LimitsConfig(), FakeClock())
    assert budget.bytes_max <= min(memory_bytes() // 2, 1 << 30) + 8
    assert [part.name for part in budget] == ["body", "input", "output", "topic", "cache"]


def machine(path: Path, groups: str, **limits: str) -> int:
    """Return the memory of a machine with 1000 MiB and these control groups."""
    (path / "proc/self").mkdir(parents=True)
    (path / "proc/meminfo").write_text(f"MemTotal:  {1000 << 10} kB\nMemFree: 1 kB\n")
    (path / "proc/self/cgroup").write_text(groups)
    for name, text in limits.items():
        file = path / "cgroup" / name.replace("__", "/").replace("_max", ".max").replace("_limit", ".limit")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    return memory_bytes(str(path / "proc"), str(path / "cgroup"))


def test_a_machine_without_control_groups_has_its_own_memory(tmp_path: Path) -> None:
    assert machine(tmp_path, "") == 1000 * MIB


def test_a_control_group_of_either_kind_bounds_the_memory(tmp_path: Path) -> None:
    new = machine(tmp_path / "v2", "0::/app/node\n", app__node__memory_max="max", app__memory_max=str(300 * MIB))
    old = machine(tmp_path / "v1", "5:cpu,memory:/docker/x\n", memory__docker__x__memory_limit_in_bytes=str(200 * MIB))
    inside = machine(tmp_path / "inside", "0::/far/away\n", memory_max=str(100 * MIB))
    unlimited = machine(tmp_path / "none", "5:memory:/\n", memory__memory_limit_in_bytes=str(1 << 62))
    assert (new, old, inside, unlimited) == (300 * MIB, 200 * MIB, 100 * MIB, 1000 * MIB)
