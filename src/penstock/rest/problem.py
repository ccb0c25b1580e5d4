"""Errors as REST APIs say them: {"error": {"code", "message", "field"}}, with the status that `errors.REASONS` gives.

Invariant: a message names the thing, the reason and, where there is one, the way out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import msgspec

from penstock.errors import Refusal, hint
from penstock.http import NoMethod, Response
from penstock.http.response import CHALLENGE
from penstock.rest.reply import JSON, answered

_PLACE = re.compile(r"`\$([.\[][^`]*)`").search
_MISSING = re.compile(r"missing required field `(\w+)`").search


class Problem(msgspec.Struct, omit_defaults=True):
    """What went wrong; `field` names the part of the request that was wrong, where it is one."""

    code: str
    message: str
    field: str = ""


class ErrorBody(msgspec.Struct):
    """The body of every answer that is not a success."""

    error: Problem


class BadField(Refusal):
    """A part of a request cannot be used."""

    def __init__(self, code: str, text: str, field: str) -> None:
        super().__init__(code, text)
        #: Its name, or the way to it.
        self.field = field


def unusable(what: str, error: msgspec.ValidationError, code: str = "bad_request") -> BadField:
    """Return the refusal of something that is JSON and not what is taken; `what` names it."""
    text = str(error)
    place, missing = _PLACE(text), _MISSING(text)
    names = [*([place[1].lstrip(".")] if place else []), *([missing[1]] if missing else [])]
    plain = text.replace("`$.", "`").replace("`$[...]", "`an item")
    return BadField(code, f"{what}{plain}", ".".join(names))


def problem_of(refusal: Refusal) -> Problem:
    """Return what is told of a refusal."""
    field = refusal.field if isinstance(refusal, BadField) else ""
    return Problem(refusal.code, _unicode(str(refusal)), _unicode(field))


def problem(status: int, told: Problem, headers: Mapping[str, str] | None = None) -> Response:
    """Return the answer for one error."""
    return answered(msgspec.json.encode(ErrorBody(told)), JSON, status, headers)


def of_refusal(refusal: Refusal) -> Response:
    """Return the answer for a refusal; a caller that may try again is told when."""
    headers = {"retry-after": str(refusal.retry_s)} if refusal.reason.retry else {}
    if refusal.code == "unauthorized":
        name, value = CHALLENGE
        headers[name.decode()] = value.decode()
    if isinstance(refusal, NoMethod):
        headers["allow"] = ", ".join(refusal.allowed)
    return problem(refusal.reason.http, problem_of(refusal), headers)


def bug() -> Response:
    """Return the answer where the node failed inside."""
    return problem(500, Problem("internal", "the node failed inside; its log says more"))


def unknown(name: str, names: Iterable[str], what: str, code: str = "bad_request") -> BadField:
    """Return the refusal of a name nobody knows, with the nearest one that is known."""
    known = sorted(names)
    if not known:
        return BadField(code, f"{name!r} is not known: no {what} is taken here", name)
    near = hint(name, known, f"known are {', '.join(known)}", repr)
    return BadField(code, f"{name!r} is no {what}; {near}", name)


def _unicode(text: str) -> str:
    """Return a text that JSON can hold: what a client sent may not be Unicode, what it gets back is."""
    return text.encode("utf-8", "backslashreplace").decode()
