"""Sections on how messages spread: hot keys, tags and buckets, shards, and the windows to come.

Owns what is said about skew. Invariant: shares are of all the topic's messages, not of those shown.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.markup import Markup, tag
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
from penstock.pipeline.jobs.report.draw.plots import SMALL, Series, bands, bars, edges, legend, linear, title
from penstock.pipeline.jobs.report.figures import Figures, Hottest, Topic
from penstock.pipeline.jobs.report.page.traffic import colours_of
from penstock.pipeline.jobs.report.problems import SKEWED, UNEVEN
from penstock.pipeline.jobs.report.span import Windows

#: What may be hot: the column, what several are called, and where their figures are.
KINDS: tuple[tuple[str, str, Callable[[Topic], Hottest]], ...] = (
    ("key", "keys", lambda topic: topic.keys),
    ("tag", "tags", lambda topic: topic.tags),
    ("bucket", "buckets", lambda topic: topic.buckets),
)


def heat(figures: Figures) -> Section | Absent:
    """Return the keys, tags and buckets that most messages have."""
    title = "Hot keys, tags and buckets"
    cards = [
        _card(topic, of(topic), column, plural)
        for column, plural, of in KINDS
        for topic in figures.topics
        if of(topic).shown
    ]
    if not cards:
        missing = [column for column, _, _ in KINDS if column not in figures.columns]
        return Absent(title, " ".join(map(not_recorded, missing)) or "No message has a key, tag or bucket.")
    lead = (
        "What many messages have in common; shares are of all messages of the topic. A key decides the shard, a tag "
        "which consumers may take a message, a bucket is a part of a topic that one consumer has."
    )
    return Section("hot", title, lead, [tag("div", cards, class_="cards")])


def _card(topic: Topic, hottest: Hottest, column: str, plural: str) -> Markup:
    rows = [[name(hot.name), number(hot.messages), share_of(hot.messages / topic.stored)] for hot in hottest.shown]
    more = hottest.members - len(hottest.shown)
    text = units.plural(hottest.members, column, plural)
    if more > 0:
        rest = 1 - sum(hot.messages for hot in hottest.shown) / hottest.messages
        text += f"; those not shown have {units.share(rest)} of the messages with one"
    without = topic.stored - hottest.messages
    if without > 0:
        text += f"; {units.share(without / topic.stored)} have none"
    shown = table((column.capitalize(), "Messages", "Share"), rows)
    heading = tag("h3", f"{plural.capitalize()} of ", tag("bdi", topic.name))
    return tag("div", heading, tag("p", text + "."), shown, class_="card")


def shards(figures: Figures) -> Section | Absent:
    """Return how evenly messages are spread over shards."""
    if "shard" not in figures.columns:
        return Absent("Shards", not_recorded("shard"))
    topics = [topic for topic in figures.topics if len(topic.shards) > 1]
    if not topics:
        return Absent("Shards", "No topic has more than one shard with messages.")
    single = sum(len(topic.shards) == 1 for topic in figures.topics)
    lone = f" {units.plural(single, 'topic')} with one shard not shown." if single else ""
    heads = ("Topic", "Shards", "Largest shard", "Its share", "Skew", "Smallest shard")
    rows = []
    for topic in topics:
        largest = max(topic.shards, key=lambda shard: shard.messages)
        smallest = min(topic.shards, key=lambda shard: shard.messages)
        kind = "bad" if topic.skew >= SKEWED else "warn" if topic.skew >= UNEVEN else "good"
        rows.append(
            [
                name(topic.name),
                number(len(topic.shards)),
                cell(f"shard {largest.number}"),
                share_of(largest.messages / topic.stored),
                cell(f"{topic.skew:.2f}×", kind=kind),
                cell(f"shard {smallest.number}, {units.count(smallest.messages)}"),
            ]
        )
    lead = (
        "A shard is an ordered piece of a topic. Skew: messages of the largest shard, as a multiple of the mean over "
        "the shards that have any; 1 is even." + lone
    )
    each = [_shard_figure(topic) for topic in topics]
    return Section("shards", "Shards", lead, [table(heads, rows), plots(each, small=True)])


def _shard_figure(topic: Topic) -> Markup:
    values = [shard.messages for shard in topic.shards[:256]]
    titles = [
        f"shard {shard.number}\n{units.count(shard.messages)} messages, "
        f"{units.share(shard.messages / topic.stored)}\n{units.size(shard.body_bytes)}"
        for shard in topic.shards[:256]
    ]
    x = bands([str(shard.number) for shard in topic.shards[:256]])
    text = f"Messages in each of {len(topic.shards)} shards"
    y = linear(max(values), units.short, 2, whole=True)
    return figure(topic.name, text, bars(f"Shards of {topic.name}", [Series("", values, 0)], x, y, titles, SMALL))


def waiting(figures: Figures) -> Section | Absent:
    """Return how many messages are due in the coming windows."""
    heading = "Waiting messages"
    if figures.waiting is None:
        return Absent(heading, not_recorded("due"))
    windows = figures.waiting
    if not windows.total:
        return Absent(heading, "No message of the range is due after its end.")
    lead = (
        f"{units.plural(windows.total, 'message')} of the range due after its end, {units.instant(windows.start_us)}, "
        f"in windows of {units.width(windows.width_us)}."
    )
    colours = colours_of(figures)
    series = [Series(topic, row, colours.get(topic)) for topic, row in windows.counts.items() if any(row)]
    return Section("waiting", heading, lead, [plots(_windows_figure(windows, series), _windows_card(windows))])


def _windows_card(windows: Windows) -> Markup:
    """Return how many messages of each topic wait, and how long."""
    rows = []
    for topic, row in sorted(windows.counts.items(), key=lambda each: -sum(each[1]) - windows.later.get(each[0], 0)):
        later = windows.later.get(topic, 0)
        rows.append([name(topic), number(sum(row) + later), number(row[0]), number(sum(row)), number(later)])
    reach = units.duration(windows.width_us * len(next(iter(windows.counts.values()))))
    heads = ("Topic", "Waiting", f"Within {units.duration(windows.width_us)}", f"Within {reach}", "Later")
    return tag("div", tag("h3", "By topic"), table(heads, rows), class_="card")


def _windows_figure(windows: Windows, series: list[Series]) -> Markup | None:
    if not series:
        return None
    many = len(next(iter(windows.counts.values())))
    limits = [windows.start_us + at * windows.width_us for at in range(many + 1)]
    titles = [
        title(
            f"from {units.clock(limit, windows.width_us)}",
            [(each.name, each.values[at] or 0) for each in series],
            units.count,
        )
        for at, limit in enumerate(limits[:-1])
    ]
    sums = [sum(each.values[at] or 0 for each in series) for at in range(many)]
    x = edges([f"+{units.duration(limit - windows.start_us)}" if at else "end" for at, limit in enumerate(limits)])
    y = linear(max(sums), units.short, whole=True)
    names = [(each.name, each.colour) for each in series]
    text = "Messages by when they are due, counted from the end of the range."
    return figure(
        "Due in the coming windows", text, legend(names), bars("Due in the coming windows", series, x, y, titles)
    )
