"""What NSQ's HTTP interfaces share: answers, refusals and parameters, version 1.0 of both daemons.

Knows no path and no node.
Invariant: parameters come from the query alone, and every answer says which version it is.
"""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, unquote

import msgspec

from penstock.dialects.nsq.codec import is_name
from penstock.errors import PenstockError, Refusal
from penstock.http import Broken, Request, Response
from penstock.http.response import CHALLENGE, TEXT

NSQ = (b"x-nsq-content-type", b"nsq; version=1.0")
JSON = (b"content-type", b"application/json; charset=utf-8")

#: A request with more parameters than this has another purpose.
PARAMS_MAX = 32

#: Where nothing is read of a body, one of this size is passed over.
IDLE_BYTES_MAX = 1 << 20

Params = dict[str, str]

#: A percent sign that escapes nothing.
_BROKEN = re.compile(rb"%(?![0-9a-fA-F]{2})").search
_SWITCH = {"true": True, "1": True, "false": False, "0": False}
_SLASHES = re.compile("/{2,}")

#: How a refusal reads here where the code itself is not nsqd's word for it.
_CODES = {"stopping": "EXITING", "message_too_big": "MSG_TOO_BIG", "bad_name": "INVALID_TOPIC"}

#: Refusals whose sentence is told, too: nsqd has no word for them.
SAID = frozenset(("forbidden", "misdirected", "too_many_connections", "rate_limited", "limit_reached", "quota_full"))

OK = Response(b"OK", (NSQ, TEXT))
EMPTY = Response(b"", (NSQ,))


class Fault(PenstockError):
    """A request that is refused, with NSQ's status and word for it, and where that helps the reason in a sentence."""

    def __init__(self, status: int, code: str, reason: str = "", retry_s: int = 0) -> None:
        super().__init__(code)
        self.status = status
        self.code = code
        self.reason = reason
        #: For how long to wait before another try; 0 = not told.
        self.retry_s = retry_s

    @classmethod
    def of(cls, refusal: Refusal) -> Fault:
        """Return what a refusal is called here."""
        if isinstance(refusal, Broken):
            return cls(400, "INVALID_REQUEST")
        said = str(refusal) if refusal.code in SAID else ""
        retry_s = refusal.retry_s if refusal.reason.http == 429 else 0
        return cls(refusal.reason.http, _CODES.get(refusal.code, refusal.code.upper()), said, retry_s)


def document(content: object) -> Response:
    """Return an answer in JSON."""
    return Response(msgspec.json.encode(content), (NSQ, JSON))


def refusal(status: int, code: str, reason: str = "", retry_s: int = 0) -> Response:
    """Return the answer to what is refused; programs read the code, people the reason."""
    told = {"message": code, "reason": reason} if reason else {"message": code}
    more = (CHALLENGE,) if status == 401 else ((b"retry-after", b"%d" % retry_s),) if retry_s else ()
    return Response(msgspec.json.encode(told), (NSQ, JSON, *more), status)


def params(request: Request) -> Params:
    """Return the query's parameters, of a repeated one the first; bytes that are no text stay as surrogates."""
    query = request.query
    if _BROKEN(query) is not None:
        raise Fault(400, "INVALID_REQUEST")
    try:
        pairs = parse_qsl(query.decode("ascii"), True, errors="surrogateescape", max_num_fields=PARAMS_MAX)
    except ValueError:
        raise Fault(400, "INVALID_REQUEST") from None
    return dict(reversed(pairs))


def path(request: Request) -> str:
    """Return the path, without the doubled slashes that ansq sends."""
    asked = unquote(request.path) if "%" in request.path else request.path
    return _SLASHES.sub("/", asked) if "//" in asked else asked


def name(params: Params, what: str, invalid: str) -> str:
    """Return the parameter that names a topic or channel; `invalid` is the code for a name NSQ does not take."""
    if what not in params:
        raise Fault(400, f"MISSING_ARG_{what.upper()}")
    given = params[what]
    if not given.isascii() or not is_name(given.encode()):
        raise Fault(400, invalid)
    return given


def switch(params: Params, name: str, *, default: bool) -> bool:
    """Return a parameter that is on or off; a word that says neither counts as not given, as in nsqd."""
    return _SWITCH.get(params.get(name, ""), default)
