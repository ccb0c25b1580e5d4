"""The section on delivery latency and lease time.

Owns what is said about how long things took. Sampled events were counted up before. Invariant: a subscription has the
same colour in all its plots.
"""

from __future__ import annotations

import itertools

from penstock.pipeline.jobs.report.draw import units
from penstock.pipeline.jobs.report.draw.axes import durations, nines
from penstock.pipeline.jobs.report.draw.markup import Markup
from penstock.pipeline.jobs.report.draw.plots import Series, legend, lines
from penstock.pipeline.jobs.report.figures import Figures, Subscription, Topic
from penstock.pipeline.jobs.report.options import EVENTS_TOPIC
from penstock.pipeline.jobs.report.page.blocks import Section, figure, name, nothing, number, plots, table, time
from penstock.pipeline.jobs.report.page.course import curves
from penstock.pipeline.jobs.report.scale import Distribution
from penstock.pipeline.jobs.report.span import Span

SHARES = (0.5, 0.9, 0.99, 0.999)
LEASE_SHARES = (0.5, 0.9, 0.99)
#: Subscriptions that are drawn, and rows that a table has at most.
CURVES = 8
ROWS_MAX = 60
#: Beyond five nines there are hardly ever enough messages to say something.
NINES = 5

NO_HISTORY = f"Not recorded: there is no history of deliveries, which the node writes to {EVENTS_TOPIC}."

Pairs = list[tuple[Topic, Subscription]]


def pairs_of(figures: Figures) -> Pairs:
    """Return all subscriptions, those with most deliveries first."""
    found = [(topic, each) for topic in figures.everything for each in topic.subscriptions]
    return sorted(found, key=lambda pair: -pair[1].delivered)


def more(shown: Pairs, figures: Figures) -> str:
    """Return how many subscriptions a table leaves out."""
    hidden = sum(topic.subscriptions_all for topic in figures.everything) - min(len(shown), ROWS_MAX)
    return f" {units.plural(hidden, 'more subscription')} not shown." if hidden > 0 else ""


def latency(figures: Figures) -> Section:
    """Return how long messages waited for their delivery, and how long they were leased."""
    heading = "Delivery latency and lease time"
    if not figures.events:
        return Section("latency", heading, "", [nothing(NO_HISTORY)])
    pairs = [pair for pair in pairs_of(figures) if pair[1].latency_us.total or pair[1].lease_us.total]
    if not pairs:
        return Section("latency", heading, "", [nothing("Nothing was delivered in this range.")])
    lead = (
        "Latency: from when a message was published, or due if that was later, to its first delivery. "
        "Lease: from its last delivery to the ack." + more(pairs, figures)
    )
    heads = ["Topic", "Subscription", "Messages", *(f"p{100 * each:g}" for each in SHARES), "Longest"]
    heads += [*(f"Lease p{100 * each:g}" for each in LEASE_SHARES), "Longest"]
    rows = [
        [
            name(topic.name),
            name(each.name),
            number(each.latency_us.total or each.lease_us.total),
            *_times(each.latency_us, SHARES),
            *_times(each.lease_us, LEASE_SHARES),
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


def _times(found: Distribution, shares: tuple[float, ...]) -> list[Markup]:
    if not found.total:
        return [time(None) for _ in (*shares, 1)]
    return [*(time(found.percentile(each)) for each in shares), time(found.greatest)]


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
