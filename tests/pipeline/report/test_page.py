"""The page from figures made by hand: its structure, escaping, and what it says where there is nothing. No Spark."""

from __future__ import annotations

import itertools
import re
from html.parser import HTMLParser
from typing import Any

import msgspec
import pytest

from penstock.markup import VOID, Markup, escape, tag
from penstock.pipeline.jobs.report.compression import advice, measures
from penstock.pipeline.jobs.report.draw import units
from penstock.pipeline.jobs.report.draw.plots import LETTER, WIDE, clear, durations, ends_of, linear, nines, times
from penstock.pipeline.jobs.report.figures import Course, Figures, Hottest, Shard, Subscription, Topic
from penstock.pipeline.jobs.report.options import Report
from penstock.pipeline.jobs.report.page.document import document
from penstock.pipeline.jobs.report.problems import problems
from penstock.pipeline.jobs.report.scale import Distribution
from penstock.pipeline.jobs.report.span import DAY_US, SECOND_US, Span, Windows
from penstock.pipeline.jobs.report.tallies import Backlog
from penstock.pipeline.jobs.report.totals import Hot, readable

NASTY = """</title><script>alert("x")</script><img src=x onerror='y'>&amp;\x00\u202e"""
SECTIONS = [
    "problems",
    "topics",
    "traffic",
    "sizes",
    "latency",
    "attempts",
    "discards",
    "hot",
    "shards",
    "waiting",
    "compression",
]


class Outline(HTMLParser):
    """Reads a page: which elements there are, whether each is closed, and what the text is."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((name, dict(attributes)))
        if name not in VOID:
            self.open.append(name)

    def handle_endtag(self, name: str) -> None:
        assert self.open.pop() == name

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def named(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for each, attributes in self.elements if each == name]


def figures(name: str, messages: int = 1000) -> Figures:
    span = Span.over(0, DAY_US, 24)
    course = Course(tuple(range(24)), tuple(each * 100 for each in range(24)))
    some = Distribution([(messages, 5, 9), (3, 1000, 1000)])
    hot = Hottest((Hot(name, 10),), 40, 100)
    topic = Topic(
        name=name, messages=messages, stored=messages, body_bytes=50_000, stored_bytes=50_000,
        traffic={name: course, "nsq": course}, sizes=some,
        shards=(Shard(0, 900, 10), Shard(1, 100, 1)), skew=1.8, keys=hot, tags=hot, buckets=hot,
        subscriptions=(
            Subscription(name=name, sample=9, delivered=10, acked=9, released=1, expired=1, dead=1,
                         attempts={1: 9, 2: 1}, latency_us=some, lease_us=some,
                         latencies=tuple(some for _ in range(24))),
        ),
        subscriptions_all=7, discards={name: 4}, events={"released": tuple(range(24)), "discarded": tuple(range(24))},
        advice=advice(measures([name.encode() * 50] * 20, 1000)),
    )  # fmt: skip
    return Figures(
        span=span, columns=frozenset(Report.COLUMNS), events=True, one_in=8, topics=(topic,), topics_all=1,
        messages=messages, body_bytes=50_000, waiting=Windows(DAY_US, SECOND_US, {name: (3, 0, 1)}, {name: 2}),
    )  # fmt: skip


def test_the_page_has_its_sections_in_order_and_needs_nothing_else() -> None:
    page = document(figures("orders"), "Today", 0)
    outline = Outline(page)
    assert outline.open == []
    assert page.startswith('<!doctype html>\n<html lang="en">')
    assert [each["id"] for each in outline.named("section")] == SECTIONS
    links = [each["href"] for each in outline.named("a") if "class" not in each]
    assert links == [f"#{anchor}" for anchor in SECTIONS]
    names = {name for name, _ in outline.elements}
    assert not names & {"script", "link", "img", "iframe", "object", "embed", "video", "form", "use", "image"}
    lowered = page.lower()
    assert not any(word in lowered for word in ("http:", "https:", "//", "@import", "url(", "javascript:"))
    plots = [each for each in outline.named("svg") if each["class"] == "plot"]
    assert len(plots) == 16
    assert all(each["aria-label"] and each["role"] == "img" for each in plots)
    assert "Events are sampled, one message in 8: what comes from them has a ≈." in page
    assert "6 more subscriptions not shown" in page
    assert "10 of the messages" not in page


def test_names_never_become_markup() -> None:
    page = document(figures(NASTY), NASTY, 0)
    outline = Outline(page)
    assert outline.open == []
    assert not {name for name, _ in outline.elements} & {"script", "img"}
    assert not any(word.startswith("on") for _, attributes in outline.elements for word in attributes)
    shown = NASTY.replace("\x00", "\ufffd").replace("\u202e", "\ufffd")
    assert outline.text.count(shown) > 10
    assert "\x00" not in page


def test_what_has_nothing_to_say_is_left_out_and_only_mentioned() -> None:
    empty = Figures(span=Span.over(0, 1, 96), columns=frozenset(), events=False)
    outline = Outline(document(empty, "Nothing", 0))
    assert [each["id"] for each in outline.named("section")] == ["problems"]
    assert [each["href"] for each in outline.named("a")] == ["#problems"]
    said = [text for text in outline.text if text.startswith("Not shown: ")]
    assert len(said) == len(SECTIONS) - 1
    assert outline.named("svg") == []


def test_problems_come_first_with_what_to_do_and_the_worst_of_them_at_the_top() -> None:
    page = document(figures("orders"), "Today", 0)
    text = page[page.index('id="problems"') : page.index('id="topics"')]
    kinds = re.findall(r'class="kind">([^<]*)</a>', text)
    assert kinds == ["Dead letters", "Discarded", "Slow consumer"]
    # Nobody counted, so that nobody told where they went either; the subscription knows.
    assert "penstock subscription show orders orders" in text
    assert "≈ 1 message of orders / orders failed too often and is in the dead-letter topic." in text


def subscribed(**more: Any) -> Figures:
    """Return figures of a topic with one subscription, counted exactly."""
    each = Subscription(name="s", exact=True, **more)
    topic = Topic(name="t", messages=5000, stored=5000, subscriptions=(each,), subscriptions_all=1)
    return Figures(span=Span.over(0, DAY_US, 24), columns=frozenset(Report.COLUMNS), events=True, counts=True,
                   topics=(topic,), topics_all=1, messages=5000)  # fmt: skip


@pytest.mark.parametrize(
    ("more", "kinds"),
    [
        ({"delivered": 5000, "acked": 5000}, []),
        ({"delivered": 5000, "dead": 1}, ["Dead letters"]),
        ({"delivered": 5000, "expired": 49}, []),
        ({"delivered": 5000, "expired": 50}, ["Slow consumer"]),
        ({"delivered": 5000, "released": 250}, ["Given back"]),
        ({"delivered": 9, "backlog": Backlog(10, 0, 2000, 5000, 9, 5000)}, ["Growing backlog"]),
        ({"delivered": 9, "backlog": Backlog(10, 0, 5000, 300, 9, 5000)}, []),
        ({"delivered": 9, "backlog": Backlog(10, 0, 20, 30, 9, 30)}, []),
        ({"delivered": 0, "backlog": Backlog(500, 0, 500, 500, 9, 500)}, ["Growing backlog"]),
        ({"delivered": 9, "sample": 99, "latency_us": Distribution([(99, 2_000_000, 2_000_000)])}, ["Slow consumer"]),
        ({"delivered": 9, "sample": 5, "latency_us": Distribution([(5, 2_000_000, 2_000_000)])}, []),
    ],
)  # fmt: skip
def test_a_subscription_is_a_problem_when_it_is_one(more: dict[str, Any], kinds: list[str]) -> None:
    assert [each.kind for each in problems(subscribed(**more))] == kinds


def test_a_skewed_topic_names_the_shard_and_its_key() -> None:
    topic = Topic(name="t", messages=2000, stored=2000, shards=(Shard(0, 1900, 1), Shard(1, 100, 1)), skew=1.9,
                  keys=Hottest((Hot("k", 1500),), 3, 2000))  # fmt: skip
    base = subscribed()
    assert problems(msgspec.structs.replace(base, topics=(topic,))) == []
    four = (Shard(0, 1900, 1), *(Shard(at, 33, 1) for at in (1, 2, 3)))
    (found,) = problems(msgspec.structs.replace(base, topics=(msgspec.structs.replace(topic, shards=four, skew=3.8),)))
    assert found.what == (
        f"Shard 0 of t has 95{units.THIN}% of the messages, 3.8 times its part. The key k alone has 75{units.THIN}%."
    )


def test_counted_figures_are_told_plainly_and_only_sampled_ones_as_estimates() -> None:
    some = Distribution([(640, 5, 9)])
    counted = subscribed(delivered=5000, again=7, acked=5000, sample=10, latency_us=some, attempts={1: 640})
    page = document(msgspec.structs.replace(counted, one_in=64), "Today", 0)
    tiles = page[page.index('class="tiles"') : page.index("<main>")]
    assert "≈" not in tiles
    assert f"<td>≈{units.THIN}9{units.THIN}µs</td>" in page
    table = page[page.index('id="attempts"') :]
    assert '<td>5,000</td><td>5,000</td><td class="less">0</td>' in table


def test_markup_escapes_text_and_keeps_markup() -> None:
    assert tag("a", "<", tag("b", 1), None, ["&", Markup("<i>")], href='"x"', class_="y", z=None) == (
        '<a href="&quot;x&quot;" class="y">&lt;<b>1</b>&amp;<i></a>'
    )
    assert escape("a\u202fb\n\x1b\ud800") == "a\u202fb\n\ufffd\ufffd"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (b"key", "key"), (b"", "(empty)"), (b"\xff\x00", "0xff00"), ("schlüssel".encode(), "schlüssel"),
        (b"a\nb", "0x610a62"),
    ],
)  # fmt: skip
def test_keys_are_shown_as_text_where_they_are_text(value: bytes, shown: str) -> None:
    assert readable(value) == shown
    assert readable(value, len(value) + 1) == shown + "…"


def test_a_key_that_was_cut_within_a_character_is_still_text() -> None:
    assert readable("ü".encode() * 40 + "ü".encode()[:1], 100) == "ü" * 40 + "…"


def test_numbers_are_shown_with_three_figures_and_units() -> None:
    thin = units.THIN
    assert [units.count(each) for each in (0, 999_999, 1_234_567)] == ["0", "999,999", f"1.23{thin}M"]
    assert [units.size(each) for each in (0, 999, 1_500, 2.5e9)] == [
        f"0{thin}B",
        f"999{thin}B",
        f"1.5{thin}kB",
        f"2.5{thin}GB",
    ]
    assert [units.duration(each) for each in (0, 870, 12_340, 90e6, 7.2e9, 3 * DAY_US)] == [
        f"0{thin}µs", f"870{thin}µs", f"12.3{thin}ms", f"90{thin}s", f"2{thin}h", f"3{thin}d",
    ]  # fmt: skip
    assert [units.share(each) for each in (0, 0.0001, 0.123, 0.9999, 1)] == [
        f"0{thin}%", f"<{thin}0.1{thin}%", f"12.3{thin}%", f">{thin}99.9{thin}%", f"100{thin}%",
    ]  # fmt: skip
    assert [units.width(each) for each in (20_000, 900 * SECOND_US, DAY_US)] == [
        "20 milliseconds",
        "15 minutes",
        "1 day",
    ]


def test_axes_have_round_ticks_and_some_length() -> None:
    assert [tick.value for tick in linear(7.3, units.short).ticks] == [0, 2, 4, 6, 8]
    assert [tick.label for tick in linear(0, units.short, whole=True).ticks] == ["0", "1"]
    axis = durations(150, 2_000_000)
    assert (axis.low, axis.high, axis.share(100)) == (100, 10_000_000, 0)
    assert durations(5, 5).low < durations(5, 5).high
    assert [tick.label for tick in nines(0.999).ticks] == ["min", "50", "90", "99", "99.9"]
    day = times(Span.over(1_700_000_000 * SECOND_US, 1_700_086_400 * SECOND_US, 96), 4)
    assert [tick.label for tick in day.ticks] == ["15 Nov", "12:00"]
    assert len(times(Span.over(5, 6, 96), 4).ticks) >= 1


def test_labels_of_an_axis_do_not_touch() -> None:
    axis = times(Span.over(1_700_000_000 * SECOND_US, 1_700_000_001_020_000, 96), 8)
    shown = sorted(clear(axis, WIDE, LETTER))
    ends = [ends_of(axis.ticks[at], WIDE.x(axis, axis.ticks[at].value), WIDE, LETTER) for at in shown]
    assert len(axis.ticks) > len(shown) >= 3  # there is no room for all of them
    assert all(one[1] < other[0] for one, other in itertools.pairwise(ends))
    assert all(left >= 0 and right <= WIDE.width for left, right, _ in ends)
