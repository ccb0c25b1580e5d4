"""Sections on deliveries: how long they took, and what did not go as it should (attempts, dead letters, discards).

Invariant: where there is no history of deliveries, each section says so; a subscription has one colour in all plots.
"""

from __future__ import annotations

import itertools

from penstock.markup import Child, Markup, tag
from penstock.pipeline.jobs.report.draw import units
from penstock.pipeline.jobs.report.draw.markup import Absent, Section, cell, figure, name, number, plots, table, time
from penstock.pipeline.jobs.report.draw.markup import share as share_of
from penstock.pipeline.jobs.report.draw.plots import (
    WIDE,
    Series,
    added,
    bands,
    bars,
    curves,
    durations,
    legend,
    linear,
    lines,
    nines,
    rates,
    stacked,
    title,
)
from penstock.pipeline.jobs.report.figures import Figures, Subscription, Topic
from penstock.pipeline.jobs.report.options import EVENTS_TOPIC
from penstock.pipeline.jobs.report.page.traffic import colours_of
from penstock.pipeline.jobs.report.scale import Distribution
from penstock.pipeline.jobs.report.span import Span
from penstock.pipeline.jobs.report.totals import ATTEMPTS_MAX

SHARES = (0.5, 0.9, 0.99, 0.999)
LEASE_SHARES = (0.5, 0.9, 0.99)
#: Subscriptions that are drawn, and rows that a table has at most.
CURVES = 8
ROWS_MAX = 60
#: Beyond five nines there are hardly ever enough messages to say something.
NINES = 5

NO_HISTORY = f"Not recorded: there is no history of deliveries, which the node writes to {EVENTS_TOPIC}."
ABOUT = "≈"

Pairs = list[tuple[Topic, Subscription]]


def pairs_of(figures: Figures) -> Pairs:
    """Return all subscriptions, those with most deliveries first."""
    found = [(topic, each) for topic in figures.everything for each in topic.subscriptions]
    return sorted(found, key=lambda pair: -pair[1].delivered)


def more(shown: Pairs, figures: Figures) -> str:
    """Return how many subscriptions a table leaves out."""
    hidden = sum(topic.subscriptions_all for topic in figures.everything) - min(len(shown), ROWS_MAX)
    return f" {units.plural(hidden, 'more subscription')} not shown." if hidden > 0 else ""


def latency(figures: Figures) -> Section | Absent:
    """Return how long messages waited for their delivery, and how long they were leased."""
    heading = "Delivery latency and lease time"
    if not figures.events:
        return Absent(heading, NO_HISTORY)
    pairs = [pair for pair in pairs_of(figures) if pair[1].latency_us.total or pair[1].lease_us.total]
    if not pairs:
        return Absent(heading, _unmeasured(figures))
    lead = (
        "Latency: from when a message was published, or due if that was later, to its first delivery. "
        "Lease: from its last delivery to the ack. p99: of a hundred messages, 99 took not longer."
        + _sampling(figures)
        + more(pairs, figures)
    )
    heads = ["Topic", "Subscription", "Sample", *(f"p{100 * each:g}" for each in SHARES), "Longest"]
    heads += [*(f"Lease p{100 * each:g}" for each in LEASE_SHARES), "Longest"]
    exact = figures.one_in == 1
    rows = [
        [
            name(topic.name),
            name(each.name),
            number(each.sample),
            *_times(each.latency_us, SHARES, exact=exact),
            *_times(each.lease_us, LEASE_SHARES, exact=exact),
        ]
        for topic, each in pairs[:ROWS_MAX]
    ]
    drawn = plots(
        _curve("Latency by percentile", pairs, "latency_us"),
        _curve("Lease time by percentile", pairs, "lease_us"),
        _over_time("Median latency over time", pairs, 0.5, figures.span),
        _over_time("99th percentile of latency over time", pairs, 0.99, figures.span),
    )
    return Section("latency", heading, lead, [table(heads, rows, names=2), drawn])


def _unmeasured(figures: Figures) -> str:
    """Return why there are no times."""
    if figures.one_in > 1 or (figures.counts and any(each.delivered for _, each in pairs_of(figures))):
        return (
            "No message of the sample was delivered in this range. Times are measured on one message in "
            "events.one_in (64 unless set otherwise); events.mode = full measures all."
        )
    return "Nothing was delivered in this range."


def _sampling(figures: Figures) -> str:
    if figures.one_in == 1:
        return ""
    return f" {ABOUT}: estimated from a sample, one message in {figures.one_in}; how many these were stands beside it."


def _times(found: Distribution, shares: tuple[float, ...], *, exact: bool) -> list[Markup]:
    if not found.total:
        return [time(None) for _ in (*shares, 1)]
    return [time(value, exact=exact) for value in (*map(found.percentile, shares), found.greatest)]


def _curve(heading: str, pairs: Pairs, what: str) -> Markup | None:
    """Return a curve for each subscription: how long it took for which share of the messages, nine by nine."""
    chosen = [
        (at, topic, each, getattr(each, what))
        for at, (topic, each) in enumerate(pairs[:CURVES])
        if getattr(each, what).total
    ]
    if not chosen:
        return None
    most = 1 - 1 / min(max(10, *(found.total for _, _, _, found in chosen)), 10**NINES)
    # Evenly along the axis, on which each nine has the same length.
    places = [each for at in range(12 * NINES) if (each := 1 - 10.0 ** (-at / 12)) < most] + [most]
    series = [
        # What so few messages cannot say is not drawn.
        Series(_label(topic, each), [_at_most(found, place) for place in places], at)
        for at, topic, each, found in chosen
    ]
    known = [value for each in series for value in each.values if value is not None]
    middles = [0.0, *((one + other) / 2 for one, other in itertools.pairwise(places)), most]
    steps = [
        (low, high, "\n".join([f"{100 * place:.5g} % of the messages", *_said(series, at)]))
        for at, (place, low, high) in enumerate(zip(places, middles, middles[1:], strict=False))
    ]
    drawn = lines(heading, series, places, nines(most), durations(min(known), max(known)), steps)
    return figure(heading, "Percentiles; each further nine is ten times rarer.", legend(_names(series)), drawn)


def _at_most(found: Distribution, place: float) -> float | None:
    """Return a percentile if there are enough values to tell it."""
    return max(found.percentile(place), 1) if place <= 1 - 0.5 / found.total else None


def _said(series: list[Series], at: int) -> list[str]:
    return [
        f"{each.name}: at most {units.duration(value)}" for each in series if (value := each.values[at]) is not None
    ]


def _over_time(heading: str, pairs: Pairs, share: float, span: Span) -> Markup | None:
    """Return a percentile of the busiest subscriptions' latency over time."""
    series = [
        Series(_label(topic, each), [max(step.percentile(share), 1) if step.total else None for step in steps], at)
        for at, (topic, each) in enumerate(pairs[:CURVES])
        if (steps := each.latencies) is not None
    ]
    if not series:
        return None
    text = f"In steps of {units.width(span.width_us)}."
    return figure(heading, text, legend(_names(series)), curves(heading, series, span))


def _label(topic: Topic, subscription: Subscription) -> str:
    return f"{topic.name} / {subscription.name}"


def _names(series: list[Series]) -> list[tuple[str, int | None]]:
    return [(each.name, each.colour) for each in series]


#: Events that a delivery is better off without, and their colours.
TROUBLES = {"released": 2, "expired": 3, "dead": 4}
HEADS = (
    "Topic", "Subscription", "Deliveries", "Acked", "Released", "Expired", "Dead", "Not the first", "Each, mean",
    "Each, at most", "Backlog",
)  # fmt: skip


def attempts(figures: Figures) -> Section | Absent:
    """Return how often messages were delivered, given back, timed out and given up."""
    heading = "Deliveries and dead letters"
    if not (figures.events or figures.counts):
        return Absent(heading, NO_HISTORY)
    pairs = pairs_of(figures)
    if not pairs:
        return Absent(heading, "Nothing was delivered in this range.")
    lead = (
        "Acked: finished by its consumer. Released: given back by the consumer. Expired: the lease ran out. "
        "Dead: moved to the dead-letter topic. Not the first: deliveries of messages that were out before. Each: how "
        "often a message was delivered. Backlog: messages before the subscription, or out on lease, at the end."
    )
    if figures.one_in > 1:
        counted = "in the sample" if all(each.exact for _, each in pairs) else "estimated from the sample"
        lead += f" {ABOUT}: {counted}, one message in {figures.one_in}; everything else is counted exactly."
    rows = [_row(topic, each, figures.one_in == 1) for topic, each in pairs[:ROWS_MAX]]
    body: list[Child] = [table(HEADS, rows, names=2), _troubles_over_time(figures, _again(pairs, figures))]
    return Section("attempts", heading, lead + more(pairs, figures), body)


def _row(topic: Topic, each: Subscription, whole: bool) -> list[Markup]:
    messages = sum(each.attempts.values())
    exact = each.exact or whole
    if each.again is not None:
        again, firsts = each.again, each.delivered - each.again
        mean = each.delivered / firsts if firsts else 0.0
    else:
        again = sum((attempt - 1) * many for attempt, many in each.attempts.items())
        mean = sum(attempt * many for attempt, many in each.attempts.items()) / messages if messages else 0.0
    most = max(each.attempts, default=0)
    text = f"{most}{' or more' if most >= ATTEMPTS_MAX else ''}" if messages else "–"
    return [
        name(topic.name),
        name(each.name),
        number(each.delivered, exact=exact),
        number(each.acked, exact=exact),
        number(each.released, exact=exact),
        number(each.expired, "warn", exact=exact),
        number(each.dead, "bad", exact=exact),
        number(again, exact=exact),
        cell(f"{mean:.2f}" if mean else "–"),
        cell(text if whole or not messages else f"{ABOUT}{units.THIN}{text}"),
        cell("–", kind="less") if each.backlog is None else number(each.backlog.last),
    ]


def _again(pairs: Pairs, figures: Figures) -> Markup | None:
    """Return how many messages took how many attempts, those with one left out."""
    most = max((max(each.attempts, default=0) for _, each in pairs), default=0)
    if most < 2:
        return None
    tries = range(2, max(most, 5) + 1)
    series = [
        Series(f"{topic.name} / {each.name}", [each.attempts.get(attempt, 0) for attempt in tries], at)
        for at, (topic, each) in enumerate(pairs[:CURVES])
    ]
    rest = [sum(each.attempts.get(attempt, 0) for _, each in pairs[CURVES:]) for attempt in tries]
    series = [each for each in [*series, Series("others", rest, None)] if any(each.values)]
    sums = [sum(values) for values in zip(*(each.values for each in series), strict=True)]
    labels = [f"{attempt}{'+' if attempt == ATTEMPTS_MAX else ''}" for attempt in tries]
    titles = [
        title(f"{label} attempts", [(each.name, each.values[at] or 0) for each in series], units.count)
        for at, label in enumerate(labels)
    ]
    y = linear(max(sums), units.short, whole=True)
    drawn = bars("Messages by attempts", series, bands(labels, 10), y, titles, WIDE)
    names = [(each.name, each.colour) for each in series]
    text = "By how many they took."
    if figures.one_in > 1:
        text += (
            f" {ABOUT} Counted up from a sample of {units.plural(sum(each.sample for _, each in pairs), 'message')}."
        )
    return figure("Messages that took more than one delivery", text, legend(names), drawn)


def _troubles_over_time(figures: Figures, first: Markup | None) -> Markup | None:
    """Return releases, expired leases and dead letters over time."""
    span = figures.span
    courses = [topic.events for topic in figures.everything]
    series = [
        Series(event, added((course[event] for course in courses if event in course), span), colour)
        for event, colour in TROUBLES.items()
    ]
    series = [each for each in series if any(each.values)]
    if not series:
        return plots(first) if first else None
    names = [(each.name, each.colour) for each in series]
    text = f"Per second, in steps of {units.width(span.width_us)}."
    heading = "Releases, expired leases, dead letters"
    return plots(figure(heading, text, legend(names), rates(heading, series, span, units.per_second)), first)


def discards(figures: Figures) -> Section | Absent:
    """Return what was not taken in, or thrown away, and why."""
    if not (figures.events or figures.counts):
        return Absent("Discards", NO_HISTORY)
    rows = [(many, topic.name, reason) for topic in figures.everything for reason, many in topic.discards.items()]
    if not rows:
        return Absent("Discards", "Nothing was discarded in this range.")
    rows.sort(key=lambda row: (-row[0], row[1:]))
    total = sum(many for many, _, _ in rows)
    cells = [
        [name(topic), name(reason), number(many, "warn"), share_of(many / total)]
        for many, topic, reason in rows[:ROWS_MAX]
    ]
    body: list[Child] = [table(("Topic", "Reason", "Messages", "Share"), cells, names=2)]
    if len(rows) > ROWS_MAX:
        body.append(tag("p", f"{units.plural(len(rows) - ROWS_MAX, 'row')} with fewer messages not shown."))
    body.append(plots(_by_topic(figures), _by_reason(rows)))
    return Section("discards", "Discards", "Messages that were refused or thrown away, by reason.", body)


def _by_topic(figures: Figures) -> Markup | None:
    colours = colours_of(figures)
    series = [
        Series(topic.name, topic.events["discarded"], colours.get(topic.name))
        for topic in figures.everything
        if any(topic.events.get("discarded", ()))
    ]
    if not series:
        return None
    text = f"Messages in each step of {units.width(figures.span.width_us)}."
    drawn = stacked("Discards over time", series, figures.span, units.short)
    return figure("Discards over time", text, legend([(each.name, each.colour) for each in series]), drawn)


def _by_reason(rows: list[tuple[int, str, str]]) -> Markup:
    sums: dict[str, int] = {}
    for many, _, reason in rows:
        sums[reason] = sums.get(reason, 0) + many
    most = sorted(sums.items(), key=lambda each: (-each[1], each[0]))[:8]
    values = [many for _, many in most]
    titles = [f"{reason}\n{units.count(many)} messages" for reason, many in most]
    labels = [reason if len(reason) <= 12 else reason[:11] + "…" for reason, _ in most]
    y = linear(max(values), units.short, whole=True)
    drawn = bars("Discards by reason", [Series("", values, 2)], bands(labels), y, titles)
    return figure("Discards by reason", "All topics together.", drawn)
