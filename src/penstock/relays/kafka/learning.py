"""What compression brings each topic, and which codec a topic gets where the relay is to find out.

A topic is learned from its own message sets: some of them are compressed by every codec, beside the loop, and the rule
that the pipeline's report advises by chooses. It is learned anew now and then, because what producers send changes.
Invariant: nobody waits for it; until a topic is learned its sets go as they are.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple, TypeAlias, TypeVar

from penstock.clock import SECOND, Clock
from penstock.codecs import Measure, best, measured, said
from penstock.dialect import Sample

T = TypeVar("T")
Codec: TypeAlias = Literal["none", "gzip", "snappy", "lz4", "zstd"]
#: Runs work beside the loop, then tells the loop what came of it.
Run: TypeAlias = Callable[[Callable[[], list[Measure]], Callable[[list[Measure]], None]], None]

#: So much of a topic is looked at: four sets of a producer under load.
SAMPLE_BYTES = 256 << 10
#: No more than this is taken of one set, so that a topic is not judged by one moment.
SET_BYTES = 64 << 10
#: And again after this.
LEARN_NS = 3600 * SECOND

_log = logging.getLogger("penstock.kafka")


class Choice(NamedTuple):
    """What a topic gets, and why."""

    codec: Codec
    reason: str


UNKNOWN = Choice("none", "Not enough of it was sent to tell.")


class Savings:
    """What was sent of one topic, and what compression made of it."""

    __slots__ = (
        "choice",
        "compressed_sets",
        "faults",
        "learned_ns",
        "plain_bytes",
        "sample",
        "sample_bytes",
        "sent_bytes",
        "sets",
        "spent_ns",
    )

    def __init__(self) -> None:
        self.sets = 0
        self.compressed_sets = 0
        #: Those that their codec failed on.
        self.faults = 0
        self.plain_bytes = 0
        self.sent_bytes = 0
        #: CPU time.
        self.spent_ns = 0
        #: None where it was not to be learned.
        self.choice: Choice | None = None
        #: What is looked at next; None while that is being done, or it is too early.
        self.sample: list[bytes] | None = None
        self.sample_bytes = 0
        self.learned_ns: int | None = None


class Learning:
    """The topics of one relay."""

    def __init__(
        self, clock: Clock, run: Run, measure: Callable[[Sequence[bytes], int], list[Measure]] = measured
    ) -> None:
        self._clock = clock
        self._run = run
        self._measure = measure
        self.topics: dict[str, Savings] = {}

    def codec(self, topic: str) -> Codec:
        """Return the codec of a topic that is to be learned."""
        savings = self._of(topic)
        if savings.choice is None:
            savings.choice, savings.sample = UNKNOWN, []
        elif savings.learned_ns is not None and self._clock.monotonic() - savings.learned_ns >= LEARN_NS:
            savings.learned_ns, savings.sample, savings.sample_bytes = None, [], 0
        return savings.choice.codec

    def see(self, topic: str, records: bytes | bytearray | memoryview) -> None:
        """Look at a set of a topic that is to be learned, if more of it is wanted."""
        savings = self._of(topic)
        if savings.sample is None or not records:
            return
        piece = bytes(records[:SET_BYTES])
        savings.sample.append(piece)
        savings.sample_bytes += len(piece)
        if savings.sample_bytes >= SAMPLE_BYTES:
            sample, savings.sample = savings.sample, None
            measure = self._measure
            self._run(lambda: measure(sample, SAMPLE_BYTES), lambda found: self._learned(topic, savings, found))

    def sent(self, topic: str, plain_bytes: int, sent_bytes: int, spent_ns: int, fault: str = "") -> None:
        """Count a set; `fault` is why its codec failed."""
        savings = self._of(topic)
        if fault:
            savings.faults += 1
            if savings.faults == 1:
                _log.error("topic %s: what cannot be compressed goes as it is: %s", topic, fault)
        savings.sets += 1
        savings.compressed_sets += sent_bytes < plain_bytes
        savings.plain_bytes += plain_bytes
        savings.sent_bytes += sent_bytes
        savings.spent_ns += spent_ns

    def forget(self, topic: str) -> None:
        """Take that a topic is gone."""
        self.topics.pop(topic, None)

    def samples(self) -> Iterator[Sample]:
        """Return the figures of every topic."""
        for name, text, value in _FIGURES:
            for topic, savings in self.topics.items():
                yield Sample(name, "counter", text, value(savings), {"topic": topic})
        for topic, savings in self.topics.items():
            if savings.choice is not None:
                labels = {"topic": topic, "codec": savings.choice.codec, "reason": savings.choice.reason}
                yield Sample("compression_learned", "gauge", "What a topic is compressed by, and why.", 1, labels)

    def _of(self, topic: str) -> Savings:
        savings = self.topics.get(topic)
        if savings is None:
            savings = self.topics[topic] = Savings()
        return savings

    def _learned(self, topic: str, savings: Savings, found: Sequence[Measure]) -> None:
        before = savings.choice
        savings.choice = chosen(found)
        savings.learned_ns = self._clock.monotonic()
        if before is None or before is UNKNOWN or before.codec != savings.choice.codec:
            _log.info("topic %s: compression %s. %s", topic, savings.choice.codec, savings.choice.reason)


def beside(work: Callable[[], T], done: Callable[[T], None]) -> None:
    """Run work in a thread of the running loop."""

    def told(future: asyncio.Future[T]) -> None:
        if future.cancelled():
            return
        error = future.exception()
        if error is None:
            done(future.result())
        else:
            _log.error("messages could not be compressed: %r", error)

    asyncio.get_running_loop().run_in_executor(None, work).add_done_callback(told)


def chosen(found: Sequence[Measure]) -> Choice:
    """Return what to take by these measures."""
    codec = best(found)
    if codec is None:
        least = min(found, key=lambda each: each.left)
        return Choice("none", f"Even {least.codec} leaves {least.left:.0%}: compressing would only cost CPU time.")
    others = ", ".join(f"{each.codec} {each.left:.0%}" for each in found if each is not codec)
    names: dict[str, Codec] = {"gzip": "gzip", "snappy": "snappy", "lz4": "lz4", "zstd": "zstd"}
    return Choice(names[codec.codec], f"{said(codec)}; {others}.")


#: Name, text, value.
_FIGURES: tuple[tuple[str, str, Callable[[Savings], float]], ...] = (
    ("compressed_sets_total", "Message sets that went compressed.", lambda each: each.compressed_sets),
    ("plain_sets_total", "Message sets that went as they are.", lambda each: each.sets - each.compressed_sets),
    ("compression_errors_total", "Message sets that their codec failed on.", lambda each: each.faults),
    ("plain_bytes_total", "Bytes of records before compression.", lambda each: each.plain_bytes),
    ("saved_bytes_total", "Bytes that compression saved.", lambda each: each.plain_bytes - each.sent_bytes),
    ("compression_seconds_total", "CPU time that packing took.", lambda each: each.spent_ns / 1e9),
)
