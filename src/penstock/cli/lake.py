"""`penstock pipeline archive` and `compact`: topics into a table, and a table into fewer files.

An archive is a pipeline of one source and one sink; this command only writes it down and runs it.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Any

import typer

from penstock.cli.command import ContextBehind, Json, Token
from penstock.cli.pipeline import Master, Plain, carry_out, needs_spark
from penstock.cli.place import Data, Url, place_of
from penstock.cli.printer import Printer, size

Format = Annotated[str, typer.Option(help="What the table is: delta or parquet.")]


def archive(
    context: typer.Context,
    topics: Annotated[list[str], typer.Argument(help="Topics to archive.", metavar="TOPIC...")],
    table: Annotated[str, typer.Option(help="Directory of the table.", metavar="DIR")],
    format: Format = "delta",
    compression: Annotated[str, typer.Option(help="zstd, snappy, gzip or none.")] = "zstd",
    from_: Annotated[
        str,
        typer.Option(
            "--from",
            help="Where the first run begins: earliest, latest, an offset, a time, or a duration back from now.",
        ),
    ] = "earliest",
    follow: Annotated[bool, typer.Option("--follow", help="Go on until stopped.")] = False,
    every: Annotated[str, typer.Option(help="How often, with --follow.")] = "10s",
    name: Annotated[str | None, typer.Option(help="Name of this archive.", show_default="made of the others")] = None,
    data: Data = None,
    url: Url = None,
    behind: ContextBehind = None,
    token: Token = None,
    master: Master = "local[*]",
    plain: Plain = False,
    json: Json = False,
) -> None:
    """Archive topics to a table, each message once; a second run adds what came since."""
    needs_spark()
    from penstock.pipeline.lake.table import table as table_at
    from penstock.pipeline.plan.document import at, parsed

    place = place_of(context, data, url, token)
    sink = {"from": "topics", "table": table, "format": format, "compression": compression}
    values: dict[str, Any] = {
        "name": name or f"archive-{_digest(*topics, table)}",
        "trigger": every,
        "sources": {"topics": {"topics": topics, "from": int(from_) if from_.isdigit() else from_}},
        "sinks": {"table": sink},
    }
    carry_out(at(parsed(values, "archive"), place), master=master, once=not follow, plain=plain)
    facts = table_at(table, format=format, partition_by=None).facts()
    Printer(json=json).done(
        {"table": table, "name": values["name"], **facts._asdict()},
        f"{table}: {facts.rows:,} rows in {facts.files:,} files, {size(facts.bytes)}",
    )


def compact(
    table: Annotated[str, typer.Argument(help="Directory of the table.", metavar="DIR")],
    format: Format = "delta",
    target: Annotated[str, typer.Option(help="How large a file may become.")] = "128MiB",
    keep_hours: Annotated[
        float, typer.Option(help="How long old files stay for those who still read them.", min=0)
    ] = 168.0,
    json: Json = False,
) -> None:
    """Merge the small files of a table, beside whoever reads and writes it."""
    needs_spark()
    from penstock.pipeline.lake.table import table as table_at
    from penstock.units.quantity import parse_size

    printer = Printer(json=json)
    say = (lambda line: None) if json else printer.line
    done = table_at(table, format=format, partition_by=None).compact(parse_size(target), keep_hours=keep_hours, log=say)
    printer.done(done._asdict(), f"{table}: {done.files_before:,} files are {done.files_after:,} now")


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:8]
