"""Errors as the API says them: {"error": {"code", "message"}}, with the status that `errors.REASONS` gives the code.

Invariant: a message names the thing, the reason and, where there is one, the way out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from penstock.errors import Refusal, hint
from penstock.http import NoMethod, Response
from penstock.http.response import CHALLENGE

JSON = "application/json"


class Problem(msgspec.Struct):
    """What went wrong."""

    code: str
    message: str


class ErrorBody(msgspec.Struct):
    """The body of every answer that is not a success."""

    error: Problem


def problem(status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return the answer for one error."""
    # What a client sent may not be Unicode; what it gets back is.
    shown = message.encode("utf-8", "backslashreplace").decode()
    content = msgspec.json.encode(ErrorBody(Problem(code, shown)))
    return answered(content, JSON, status, headers)


def answered(content: bytes, media_type: str, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return an answer with content."""
    named = {"content-type": media_type, **(headers or {})}
    return Response(content, tuple((name.encode(), value.encode()) for name, value in named.items()), status)


def of_refusal(refusal: Refusal) -> Response:
    """Return the answer for a refusal; a caller that may try again is told when."""
    headers = {"retry-after": str(refusal.retry_s)} if refusal.reason.retry else {}
    if refusal.code == "unauthorized":
        name, value = CHALLENGE
        headers[name.decode()] = value.decode()
    if isinstance(refusal, NoMethod):
        headers["allow"] = ", ".join(refusal.allowed)
    return problem(refusal.reason.http, refusal.code, str(refusal), headers)


def unknown(name: str, names: Iterable[str], what: str) -> Refusal:
    """Return the refusal of a name nobody knows, with the nearest one that is known."""
    known = sorted(names)
    if not known:
        return Refusal("bad_request", f"{name!r} is not known: no {what} is taken here")
    near = hint(name, known, f"known are {', '.join(known)}", repr)
    return Refusal("bad_request", f"{name!r} is no {what}; {near}")
