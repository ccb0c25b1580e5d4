"""The HTML document: how it looks, heading, sums, sections in their order, and how to read them.

Invariant: the document needs nothing but itself: no script, no font, no picture, no connection.
"""

from __future__ import annotations

from penstock.markup import Markup, tag
from penstock.pipeline.jobs.report.draw import units
from penstock.pipeline.jobs.report.draw.markup import Absent, Section
from penstock.pipeline.jobs.report.figures import Figures
from penstock.pipeline.jobs.report.page.compression import compression
from penstock.pipeline.jobs.report.page.deliveries import attempts, discards, latency
from penstock.pipeline.jobs.report.page.spread import heat, shards, waiting
from penstock.pipeline.jobs.report.page.traffic import overview, sizes, traffic
from penstock.pipeline.jobs.report.problems import PROBLEMS_MAX, Problem, problems

#: Eight colours, ordered so that neighbours differ, on a light and on a dark page.
LIGHT = ("#2a78d6", "#1baf7a", "#eda100", "#7a4fc9", "#e34948", "#0f8f9e", "#e87ba4", "#8a6d3b")
DARK = ("#5598e7", "#2fbf8b", "#d9a21b", "#a48bea", "#ec7472", "#35b3c2", "#e38bb0", "#b99a63")


def _colours(values: tuple[str, ...], rest: str) -> str:
    named = [*((str(number), value) for number, value in enumerate(values)), ("rest", rest)]
    return "".join(f"--c{name}:{value};" for name, value in named)


def _classes() -> str:
    names = [*map(str, range(len(LIGHT))), "rest"]
    return "".join(
        f".fill-{name}{{fill:var(--c{name})}}.stroke-{name}{{stroke:var(--c{name})}}"
        f".chip-{name}{{background:var(--c{name})}}"
        for name in names
    )


SHEET = f"""
:root{{color-scheme:light dark;
--page:#f6f6f3;--card:#fff;--ink:#1d1d1b;--soft:#5d5d58;--faint:#8a8a83;--line:#e4e4de;
--grid:#ecece7;--shade:#0000002e;--accent:#2a78d6;--bar:#d6e5f8;--good:#0e7a4f;--warn:#a85b00;--bad:#b3261e;
{_colours(LIGHT, "#b5b5ad")}}}
@media (prefers-color-scheme:dark){{:root{{--page:#161615;--card:#1f1f1d;--ink:#ecece8;--soft:#b2b2ab;--faint:#83837c;
--line:#33332f;--shade:#000000a0;--grid:#2b2b28;--accent:#5598e7;--bar:#25405f;--good:#4cc38f;--warn:#e5a13c;
--bad:#f08079;
{_colours(DARK, "#6a6a64")}}}}}
*{{box-sizing:border-box}}
html{{-webkit-text-size-adjust:100%}}
body{{margin:0;background:var(--page);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}}
main,header,footer{{max-width:1180px;margin:0 auto;padding:0 24px}}
header{{padding-top:36px}}
h1{{font-size:28px;line-height:1.2;margin:0 0 4px;letter-spacing:-.01em;overflow-wrap:anywhere}}
h2{{font-size:20px;margin:36px 0 2px;letter-spacing:-.005em}}
h3{{font-size:14px;margin:0 0 2px;font-weight:600;overflow-wrap:anywhere}}
p{{margin:2px 0 14px;max-width:76ch}}
header p,section>p,figure p{{color:var(--soft)}}
a{{color:var(--accent);text-decoration:none}}a:hover{{text-decoration:underline}}
nav{{display:flex;flex-wrap:wrap;gap:4px 16px;margin:14px 0 22px;font-size:14px}}
.tiles{{display:grid;grid-template-columns:repeat(auto-fit,minmax(128px,1fr));gap:12px}}
.tile{{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:12px 14px}}
.tile b{{display:block;font-size:23px;line-height:1.25;font-weight:600;white-space:nowrap}}
.tile span{{color:var(--soft);font-size:13px}}
.tile.bad b{{color:var(--bad)}}.tile.warn b{{color:var(--warn)}}
.plots{{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,440px),1fr));gap:14px;margin:10px 0}}
.plots.small{{grid-template-columns:repeat(auto-fill,minmax(min(100%,250px),1fr))}}
figure{{margin:0;background:var(--card);border:1px solid var(--line);border-radius:10px;padding:12px 14px 8px;
min-width:0}}
figure p{{font-size:13px;margin:0 0 4px}}
.plot{{display:block;width:100%;height:auto;overflow:visible;font-size:11px}}
.plot text{{fill:var(--soft)}}
.small .plot{{font-size:10.5px;max-width:380px;margin:0 auto}}
.grid{{stroke:var(--grid)}}.axis{{stroke:var(--faint)}}
.line{{fill:none;stroke-width:1.8;stroke-linejoin:round;stroke-linecap:round}}
.hit{{fill:transparent}}.hit:hover{{fill:var(--ink);fill-opacity:.08}}
.legend{{display:flex;flex-wrap:wrap;gap:2px 14px;font-size:12.5px;color:var(--soft);margin:2px 0 4px}}
.entry{{display:inline-flex;align-items:center;gap:6px;min-width:0;overflow-wrap:anywhere}}
.entry i{{width:10px;height:10px;border-radius:3px;flex:none}}
{_classes()}
.table{{overflow-x:auto;background:linear-gradient(90deg,var(--card) 30%,transparent) 0 0/44px 100% no-repeat local,
linear-gradient(270deg,var(--card) 30%,transparent) 100% 0/44px 100% no-repeat local,
linear-gradient(90deg,var(--shade),transparent) 0 0/14px 100% no-repeat scroll,
linear-gradient(270deg,var(--shade),transparent) 100% 0/14px 100% no-repeat scroll,var(--card);
border:1px solid var(--line);border-radius:10px;margin:10px 0}}
table{{border-collapse:collapse;width:100%;font-size:13.5px;font-variant-numeric:tabular-nums}}
th,td{{padding:7px 9px;text-align:right;white-space:nowrap;border-bottom:1px solid var(--line);vertical-align:middle}}
th{{font-weight:600;color:var(--soft);font-size:12.5px}}
tbody tr:last-child td{{border-bottom:0}}
tbody tr:hover{{background:var(--grid)}}
.name{{text-align:left;max-width:280px;overflow:hidden;text-overflow:ellipsis}}
.text{{text-align:left;white-space:normal;min-width:260px}}
td.less{{color:var(--faint)}}
td.good{{color:var(--good)}}td.warn{{color:var(--warn);font-weight:600}}td.bad{{color:var(--bad);font-weight:600}}
.share{{min-width:110px;position:relative}}
.share i{{position:absolute;left:6px;top:5px;bottom:5px;border-radius:3px;background:var(--bar)}}
.share b{{position:relative;font-weight:400}}
.spark{{display:block;width:120px;height:26px}}
code{{font:12.5px/1.4 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;background:var(--grid);border-radius:4px;
padding:1px 5px}}
.set{{font-weight:600}}
.problems{{list-style:none;margin:10px 0;padding:0;background:var(--card);border:1px solid var(--line);
border-radius:10px}}
.problems li{{display:grid;grid-template-columns:150px 1fr;gap:2px 14px;padding:10px 14px;
border-bottom:1px solid var(--line);border-left:4px solid var(--warn)}}
.problems li:first-child{{border-top-left-radius:10px}}.problems li:last-child{{border-bottom:0;
border-bottom-left-radius:10px}}
.problems li.bad{{border-left-color:var(--bad)}}
.problems .kind{{font-weight:600;color:var(--warn)}}.problems .bad .kind{{color:var(--bad)}}
.problems b{{font-weight:500;overflow-wrap:anywhere}}.problems p{{margin:1px 0 0;color:var(--soft);font-size:14px;
max-width:none}}
.problems code{{display:inline-block;overflow-wrap:anywhere}}
.none{{color:var(--soft);background:var(--card);border:1px dashed var(--line);border-radius:10px;padding:12px 14px;
margin:10px 0}}
.cards{{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,340px),1fr));gap:14px;margin:8px 0;
align-items:start}}
.card{{background:var(--card);border:1px solid var(--line);border-radius:10px;min-width:0}}
.plots .card{{align-self:start}}.card .table{{margin:0;border:0}}.card h3{{padding:10px 12px 0}}
.card p{{padding:0 12px;margin:0 0 2px;font-size:13px;color:var(--soft)}}
details{{margin:10px 0}}summary{{cursor:pointer;color:var(--accent)}}
footer{{margin-top:44px;padding-bottom:40px;color:var(--soft);font-size:13px}}
footer li{{margin:2px 0;max-width:86ch}}footer ul{{padding-left:18px}}
@media (max-width:640px){{main,header,footer{{padding-left:14px;padding-right:14px}}header{{padding-top:22px}}
h1{{font-size:23px}}.plots:not(.small) .plot{{font-size:15px}}.plots:not(.small) .minor{{display:none}}
.tile b{{font-size:19px}}.name{{max-width:170px}}.problems li{{grid-template-columns:1fr}}}}
@media print{{:root{{--page:#fff}}body{{font-size:11px}}nav{{display:none}}
main,header,footer{{max-width:none;padding:0}}
figure,.tile,tr,.card{{break-inside:avoid}}h2,h3{{break-after:avoid}}.table{{overflow:visible}}
.plots{{grid-template-columns:1fr 1fr}}.plots.small{{grid-template-columns:1fr 1fr 1fr}}
*{{-webkit-print-color-adjust:exact;print-color-adjust:exact}}th,td{{padding:4px 7px}}table{{font-size:10px}}}}
"""


SECTIONS = (overview, traffic, sizes, latency, attempts, discards, heat, shards, waiting, compression)


def document(figures: Figures, title: str, made_us: int) -> str:
    """Return the whole page; `made_us` is when the report was made."""
    parts = [each(figures) for each in SECTIONS]
    sections = [_troubles(figures), *(part for part in parts if isinstance(part, Section))]
    absent = [part for part in parts if isinstance(part, Absent)]
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
    footer = _footer(figures, absent)
    return "<!doctype html>\n" + tag("html", head, tag("body", header, main, footer), lang="en") + "\n"


def _troubles(figures: Figures) -> Section:
    """Return what to look at first, and what to do about it."""
    found = problems(figures)
    if found:
        body = [tag("ol", [_trouble(each) for each in found[:PROBLEMS_MAX]], class_="problems")]
        more = len(found) - PROBLEMS_MAX
        lead = f"The worst first; {units.plural(more, 'smaller one')} not shown." if more > 0 else "The worst first."
        return Section("problems", "Problems", lead, body)
    if figures.events or figures.counts:
        text = "None found: no dead letters, no lease that ran out, no growing backlog, nothing discarded, no skew."
    else:
        text = "Nothing is known of deliveries, because there is no history of them; no skew was found."
    return Section("problems", "Problems", "", [tag("div", text, class_="none")])


def _trouble(each: Problem) -> Markup:
    return tag(
        "li",
        tag("a", each.kind, href=f"#{each.anchor}", class_="kind"),
        tag("div", tag("b", each.what), tag("p", each.todo, " ", tag("code", each.command) if each.command else None)),
        class_="bad" if each.bad else "warn",
    )


def _tiles(figures: Figures) -> list[Markup]:
    topics = figures.everything
    subscriptions = [each for topic in topics for each in topic.subscriptions]
    seconds = (figures.span.until_us - figures.span.since_us) / 1e6
    found = [
        _tile(units.count(figures.messages), "message" if figures.messages == 1 else "messages"),
        _tile(units.size(figures.body_bytes), "in bodies"),
        _tile(units.per_second(figures.messages / seconds), "on average"),
        _tile(units.count(figures.topics_all), "topics" if figures.topics_all != 1 else "topic"),
    ]
    if figures.events or figures.counts:
        about = "" if all(each.exact for each in subscriptions) or figures.one_in == 1 else f"≈{units.THIN}"
        dead = sum(each.dead for each in subscriptions)
        discarded = sum(many for topic in topics for many in topic.discards.values())
        found += [
            _tile(about + units.count(sum(each.delivered for each in subscriptions)), "deliveries"),
            _tile(about + units.count(dead), "dead letter" if dead == 1 else "dead letters", "bad" if dead else ""),
            _tile(units.count(discarded), "discarded", "warn" if discarded else ""),
        ]
    if figures.waiting is not None and figures.waiting.total:
        found.append(_tile(units.count(figures.waiting.total), "waiting at the end"))
    return found


def _tile(value: str, label: str, kind: str = "") -> Markup:
    return tag("div", tag("b", value), tag("span", label), class_=f"tile {kind}".strip())


def _footer(figures: Figures, absent: list[Absent]) -> Markup:
    notes = [
        "Percentiles of sizes and times are exact to about 2 % of what they were measured on. "
        "Sizes are decimal: 1 kB is 1000 bytes.",
        "A value's details are shown when the pointer rests on it.",
    ]
    if figures.counts:
        notes.insert(0, "Messages, deliveries, dead letters and discards are counted by the node, in intervals of up "
                        "to ten seconds; one that begins in the range counts.")  # fmt: skip
    if figures.counted_from_us is not None:
        notes.insert(0, f"The node's counts begin at {units.instant(figures.counted_from_us)} UTC: what happened to "
                        "older messages is not counted.")  # fmt: skip
    if figures.one_in > 1:
        notes.insert(0, f"Events are sampled, one message in {figures.one_in}: what comes from them has a ≈.")
    notes += [f"Not shown: {each.title}. {each.why}" for each in absent]
    return tag("footer", tag("ul", [tag("li", note) for note in notes]))
