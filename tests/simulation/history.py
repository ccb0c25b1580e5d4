"""What happened, in order: every event goes into the hash of the trace, the last ones are kept for a failing run."""

from __future__ import annotations

import hashlib
from collections import deque

#: Events printed with a violation.
KEPT_EVENTS = 60


class Violation(BaseException):
    """A promise was broken: which, and how. The node must not catch it, so it is no Exception."""

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(f"{rule}: {text}")
        self.rule = rule


class History:
    """The events of one run."""

    def __init__(self, *, trace: bool = False) -> None:
        self.events = 0
        self.last: deque[str] = deque(maxlen=KEPT_EVENTS)
        self._hash = hashlib.blake2b(digest_size=16)
        self._trace = trace

    def record(self, time_ns: int, kind: str, *fields: object) -> None:
        """Note one event."""
        line = f"{time_ns / 1e6:12.3f} {kind:<12} {' '.join(map(str, fields))}"
        self.events += 1
        self._hash.update(line.encode())
        self.last.append(line)
        if self._trace:
            print(line)

    def digest(self) -> str:
        """Return the hash of everything so far."""
        return self._hash.hexdigest()
