"""`penstock log`: check and read what is on disk or on Kafka, beside a running node or without one."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from penstock.cli.command import Json
from penstock.cli.config import File, Settings
from penstock.cli.failure import OK, REFUSED, Failure
from penstock.cli.printer import Printer, count, size
from penstock.cli.shards import Shard, Where, shards

if TYPE_CHECKING:
    from penstock.log.verify import ShardReport

app = typer.Typer(help="Check and read the log, with or without a running node.", no_args_is_help=True)

TopicName = Annotated[str | None, typer.Argument(metavar="[TOPIC]", help="Only this topic.", show_default="all")]
Data = Annotated[
    str | None,
    typer.Option(
        "--data",
        help="A data directory, or a directory inside one.",
        metavar="DIR",
        show_default="as the configuration here says",
    ),
]
ShardNumber = Annotated[int | None, typer.Option(min=0, help="Only of this shard.", show_default="all")]
From = Annotated[int, typer.Option("--from", min=0, help="From this offset.")]
To = Annotated[int | None, typer.Option("--to", min=0, help="Up to this offset, without it.", show_default="the end")]


Shared = Annotated[
    bool, typer.Option("--shared", help="Of a cluster's topics on Kafka: read from there, whoever owns them.")
]


@app.command()
def verify(
    topic: TopicName = None,
    data: Data = None,
    shared: Shared = False,
    file: File = None,
    settings: Settings = None,
    json: Json = False,
) -> int:
    """Read every batch of every segment and check it; exit code 1 if anything is damaged."""
    where = Where(data, shared, file, settings)
    reports = [(shard.topic, shard.number, shard.report()) for shard in shards(where, topic)]
    document = [
        {"topic": name, "shard": number, "good": report.good, "report": report} for name, number, report in reports
    ]
    rows = [_row(*each) for each in reports]
    out = Printer(json=json)
    out.table(document, ("topic", "shard", "segments", "rows", "bytes", "verdict"), rows, "there is no topic yet")
    for name, number, report in reports if not json else ():
        for line in _findings(report):
            out.line(f"{name}/{number}: {line}")
    return OK if all(report.good for _, _, report in reports) else REFUSED


@app.command()
def dump(
    topic: TopicName = None,
    data: Data = None,
    shared: Shared = False,
    shard: ShardNumber = None,
    start: From = 0,
    end: To = None,
    file: File = None,
    settings: Settings = None,
    json: Annotated[bool, typer.Option("--json", help="It is JSON in any case.")] = True,
) -> None:
    """Print rows with all their columns, one JSON object a line."""
    from penstock.log.verify import dump as rows

    out = Printer(json=json, hurry=False)
    for each in _chosen(Where(data, shared, file, settings), topic, shard):
        for row in rows(each.reader(), start, end):
            out.document({"topic": each.topic, **_shown(row, each.number)})
    out.flush()


@app.command()
def cat(
    topic: TopicName = None,
    data: Data = None,
    shared: Shared = False,
    shard: ShardNumber = None,
    start: From = 0,
    end: To = None,
    file: File = None,
    settings: Settings = None,
    json: Json = False,
) -> None:
    """Print bodies, one a line."""
    from penstock.log.verify import cat as bodies

    out = Printer(json=json, hurry=False)
    for each in _chosen(Where(data, shared, file, settings), topic, shard):
        for body in bodies(each.reader(), start, end):
            if json:
                out.document(_shown({"body": body}, each.number))
            else:
                out.bytes(body)
    out.flush()


def _shown(row: Mapping[str, object], shard: int) -> dict[str, object]:
    """Return the columns of a row that hold something, with its shard."""
    found: dict[str, object] = {"shard": shard}
    for name, value in row.items():
        if isinstance(value, bytes):
            found |= _binary(name, value)
        elif value is not None:
            found[name] = value
    return found


def _binary(name: str, value: bytes) -> dict[str, object]:
    if name == "headers":
        try:
            msgspec.json.decode(value)
            return {name: msgspec.Raw(value)}
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            pass  # stored as sent, and not JSON
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode("ascii")}


def _chosen(where: Where, topic: str | None, number: int | None) -> Iterator[Shard]:
    seen = set()
    for shard in shards(where, topic):
        seen.add(shard.number)
        if number in (None, shard.number):
            yield shard
    if number is not None and number not in seen:
        there = ", ".join(map(str, sorted(seen)))
        raise Failure(f"there is no shard {number} of {topic or 'any topic'}; there are: {there or 'none'}")


def _row(topic: str, number: int, report: ShardReport) -> tuple[str, ...]:
    return (
        topic,
        str(number),
        str(len(report.segments)),
        str(sum(segment.rows for segment in report.segments)),
        size(sum(segment.bytes for segment in report.segments)),
        "good" if report.good else "DAMAGED",
    )


def _findings(report: ShardReport) -> Iterator[str]:
    yield from report.problems
    for segment in report.segments:
        for damage in segment.bad:
            yield f"{segment.name}: offsets {damage.first} to {damage.end - 1} cannot be read: {damage.reason}"
        if not segment.index_good:
            yield f"{segment.name}: its index does not match; the node makes a new one when it starts"
        if segment.tail_bytes:
            yield f"{segment.name}: {count(segment.tail_bytes, 'byte')} after the last whole batch"
