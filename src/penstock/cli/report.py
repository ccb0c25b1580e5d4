"""`penstock pipeline report`: one HTML page on the messages of a range of time."""

from __future__ import annotations

import datetime
import time
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.command import Json, Token
from penstock.cli.failure import USAGE, Failure
from penstock.cli.pipeline import Data, Master, Url, needs_spark, one_line, place_of
from penstock.cli.printer import Printer, count


def report(
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
    token: Token = None,
    master: Master = "local[*]",
    json: Json = False,
) -> None:
    """Write a report on traffic, sizes, latency, dead letters, skew and compression as one HTML page."""
    needs_spark()
    from penstock.pipeline.jobs.report import Report, frames
    from penstock.pipeline.jobs.report import report as reported
    from penstock.pipeline.session import session

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
    alone = bool(table) and not (data or url)
    place = None if alone else place_of(data, url, token)
    began = time.monotonic()
    spark = session("penstock report", master=master)
    with one_line():
        messages, events = frames(
            spark,
            options,
            path=place.path if place else "",
            url=place.url if place else "",
            token=place.token if place else "",
            tables=table or (),
        )
        page = reported(messages, events, options)
    target.write_text(page.html, encoding="utf-8")
    figures = page.figures
    said = f"{count(figures.messages, 'message')} of {count(figures.topics_all, 'topic')}"
    values = {"output": output, "messages": figures.messages, "topics": figures.topics_all}
    Printer(json=json).done(values, f"{output}: {said}, in {time.monotonic() - began:.0f} s")


def _moment(text: str, option: str) -> datetime.datetime | None:
    """Return a time as the report takes it."""
    if not text:
        return None
    from penstock.errors import Refusal
    from penstock.units.times import past

    try:
        time_ns = past(text, time.time_ns(), option)
    except Refusal as refusal:
        raise Failure(str(refusal), USAGE) from None
    return datetime.datetime.fromtimestamp(0, datetime.UTC) + datetime.timedelta(microseconds=time_ns // 1000)
