"""The section on compression: what each codec made of a topic's bodies, and which to set.

Owns how the advice is shown. The rule behind it is the advice's own.
"""

from __future__ import annotations

from penstock.codecs import MESSAGE_SET_BYTES, Measure
from penstock.markup import Child, Markup, tag
from penstock.pipeline.jobs.report.compression import SEGMENT_BYTES
from penstock.pipeline.jobs.report.draw import units
from penstock.pipeline.jobs.report.draw.markup import Absent, Section, cell, figure, name, not_recorded, plots, table
from penstock.pipeline.jobs.report.draw.plots import SMALL, Series, bands, bars, legend, linear
from penstock.pipeline.jobs.report.figures import Figures, Topic

FORMS = {"segment": "segment", "message_set": "message set"}
LEAD = (
    "Measured on samples: bodies of neighbouring messages put together and compressed as one block, "
    f"{SEGMENT_BYTES >> 20} MiB as in a segment of the log, {MESSAGE_SET_BYTES >> 10} KiB as in a Kafka message set. "
    "Ratio: how many times smaller they become. Cost is CPU time for a byte of the bodies, on this machine."
)


def compression(figures: Figures) -> Section | Absent:
    """Return the advice for each topic, and what it rests on."""
    heading = "Compression advice"
    if "body" not in figures.columns:
        return Absent(heading, not_recorded("body"))
    topics = [topic for topic in figures.topics if topic.advice is not None]
    if not topics:
        return Absent(heading, "No bodies were sampled.")
    heads = ("Topic", "Penstock", "Kafka", "Dory", "Would save", "Why")
    rows = [_row(topic) for topic in topics]
    body: list[Child] = [
        table(heads, rows, texts=(5,)),
        tag("p", "Penstock is the topic setting ", tag("code", "compression"), ", Kafka its ",
            tag("code", "compression.type"), "; Dory knows gzip and snappy only."),
        legend([("segment", 0), ("message set", 1)]),
        plots([_figure(topic) for topic in topics], small=True),
        _measures(topics),
    ]  # fmt: skip
    return Section("compression", heading, LEAD, body)


def _row(topic: Topic) -> list[Markup]:
    advice = topic.advice
    assert advice is not None
    chosen = next((each for each in advice.measures if each.form == "segment" and each.codec == advice.penstock), None)
    saved = units.size(topic.stored_bytes * (1 - chosen.left)) if chosen else "–"
    return [
        name(topic.name),
        *(
            cell(tag("code", word, class_="set" if word != "none" else None))
            for word in (advice.penstock, advice.kafka, advice.dory)
        ),
        cell(f"{saved} of {units.size(topic.stored_bytes)}" if chosen else "–"),
        cell(advice.reason, kind="text"),
    ]


def _figure(topic: Topic) -> Markup:
    """Return what each codec leaves of the bodies."""
    advice = topic.advice
    assert advice is not None
    rows = advice.measures
    values = [100 * each.left for each in rows]
    titles = [
        f"{each.codec}, {FORMS[each.form]}\nleaves {units.share(each.left)}, ratio {1 / each.left:.2f}\n"
        f"compress {each.packing_ns:.1f} ns a byte, decompress {each.unpacking_ns:.1f}"
        for each in rows
    ]
    segment = [value if each.form == "segment" else 0 for each, value in zip(rows, values, strict=True)]
    others = [value if each.form != "segment" else 0 for each, value in zip(rows, values, strict=True)]
    x = bands([each.codec for each in rows])
    y = linear(max(100, *values), lambda value: f"{value:g} %", 2)
    series = [Series("segment", segment, 0), Series("message set", others, 1)]
    return figure(
        topic.name, "Left of the bodies, by codec", bars(f"Compression of {topic.name}", series, x, y, titles, SMALL)
    )


def _measures(topics: list[Topic]) -> Markup:
    heads = ("Topic", "Block", "Codec", "Ratio", "Left", "Compress", "", "Decompress", "", "Sample")
    rows = []
    for topic in topics:
        assert topic.advice is not None
        chosen = {("segment", topic.advice.penstock), ("message_set", topic.advice.kafka)}
        for each in topic.advice.measures:
            kind = "good" if (each.form, each.codec) in chosen else None
            rows.append(_measure_row(topic.name, each, kind))
    return tag("details", tag("summary", "All measurements"), table(heads, rows, names=3))


def _measure_row(topic: str, each: Measure, kind: str | None) -> list[Markup]:
    return [
        name(topic),
        name(FORMS[each.form]),
        name(each.codec),
        cell(f"{1 / each.left:.2f}", kind=kind),
        cell(units.share(each.left), kind=kind),
        cell(f"{each.packing_ns:.2f} ns/B"),
        cell(_speed(each.packing_ns)),
        cell(f"{each.unpacking_ns:.2f} ns/B"),
        cell(_speed(each.unpacking_ns)),
        cell(f"{units.size(each.plain_bytes)}, {units.count(each.bodies)} bodies"),
    ]


def _speed(cost_ns: float) -> str:
    return f"{1000 / cost_ns:,.0f} MB/s" if cost_ns else "–"
