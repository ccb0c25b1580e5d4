"""The keys of the configuration: for each value its dotted name, its variable, its type and its text form.

Derived from the tree, so a new field needs no second entry anywhere.
Invariant: names and variables are unique.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

import msgspec

from penstock.config.tree import Config, Section
from penstock.errors import hint
from penstock.quantity import format_duration, format_size

ENVIRONMENT_PREFIX = "PENSTOCK_"


class Key(NamedTuple):
    """One value a user may set."""

    name: str
    field: str
    type: Any
    kind: str
    default: object
    least: int | None = None
    most: int | None = None

    @property
    def environment(self) -> str:
        """The variable that sets it."""
        return ENVIRONMENT_PREFIX + self.name.replace(".", "_").upper()

    def text(self, value: object) -> str:
        """Return a value as a user would write it; a secret only says whether it is set."""
        match self.kind:
            case "duration" if isinstance(value, int) and value >= 0:
                return format_duration(value)
            case "size" if isinstance(value, int) and value >= 0:
                return format_size(value)
            case "secret":
                return "(set)" if value else ""
            case "switch":
                return "true" if value else "false"
            case "list" if isinstance(value, tuple):
                return ",".join(value)
        return str(value)


def value_of(config: Config, name: str) -> object:
    """Return one value of the tree by dotted name."""
    value: object = config
    for part in KEYS[name].field.split("."):
        value = getattr(value, part)
    return value


def nearest(name: str, names: Iterable[str]) -> str:
    """Return the end of an error about an unknown name: what may have been meant."""
    return "; " + hint(name, list(names), "`penstock config show` lists them all")


def _keys(tree: type[Section], prefix: str = "") -> Iterator[Key]:
    for field in msgspec.structs.fields(tree):
        if isinstance(field.type, type) and issubclass(field.type, Section):
            yield from _keys(field.type, f"{field.name}.")
            continue
        kind = _kind(field.type)
        name = field.name.removesuffix("_ns") if kind == "duration" else field.name
        meta: Any = get_args(field.type)[1] if get_origin(field.type) is Annotated else msgspec.Meta()
        yield Key(prefix + name, prefix + field.name, field.type, kind, field.default, meta.ge, meta.le)


def _kind(type_: Any) -> str:
    if get_origin(type_) is Annotated:
        base, meta = get_args(type_)
        kind: str = (meta.extra or {}).get("kind") or _kind(base)
        return kind
    if get_origin(type_) is Literal:
        return "choice"
    return {int: "number", bool: "switch", str: "text", tuple[str, ...]: "list"}[type_]


#: Every key a user may set, by dotted name, in the order of the tree.
KEYS: Mapping[str, Key] = {key.name: key for key in _keys(Config)}
SECTIONS = tuple(dict.fromkeys(name.partition(".")[0] for name in KEYS if "." in name))
