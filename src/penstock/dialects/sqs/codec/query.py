"""The older form: parameters of a form in, XML out.

Lists and maps are numbered parameters: `Attribute.1.Name` in SQS, `Attributes.entry.1.key` in SNS. What they mean is in
the types of `shapes`; this knows only how their names are written.
"""

from __future__ import annotations

import re
from base64 import b64encode
from typing import Any, TypeVar, get_origin
from urllib.parse import parse_qsl
from xml.sax.saxutils import escape

import msgspec

from penstock.dialects.sqs.faults import Fault

#: What a request may have: ten messages of ten attributes with three parts each, and room.
PARAMETERS_MAX = 2000
DEPTH_MAX = 8

#: SQS's lists: how an entry is written -> the field.
_LISTS = {
    "AttributeName": "AttributeNames",
    "MessageSystemAttributeName": "MessageSystemAttributeNames",
    "MessageAttributeName": "MessageAttributeNames",
    "SendMessageBatchRequestEntry": "Entries",
    "DeleteMessageBatchRequestEntry": "Entries",
    "ChangeMessageVisibilityBatchRequestEntry": "Entries",
    "TagKey": "TagKeys",
    "AWSAccountId": "AWSAccountIds",
    "ActionName": "Actions",
}
#: SQS's maps: how an entry is written -> the field, and what key and value are called.
_MAPS = {
    "Attribute": ("Attributes", "Name", "Value"),
    "MessageAttribute": ("MessageAttributes", "Name", "Value"),
    "MessageSystemAttribute": ("MessageSystemAttributes", "Name", "Value"),
    "Tag": ("Tags", "Key", "Value"),
}
#: The other way: a list's field -> how an entry is written; of answers to batches that depends on the operation.
_ENTRIES = {
    "QueueUrls": "QueueUrl",
    "queueUrls": "QueueUrl",
    "Messages": "Message",
    "Failed": "BatchResultErrorEntry",
    "Results": "ListMessageMoveTasksResultEntry",
}
_MAPPED = {field: (entry, key, value) for entry, (field, key, value) in _MAPS.items()}

#: What XML cannot carry, whatever the escape.
_UNSPEAKABLE = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]").sub

T = TypeVar("T", bound=msgspec.Struct)


def parameters(query: bytes, body: bytes) -> dict[str, str]:
    """Return the parameters of a request, of a repeated one the last."""
    try:
        pairs = [
            pair
            for text in (query, body)
            if text
            for pair in parse_qsl(
                text.decode("ascii"), True, errors="strict", encoding="utf-8", max_num_fields=PARAMETERS_MAX
            )
        ]
    except ValueError as error:
        raise Fault("MalformedQueryString", f"The parameters cannot be read: {error}") from None
    return dict(pairs)


def read(given: dict[str, str], kind: type[T]) -> T:
    """Return what parameters say."""
    tree: dict[str, Any] = {}
    for name, value in given.items():
        parts = name.split(".")
        if len(parts) > DEPTH_MAX:
            raise Fault("MalformedQueryString", f"{name[:100]} has too many parts.")
        at: Any = tree
        for part in parts[:-1]:
            at = at.setdefault(part, {})
            if not isinstance(at, dict):
                raise Fault("MalformedQueryString", f"{name[:100]} cannot be beside a shorter name.")
        at[parts[-1]] = value
    fields = _shaped(tree)
    if "" in fields.values():  # so an empty list is written, too
        lists = {each.encode_name for each in msgspec.structs.fields(kind) if get_origin(each.type) in (list, dict)}
        fields = {name: value for name, value in fields.items() if value != "" or name not in lists}
    if "Tags" in fields and kind.__name__ == "CreateQueue":
        fields["tags"] = fields.pop("Tags")  # Amazon writes it small there, in JSON
    return msgspec.convert(fields, kind, strict=False)


def _shaped(tree: dict[str, Any]) -> dict[str, Any]:
    """Return fields, lists and maps of what was numbered."""
    fields: dict[str, Any] = {}
    for name, value in tree.items():
        if not isinstance(value, dict):
            fields[name] = value
        elif list(value) == ["member"] and isinstance(value["member"], dict):
            fields[name] = _entries(value["member"])
        elif name in _LISTS:
            fields[_LISTS[name]] = _entries(value)
        elif name in _MAPS:
            field, key, held = _MAPS[name]
            fields[field] = _map(_entries(value), key, held)
        elif list(value) == ["entry"] and isinstance(value["entry"], dict):
            entries = _entries(value["entry"])
            small = any(isinstance(entry, dict) and "key" in entry for entry in entries)
            fields[name] = _map(entries, *(("key", "value") if small else ("Name", "Value")))
        else:
            fields[name] = _shaped(value)
    return fields


def _entries(numbered: dict[str, Any]) -> list[Any]:
    try:
        order = sorted(numbered, key=int)
    except ValueError:
        raise Fault("MalformedQueryString", "An entry of a list has a number.") from None
    return [_shaped(one) if isinstance(one := numbered[at], dict) else one for at in order]


def _map(entries: list[Any], key: str, held: str) -> dict[str, Any]:
    try:
        return {entry[key]: entry.get(held, "") for entry in entries}
    except (KeyError, TypeError, AttributeError):
        raise Fault("MissingParameter", f"An entry needs {key} and {held}.") from None


def written(operation: str, answer: msgspec.Struct, namespace: str, request_id: str, *, flat: bool) -> bytes:
    """Return an answer in XML; `flat` as SQS writes lists, or not, as SNS does."""
    fields = msgspec.to_builtins(answer, builtin_types=(bytes,))
    out: list[str] = []
    if flat:
        _write_flat(out, operation, fields)
    else:
        _write_nested(out, fields)
    result = "".join(out)
    inside = f"<{operation}Result>{result}</{operation}Result>" if result or not flat else ""
    told = f"<ResponseMetadata><RequestId>{request_id}</RequestId></ResponseMetadata>"
    text = f'<?xml version="1.0"?><{operation}Response xmlns="{namespace}">{inside}{told}</{operation}Response>'
    return text.encode("utf-8", "replace")


def refused(fault: Fault, code: str, namespace: str, request_id: str) -> bytes:
    """Return in XML why not; what it is called depends on the service."""
    side = "Sender" if fault.kind.is_sender else "Receiver"
    return (
        f'<?xml version="1.0"?><ErrorResponse xmlns="{namespace}"><Error><Type>{side}</Type>'
        f"<Code>{code}</Code><Message>{_text(str(fault))}</Message><Detail/></Error>"
        f"<RequestId>{request_id}</RequestId></ErrorResponse>"
    ).encode("utf-8", "replace")


def _write_flat(out: list[str], operation: str, fields: dict[str, Any]) -> None:
    for name, value in fields.items():
        if name in _MAPPED and isinstance(value, dict):
            entry, key, held = _MAPPED[name]
            for known, one in value.items():
                out.append(f"<{entry}><{key}>{_text(known)}</{key}><{held}>")
                _write_flat(out, operation, one) if isinstance(one, dict) else out.append(_text(one))
                out.append(f"</{held}></{entry}>")
        elif isinstance(value, list):
            entry = _ENTRIES.get(name) or f"{operation}ResultEntry"
            for one in value:
                out.append(f"<{entry}>")
                _write_flat(out, operation, one) if isinstance(one, dict) else out.append(_text(one))
                out.append(f"</{entry}>")
        elif value is not None:
            out.append(f"<{name}>{_text(value)}</{name}>")


def _write_nested(out: list[str], fields: dict[str, Any]) -> None:
    for name, value in fields.items():
        out.append(f"<{name}>")
        if isinstance(value, dict):
            for key, one in value.items():
                out.append(f"<entry><key>{_text(key)}</key><value>{_text(one)}</value></entry>")
        elif isinstance(value, list):
            for one in value:
                out.append("<member>")
                _write_nested(out, one) if isinstance(one, dict) else out.append(_text(one))
                out.append("</member>")
        elif value is not None:
            out.append(_text(value))
        out.append(f"</{name}>")


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return b64encode(value).decode("ascii")
    # A carriage return would be read as a line feed.
    return escape(_UNSPEAKABLE("�", str(value)), {"\r": "&#xD;"})
