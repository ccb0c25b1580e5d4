"""Which compression a topic should have.

Owns the rule, and says its reason in a sentence. Knows nothing of how codecs were measured. Invariant: it advises only
what the setting in question can be, and none where compressing brings little.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.pipeline.jobs.report.sample import Measure

#: More than this left of the bodies is not worth anybody's trouble. (Dory sends a set plain above 75 % by default.)
LEFT_MAX = 0.85
#: CPU time that a saved byte may cost, packing and unpacking together: a byte takes 8 ns through a gigabit line, and is
#: sent, copied and kept several times.
SAVED_BYTE_NS = 50

#: What each setting can be: the topic setting `compression`, Kafka's compression.type, and what Dory knows.
CHOICES = {
    "penstock": ("segment", ("lz4", "zstd")),
    "kafka": ("message_set", ("gzip", "snappy", "lz4", "zstd")),
    "dory": ("message_set", ("gzip", "snappy")),
}


class Advice(msgspec.Struct, frozen=True):
    """What a topic should be set to, and why."""

    penstock: str
    kafka: str
    dory: str
    reason: str
    measures: tuple[Measure, ...]


def advice(measures: Sequence[Measure]) -> Advice | None:
    """Return what to set; None where there was nothing to measure."""
    if not measures or not measures[0].plain_bytes:
        return None
    chosen = {}
    for setting, (form, codecs) in CHOICES.items():
        able = [each for each in measures if each.form == form and each.codec in codecs]
        chosen[setting] = best(able)
    words = {setting: "none" if found is None else found.codec for setting, found in chosen.items()}
    return Advice(**words, reason=_reason(chosen["penstock"], chosen["kafka"], measures), measures=tuple(measures))


def best(able: Sequence[Measure]) -> Measure | None:
    """Return the codec to take; None for no compression."""
    worth = [each for each in able if each.left <= LEFT_MAX and _price_ns(each) < SAVED_BYTE_NS]
    return min(worth, key=_price_ns, default=None)


def _price_ns(measure: Measure) -> float:
    """Return what a byte costs in all: CPU time, and what is left of it."""
    return measure.packing_ns + measure.unpacking_ns + measure.left * SAVED_BYTE_NS


def _reason(penstock: Measure | None, kafka: Measure | None, measures: Sequence[Measure]) -> str:
    """Return why, in a sentence; about the segments, because the topic setting is the one at hand."""
    if penstock is None and kafka is None:
        least = min(measures, key=lambda each: each.left)
        return f"Even {least.codec} leaves {least.left:.0%} of the bodies: compressing would only cost CPU time."
    if penstock is None:
        assert kafka is not None
        return f"Only message sets are worth it: {_said(kafka)}."
    other = next((each for each in measures if each.form == penstock.form and each.codec != penstock.codec), None)
    if other is None:
        return f"{_said(penstock)}.".capitalize()
    if other.left <= penstock.left:
        return f"{_said(penstock)}; {other.codec} leaves {other.left:.0%}, too little less for what it costs."
    return f"{_said(penstock)}; {other.codec} leaves {other.left:.0%}, so the CPU time is well spent."


def _said(measure: Measure) -> str:
    return f"{measure.codec} leaves {measure.left:.0%} of the bodies for {measure.packing_ns:.1f} ns a byte"
