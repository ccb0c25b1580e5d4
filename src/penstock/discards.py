"""What was thrown away, by reason: reports by interval, recent samples, and what each topic lost of which time.

Whoever throws something away says so here, with whole columns; whoever shows or writes it down reads it or listens.
Invariant: nothing told is missing from `totals`, and memory is bounded whatever clients send.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias, get_args

from penstock.clock import MILLISECOND, SECOND, Clock
from penstock.columns import TOPIC_NAME_BYTES_MAX

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: Bytes that were no message anybody could read, or none that is known.
RawReason: TypeAlias = Literal["malformed", "unclean_unix", "unclean_tcp", "unsupported_api_key", "unsupported_version"]
#: Messages that were read and given up.
Reason: TypeAlias = Literal[
    "no_memory",
    "bad_topic",
    "too_long",
    "no_available_partitions",
    "rate_limit",
    "topic_autocreate_failed",
    "error_ack",
    "attempt_limit",
    "shutdown",
    "bug",
]
Content: TypeAlias = bytes | bytearray | memoryview
#: Times of producers, in milliseconds since 1970.
Times: TypeAlias = "Sequence[int] | NDArray[np.int64]"

REASONS: Final[tuple[str, ...]] = (*get_args(RawReason), *get_args(Reason))

INTERVAL_NS = 600 * SECOND
#: Of each sample, this much is kept.
SAMPLE_BYTES = 256
#: Distinct samples of each kind in a report.
RECENT_MAX = 25
#: Topics told apart in one table of a report, and pairs of reason and topic in the totals.
TOPICS_MAX = 1024
#: What the topics beyond that are counted under.
OTHER_TOPICS = "other topics"
#: The log tells of one reason this often at most.
WARN_NS = 30 * SECOND

_log = logging.getLogger("penstock.discards")


class Thrown(NamedTuple):
    """Things that were thrown away together, or perhaps sent twice; what listeners hear."""

    event: Literal["discard", "duplicate"]
    #: None where nothing was thrown away.
    reason: RawReason | Reason | None
    now_ms: int
    #: The API key or version that is not supported.
    number: int | None
    #: Empty where the bytes were no message; each of them is then a body.
    topic: str
    times_ms: Times
    keys: Sequence[Content | None]
    bodies: Sequence[Content]


Listener: TypeAlias = Callable[[Thrown], None]


class Lost:
    """How many messages of one topic, and of which time of their producers."""

    __slots__ = ("count", "max_ms", "min_ms")

    def __init__(self, count: int, min_ms: int, max_ms: int) -> None:
        self.count = count
        self.min_ms = min_ms
        self.max_ms = max_ms


class Recent:
    """The latest distinct samples, each cut to its beginning."""

    __slots__ = ("_bytes_max", "_kept")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        #: The latest is last: a dictionary keeps that order.
        self._kept: dict[bytes, None] = {}

    def add(self, sample: Content) -> None:
        """Keep a sample as the latest."""
        cut = bytes(sample[: self._bytes_max])
        self._kept.pop(cut, None)
        self._kept[cut] = None
        if len(self._kept) > RECENT_MAX:
            del self._kept[next(iter(self._kept))]

    def __iter__(self) -> Iterator[bytes]:
        """The latest first."""
        return reversed(self._kept)


class Report:
    """What was thrown away in one interval."""

    def __init__(self, number: int, start_s: int, sample_bytes: int) -> None:
        #: Counted from 0.
        self.number = number
        self.start_s = start_s
        #: How many of each reason.
        self.counts: dict[str, int] = dict.fromkeys(REASONS, 0)
        self.malformed = Recent(sample_bytes)
        self.unclean_unix = Recent(sample_bytes)
        self.unclean_tcp = Recent(sample_bytes)
        #: Topic, space, body.
        self.too_long = Recent(sample_bytes)
        self.bad_topics = Recent(sample_bytes)
        #: Messages of versions nobody knows here, by version: there are 65536 of them.
        self.versions: dict[int, int] = {}
        self.rate_limited: dict[str, int] = {}
        #: By topic; what concerns no topic that is known is not in it.
        self.discarded: dict[str, Lost] = {}
        self.duplicates: dict[str, Lost] = {}


class Discards:
    """The report that grows, the one before, and the totals since the start."""

    def __init__(
        self, clock: Clock, interval_ns: int = INTERVAL_NS, sample_bytes: int = SAMPLE_BYTES, *, warns: bool = False
    ) -> None:
        """Take how long an interval is, how much of a sample is kept, and whether the log tells of discards."""
        self._clock = clock
        self._started_ns = clock.monotonic()
        self.interval_ns = interval_ns
        self.sample_bytes = sample_bytes
        #: When the first interval began, in unix time.
        self.since_s = clock.now() // SECOND
        #: Told of everything at once. Only then do callers have to give keys and bodies of messages.
        self.listeners: list[Listener] = []
        #: Since the start, by reason and topic; no topic where the bytes were no message.
        self.totals: dict[tuple[str, str], int] = {}
        #: Messages that may have been sent twice, by topic, since the start.
        self.duplicates: dict[str, int] = {}
        self._warns = warns
        #: When the log last told of a reason, and how many there were since.
        self._warned: dict[str, tuple[int, int]] = {}
        self._unfinished = Report(0, self.since_s, sample_bytes)
        self._finished: Report | None = None

    @property
    def is_heard(self) -> bool:
        """Tell whether somebody wants keys and bodies, too."""
        return bool(self.listeners)

    def add_raw(self, reason: RawReason, contents: Sequence[Content], number: int | None = None) -> None:
        """Count bytes that were no message, one piece each; `number` is an API key or version nobody knows.

        Budget: 1 us, and 0.5 us a piece.
        """
        report, count = self._now(), len(contents)
        report.counts[reason] += count
        self._total(reason, "", count)
        if number is not None and reason == "unsupported_version":
            report.versions[number] = report.versions.get(number, 0) + count
        recent = _RECENT.get(reason)
        if recent is not None:
            keep = recent(report).add
            for content in contents:
                keep(content)
        if self.listeners:
            now_ms = self._clock.now() // MILLISECOND
            self._tell(Thrown("discard", reason, now_ms, number, "", [now_ms] * count, [None] * count, contents))

    def add(
        self,
        reason: Reason,
        topic: str,
        times_ms: Times,
        keys: Sequence[Content | None] = (),
        bodies: Sequence[Content] = (),
    ) -> None:
        """Count messages of one topic that are given up, by the times of their producers.

        Keys and bodies are wanted while `is_heard`; bodies also of what is too long. Budget: 2 us for any number.
        """
        count = len(times_ms)
        if not count:
            return
        topic = topic[:TOPIC_NAME_BYTES_MAX]
        report = self._now()
        report.counts[reason] += count
        self._total(reason, topic, count)
        if reason == "bad_topic":
            report.bad_topics.add(raw(topic))
        else:
            _lose(report.discarded, topic, times_ms)
            if reason == "rate_limit":
                _count(report.rate_limited, topic, count)
            elif reason == "too_long":
                for body in bodies[-RECENT_MAX:]:
                    report.too_long.add(raw(topic) + b" " + bytes(body[: self.sample_bytes]))
        if self.listeners:
            now_ms = self._clock.now() // MILLISECOND
            self._tell(Thrown("discard", reason, now_ms, None, topic, times_ms, keys, bodies))

    def add_duplicates(
        self, topic: str, times_ms: Times, keys: Sequence[Content | None] = (), bodies: Sequence[Content] = ()
    ) -> None:
        """Count messages of one topic that are sent again without knowing what became of them."""
        if not len(times_ms):
            return
        _lose(self._now().duplicates, topic, times_ms)
        _count(self.duplicates, topic, len(times_ms))
        if self.listeners:
            now_ms = self._clock.now() // MILLISECOND
            self._tell(Thrown("duplicate", None, now_ms, None, topic, times_ms, keys, bodies))

    def reports(self) -> tuple[Report, Report | None]:
        """Return the report of this interval and of the one before, which is None in the first."""
        return self._now(), self._finished

    def total(self, reason: str | None = None) -> int:
        """Return how much was thrown away since the start."""
        return sum(count for (of, _), count in self.totals.items() if reason in (None, of))

    def _now(self) -> Report:
        """Return the report of this interval; an interval that nobody saw the end of leaves nothing."""
        number = (self._clock.monotonic() - self._started_ns) // self.interval_ns
        if number > self._unfinished.number:
            follows = number == self._unfinished.number + 1
            self._finished = self._unfinished if follows else self._begun(number - 1)
            self._unfinished = self._begun(number)
        return self._unfinished

    def _begun(self, number: int) -> Report:
        return Report(number, self.since_s + number * self.interval_ns // SECOND, self.sample_bytes)

    def _total(self, reason: str, topic: str, count: int) -> None:
        if self._warns:
            self._warn(reason, topic, count)
        key = (reason, topic)
        if key not in self.totals and topic and len(self.totals) >= TOPICS_MAX:
            key = (reason, OTHER_TOPICS)  # reasons come from the code: one more entry for each at most
        self.totals[key] = self.totals.get(key, 0) + count

    def _warn(self, reason: str, topic: str, count: int) -> None:
        now_ns = self._clock.monotonic()
        told = self._warned.get(reason)
        if told is not None and now_ns - told[0] < WARN_NS:
            self._warned[reason] = (told[0], told[1] + count)
            return
        self._warned[reason] = (now_ns, 0)
        unsaid = f" (and {told[1]} since this was last said)" if told is not None and told[1] else ""
        what = f" of topic {topic}" if topic else ""
        _log.warning("thrown away: %d%s, %s%s", count, what, reason, unsaid)

    def _tell(self, thrown: Thrown) -> None:
        for listener in self.listeners:
            listener(thrown)


def raw(topic: str) -> bytes:
    """Return the name of a topic as its client sent it; bytes that are no UTF-8 stand in it as surrogates."""
    return topic.encode("utf-8", "surrogateescape")


def shown(topic: str) -> str:
    """Return the name of a topic for people and their programs: always text that can be written as UTF-8."""
    return topic if topic.isascii() else raw(topic).decode("utf-8", "replace")


_RECENT: dict[str, Callable[[Report], Recent]] = {
    "malformed": lambda report: report.malformed,
    "unclean_unix": lambda report: report.unclean_unix,
    "unclean_tcp": lambda report: report.unclean_tcp,
}


def _lose(table: dict[str, Lost], topic: str, times_ms: Times) -> None:
    count, (first, last) = len(times_ms), _range(times_ms)
    if topic not in table and len(table) >= TOPICS_MAX:
        topic = OTHER_TOPICS
    lost = table.get(topic)
    if lost is None:
        table[topic] = Lost(count, first, last)
        return
    lost.count += count
    lost.min_ms = min(lost.min_ms, first)
    lost.max_ms = max(lost.max_ms, last)


def _range(times_ms: Times) -> tuple[int, int]:
    if isinstance(times_ms, Sequence):
        return min(times_ms), max(times_ms)
    return int(times_ms.min()), int(times_ms.max())


def _count(table: dict[str, int], topic: str, count: int) -> None:
    if topic not in table and len(table) >= TOPICS_MAX:
        topic = OTHER_TOPICS
    table[topic] = table.get(topic, 0) + count
