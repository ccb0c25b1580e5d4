"""What was thrown away, over HTTP: the report of this interval, of the one before, and the totals."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping

import msgspec

from penstock.api.endpoint import PREFIX, Call, Endpoint
from penstock.discards import Lost, Report, shown
from penstock.units import times


class LostInfo(msgspec.Struct):
    """Messages of one topic, and the first and last time that their producers gave them."""

    topic: str
    count: int
    min_timestamp_ms: int
    max_timestamp_ms: int


class DiscardReport(msgspec.Struct):
    """One interval. Samples are base64, the latest first."""

    id: int
    start: str
    #: By reason; what did not happen is left out.
    counts: dict[str, int]
    malformed: list[str]
    unclean_unix: list[str]
    unclean_tcp: list[str]
    too_long: list[str]
    bad_topics: list[str]
    unsupported_versions: dict[str, int]
    rate_limited: dict[str, int]
    discarded: list[LostInfo]
    possible_duplicates: list[LostInfo]


class DiscardTotal(msgspec.Struct):
    """Since the start; no topic where the bytes were no message."""

    reason: str
    topic: str
    count: int


class DiscardsPage(msgspec.Struct):
    """Reports and totals."""

    since: str
    interval_s: float
    totals: list[DiscardTotal]
    possible_duplicates: dict[str, int]
    unfinished: DiscardReport
    finished: DiscardReport | None


async def show_discards(call: Call[None, None]) -> DiscardsPage:
    """Show what was thrown away."""
    discards = call.node.discards
    unfinished, finished = discards.reports()
    return DiscardsPage(
        times.shown(discards.since_s * 1_000_000_000),
        discards.interval_ns / 1e9,
        [DiscardTotal(reason, shown(topic), count) for (reason, topic), count in discards.totals.items()],
        _named(discards.duplicates),
        _report(unfinished),
        _report(finished) if finished is not None else None,
    )


def _report(report: Report) -> DiscardReport:
    return DiscardReport(
        id=report.number,
        start=times.shown(report.start_s * 1_000_000_000),
        counts={reason: count for reason, count in report.counts.items() if count},
        malformed=_encoded(report.malformed),
        unclean_unix=_encoded(report.unclean_unix),
        unclean_tcp=_encoded(report.unclean_tcp),
        too_long=_encoded(report.too_long),
        bad_topics=[name.decode("utf-8", "replace") for name in report.bad_topics],
        unsupported_versions={str(version): count for version, count in report.versions.items()},
        rate_limited=_named(report.rate_limited),
        discarded=_lost(report.discarded),
        possible_duplicates=_lost(report.duplicates),
    )


def _encoded(samples: Iterable[bytes]) -> list[str]:
    return [base64.b64encode(sample).decode("ascii") for sample in samples]


def _named(counts: Mapping[str, int]) -> dict[str, int]:
    return {shown(topic): count for topic, count in counts.items()}


def _lost(found: Mapping[str, Lost]) -> list[LostInfo]:
    return [LostInfo(shown(topic), lost.count, lost.min_ms, lost.max_ms) for topic, lost in found.items()]


ENDPOINTS = (
    Endpoint(
        "GET",
        f"{PREFIX}/discards",
        show_discards,
        "Show what was thrown away, and why",
        DiscardsPage,
        query=None,
        on_node="read",
    ),
)
