"""How far the clock of a node is from the one here, by pings.

Pure: times are arguments, in milliseconds. Invariant: `earliest` is never later than the node's own time, and `latest`
never earlier, as far as both clocks run alike.
"""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import NamedTuple

#: So many pings are remembered.
SAMPLES_MAX = 16
#: Those that took so many times the median are passed by.
SLOW = 2
#: From here on the clocks are said to be apart.
DRIFT_MS = 100.0


class Sample(NamedTuple):
    """One ping: when it left, what the node's clock said, when the answer was here."""

    sent_ms: float
    partner_ms: float
    received_ms: float

    @property
    def rtt_ms(self) -> float:
        """How long it took."""
        return self.received_ms - self.sent_ms

    @property
    def offset_ms(self) -> float:
        """How far the node's clock is ahead, if both ways took the same time."""
        return self.partner_ms - (self.sent_ms + self.rtt_ms / 2)


class Drift:
    """What is known of one node's clock."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=SAMPLES_MAX)
        self._best: Sample | None = None

    def add(self, sample: Sample) -> None:
        """Take an answer into account."""
        self._samples.append(sample)
        self._best = min(self._samples, key=lambda each: each.rtt_ms)

    def clear(self) -> None:
        """Know nothing: it is another node."""
        self._samples.clear()
        self._best = None

    @property
    def is_known(self) -> bool:
        """Whether an answer came at all."""
        return self._best is not None

    @property
    def offset_ms(self) -> float:
        """How far the node's clock is ahead: the median of the answers that came without delay; 0 without any."""
        if not self._samples:
            return 0.0
        usual_ms = median(each.rtt_ms for each in self._samples)
        return median(each.offset_ms for each in self._samples if each.rtt_ms <= SLOW * usual_ms)

    @property
    def is_active(self) -> bool:
        """Whether the clocks are apart."""
        return abs(self.offset_ms) > DRIFT_MS

    def earliest(self, now_ms: float) -> float:
        """Return a time which the node's clock has reached for sure."""
        # The node looked at its clock before the answer was here.
        return now_ms if self._best is None else now_ms + self._best.partner_ms - self._best.received_ms

    def latest(self, now_ms: float) -> float:
        """Return a time which the node's clock has not passed for sure."""
        # The node may say a whole millisecond that is nearly over.
        return now_ms if self._best is None else now_ms + self._best.partner_ms + 1 - self._best.sent_ms

    def local(self, node_ms: float, now_ms: float) -> float:
        """Return when, by the clock here, the node's has reached a time for sure."""
        return node_ms + now_ms - self.earliest(now_ms)
