"""The intake ledger over HTTP: everything refused or dropped, by reason and topic."""

from __future__ import annotations

import base64
from typing import Annotated

import msgspec
from msgspec import Meta

from penstock.api.endpoint import PREFIX, Call, Endpoint
from penstock.intake.ledger import Sample
from penstock.units import times


class LedgerQuery(msgspec.Struct):
    """Which entries; `since` is a time, or a duration like 1h for the last hour."""

    reason: str | None = None
    topic: str | None = None
    since: str = ""
    limit: Annotated[int, Meta(ge=1, le=4096)] = 1000


class SampleInfo(msgspec.Struct, omit_defaults=True):
    """The beginning of something refused, or a word about it."""

    time: str
    peer: str
    text: str | None = None
    base64: str | None = None


class LedgerEntry(msgspec.Struct):
    """What was refused or dropped for one reason on one topic; no topic where none was meant."""

    reason: str
    topic: str
    count: int
    first: str
    last: str
    samples: list[SampleInfo]


class LedgerPage(msgspec.Struct):
    """Entries, the most recent first, and the count over all that match."""

    total: int
    entries: list[LedgerEntry]


async def show_ledger(call: Call[LedgerQuery, None]) -> LedgerPage:
    """Show what was refused or dropped."""
    query = call.query
    since_ns = times.past(query.since, call.node.clock.now(), "since") if query.since else None
    found = call.node.ledger.entries(query.reason, query.topic, since_ns)
    entries = [
        LedgerEntry(
            entry.reason,
            entry.topic,
            entry.count,
            times.shown(entry.first_ns),
            times.shown(entry.last_ns),
            [_sample(sample) for sample in entry.samples],
        )
        for entry in found[: query.limit]
    ]
    return LedgerPage(sum(entry.count for entry in found), entries)


def _sample(sample: Sample) -> SampleInfo:
    told = SampleInfo(times.shown(sample.time_ns), sample.peer)
    if isinstance(sample.content, str):
        told.text = sample.content
    else:
        try:
            told.text = sample.content.decode()
        except UnicodeDecodeError:
            told.base64 = base64.b64encode(sample.content).decode("ascii")
    return told


ENDPOINTS = (
    Endpoint(
        "GET",
        f"{PREFIX}/ledger",
        show_ledger,
        "Show what was refused or dropped",
        LedgerPage,
        LedgerQuery,
        on_node="read",
    ),
)
