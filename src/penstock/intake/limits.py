"""How much the node takes in: messages a second, due times not too far away.

Pure counters and tests, time passed in. Knows nothing of connections or topics; what to do with a refusal is the
caller's. Invariant: all or nothing. A group of messages is never let in in part.
"""

from __future__ import annotations

from penstock.columns import Column
from penstock.errors import Refusal
from penstock.log.decode import largest
from penstock.units.quantity import format_duration
from penstock.units.times import shown

SECOND_NS = 1_000_000_000


class RateWindow:
    """At most `rate` messages in each second of the monotonic clock; 0 means no limit.

    A group larger than a whole window would never fit. It is let in by an untouched window and paid for by the
    windows after it, so that the rate holds over time and no client waits for ever.
    """

    __slots__ = ("_used", "_window", "rate", "refused")

    def __init__(self, rate: int) -> None:
        self.rate = rate
        self.refused = 0
        self._window = 0
        self._used = 0

    def allow(self, count: int, monotonic_ns: int) -> bool:
        """Let all messages of a group in, or none."""
        rate = self.rate
        if not rate:
            return True
        window = monotonic_ns // SECOND_NS
        if window > self._window:
            # What earlier windows had in excess is paid before anything else.
            self._used = max(0, self._used - rate * (window - self._window))
            self._window = window
        if self._used and self._used + count > rate:
            self.refused += count
            return False
        self._used += count
        return True


def check_due(name: str, column: Column, max_due_ns: int, now_ns: int) -> None:
    """Refuse due times that are further away than a topic allows: each holds its message in the log until then."""
    due_ns = largest(column)
    if max_due_ns and due_ns - now_ns > max_due_ns:
        raise _too_far(name, f"a message is due at {shown(due_ns)}", max_due_ns)


def check_delay(name: str, delay_ns: int, max_due_ns: int) -> None:
    """Refuse to let a released message wait for longer than a topic allows."""
    if max_due_ns and delay_ns > max_due_ns:
        raise _too_far(name, f"a message shall wait for {format_duration(delay_ns)}", max_due_ns)


def _too_far(name: str, what: str, max_due_ns: int) -> Refusal:
    text = f"{what}, but topic {name} takes nothing due in more than {format_duration(max_due_ns)}; raise its max_due"
    return Refusal("due_too_far", text)
