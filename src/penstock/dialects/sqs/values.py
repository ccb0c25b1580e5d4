"""Message attributes: what they may be, how the `headers` column keeps them, and their MD5.

In the column they are `{"name": {"type": …, "value": …}}`, a binary value in base64; headers that another dialect wrote
as plain texts are shown as attributes of type String. Names with a colon are Amazon's system attributes: no attribute
may be called so.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Iterable
from hashlib import md5
from typing import Any

import msgspec

from penstock.dialects.sqs.codec.shapes import Value, Values
from penstock.dialects.sqs.faults import Fault
from penstock.moves.letters import PREFIX as DEAD

ATTRIBUTES_MAX = 10
TRACE = "aws:trace"
TRAFFIC = "traffic_types"
#: Says that a body which is no text is shown in base64.
ENCODING = "penstock.encoding"

_NAME = re.compile(r"(?!(?i:aws\.|amazon\.))(?!.*\.\.)[A-Za-z0-9_-][A-Za-z0-9_.-]{0,255}(?<!\.)").fullmatch
_TYPE = re.compile(r"(String|Number|Binary)(\.[^\s]{1,240})?").fullmatch
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?").fullmatch
#: What a message may not hold.
unspeakable = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]").search

_BITS = (1 << 64) - 1
#: No more than these many digits are worth a look.
_DIGITS_MAX = 20

_decode = msgspec.json.Decoder(dict[str, Any]).decode
_encode = msgspec.json.Encoder().encode


def check(values: Values) -> int:
    """Refuse attributes that Amazon would; return how many bytes they count for."""
    if len(values) > ATTRIBUTES_MAX:
        raise Fault(
            "InvalidParameterValue", f"Number of message attributes [{len(values)}] exceeds the allowed maximum [10]."
        )
    size = 0
    for name, value in values.items():
        if _NAME(name) is None:
            raise Fault("InvalidParameterValue", f"Message attribute name '{name[:256]}' is invalid.")
        kind = _TYPE(value.data_type)
        if not value.data_type:
            raise Fault(
                "InvalidParameterValue",
                f"The message attribute '{name}' must contain a non-empty message attribute type.",
            )
        if kind is None:
            raise Fault(
                "InvalidParameterValue",
                f"The message attribute '{name}' has an invalid message attribute type, the set of supported type "
                "prefixes is Binary, Number, and String.",
            )
        held = value.binary_value if kind[1] == "Binary" else value.string_value
        if not held:
            raise Fault(
                "InvalidParameterValue",
                f"The message attribute '{name}' must contain a non-empty message attribute value for message "
                f"attribute type '{value.data_type}'.",
            )
        if isinstance(held, str):
            if unspeakable(held):
                raise Fault(
                    "InvalidMessageContents", f"The message attribute '{name}' holds characters that are not allowed."
                )
            if kind[1] == "Number" and _NUMBER(held) is None:
                raise Fault(
                    "InvalidParameterValue", f"Can't cast the value of message (user) attribute '{name}' to a number."
                )
        size += len(name.encode()) + len(value.data_type) + len(held if isinstance(held, bytes) else held.encode())
    return size


def check_system(values: Values) -> None:
    """Refuse what is no system attribute that a sender may set: the header of a trace, a text, is the only one."""
    for name, value in values.items():
        if name != "AWSTraceHeader":
            raise Fault("InvalidParameterValue", f"Message system attribute name '{name[:100]}' is invalid.")
        if value.data_type != "String" or not value.string_value:
            raise Fault(
                "InvalidParameterValue", f"The message system attribute '{name}' must be of type String, and not empty."
            )
        if unspeakable(value.string_value):
            raise Fault(
                "InvalidMessageContents",
                f"The message system attribute '{name}' holds characters that are not allowed.",
            )


def tag(values: Values) -> str | None:
    """Return the dispatch tag that an attribute names."""
    return values["tag"].string_value if "tag" in values else None


def traffic(values: Values) -> int | None:
    """Return the traffic types that an attribute names, 64 bits in decimal, as the column has them."""
    if TRAFFIC not in values:
        return None
    text = values[TRAFFIC].string_value or ""
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX and int(text) <= _BITS):
        raise Fault("InvalidParameterValue", f"The attribute {TRAFFIC} is no number of 64 bits in decimal.")
    return int(text) - (_BITS + 1 if int(text) >> 63 else 0)


def kept(values: Values, system: Values) -> bytes | None:
    """Return what the column keeps; None where there is nothing."""
    if not values and not system:
        return None
    headers = {name: {"type": one.data_type, "value": _text(one)} for name, one in values.items()}
    trace = system.get("AWSTraceHeader")
    if trace is not None:
        headers[TRACE] = {"type": trace.data_type, "value": trace.string_value or ""}
    return _encode(headers)


def shown(raw: bytes) -> tuple[Values, dict[str, str]]:
    """Return the attributes that a column keeps, and what it tells besides: a trace, why a letter is dead."""
    values: Values = {}
    told: dict[str, str] = {}
    try:
        headers = _decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return values, told
    for name, held in headers.items():
        value: object = held
        kind = "String"
        if isinstance(held, dict) and isinstance(held.get("type"), str):
            kind, value = held["type"], held.get("value")
        if name.startswith(DEAD):
            told[name] = str(value)
        elif name == TRACE:
            told["AWSTraceHeader"] = str(value)
        elif kind.startswith("Binary"):
            try:
                values[name] = Value(data_type=kind, binary_value=b64decode(str(value), validate=True))
            except ValueError:
                continue
        else:
            text = value if isinstance(value, str) else _encode(value).decode()
            values[name] = Value(data_type=kind, string_value=text)
    return values, told


def wanted(values: Values, names: Iterable[str]) -> Values:
    """Return the attributes that somebody asks for: all, by name, or by how names begin."""
    if not values or not names:
        return {}
    asked = set(names)
    if asked & {"All", ".*"}:
        return values
    starts = tuple(name[:-2] for name in asked if name.endswith(".*"))
    return {name: value for name, value in values.items() if name in asked or (starts and name.startswith(starts))}


def digest(values: Values) -> str | None:
    """Return the MD5 of attributes as Amazon counts it; None where there are none."""
    if not values:
        return None
    out = bytearray()
    for name in sorted(values):
        value = values[name]
        held = value.binary_value if value.data_type.startswith("Binary") else (value.string_value or "").encode()
        for part in (name.encode(), value.data_type.encode()):
            out += len(part).to_bytes(4, "big") + part
        out += b"\x02" if value.data_type.startswith("Binary") else b"\x01"
        out += len(held or b"").to_bytes(4, "big") + (held or b"")
    return md5(out, usedforsecurity=False).hexdigest()


def _text(value: Value) -> str:
    if value.data_type.startswith("Binary"):
        return b64encode(value.binary_value or b"").decode("ascii")
    return value.string_value or ""
