"""Everything refused or dropped, by reason and topic: how often, when, and a few samples.

Owns the counts behind "published = stored + refused + discarded". Knows nothing of why a message is refused, and
reads no clock.
Invariant: nothing added is ever missing from `total`, and memory is bounded whatever clients send.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec

from penstock.columns import TOPIC_NAME_BYTES_MAX

#: Pairs of reason and topic told apart; about 2 KiB each with full samples.
ENTRIES_MAX = 4096
#: The topic under which a reason is counted once there are too many entries.
OTHER_TOPICS = "other topics"
SAMPLES_MAX = 5
SAMPLE_BYTES_MAX = 128


class Sample(msgspec.Struct, frozen=True):
    """The beginning of something refused, and who sent it."""

    time_ns: int
    content: bytes | str
    peer: str


class Entry(msgspec.Struct, frozen=True):
    """What was refused or dropped for one reason on one topic."""

    reason: str
    topic: str
    count: int
    first_ns: int
    last_ns: int
    #: The most recent last.
    samples: tuple[Sample, ...]


class Ledger:
    """Counts of what was refused or dropped."""

    def __init__(self, entries_max: int = ENTRIES_MAX) -> None:
        #: Told (reason, topic, count) of everything added, where somebody keeps a history.
        self.on_add: Callable[[str, str, int], None] | None = None
        self._entries_max = entries_max
        self._accounts: dict[tuple[str, str], _Account] = {}

    def add(
        self,
        reason: str,
        topic: str,
        count: int,
        now_ns: int,
        sample: bytes | bytearray | memoryview | str | None = None,
        peer: str = "",
    ) -> None:
        """Count messages refused or dropped; of the sample only the beginning is kept. Budget: 0.3 us, 1 us sampled."""
        account = self._accounts.get((reason, topic))
        if account is None:
            account = self._open(reason, topic, now_ns)
        account.count += count
        account.last_ns = now_ns
        if sample is not None:
            account.samples.append(Sample(now_ns, _beginning(sample), _text(peer)))
        if self.on_add is not None:
            self.on_add(reason, topic, count)

    def entries(self, reason: str | None = None, topic: str | None = None, since_ns: int | None = None) -> list[Entry]:
        """Return the entries that match and were added to since then, the most recent first."""
        found = [
            Entry(of, on, account.count, account.first_ns, account.last_ns, tuple(account.samples))
            for (of, on), account in self._accounts.items()
            if reason in (None, of) and topic in (None, on) and (since_ns is None or account.last_ns >= since_ns)
        ]
        found.sort(key=lambda entry: entry.last_ns, reverse=True)
        return found

    def total(self, reason: str | None = None, topic: str | None = None) -> int:
        """Return the count over the entries that match."""
        return sum(
            account.count
            for (of, on), account in self._accounts.items()
            if reason in (None, of) and topic in (None, on)
        )

    def _open(self, reason: str, topic: str, now_ns: int) -> _Account:
        # A name that was refused may be of any length.
        key = (reason, topic[:TOPIC_NAME_BYTES_MAX])
        if key not in self._accounts and len(self._accounts) >= self._entries_max:
            # Topics come from clients, reasons from the code: so this adds at most one entry per reason.
            key = (reason, OTHER_TOPICS)
        return self._accounts.setdefault(key, _Account(now_ns))


class _Account:
    __slots__ = ("count", "first_ns", "last_ns", "samples")

    def __init__(self, now_ns: int) -> None:
        self.count = 0
        self.first_ns = now_ns
        self.last_ns = now_ns
        self.samples: deque[Sample] = deque(maxlen=SAMPLES_MAX)


def _beginning(sample: bytes | bytearray | memoryview | str) -> bytes | str:
    return _text(sample) if isinstance(sample, str) else bytes(sample[:SAMPLE_BYTES_MAX])


def _text(text: str) -> str:
    """Return at most SAMPLE_BYTES_MAX bytes of text, whole characters only."""
    text = text[:SAMPLE_BYTES_MAX]
    if text.isascii():
        return text
    return text.encode("utf-8", "replace")[:SAMPLE_BYTES_MAX].decode("utf-8", "ignore")
