"""A simulated machine for tests of single parts: its disk may fill up, lose power, or see the process die."""

from __future__ import annotations

from random import Random

from penstock.clock import SECOND
from tests.simulation.clock import Scheduler, SimClock
from tests.simulation.disk import Platter, SimDisk


class Machine:
    """A disk and a clock for one process at a time."""

    def __init__(self, seed: int = 0) -> None:
        self.scheduler = Scheduler(Random(f"{seed} turns"))
        self.platter = Platter(Random(f"{seed} disk"))
        self.clock = SimClock(self.scheduler, 0, Random("timers"))
        self.start()

    def start(self) -> None:
        """Begin another process; what the one before asked for never happens."""
        self.clock.alive = False
        self.platter.fuse = None
        self.clock = SimClock(self.scheduler, 0, Random("timers"))
        self.disk = SimDisk(self.platter, self.scheduler, self.clock, 1.0)

    def lose_power(self) -> None:
        """Lose what was not synced, or some of it, and begin another process."""
        self.clock.alive = False
        self.platter.lose_power()
        self.start()

    def run(self, seconds: float = 0.1) -> None:
        """Let time pass."""
        self.scheduler.run_until(self.scheduler.time_ns + int(seconds * SECOND))

    def fail_syncs(self, count: int = 1_000_000, of: str = "", *, shown: bool | None = None) -> None:
        """Let the next syncs of files with this in their path fail, with the loss of what they were to bring down."""
        left, self.platter.shows = count, shown

        def fails(path: str) -> bool:
            nonlocal left
            failing = left > 0 and of in path
            left -= failing
            return failing

        self.platter.fails = fails

    def mend(self) -> None:
        """Let syncs succeed again."""
        self.fail_syncs(0)

    def fill(self) -> None:
        """Leave no room on the disk."""
        self.platter.capacity_bytes = self.platter.used_bytes

    def make_room(self) -> None:
        """Leave plenty of room again."""
        self.platter.capacity_bytes = 1 << 40
