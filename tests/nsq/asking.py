"""Requests to NSQ's HTTP listener, and what every answer of it must have."""

from __future__ import annotations

from typing import Any

from tests.served import Answer, Served


def ask(
    served: Served, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
) -> Answer:
    """Send one request."""
    answer = served.ask(method, path, raw=body, headers=headers, port=served.ports["nsq.http_port"])
    if path.lstrip("/") != "ping":
        assert answer.headers["x-nsq-content-type"] == "nsq; version=1.0"
    return answer


def post(served: Served, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> Answer:
    """Ask for a change."""
    return ask(served, "POST", path, body, headers)


def done(served: Served, path: str, body: bytes = b"") -> None:
    """Ask for a change that must succeed and be answered with nothing."""
    answer = post(served, path, body)
    assert (answer.status, answer.content) == (200, b""), answer


def refused(answer: Answer) -> tuple[int, str]:
    """Return status and code of a refusal."""
    assert answer.headers["content-type"] == "application/json; charset=utf-8"
    return answer.status, answer.json["message"]


def stats(served: Served, query: str = "") -> Any:
    """Return the stats in JSON."""
    answer = ask(served, "GET", f"/stats?format=json{query}")
    assert answer.status == 200, answer
    assert answer.headers["content-type"] == "application/json; charset=utf-8"
    return answer.json


def topic_of(served: Served, name: str) -> Any:
    """Return the stats of one topic."""
    return stats(served, f"&topic={name}")["topics"][0]
