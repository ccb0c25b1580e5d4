"""Settings of topics and subscriptions as they look outside: durations and sizes as text, as in the configuration.

A field `<name>_ns` is `<name>` here and a text like "30s"; sizes are a number of bytes or a text like "64MiB".
Invariant: what `outward` shows, `inward` takes and makes the same settings of.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from penstock.config import format_duration, parse_duration, parse_size
from penstock.dialect import Choices, Dialect
from penstock.errors import ConfigError, Refusal
from penstock.rest.problem import unknown
from penstock.settings import SubscriptionSettings, TopicSettings

Settings = TypeVar("Settings", TopicSettings, SubscriptionSettings)

_DURATION = "_ns"
_SIZE = "_bytes"


def outward(settings: TopicSettings | SubscriptionSettings | Choices) -> dict[str, Any]:
    """Return settings as the API shows them."""
    values: dict[str, Any] = msgspec.to_builtins(msgspec.structs.asdict(settings))  # defaults of choices, too
    return {
        _name(field): format_duration(value) if field.endswith(_DURATION) else value for field, value in values.items()
    }


def inward(given: Mapping[str, Any], base: Settings, dialects: Iterable[Dialect] = ()) -> Settings:
    """Return settings with what is given put over a base; what is a dialect's own is read as its choices are."""
    fields = {_name(field): field for field in base.__struct_fields__}
    values: dict[str, Any] = msgspec.to_builtins(base)
    for name, value in given.items():
        if name not in fields:
            raise unknown(name, fields, "setting")
        if name == "dialects":
            value = _merged(value, values[name], {dialect.name: dialect.choices for dialect in dialects})
        values[fields[name]] = _value(name, fields[name], value)
    if "retention_bytes" in given and "retention_hard" not in given and "retention_hard" in values:
        values["retention_hard"] = True  # who names a bound means it, as in the configuration
    try:
        return msgspec.convert(values, type(base))
    except msgspec.ValidationError as error:
        raise Refusal("bad_request", f"these settings cannot be used: {error}") from None


def schema(kind: type[TopicSettings] | type[SubscriptionSettings]) -> dict[str, Any]:
    """Return the JSON schema of settings as they look outside."""
    definitions = msgspec.json.schema(kind)["$defs"]
    properties: dict[str, Any] = {}
    for field, described in definitions[kind.__name__]["properties"].items():
        text = described.get("description")
        if field.endswith(_DURATION):
            described = {"type": "string", "example": format_duration(described["default"])}
        elif field.endswith(_SIZE):
            described = {"anyOf": [{"type": "integer"}, {"type": "string"}], "default": described["default"]}
        elif "anyOf" in described:
            described = {"anyOf": [_inlined(choice, definitions) for choice in described["anyOf"]]}
        properties[_name(field)] = {**described, "description": text} if text else described
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _name(field: str) -> str:
    return field.removesuffix(_DURATION)


def _value(name: str, field: str, value: Any) -> Any:
    try:
        if field.endswith(_DURATION):
            if not isinstance(value, str):
                raise ConfigError(f'{value!r} is not a duration; write a text like "30s"')
            return parse_duration(value)
        if field.endswith(_SIZE) and isinstance(value, str):
            return parse_size(value)
    except ConfigError as error:
        raise Refusal("bad_request", f"{name}: {error}") from None
    return value


def _merged(given: Any, base: dict[str, Any], kinds: Mapping[str, type[Choices] | None]) -> Any:
    """Return settings of dialects put over others, each for itself; the dialects check them."""
    if not isinstance(given, dict) or not all(isinstance(part, dict) for part in given.values()):
        return given  # which the type refuses
    return {**base, **{name: {**base.get(name, {}), **_inner(part, kinds.get(name))} for name, part in given.items()}}


def _inner(given: Mapping[str, Any], kind: type[Choices] | None) -> dict[str, Any]:
    """Return choices as they are kept; an unknown one as it is, for the dialect to refuse."""
    fields = {_name(field): field for field in kind.__struct_fields__} if kind is not None else {}
    return {fields.get(name, name): _value(name, fields.get(name, name), value) for name, value in given.items()}


def _inlined(choice: dict[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    reference = choice.get("$ref")
    found: dict[str, Any] = definitions[reference.rpartition("/")[2]] if reference else choice
    return found
