"""What still waits in memory topics when their node stops: no log has it, so it is taken in hand, and told as lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from penstock.clock import Clock
from penstock.relays.kafka.lane import Lane


class Leftovers:
    """Takes the rest of the lanes that end with this process."""

    def __init__(self, lanes: Mapping[str, Lane], clock: Clock) -> None:
        self._lanes = lanes
        self._clock = clock
        #: Whatever is handed out now is lost.
        self.are_lost = False

    @property
    def waiting(self) -> int:
        """How many messages of memory topics nobody has looked at yet."""
        return sum(lane.waiting for lane in self._lanes.values() if lane.is_fleeting)

    def take(self, done: Callable[[], None]) -> None:
        """Have everything handed out, turn by turn, and tell when nothing more comes."""
        self.are_lost = True
        self._take(done, None)

    def _take(self, done: Callable[[], None], before: int | None) -> None:
        waiting = self.waiting
        if not waiting or waiting == before:  # what is paused is not handed out, to nobody
            done()
            return
        for lane in list(self._lanes.values()):
            if lane.is_fleeting:
                lane.take_rest()
        self._clock.call_soon(partial(self._take, done, waiting))
