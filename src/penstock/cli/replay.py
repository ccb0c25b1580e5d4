"""`penstock pipeline replay`: messages of topics or of a table, published again, each once."""

from __future__ import annotations

import signal
import sys
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.command import ContextBehind, Json, Token
from penstock.cli.failure import USAGE, Failure
from penstock.cli.pipeline import needs_spark, one_line
from penstock.cli.place import Data, Url, place_of
from penstock.cli.printer import Printer, count, size

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.pipeline.jobs.replay import Plan, Progress


def replay(
    context: typer.Context,
    to: Annotated[str, typer.Option(help="The topic that gets them; {topic} stands for their own.", metavar="TOPIC")],
    topics: Annotated[
        list[str] | None,
        typer.Argument(help="Topics to replay; with --table, those to take of it.", metavar="TOPIC..."),
    ] = None,
    table: Annotated[str, typer.Option(help="A table of an archive to replay from.", metavar="DIR")] = "",
    format: Annotated[str, typer.Option(help="What the table is: delta or parquet.")] = "delta",
    from_: Annotated[
        str, typer.Option("--from", help="Where to begin: earliest, an offset, a time, or a duration back from now.")
    ] = "earliest",
    until: Annotated[str, typer.Option(help="Where to end, not included.")] = "latest",
    where: Annotated[str, typer.Option(help="Only these: an SQL condition on columns of a message.")] = "",
    rate: Annotated[int | None, typer.Option(help="Messages a second.", min=1, show_default="full speed")] = None,
    times: Annotated[str, typer.Option(help="What becomes of their times: original, shift or none.")] = "original",
    shift: Annotated[str, typer.Option(help="With --times shift: how far; else the first message is now.")] = "",
    name: Annotated[str, typer.Option(help="Name of this replay.", show_default="made of the other words")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count, and write nothing.")] = False,
    data: Data = None,
    url: Url = None,
    behind: ContextBehind = None,
    token: Token = None,
    master: Annotated[
        str | None,
        typer.Option(
            help="Have Spark do it, there: local[*], spark://host:port or sc://host:port.",
            show_default="local[*], and below a million messages without Spark",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Publish messages of topics or of a table again; the same command twice adds nothing twice.

    A time counted back from now means other messages each time, and so another replay.
    """
    if table:
        needs_spark()
    from penstock.pipeline.jobs.replay import Replay, ends_on, planned
    from penstock.pipeline.jobs.replay import replay as replayed
    from penstock.pipeline.run.home import base_of

    if times not in ("original", "shift", "none"):
        raise Failure(f"--times {times}: original, shift or none", USAGE)
    place = place_of(context, data, url, token)
    chosen: Any = times
    options = Replay(
        node=place,
        topics=tuple(topics or ()),
        table=table,
        format=format,
        from_=_bound(from_),
        until=_bound(until),
        where=where,
        to=to,
        rate=rate,
        times=chosen,
        shift=shift,
        name=name,
    )
    printer = Printer(json=json)
    started = partial(_started, master or "local[*]")
    spark = started() if master else started
    with one_line():
        if dry_run:
            _show(printer, planned(spark, options, base_of(place)))
            return
        with ends_on(signal.SIGTERM, signal.SIGINT, told=_stopping) as stop:
            outcome = replayed(spark, options, base_of(place), told=_tell, stop=stop)
    plan = outcome.plan
    values = {
        "name": plan.name,
        "rows": outcome.rows,
        "rows_all": plan.rows,
        "finished": outcome.finished,
        "from": plan.words["from"],
        "until": plan.words["until"],
        "message": outcome.message,
    }
    printer.done(values, outcome.message)


def _started(master: str) -> SparkSession:
    needs_spark()
    from penstock.pipeline.session import session

    return session("penstock replay", master=master)


def _show(printer: Printer, plan: Plan) -> None:
    """Show what a replay would write."""
    shares = [
        (
            share.topic,
            str(share.shard),
            share.to,
            f"{share.rows:,}",
            size(share.bytes),
            _time(share.first_us),
            _time(share.last_us),
        )
        for share in plan.shares
    ]
    document = {
        "name": plan.name,
        "from": plan.words["from"],
        "until": plan.words["until"],
        "rows": plan.rows,
        "bytes": plan.bytes,
        "steps": len(plan.steps),
        "shares": [
            {"topic": share.topic, "shard": share.shard, "to": share.to, "rows": share.rows, "bytes": share.bytes}
            for share in plan.shares
        ],
    }
    if printer.json:
        printer.document(document)
        return
    columns = ("topic", "shard", "to", "messages", "size", "first", "last")
    printer.table(document, columns, shares, empty="no message matches")
    printer.line(
        f"{count(plan.rows, 'message')}, {size(plan.bytes)}, in {count(len(plan.steps), 'step')}, from "
        f"{plan.words['from']} until {plan.words['until']}; nothing was written"
    )


def _stopping() -> None:
    print("Stopping after the step that is under way.", file=sys.stderr, flush=True)


def _tell(progress: Progress) -> None:
    print(
        f"{progress.name}: {progress.rows_done:,} of {progress.rows:,} messages, {progress.rows_per_s:,.0f} a second, "
        f"{progress.eta_s:.0f} s to go",
        file=sys.stderr,
        flush=True,
    )


def _bound(text: str) -> int | str:
    # A time in milliseconds has more digits than any offset a person types.
    return int(text) if text.isdigit() and len(text) < 12 else text


def _time(time_us: int) -> str:
    from penstock.units.times import shown

    return shown(time_us * 1000)[:19].replace("T", " ") + "Z"
