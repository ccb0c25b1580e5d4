"""The page from figures made by hand: its structure, escaping, and what it says where there is nothing. No Spark."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from penstock.markup import VOID, Markup, escape, tag
from penstock.pipeline.jobs.report.compression import advice, measures
from penstock.pipeline.jobs.report.totals import Hot, readable
from penstock.pipeline.jobs.report.draw import units
from penstock.pipeline.jobs.report.draw.plots import durations, linear, nines, times
from penstock.pipeline.jobs.report.figures import Course, Figures, Hottest, Shard, Subscription, Topic
from penstock.pipeline.jobs.report.options import Report
from penstock.pipeline.jobs.report.page.document import document
from penstock.pipeline.jobs.report.scale import Distribution
from penstock.pipeline.jobs.report.span import DAY_US, SECOND_US, Span, Windows

NASTY = """</title><script>alert("x")</script><img src=x onerror='y'>&amp;\x00\u202e"""
SECTIONS = ["topics", "traffic", "sizes", "latency", "attempts", "discards", "hot", "shards", "waiting", "compression"]


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
        name=name, messages=messages, body_bytes=50_000, traffic={name: course, "nsq": course}, sizes=some,
        shards=(Shard(0, 900, 10), Shard(1, 100, 1)), skew=1.8, keys=hot, tags=hot, buckets=hot,
        subscriptions=(
            Subscription(name=name, delivered=10, acked=9, released=1, expired=1, dead=1, attempts={1: 9, 2: 1},
                         latency_us=some, lease_us=some, latencies=tuple(some for _ in range(24))),
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
    links = [each["href"] for each in outline.named("a")]
    assert links == [f"#{anchor}" for anchor in SECTIONS]
    names = {name for name, _ in outline.elements}
    assert not names & {"script", "link", "img", "iframe", "object", "embed", "video", "form", "use", "image"}
    lowered = page.lower()
    assert not any(word in lowered for word in ("http:", "https:", "//", "@import", "url(", "javascript:"))
    plots = [each for each in outline.named("svg") if each["class"] == "plot"]
    assert len(plots) == 16
    assert all(each["aria-label"] and each["role"] == "img" for each in plots)
    assert "Events are sampled, one message in 8" in page
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


def test_nothing_at_all_is_said_in_every_section() -> None:
    empty = Figures(span=Span.over(0, 1, 96), columns=frozenset(), events=False)
    outline = Outline(document(empty, "Nothing", 0))
    said = [text for text in outline.text if text.startswith(("Not recorded", "There are no", "No "))]
    assert len(said) >= len(SECTIONS)
    assert outline.named("svg") == []


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
