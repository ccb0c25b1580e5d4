"""Sections on what came in: an overview of the topics, traffic over time, sizes.

Owns what is said about messages. Invariant: a topic and a dialect have the same colour in all plots.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.markup import Child, Markup, tag
from penstock.pipeline.jobs.report.draw import units
from penstock.pipeline.jobs.report.draw.markup import (
    Absent,
    Section,
    cell,
    figure,
    name,
    not_recorded,
    number,
    plots,
    table,
)
from penstock.pipeline.jobs.report.draw.markup import share as share_of
from penstock.pipeline.jobs.report.draw.plots import (
    SMALL,
    Series,
    Show,
    added,
    bars,
    edges,
    legend,
    linear,
    rates,
    spark,
)
from penstock.pipeline.jobs.report.figures import Course, Figures, Topic
from penstock.pipeline.jobs.report.scale import Distribution
from penstock.pipeline.jobs.report.span import Span

#: Topics with a colour of their own; the others share one.
COLOURED = 7
#: Dialects with a colour of their own.
DIALECTS = 8
#: Where the bars of sizes meet.
SIZE_EDGES = [0.0, *(float(factor * 10**at) for at in range(13) for factor in (1, 2, 5))]


def overview(figures: Figures) -> Section | Absent:
    """Return the table of topics."""
    if not figures.everything:
        return Absent("Topics", "There are no messages.")
    gone = any(topic.stored < topic.messages for topic in figures.everything)
    is_measured = any(each.latency_us.total for topic in figures.everything for each in topic.subscriptions)
    heads = ["Topic", "Messages", "Share", "Bodies", "Mean size", "Over time", "Dialects"]
    heads += (["Still stored"] if gone else []) + (["Latency p50 / p99"] if is_measured else []) + ["Discarded"]
    rows = [
        [
            name(topic.name),
            number(topic.messages),
            share_of(topic.messages / figures.messages if figures.messages else 0),
            cell(units.size(topic.body_bytes), kind=None if topic.body_bytes else "less"),
            cell(units.size(topic.body_bytes / topic.messages) if topic.messages else "–"),
            cell(spark(f"Messages to {topic.name} over time", _messages(topic, figures.span)), kind="name"),
            cell(", ".join(topic.traffic), kind="name"),
            *([number(topic.stored)] if gone else []),
            *([cell(_latency(topic, figures.one_in == 1))] if is_measured else []),
            number(sum(topic.discards.values()), "warn"),
        ]
        for topic in figures.everything
    ]
    more = figures.topics_all - len(figures.topics)
    lead = f"Those with most messages; {units.plural(more, 'more topic')} counted together. " if more > 0 else ""
    lead += "A dialect is the protocol by which a message came."
    if gone:
        lead += (
            " Still stored: what retention, or the deletion of a topic, has left of the messages; sizes, keys and "
            "plots below are of these."
        )
    return Section("topics", "Topics", lead, [table(heads, rows, texts=(5, 6))])


def _messages(topic: Topic, span: Span) -> list[int]:
    return added((course.messages for course in topic.traffic.values()), span)


def _latency(topic: Topic, exact: bool) -> str:
    """Return the latency of all subscriptions together."""
    found = Distribution(one for each in topic.subscriptions for one in each.latency_us.classes)
    if not found.total:
        return "–"
    about = "" if exact else f"≈{units.THIN}"
    return f"{about}{units.duration(found.percentile(0.5))} / {units.duration(found.percentile(0.99))}"


def traffic(figures: Figures) -> Section | Absent:
    """Return plots of traffic over time, by topic and by dialect."""
    if "timestamp" not in figures.columns:
        return Absent("Traffic", not_recorded("timestamp"))
    if not any(topic.stored for topic in figures.everything):
        return Absent("Traffic", "There are no messages to look at.")
    span = figures.span
    dialects = _by_dialect(figures, "messages")
    body: list[Child] = [
        plots(
            _figure("Messages by topic", _by_topic(figures, "messages"), span, units.per_second),
            _figure("Messages by dialect", dialects, span, units.per_second),
            _figure("Bytes of bodies by topic", _by_topic(figures, "body_bytes"), span, units.bytes_per_second),
            _figure("Bytes of bodies by dialect", _by_dialect(figures, "body_bytes"), span, units.bytes_per_second),
        )
    ]
    body += [tag("p", not_recorded(column)) for column in ("source", "body") if column not in figures.columns]
    dialect_names = [(each.name, each.colour) for each in dialects]
    if len(figures.topics) > 1:
        colours = dict(dialect_names)
        each = [_topic_figure(topic, colours, span) for topic in figures.topics if topic.traffic]
        body += [
            tag("p", "Each topic on a scale of its own, by dialect:"),
            legend(dialect_names),
            plots(each, small=True),
        ]
    lead = f"Per second, in steps of {units.width(span.width_us)}. All times are UTC."
    return Section("traffic", "Traffic", lead, body)


def _figure(heading: str, series: list[Series], span: Span, show: Show) -> Markup | None:
    names = [(each.name, each.colour) for each in series]
    drawn = any(any(each.values) for each in series)
    return figure(heading, "", legend(names), rates(heading, series, span, show)) if drawn else None


def _topic_figure(topic: Topic, colours: Mapping[str, int | None], span: Span) -> Markup:
    series = [Series(source, course.messages, colours.get(source)) for source, course in topic.traffic.items()]
    peak = max(_messages(topic, span)) / span.width_s
    text = f"{units.plural(topic.stored, 'message')}, {units.per_second(peak)} at the peak"
    return figure(topic.name, text, rates(f"Messages to {topic.name}", series, span, units.per_second, small=True))


def colours_of(figures: Figures) -> dict[str, int | None]:
    """Return each topic's colour; None for the one that the smaller ones share."""
    return {topic.name: at if at < COLOURED else None for at, topic in enumerate(figures.topics)}


def _by_topic(figures: Figures, what: str) -> list[Series]:
    """Return one series for each of the largest topics, and one for all others."""
    found = []
    colours = colours_of(figures)
    left = []
    for topic in figures.everything:
        values = added((getattr(course, what) for course in topic.traffic.values()), figures.span)
        if colours.get(topic.name) is None:
            left.append(values)
        elif any(values):
            found.append(Series(topic.name, values, colours[topic.name]))
    rest = added(left, figures.span)
    return [*found, Series("others", rest, None)] if any(rest) else found


def _by_dialect(figures: Figures, what: str) -> list[Series]:
    """Return one series for each dialect, the busiest first."""
    courses: dict[str, list[Course]] = {}
    for topic in figures.everything:
        for source, course in topic.traffic.items():
            courses.setdefault(source, []).append(course)
    busiest = sorted(courses, key=lambda source: (-sum(sum(course.messages) for course in courses[source]), source))
    return [
        Series(
            source,
            added((getattr(course, what) for course in courses[source]), figures.span),
            at if at < DIALECTS else None,
        )
        for at, source in enumerate(busiest)
    ]


def sizes(figures: Figures) -> Section | Absent:
    """Return percentiles and histograms of the sizes of bodies."""
    if "body" not in figures.columns:
        return Absent("Message sizes", not_recorded("body"))
    topics = [topic for topic in figures.everything if topic.sizes.total]
    if not topics:
        return Absent("Message sizes", "There are no messages to look at.")
    heads = ("Topic", "Mean", "Least", "p50", "p90", "p99", "p99.9", "Greatest", "All bodies")
    rows = [
        [
            name(topic.name),
            cell(units.size(topic.stored_bytes / topic.stored)),
            cell(units.size(topic.sizes.least)),
            *(cell(units.size(topic.sizes.percentile(each))) for each in (0.5, 0.9, 0.99, 0.999)),
            cell(units.size(topic.sizes.greatest)),
            cell(units.size(topic.stored_bytes)),
        ]
        for topic in topics
    ]
    each = [_size_figure(topic) for topic in topics]
    lead = "The body alone, as it was sent. p99: of a hundred messages, 99 are not larger."
    return Section("sizes", "Message sizes", lead, [table(heads, rows), plots(each, small=True)])


def _size_figure(topic: Topic) -> Markup:
    """Return how many bodies have which size."""
    counts = topic.sizes.counts(SIZE_EDGES)
    first = next(at for at, count in enumerate(counts) if count)
    last = next(at for at in range(len(counts) - 1, -1, -1) if counts[at])
    # A lone bar says nothing of its place, so its neighbours come with it.
    first, last = max(first - 1, 0), min(last + 1, len(counts) - 1)
    shown, limits = counts[first : last + 1], SIZE_EDGES[first : last + 2]
    titles = [
        f"{units.size(low)} to {units.size(high)}\n"
        f"{units.count(count)} messages, {units.share(count / topic.sizes.total)}"
        for low, high, count in zip(limits, limits[1:], shown, strict=False)
    ]
    x = edges([units.size(limit) for limit in limits], 5)
    y = linear(max(shown), units.short, 2, whole=True)
    return figure(topic.name, "", bars(f"Sizes in {topic.name}", [Series("", shown, 0)], x, y, titles, SMALL))
