"""Signature Version 4: what a request must be signed with, for whoever knows the secret.

Pure: a request's parts in, the signature out. Headers and the form of presigned addresses alike.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import parse_qsl, quote

from penstock.dialects.sqs.codec.query import PARAMETERS_MAX
from penstock.dialects.sqs.faults import Fault

ALGORITHM = "AWS4-HMAC-SHA256"

#: Amazon's clocks and a client's may differ by this much.
SKEW_S = 15 * 60
#: A presigned address holds for at most a week.
EXPIRES_S_MAX = 7 * 24 * 3600

_PART = re.compile(r"\s*([A-Za-z-]+)=([^,\s]+)\s*").fullmatch
_TIME = "%Y%m%dT%H%M%SZ"

Headers = Sequence[tuple[bytes, bytes]]


class Signed(NamedTuple):
    """Who signed a request, when, what of it, and how."""

    key_id: str
    date: str
    region: str
    service: str
    headers: tuple[str, ...]
    signature: str
    time: str
    #: Seconds from then on in which it counts; 0 = the skew.
    expires_s: int = 0
    presigned: bool = False

    @property
    def scope(self) -> str:
        """What the key was made for."""
        return f"{self.date}/{self.region}/{self.service}/aws4_request"

    def check_time(self, now_ns: int) -> None:
        """Refuse one that is too old, or from the future."""
        try:
            at_s = datetime.strptime(self.time, _TIME).replace(tzinfo=UTC).timestamp()
        except ValueError:
            raise Fault("IncompleteSignature", f"{self.time[:40]} is no time like 20260131T235959Z.") from None
        late_s = now_ns / 1e9 - at_s
        if not -SKEW_S <= late_s <= (self.expires_s or SKEW_S) or not self.time.startswith(self.date):
            raise Fault(
                "SignatureDoesNotMatch", f"Signature expired: {self.time} is not within 15 minutes of this node's time."
            )


def signed(authorization: bytes, query: bytes, headers: Headers) -> Signed | None:
    """Return what a request says of its signature; None if it has none of this kind."""
    if authorization.startswith(ALGORITHM.encode()):
        parts = {}
        for text in authorization.decode("latin-1")[len(ALGORITHM) :].split(","):
            part = _PART(text)
            if part is not None:
                parts[part[1]] = part[2]
        if missing := [name for name in ("Credential", "SignedHeaders", "Signature") if name not in parts]:
            raise Fault("IncompleteSignature", f"Authorization header requires '{missing[0]}' parameter.")
        time = _header(headers, b"x-amz-date")
        return _signed(parts["Credential"], parts["SignedHeaders"], parts["Signature"], time)
    if b"X-Amz-Signature=" in query:
        given = dict(_pairs(query, "replace"))
        expires_s = _expires_s(given.get("X-Amz-Expires", "0"))
        if given.get("X-Amz-Algorithm") != ALGORITHM or expires_s is None:
            raise Fault(
                "IncompleteSignature",
                f"X-Amz-Algorithm must be {ALGORITHM}, X-Amz-Expires a number of seconds, at most a week.",
            )
        names, date = given.get("X-Amz-SignedHeaders", ""), given.get("X-Amz-Date", "")
        found = _signed(given.get("X-Amz-Credential", ""), names, given.get("X-Amz-Signature", ""), date)
        return found._replace(expires_s=expires_s, presigned=True)
    return None


def signature_of(
    asked: Signed, secret: str, method: str, path: str, query: bytes, headers: Headers, body: bytes
) -> str:
    """Return the signature that a request must have."""
    told = hashlib.sha256(body).hexdigest()
    canonical = "\n".join(
        (
            method,
            _canonical_path(path),
            _canonical_query(query, presigned=asked.presigned),
            *(f"{name}:{_header(headers, name.encode())}" for name in asked.headers),
            "",
            ";".join(asked.headers),
            told,
        )
    )
    digest = hashlib.sha256(canonical.encode("utf-8", "surrogateescape")).hexdigest()
    text = f"{ALGORITHM}\n{asked.time}\n{asked.scope}\n{digest}"
    return hmac.new(_key(secret, asked.date, asked.region, asked.service), text.encode(), hashlib.sha256).hexdigest()


def _signed(credential: str, names: str, signature: str, time: str) -> Signed:
    parts = credential.split("/")
    if len(parts) != 5 or parts[4] != "aws4_request":
        raise Fault("IncompleteSignature", "Credential must be key/date/region/service/aws4_request.")
    if not names.isascii():  # as the names of headers are
        raise Fault("IncompleteSignature", f"{names[:100]} are no names of headers.")
    headers = tuple(names.split(";"))
    if "host" not in headers:
        raise Fault("SignatureDoesNotMatch", "'Host' must be a signed header.")
    return Signed(parts[0], parts[1], parts[2], parts[3], headers, signature, time)


def _expires_s(text: str) -> int | None:
    """Return how long a presigned address holds; None if that cannot be."""
    seconds = int(text) if text.isascii() and text.isdigit() and len(text) < 8 else -1
    return seconds if 0 <= seconds <= EXPIRES_S_MAX else None


@lru_cache(256)
def _key(secret: str, date: str, region: str, service: str) -> bytes:
    key = b"AWS4" + secret.encode()
    for part in (date, region, service, "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return key


def _header(headers: Headers, name: bytes) -> str:
    """Return what is signed of a header: all its values, blanks made one."""
    values = [" ".join(value.decode("latin-1").split()) for known, value in headers if known == name]
    return ",".join(values)


def _canonical_path(path: str) -> str:
    return quote(path.encode("latin-1"), safe="/-_.~%") or "/"


def _canonical_query(query: bytes, *, presigned: bool) -> str:
    coded = sorted(
        (_coded(name), _coded(value))
        for name, value in _pairs(query, "surrogateescape")
        if not (presigned and name == "X-Amz-Signature")
    )
    return "&".join(f"{name}={value}" for name, value in coded)


def _pairs(query: bytes, errors: str) -> list[tuple[str, str]]:
    try:
        return parse_qsl(query.decode("latin-1"), True, max_num_fields=PARAMETERS_MAX, errors=errors)
    except ValueError as error:
        raise Fault("MalformedQueryString", f"The parameters cannot be read: {error}") from None


def _coded(text: str) -> str:
    return quote(text.encode("utf-8", "surrogateescape"), safe="-_.~")
