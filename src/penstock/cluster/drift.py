"""How far the clocks of others are from this one, by what they say the time is.

Estimates only; nothing sets a clock. Pure: times are passed in, as milliseconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterator
from math import copysign
from statistics import fmean, median
from typing import Literal, NamedTuple, TypeAlias, get_args

Target: TypeAlias = Literal["storage", "sync", "broker", "consumer", "producer"]
TARGETS: tuple[Target, ...] = get_args(Target)

SAMPLES_MAX = 16
#: A sample that took so much longer than most says little about when its time was told.
RTT_MAX = 2
#: A clock further away than this is one to warn of.
ACTIVE_MS = 100
#: With fewer partners one that is wrong would count as much as those that are right.
PARTNERS_MIN = 3


class Sample(NamedTuple):
    """How far a clock was ahead, and how long it took to ask."""

    offset_ms: float
    rtt_ms: float


class Samples:
    """The last samples of one clock."""

    def __init__(self, voice: str = "") -> None:
        #: Those with the same one count once, where it is asked how many say something; empty for its own.
        self.voice = voice
        self._samples: deque[Sample] = deque(maxlen=SAMPLES_MAX)

    def add(self, sent_ms: float, partner_ms: float, received_ms: float) -> None:
        """Take what a partner said its time was when it was asked then and answered then."""
        rtt_ms = max(received_ms - sent_ms, 0.0)
        self._samples.append(Sample(partner_ms - (sent_ms + rtt_ms / 2), rtt_ms))

    def offset_ms(self) -> float:
        """Return how far the clock is ahead, by the samples that took not much longer than most."""
        return median(sample.offset_ms for sample in self._usual())

    def sure_ms(self) -> float:
        """Return how far the clock is ahead at least: within the time it took to ask, it may have been told at any."""
        return median(
            copysign(max(abs(sample.offset_ms) - sample.rtt_ms / 2, 0.0), sample.offset_ms) for sample in self._usual()
        )

    def _usual(self) -> list[Sample]:
        typical = self.rtt_ms()
        return [sample for sample in self._samples if sample.rtt_ms <= RTT_MAX * typical]

    def rtt_ms(self) -> float:
        """Return how long it takes to ask, mostly."""
        return median(sample.rtt_ms for sample in self._samples)


class Drifting(NamedTuple):
    """A kind of partner, of a topic where it has one: how many are off, and by how much on average."""

    target: Target
    topic: str
    active: int
    mean_ms: float


class Drift:
    """The clocks of all partners."""

    def __init__(self) -> None:
        self._partners: dict[tuple[Target, str, str], Samples] = {}

    def add(
        self,
        target: Target,
        topic: str,
        partner: str,
        sent_ms: float,
        partner_ms: float,
        received_ms: float,
        voice: str = "",
    ) -> float:
        """Take a sample of a partner and return how far its clock is ahead; those of one voice have one vote."""
        samples = self._partners.get((target, topic, partner))
        if samples is None or samples.voice != voice:
            samples = self._partners[target, topic, partner] = Samples(voice)
        samples.add(sent_ms, partner_ms, received_ms)
        return samples.offset_ms()

    def forget(self, target: Target, topic: str, partner: str) -> None:
        """Take that a partner is gone."""
        self._partners.pop((target, topic, partner), None)

    def keep(self, target: Target, partners: Container[str]) -> None:
        """Take that all other partners of a kind are gone."""
        for key in [key for key in self._partners if key[0] == target and key[2] not in partners]:
            del self._partners[key]

    def self_offset_ms(self) -> float | None:
        """Return how far this clock is behind the others' at least, by most of them; None if too few say so.

        With fewer than three the registry's alone counts. A partner that answers late is not one whose clock is off.
        Clients of one user, or of one machine, are one of these: nobody outvotes the others by coming more often.
        """
        votes: dict[object, list[float]] = {}
        for key, samples in self._partners.items():
            votes.setdefault(samples.voice or key, []).append(samples.sure_ms())
        offsets = [median(said) for said in votes.values()]
        if len(offsets) < PARTNERS_MIN:
            offsets = [samples.sure_ms() for key, samples in self._partners.items() if key[0] == "sync"]
        return median(offsets) if offsets else None

    def likely_offset_ms(self) -> float:
        """Return how far this clock is behind the others', however few they are; 0 where nobody is left to ask."""
        offsets = [samples.offset_ms() for samples in self._partners.values()]
        return median(offsets) if offsets else 0.0

    def mean_offset_ms(self, *targets: Target) -> float:
        """Return how far clocks of some kinds are ahead on average."""
        return _mean([samples.offset_ms() for key, samples in self._partners.items() if key[0] in targets])

    def mean_latency_ms(self, *targets: Target) -> float:
        """Return how long it takes to ask partners of some kinds on average, one way."""
        return _mean([samples.rtt_ms() / 2 for key, samples in self._partners.items() if key[0] in targets])

    def levels(self) -> Iterator[Drifting]:
        """Return how many clocks are off, by kind of partner and topic."""
        found: dict[tuple[Target, str], list[float]] = {}
        for (target, topic, _), samples in self._partners.items():
            found.setdefault((target, topic), []).append(samples.offset_ms())
        for (target, topic), offsets in found.items():
            far = [offset for offset in offsets if abs(offset) > ACTIVE_MS]
            yield Drifting(target, topic, len(far), _mean(far))


def is_active(offset_ms: float) -> bool:
    """Tell whether a partner should be warned of its clock, or of this one."""
    return abs(offset_ms) > ACTIVE_MS


def _mean(values: list[float]) -> float:
    return fmean(values) if values else 0.0
