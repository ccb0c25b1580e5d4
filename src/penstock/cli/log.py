"""`penstock log`: check and read what is on disk, beside a running node or without one."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from penstock.cli.command import Json
from penstock.cli.data import Place, data_directory, places
from penstock.cli.failure import OK, REFUSED, Failure
from penstock.cli.printer import Printer, count, size

if TYPE_CHECKING:
    from penstock.log.verify import ShardReport

app = typer.Typer(help="Check and read the log on disk, with or without a running node.", no_args_is_help=True)

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


@app.command()
def verify(
    topic: TopicName = None,
    data: Data = None,
    json: Json = False,
) -> int:
    """Read every batch of every segment and check it; exit code 1 if anything is damaged."""
    from penstock.log.verify import verify as check

    found = places(data_directory(data), topic)
    reports = [(place, report) for place in found for report in check(place.directory).shards]
    document = [
        {"topic": place.topic, "shard": place.shard, "good": report.good, "report": report} for place, report in reports
    ]
    rows = [_row(place, report) for place, report in reports]
    out = Printer(json=json)
    out.table(document, ("topic", "shard", "segments", "rows", "bytes", "verdict"), rows, "there is no topic yet")
    for place, report in reports if not json else ():
        for line in _findings(report):
            out.line(f"{place.topic}/{place.shard}: {line}")
    return OK if all(report.good for _, report in reports) else REFUSED


@app.command()
def dump(
    topic: TopicName = None,
    data: Data = None,
    shard: ShardNumber = None,
    start: From = 0,
    end: To = None,
    json: Annotated[bool, typer.Option("--json", help="It is JSON in any case.")] = True,
) -> None:
    """Print rows with all their columns, one JSON object a line."""
    from penstock.log.verify import dump as rows

    out = Printer(json=json, hurry=False)
    for place in _chosen(data, topic, shard):
        for row in rows(place.directory, start, end):
            out.document({"topic": place.topic, **_shown(row, place.shard)})
    out.flush()


@app.command()
def cat(
    topic: TopicName = None,
    data: Data = None,
    shard: ShardNumber = None,
    start: From = 0,
    end: To = None,
    json: Json = False,
) -> None:
    """Print bodies, one a line."""
    from penstock.log.verify import cat as bodies

    out = Printer(json=json, hurry=False)
    for place in _chosen(data, topic, shard):
        for body in bodies(place.directory, start, end):
            if json:
                out.document(_shown({"body": body}, place.shard))
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


def _chosen(data: str | None, topic: str | None, shard: int | None) -> list[Place]:
    found = places(data_directory(data), topic)
    if shard is None:
        return found
    wanted = [place for place in found if place.shard == shard]
    if not wanted:
        shards = ", ".join(sorted({str(place.shard) for place in found}))
        raise Failure(f"there is no shard {shard} of {topic or 'any topic'}; there are: {shards or 'none'}")
    return wanted


def _row(place: Place, report: ShardReport) -> tuple[str, ...]:
    return (
        place.topic,
        str(place.shard),
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
