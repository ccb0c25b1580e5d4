"""The HTML document: heading, sums, sections, and how to read them.

Owns the order of the page. Invariant: the document needs nothing but itself: no script, no font, no picture, no
connection.
"""

from __future__ import annotations

from penstock.pipeline.jobs.report.draw import units
from penstock.pipeline.jobs.report.draw.markup import Markup, tag
from penstock.pipeline.jobs.report.figures import Figures
from penstock.pipeline.jobs.report.page.compression import compression
from penstock.pipeline.jobs.report.page.latency import latency
from penstock.pipeline.jobs.report.page.spread import heat, shards, waiting
from penstock.pipeline.jobs.report.page.style import SHEET
from penstock.pipeline.jobs.report.page.traffic import overview, sizes, traffic
from penstock.pipeline.jobs.report.page.trouble import attempts, discards

SECTIONS = (overview, traffic, sizes, latency, attempts, discards, heat, shards, waiting, compression)


def document(figures: Figures, title: str, made_us: int) -> str:
    """Return the whole page; `made_us` is when the report was made."""
    sections = [each(figures) for each in SECTIONS]
    links = [tag("a", each.title, href=f"#{each.anchor}") for each in sections]
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", title),
        tag("style", Markup(SHEET)),
    )
    span = figures.span
    header = tag(
        "header",
        tag("h1", title),
        tag("p", f"{units.instant(span.since_us)} to {units.instant(span.until_us)} UTC, "
                 f"{units.duration(span.until_us - span.since_us)}. Made {units.instant(made_us)} UTC."),
        tag("nav", links),
        tag("div", _tiles(figures), class_="tiles"),
    )  # fmt: skip
    main = tag("main", [each.markup() for each in sections])
    return "<!doctype html>\n" + tag("html", head, tag("body", header, main, _footer(figures)), lang="en") + "\n"


def _tiles(figures: Figures) -> list[Markup]:
    topics = figures.everything
    subscriptions = [each for topic in topics for each in topic.subscriptions]
    seconds = (figures.span.until_us - figures.span.since_us) / 1e6
    found = [
        _tile(units.count(figures.messages), "messages"),
        _tile(units.size(figures.body_bytes), "in bodies"),
        _tile(units.per_second(figures.messages / seconds), "on average"),
        _tile(units.count(figures.topics_all), "topics" if figures.topics_all != 1 else "topic"),
    ]
    if figures.events:
        dead = sum(each.dead for each in subscriptions)
        discarded = sum(many for topic in topics for many in topic.discards.values())
        found += [
            _tile(units.count(sum(each.delivered for each in subscriptions)), "deliveries"),
            _tile(units.count(dead), "dead letters", "bad" if dead else ""),
            _tile(units.count(discarded), "discarded", "warn" if discarded else ""),
        ]
    if figures.waiting is not None:
        found.append(_tile(units.count(figures.waiting.total), "waiting at the end"))
    return found


def _tile(value: str, label: str, kind: str = "") -> Markup:
    return tag("div", tag("b", value), tag("span", label), class_=f"tile {kind}".strip())


def _footer(figures: Figures) -> Markup:
    notes = [
        "Percentiles of sizes and times are exact to about 2 %. Sizes are decimal: 1 kB is 1000 bytes.",
        "A value's details are shown when the pointer rests on it.",
    ]
    if figures.one_in > 1:
        notes.insert(
            0, f"Events are sampled, one message in {figures.one_in}: numbers of events are estimates, counted up."
        )
    return tag("footer", tag("ul", [tag("li", note) for note in notes]))
