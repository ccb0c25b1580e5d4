"""The node's exact counts of a range of time: how many messages each topic took, and what became of them.

Reads the intervals that `_penstock.counts` holds. Invariant: an interval counts wholly or not at all, where it begins;
where the range has no begin of its own, also the one in which it begins. What cannot be read counts nothing.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable

import msgspec

from penstock.pipeline.jobs.report.options import OWN_PREFIX, Report
from penstock.pipeline.jobs.report.span import Span
from penstock.tally import Counted, Interval

#: What is summed up of a topic or subscription.
FIELDS = ("published", "published_bytes", "delivered", "again", "acked", "released", "expired", "dead")
#: Those whose course over time is kept.
COURSES = ("published", "delivered", "acked", "released", "expired", "dead")
#: An interval is so long at most.
INTERVAL_US = 10_000_000

Pair = tuple[str, str | None]


class Backlog(msgspec.Struct):
    """How much a subscription had before it: first and last in the range, half way, and at most."""

    first: int
    first_us: int
    half: int
    last: int
    last_us: int
    most: int


class Tallies:
    """Sums by topic and subscription; None for what the topic itself has."""

    def __init__(self) -> None:
        self.sums: dict[Pair, dict[str, int]] = {}
        #: Messages and bytes of intervals that lie wholly in the range.
        self.published: dict[str, tuple[int, int]] = {}
        self.discards: dict[str, dict[str, int]] = {}
        #: By topic and event, in each step.
        self.courses: dict[str, dict[str, list[int]]] = {}
        self.backlogs: dict[Pair, Backlog] = {}
        #: Where dead letters of a subscription went last; empty for TOPIC.dead.
        self.dead_letters: dict[Pair, str] = {}
        #: When processes ended without saying so: what they had counted last is missing.
        self.killed_us: list[int] = []
        #: From where to where the counts reach.
        self.first_us: int | None = None
        self.last_us: int | None = None

    def topics(self) -> set[str]:
        """Return the topics of which something was counted."""
        return {topic for topic, _ in self.sums} | set(self.discards)


def tallied(bodies: Iterable[bytes], span: Span, options: Report) -> Tallies:
    """Return the sums of a range."""
    found = Tallies()
    least_us = span.since_us if options.since_us is not None else span.since_us - INTERVAL_US
    #: By node: the last interval of the process that counts there.
    latest: dict[str, Interval] = {}
    for body in bodies:
        try:
            interval = msgspec.json.decode(body, type=Interval)
        except msgspec.MsgspecError:
            continue
        inside = least_us <= interval.from_us < span.until_us and interval.until_us >= span.since_us
        last = latest.get(interval.node)
        if last is not None and interval.started_us > last.started_us and not last.ended:
            found.killed_us += [last.until_us] if span.since_us <= last.until_us < span.until_us else []
        if last is None or interval.started_us >= last.started_us:
            latest[interval.node] = interval
        if inside:
            _add(found, interval, span, options)
    return found


def _add(found: Tallies, interval: Interval, span: Span, options: Report) -> None:
    found.first_us = interval.from_us if found.first_us is None else min(found.first_us, interval.from_us)
    found.last_us = max(found.last_us or 0, interval.until_us)
    middle_us = min(max((interval.from_us + interval.until_us) // 2, span.since_us), span.until_us - 1)
    step = (middle_us - span.start_us) // span.width_us
    whole = interval.until_us <= span.until_us and (options.since_us is None or interval.from_us >= span.since_us)
    for counted in interval.counts:
        topic = counted.topic
        if topic not in options.topics if options.topics else topic.startswith(OWN_PREFIX):
            continue
        if counted.backlog is not None:
            _see(found.backlogs, counted, interval.until_us, middle_us > (span.since_us + span.until_us) // 2)
            continue
        _count(found, counted, step, span.steps)
        if whole and counted.published:
            messages, size = found.published.get(topic, (0, 0))
            found.published[topic] = (messages + counted.published, size + counted.published_bytes)


def _count(found: Tallies, counted: Counted, step: int, steps: int) -> None:
    topic = counted.topic
    if counted.discarded:
        reasons = found.discards.setdefault(topic, collections.defaultdict(int))
        course = _course(found, topic, "discarded", steps)
        for reason, count in counted.discarded.items():
            reasons[reason] += count
            course[step] += count
    if counted.dead:
        found.dead_letters[topic, counted.subscription] = counted.dead_letter
    sums = None
    for name in FIELDS:
        value = getattr(counted, name)
        if not value:
            continue
        if sums is None:
            sums = found.sums.setdefault((topic, counted.subscription), dict.fromkeys(FIELDS, 0))
        sums[name] += value
        if name in COURSES:
            _course(found, topic, name, steps)[step] += value


def _course(found: Tallies, topic: str, event: str, steps: int) -> list[int]:
    courses = found.courses.setdefault(topic, {})
    if event not in courses:
        courses[event] = [0] * steps
    return courses[event]


def _see(backlogs: dict[Pair, Backlog], counted: Counted, at_us: int, late: bool) -> None:
    many = counted.backlog or 0
    seen = backlogs.get((counted.topic, counted.subscription))
    if seen is None:
        backlogs[counted.topic, counted.subscription] = Backlog(many, at_us, many, many, at_us, many)
        return
    if not late:
        seen.half = many
    seen.last, seen.last_us, seen.most = many, at_us, max(seen.most, many)
