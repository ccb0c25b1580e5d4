"""The header of a message published over HTTP: the `ext` parameter, the X-NSQEXT- headers, and the columns they fill.

Owns how the two are merged and which topics take them. The rules of a header itself are `filters.header`'s.
Invariant: what is stored is one JSON object, and nothing is stored where a header is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from penstock.columns import Column
from penstock.dialects.nsq.choices import Extend
from penstock.dialects.nsq.http.words import Fault
from penstock.filters.header import BadHeader, BadTrace, HeaderReader, Parsed, only_reserved

#: Request headers that begin so become members, whatever their case.
PREFIX = b"x-nsqext-"

#: A single quote where JSON begins a name or a value; inside a string it may stand there all the same.
_QUOTE = re.compile(r"(?:^|[{:,\[])\s*'").search

_objects = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def header_of(ext: str | None, request_headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the header that a request asks for; of the same name, the request header wins over `ext`."""
    given: dict[str, str] = {}
    for name, value in request_headers:
        if name.lower().startswith(PREFIX):
            given.setdefault(name[len(PREFIX) :].decode("latin-1").lower(), value.decode("utf-8", "replace"))
    if ext is None and not given:
        raise _bad("ext is missing, and so is any X-NSQEXT- header")
    # Without a member to add, the rules look at what was sent and say best what is wrong with it.
    if not given:
        return _sent(ext or "")
    members: dict[str, msgspec.Raw] = {}
    if ext is not None:
        try:
            members = _objects(_sent(ext))
        except (msgspec.DecodeError, RecursionError) as error:
            raise _bad(f"ext is no JSON object: {error}") from None
    encoded = {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in given.items()}
    return msgspec.json.encode({**members, **encoded})


def checked(header: bytes, reader: HeaderReader) -> Parsed:
    """Return what a header says, or the refusal in NSQ's words."""
    try:
        return reader.check(header)
    except BadTrace as bad:
        raise Fault(400, "INVALID_TRACE_ID", str(bad)) from None
    except BadHeader as bad:
        raise _bad(str(bad)) from None


def columns_of(parsed: Parsed, extend: Extend, *, compatible: bool) -> dict[str, Column]:
    """Return the columns of one row with this header on a topic that takes headers, or takes none.

    Where none are taken, `compatible` drops a header of reserved names alone: the tag goes with it, but what else the
    producer asked for by it (a trace, a key, a due time) holds.
    """
    columns: dict[str, Column] = {
        name: [value] for name, value in msgspec.structs.asdict(parsed).items() if value is not None
    }
    if extend != "off":
        return columns
    if not (compatible and only_reserved(parsed.headers)):
        raise Fault(400, "E_EXT_NOT_SUPPORT", "the topic takes no headers; make one with /topic/create?extend=true")
    return {name: column for name, column in columns.items() if name not in ("headers", "tag")}


def _sent(ext: str) -> bytes:
    """Return `ext` as bytes, unless it is empty or written in another language's quotes."""
    text = ext.strip()
    if not text:
        raise _bad("ext is empty; write a JSON object")
    if _QUOTE(text) is not None and not _is_json(text):
        raise _bad("ext is not JSON: names and values stand in double quotes, not in single quotes")
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise _bad("ext is not UTF-8") from None


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return False
    return True


def _bad(why: str) -> Fault:
    return Fault(400, "E_INVALID_JSON_HEADER", why)
