"""Discard reports as Dory writes them: plain lines for people, JSON for their scripts.

Owns the words. Invariant: whatever a topic is called, a line stays one line and JSON stays JSON.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Iterable, Mapping
from typing import Any

from penstock.discards import Lost, Report, raw, shown

#: What a script finds under each name, by our reason.
COUNTS = {
    "malformed_msg_count": "malformed",
    "unix_stream_unclean_disconnect_count": "unclean_unix",
    "tcp_unclean_disconnect_count": "unclean_tcp",
    "unsupported_api_key_msg_count": "unsupported_api_key",
    "unsupported_version_msg_count": "unsupported_version",
    "bad_topic_msg_count": "bad_topic",
}
LABELS = {
    "malformed msg count": "malformed",
    "UNIX stream unclean disconnect count": "unclean_unix",
    "TCP unclean disconnect count": "unclean_tcp",
    "unsupported API key msg count": "unsupported_api_key",
    "unsupported version msg count": "unsupported_version",
    "bad topic msg count": "bad_topic",
}


def dated(seconds: int) -> str:
    """Return a time as a number and as people write it, in UTC."""
    return f"{seconds} {time.asctime(time.gmtime(seconds))}"


def as_json(report: Report) -> dict[str, Any]:
    """Return a report for scripts."""
    return {
        "id": report.number,
        "start_time": report.start_s,
        **{name: report.counts[reason] for name, reason in COUNTS.items()},
        "recent_malformed": _encoded(report.malformed),
        "unix_stream_unclean_disconnect": _encoded(report.unclean_unix),
        "tcp_unclean_disconnect": _encoded(report.unclean_tcp),
        "unsupported_msg_version": [{"version": each, "count": n} for each, n in sorted(report.versions.items())],
        "recent_bad_topic": [name.decode("utf-8", "replace") for name in report.bad_topics],
        "recent_too_long_msg": _encoded(report.too_long),
        "rate_limit_discard": [{"topic": shown(topic), "count": n} for topic, n in sorted(report.rate_limited.items())],
        "discard_topic": _ranges(report.discarded),
        "possible_duplicate_topic": _ranges(report.duplicates),
    }


def as_text(report: Report) -> str:
    """Return a report for people."""
    parts = [
        [
            f"report ID: {report.number}",
            f"start time: {dated(report.start_s)}",
            *(f"{label}: {report.counts[reason]}" for label, reason in LABELS.items()),
        ],
        [f"recent malformed msg: {_sized(text)}" for text in _encoded(report.malformed)],
        [f"UNIX stream unclean disconnect msg: {_sized(text)}" for text in _encoded(report.unclean_unix)],
        [f"TCP unclean disconnect msg: {_sized(text)}" for text in _encoded(report.unclean_tcp)],
        [f"unsupported msg version: {version} count {n}" for version, n in sorted(report.versions.items())],
        [f"recent bad topic: {_named(name)}" for name in report.bad_topics],
        [f"recent too long msg: {_sized(text)}" for text in _encoded(report.too_long)],
        [f"rate limit discard topic: {_named(raw(t))} count {n}" for t, n in sorted(report.rate_limited.items())],
        [f"discard topic: {line}" for line in _lines(report.discarded)],
        [f"possible duplicate topic: {line}" for line in _lines(report.duplicates)],
    ]
    return "\n".join("".join(f"    {line}\n" for line in part) for part in parts if part)


def _encoded(samples: Iterable[bytes]) -> list[str]:
    return [base64.b64encode(sample).decode("ascii") for sample in samples]


def _ranges(found: Mapping[str, Lost]) -> list[dict[str, Any]]:
    return [
        {"topic": shown(topic), "min_timestamp": lost.min_ms, "max_timestamp": lost.max_ms, "count": lost.count}
        for topic, lost in sorted(found.items())
    ]


def _lines(found: Mapping[str, Lost]) -> list[str]:
    return [
        f"{_named(raw(topic))} begin [{lost.min_ms}] end [{lost.max_ms}] count {lost.count}"
        for topic, lost in sorted(found.items())
    ]


def _sized(text: str) -> str:
    return f"{len(text)}[{text}]"


def _named(name: bytes) -> str:
    return f"{len(name)}[{plain(name)}]"


def plain(name: bytes) -> str:
    """Return a name in which nothing ends a line."""
    text = name.decode("utf-8", "replace")
    return text if text.isprintable() else "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)
