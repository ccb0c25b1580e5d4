"""Sections on what did not go as it should: attempts, releases, expired leases, dead letters, discards.

Owns what is said about them. Invariant: where there is no history of deliveries, each section says so.
"""

from __future__ import annotations

from penstock.pipeline.jobs.report.draw import units
from penstock.pipeline.jobs.report.draw.axes import bands, linear
from penstock.pipeline.jobs.report.draw.markup import Child, Markup, tag
from penstock.pipeline.jobs.report.draw.plots import WIDE, Series, bars, legend, title
from penstock.pipeline.jobs.report.figures import Figures, Subscription, Topic
from penstock.pipeline.jobs.report.page.blocks import Section, cell, figure, name, nothing, number, plots, table
from penstock.pipeline.jobs.report.page.blocks import share as share_of
from penstock.pipeline.jobs.report.page.course import added, rates, stacked
from penstock.pipeline.jobs.report.page.latency import CURVES, NO_HISTORY, ROWS_MAX, Pairs, more, pairs_of
from penstock.pipeline.jobs.report.page.traffic import colours_of
from penstock.pipeline.jobs.report.ways import ATTEMPTS_MAX

#: Events that a delivery is better off without, and their colours.
TROUBLES = {"released": 2, "expired": 3, "dead": 4}
HEADS = (
    "Topic", "Subscription", "Deliveries", "Acked", "Released", "Expired", "Dead", "Delivered again", "Attempts, mean",
    "Most",
)  # fmt: skip


def attempts(figures: Figures) -> Section:
    """Return how often messages were delivered, given back, timed out and given up."""
    heading = "Attempts and dead letters"
    if not figures.events:
        return Section("attempts", heading, "", [nothing(NO_HISTORY)])
    pairs = pairs_of(figures)
    if not pairs:
        return Section("attempts", heading, "", [nothing("Nothing was delivered in this range.")])
    lead = "Released: given back by the consumer. Expired: the lease ran out. Dead: moved to the dead-letter topic."
    rows = [_row(topic, each) for topic, each in pairs[:ROWS_MAX]]
    body = [table(HEADS, rows, names=2), _over_time(figures, _again(pairs))]
    return Section("attempts", heading, lead + more(pairs, figures), body)


def _row(topic: Topic, each: Subscription) -> list[Markup]:
    messages = sum(each.attempts.values())
    again = messages - each.attempts.get(1, 0)
    mean = sum(attempt * many for attempt, many in each.attempts.items()) / messages if messages else 0
    most = max(each.attempts, default=0)
    return [
        name(topic.name),
        name(each.name),
        number(each.delivered),
        number(each.acked),
        number(each.released),
        number(each.expired, "warn"),
        number(each.dead, "bad"),
        share_of(again / messages if messages else 0),
        cell(f"{mean:.2f}" if messages else "–"),
        cell(f"{most}{' or more' if most >= ATTEMPTS_MAX else ''}" if messages else "–"),
    ]


def _again(pairs: Pairs) -> Markup | None:
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
    return figure("Messages that took more than one attempt", "By how many they took.", legend(names), drawn)


def _over_time(figures: Figures, first: Markup | None) -> Markup:
    """Return releases, expired leases and dead letters over time."""
    span = figures.span
    courses = [topic.events for topic in figures.everything]
    series = [
        Series(event, added((course[event] for course in courses if event in course), span), colour)
        for event, colour in TROUBLES.items()
    ]
    series = [each for each in series if any(each.values)]
    if not series:
        return plots(first) if first else nothing("No message was released or given up, and no lease ran out.")
    names = [(each.name, each.colour) for each in series]
    text = f"Per second, in steps of {units.width(span.width_us)}."
    heading = "Releases, expired leases, dead letters"
    return plots(figure(heading, text, legend(names), rates(heading, series, span, units.per_second)), first)


def discards(figures: Figures) -> Section:
    """Return what was not taken in, or thrown away, and why."""
    if not figures.events:
        return Section("discards", "Discards", "", [nothing(NO_HISTORY)])
    rows = [(many, topic.name, reason) for topic in figures.everything for reason, many in topic.discards.items()]
    if not rows:
        return Section("discards", "Discards", "", [nothing("Nothing was discarded in this range.")])
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
