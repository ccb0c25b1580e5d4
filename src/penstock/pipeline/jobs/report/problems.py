"""What a reader should look at first: dead letters, slow consumers, growing backlogs, skew, and what to do about each.

Owns the rules. Knows nothing of how it looks. Invariant: a number in a sentence is one of the figures; where it is an
estimate the sentence says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote

import msgspec

from penstock.pipeline.jobs.report.draw import units
from penstock.pipeline.jobs.report.figures import OTHERS, Figures, Subscription, Topic

#: From here on a shard has noticeably more than its part, and much more.
UNEVEN, SKEWED = 1.25, 2.0
#: Fewer messages than these are not judged by how they spread.
SPREAD_MIN = 1000
#: Leases that ran out, and messages that were given back, as a share of the deliveries: more is no accident.
EXPIRED_SHARE, RELEASED_SHARE = 0.01, 0.05
#: A backlog below this is what any consumer has before it now and then.
BACKLOG_MIN = 100
#: Half of the messages wait longer than this only where consumers do not keep up.
SLOW_US = 1_000_000
#: So few in a sample say nothing of the others.
SAMPLE_MIN = 20
#: A key with so many of the messages makes a hot shard.
HOT_SHARE = 0.25
PROBLEMS_MAX = 30


class Problem(msgspec.Struct, frozen=True):
    """Something to look at: what it is, what to do, and where on the page it is told."""

    kind: str
    what: str
    todo: str
    anchor: str
    #: What to type, if that helps.
    command: str = ""
    bad: bool = False
    #: How many messages it is about; the largest come first.
    weight: int = 0


def problems(figures: Figures) -> list[Problem]:
    """Return what is wrong, the worst first."""
    found = [*_killed(figures)]
    for topic in figures.everything:
        for each in topic.subscriptions:
            found += [
                *_dead(topic, each),
                *_backlog(topic, each, figures),
                *_slow(topic, each),
                *_returned(topic, each),
            ]
        found += [*_skewed(topic), *_discarded(topic)]
    return sorted(found, key=lambda each: (not each.bad, -each.weight))


def _killed(figures: Figures) -> Iterator[Problem]:
    for at_us in figures.killed_us[-3:]:
        yield Problem(
            "Killed",
            f"The node was killed after {units.instant(at_us)} UTC, without time to write what it had counted last.",
            "Counts of up to ten seconds before are missing. Stop it with SIGTERM or penstock stop.",
            "attempts",
        )


def _dead(topic: Topic, each: Subscription) -> Iterator[Problem]:
    if each.dead:
        verb = "is" if each.dead == 1 else "are"
        place = f"topic {each.dead_letter}" if each.dead_letter else "dead-letter topic"
        command = f"penstock peek {quote(each.dead_letter)}" if each.dead_letter else _show(topic, each)
        yield Problem(
            "Dead letters",
            f"{_many(each, each.dead, 'message')} of {_name(topic, each)} failed too often and {verb} in the {place}.",
            "Look at them, mend the consumer, then move them back with penstock redrive.",
            "attempts",
            command if topic.name != OTHERS else "",
            bad=True,
            weight=each.dead,
        )


def _backlog(topic: Topic, each: Subscription, figures: Figures) -> Iterator[Problem]:
    backlog = each.backlog
    if backlog is None or backlog.last < BACKLOG_MIN:
        return
    is_idle = not each.delivered
    is_growing = backlog.last > backlog.half >= backlog.first and backlog.last >= 2 * backlog.first
    if not (is_idle or is_growing):
        return
    seconds = max((figures.span.until_us - figures.span.since_us) / 1e6, 1e-6)
    grown = backlog.last - backlog.first
    if is_idle:
        what = f"Nobody takes messages of {_name(topic, each)}: {units.count(backlog.last)} stand before it."
        todo = "Start its consumers; if nobody needs it any more, delete the subscription, because it keeps the log."
    else:
        rate = units.per_second(max(grown, 0) / seconds)
        what = (
            f"The backlog of {_name(topic, each)} grows: {units.count(backlog.last)} messages at the end, "
            f"{units.count(backlog.first)} at first, about {rate} more than its consumers finish."
        )
        todo = "Start more consumers, or let each hold more messages at once."
    yield Problem("Growing backlog", what, todo, "attempts", _show(topic, each), bad=True, weight=backlog.last)


def _slow(topic: Topic, each: Subscription) -> Iterator[Problem]:
    if each.expired and each.expired >= EXPIRED_SHARE * each.delivered:
        share = units.share(each.expired / each.delivered) if each.delivered else "all"
        yield Problem(
            "Slow consumer",
            f"{_many(each, each.expired, 'lease')} of {_name(topic, each)} ran out before the consumer answered "
            f"({share} of the deliveries), so these messages were delivered again.",
            "Give longer leases, extend them while work goes on, or take fewer messages at once.",
            "attempts",
            weight=each.expired,
        )
    elif each.sample >= SAMPLE_MIN and (median_us := each.latency_us.percentile(0.5)) >= SLOW_US:
        yield Problem(
            "Slow consumer",
            f"Half of the messages of {_name(topic, each)} waited longer than about {units.duration(median_us)} for "
            "their first delivery.",
            "Start more consumers, or let each hold more at once; a subscription that is read now and then may be so.",
            "latency",
            weight=each.delivered // 2,
        )


def _returned(topic: Topic, each: Subscription) -> Iterator[Problem]:
    if each.released >= max(RELEASED_SHARE * each.delivered, 2) and each.delivered:
        yield Problem(
            "Given back",
            f"Consumers of {_name(topic, each)} gave back {_many(each, each.released, 'message')}, "
            f"{units.share(each.released / each.delivered)} of the deliveries.",
            "They fail, or leave while they hold some: their logs say why.",
            "attempts",
            weight=each.released,
        )


def _skewed(topic: Topic) -> Iterator[Problem]:
    if len(topic.shards) < 2 or topic.stored < SPREAD_MIN or topic.skew < SKEWED:
        return
    largest = max(topic.shards, key=lambda shard: shard.messages)
    what = (
        f"Shard {largest.number} of {topic.name} has {units.share(largest.messages / topic.stored)} of the messages, "
        f"{topic.skew:.1f} times its part."
    )
    hot = topic.keys.shown[0] if topic.keys.shown else None
    if hot is not None and hot.messages >= HOT_SHARE * topic.stored:
        what += f" The key {hot.name} alone has {units.share(hot.messages / topic.stored)}."
    todo = "Messages of one key go to one shard: choose keys with more different values, or publish without one."
    yield Problem("Skew", what, todo, "shards", weight=largest.messages)


def _discarded(topic: Topic) -> Iterator[Problem]:
    for reason, many in topic.discards.items():
        if reason in ("filtered", "removed"):  # somebody asked for that
            continue
        command = (
            f"penstock ledger --topic {quote(topic.name)} --reason {quote(reason)}" if topic.name != OTHERS else ""
        )
        what = f"{units.plural(many, 'message')} to {topic.name} {'was' if many == 1 else 'were'} discarded: {reason}."
        todo = "The ledger has the beginning of some, and where they came from."
        yield Problem("Discarded", what, todo, "discards", command, weight=many)


def _show(topic: Topic, each: Subscription) -> str:
    return f"penstock subscription show {quote(topic.name)} {quote(each.name)}"


def _name(topic: Topic, each: Subscription) -> str:
    return f"{topic.name} / {each.name}" if each.name != OTHERS else "other subscriptions"


def _many(each: Subscription, many: int, noun: str) -> str:
    return units.plural(many, noun) if each.exact else f"≈ {units.plural(many, noun)}"
