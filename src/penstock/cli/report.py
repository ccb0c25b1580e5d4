"""`penstock pipeline report`: one HTML page on the messages of a range of time."""

from __future__ import annotations

import datetime
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.command import ContextBehind, Json, Token, before_of
from penstock.cli.failure import USAGE, Failure
from penstock.cli.pipeline import needs_spark, one_line
from penstock.cli.place import Data, Url, place_of
from penstock.cli.printer import Printer, count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.pipeline.jobs.report import Page, Report
    from penstock.pipeline.plan.document import Place

#: Where a range that is counted back from now begins: at a multiple, as the intervals do in which the node counts.
INTERVAL_NS = 10_000_000_000


def report(
    context: typer.Context,
    topics: Annotated[
        list[str] | None, typer.Argument(help="Only these topics; all but the node's own if none.", metavar="TOPIC...")
    ] = None,
    output: Annotated[str, typer.Option("--output", "-o", help="The page.", metavar="FILE")] = "report.html",
    table: Annotated[
        list[str] | None, typer.Option(help="A table of an archive; may be repeated.", metavar="DIR")
    ] = None,
    from_: Annotated[str, typer.Option("--from", help="Where the range begins: a time, or a duration back.")] = "",
    until: Annotated[str, typer.Option(help="Where it ends, not included.")] = "",
    top: Annotated[int, typer.Option(help="How many keys, tags and buckets of a topic are shown.", min=1)] = 10,
    title: Annotated[str, typer.Option(help="What stands above it.")] = "Penstock report",
    data: Data = None,
    url: Url = None,
    behind: ContextBehind = None,
    token: Token = None,
    master: Annotated[
        str | None,
        typer.Option(
            help="Have Spark do it: local[*], spark://host:port or sc://host:port.",
            show_default="no Spark below a million messages, else local[*]",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Write a report as one HTML page: problems, traffic, sizes, latency, dead letters, skew, compression."""
    from penstock.pipeline.jobs.report import Report, page_of, small
    from penstock.pipeline.jobs.report.problems import problems

    target = Path(output)
    if not target.parent.is_dir():
        raise Failure(f"--output {output} cannot be written: there is no directory {target.parent}", USAGE)
    options = Report(
        title=title,
        from_=_moment(from_, "--from"),
        until=_moment(until, "--until"),
        topics=tuple(topics or ()),
        top=top,
    )
    # An archive may outlive its node: then there is none to ask for events.
    before = before_of(context)
    alone = bool(table) and not (data or url or before.url or before.name)
    place = None if alone else place_of(context, data, url, token)
    began = time.monotonic()
    little = None
    if table:
        needs_spark()
    if master is None:
        path, url_, token_ = ("", "", "") if place is None else (place.path, place.url, place.token)
        little = small(options, path=path, url=url_, token=token_, tables=table or ())
    page = page_of(little) if little is not None else _by_spark(options, place, table or (), master or "local[*]")
    target.write_text(page.html, encoding="utf-8")
    figures, found = page.figures, problems(page.figures)
    said = f"{count(figures.messages, 'message')} of {count(figures.topics_all, 'topic')}, "
    said += count(len(found), "problem") if found else "no problem"
    values = {
        "output": output,
        "messages": figures.messages,
        "topics": figures.topics_all,
        "problems": [{"kind": each.kind, "what": each.what, "todo": each.todo} for each in found],
    }
    Printer(json=json).done(values, f"{output}: {said}, in {time.monotonic() - began:.0f} s")


def _by_spark(options: Report, place: Place | None, tables: Sequence[str], master: str) -> Page:
    """Return the report that Spark makes."""
    needs_spark()
    from penstock.pipeline.jobs.report import frames, report
    from penstock.pipeline.session import session

    spark = session("penstock report", master=master)
    with one_line():
        found = frames(
            spark,
            options,
            path=place.path if place else "",
            url=place.url if place else "",
            token=place.token if place else "",
            tables=tables,
        )
        return report(found.messages, found.events, options, counts=found.counts)


def _moment(text: str, option: str) -> datetime.datetime | None:
    """Return a time as the report takes it."""
    if not text:
        return None
    from penstock.errors import Refusal
    from penstock.units.times import past

    now_ns = time.time_ns()
    try:
        time_ns = past(text, now_ns, option)
        if past(text, now_ns + INTERVAL_NS, option) != time_ns:  # counted back from now
            time_ns -= time_ns % INTERVAL_NS
    except Refusal as refusal:
        raise Failure(str(refusal), USAGE) from None
    return datetime.datetime.fromtimestamp(0, datetime.UTC) + datetime.timedelta(microseconds=time_ns // 1000)
