"""`penstock ledger`: everything refused or dropped, by reason and topic."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from penstock.cli.client import Client
from penstock.cli.printer import Printer, moment


class Sample(msgspec.Struct):
    """The beginning of something refused, or a word about it."""

    peer: str = ""
    text: str = ""
    base64: str = ""


class Entry(msgspec.Struct):
    """What happened for one reason on one topic."""

    reason: str
    topic: str
    count: int
    last: str
    samples: list[Sample]


class Page(msgspec.Struct):
    """The entries that match."""

    entries: list[Entry]


def ledger(
    client: Client,
    out: Printer,
    topic: Annotated[str | None, typer.Option(help="Only of this topic.")] = None,
    reason: Annotated[str | None, typer.Option(help="Only for this reason.")] = None,
    since: Annotated[str | None, typer.Option(help="Only since a time, or in the last 1h.", metavar="WHEN")] = None,
) -> None:
    """Show what was refused or dropped, the most recent first."""
    answer = client.get("/ledger", {"topic": topic, "reason": reason, "since": since})
    rows = [
        (entry.reason, entry.topic or "-", str(entry.count), moment(entry.last), _last(entry))
        for entry in answer.read(Page).entries
    ]
    out.table(answer.raw, ("reason", "topic", "count", "last", "last sample"), rows, "nothing was refused or dropped")


def _last(entry: Entry) -> str:
    if not entry.samples:
        return ""
    sample = entry.samples[-1]
    text = sample.text or (f"base64 {sample.base64}" if sample.base64 else "")
    return f"{sample.peer}: {text}" if sample.peer else text
