"""Requests as a table of endpoints takes them: names in the path, parameters, and a body of JSON. Pure.

Invariant: what is refused names the part that was wrong.
"""

from __future__ import annotations

from typing import TypeVar
from urllib.parse import parse_qsl, unquote

import msgspec

from penstock.errors import Refusal
from penstock.rest.problem import unknown, unusable

QUERY_FIELDS_MAX = 32

Kind = TypeVar("Kind", bound=msgspec.Struct)


class Nothing(msgspec.Struct, forbid_unknown_fields=True):
    """No parameters, or no body."""


def unquoted(text: str) -> str:
    """Return what stands in a path, without its escapes."""
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise Refusal("bad_name", f"{text!r} in the path is not UTF-8 text") from None


def read_query(raw: bytes, kind: type[Kind]) -> Kind:
    """Return the parameters of a request."""
    try:
        pairs = parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=QUERY_FIELDS_MAX)
    except ValueError as error:
        raise Refusal("bad_request", f"the parameters cannot be read: {error}") from None
    for name, _ in pairs:
        if name not in kind.__struct_fields__:
            raise unknown(name, kind.__struct_fields__, "parameter")
    try:
        return msgspec.convert(dict(pairs), kind, strict=False)
    except msgspec.ValidationError as error:
        raise unusable("the parameters cannot be used: ", error) from None


def read_body(raw: bytes, kind: type[Kind]) -> Kind:
    """Return the body of a request; an empty one is an empty object."""
    try:
        value = msgspec.json.decode(raw) if raw.strip() else {}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Refusal("bad_request", f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise Refusal("bad_request", "the body must be a JSON object")
    for name in value:
        if name not in kind.__struct_fields__:
            raise unknown(name, kind.__struct_fields__, "field")
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise unusable("the body cannot be used: ", error) from None


def decode(raw: bytes, decoder: msgspec.json.Decoder[Kind]) -> Kind:
    """Return a body as a decoder takes it, in one go: for large ones, whose type refuses unknown fields itself."""
    try:
        return decoder.decode(raw or b"{}")
    except msgspec.ValidationError as error:
        raise unusable("the body cannot be used: ", error) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refusal("bad_request", f"the body is not JSON: {error}") from None
