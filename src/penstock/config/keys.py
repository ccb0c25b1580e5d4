"""The keys of the configuration: for each value its dotted name, its variable, its type and its text form.

Derived from the tree and the sections of the parts, so a new field needs no second entry anywhere.
Invariant: names and variables are unique.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

import msgspec

from penstock.config.part import Part
from penstock.config.tree import Config, Section
from penstock.errors import hint
from penstock.units.quantity import format_duration, format_size

ENVIRONMENT_PREFIX = "PENSTOCK_"

#: The zone that is there without being named.
DEFAULT_ZONE = "default"


class Key(NamedTuple):
    """One value a user may set."""

    name: str
    field: str
    type: Any
    kind: str
    default: object
    least: int | None = None
    most: int | None = None
    #: Taken from a file only if somebody named that file.
    is_named: bool = False

    @property
    def environment(self) -> str:
        """The variable that sets it."""
        return ENVIRONMENT_PREFIX + self.name.replace(".", "_").replace("-", "_").upper()

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
            case "table" | "tables":
                return msgspec.json.encode(value).decode() if value else ""
        return str(value)


class Keys(dict[str, Key]):
    """Every key a user may set, by dotted name: those of the tree, then those of the parts."""

    def __init__(self, parts: Sequence[Part], zones: Iterable[str] = ()) -> None:
        names = dict.fromkeys((DEFAULT_ZONE, *zones))
        found = [key for section, prefix in self._sections(parts) for key in keys_of(section, prefix, names)]
        super().__init__((key.name, key) for key in found)
        self.sections = tuple(dict.fromkeys(part for name in self for part in _parents(name)))
        self._parts = {part.name: part.config for part in parts}

    @staticmethod
    def _sections(parts: Sequence[Part]) -> Iterator[tuple[type[Section], str]]:
        yield Config, ""
        for part in parts:
            yield part.config, f"{part.name}."

    def value(self, config: Config, name: str) -> object:
        """Return one value of a configuration."""
        section, _, field = self[name].field.rpartition(".")
        if section in self._parts:
            return getattr(config.of(self._parts[section]), field)
        found: Any = config
        for name in section.split(".") if section else ():
            found = found[name] if isinstance(found, dict) else getattr(found, name)
        return getattr(found, field)

    def built(self, values: Mapping[str, object]) -> Config:
        """Return the configuration with these values, one for each key."""
        tree: dict[str, Any] = {}
        for name, value in values.items():
            *sections, field = self[name].field.split(".")
            inside = tree
            for section in sections:
                inside = inside.setdefault(section, {})
            inside[field] = value
        parts = [msgspec.convert(tree.pop(name, {}), kind) for name, kind in self._parts.items()]
        core = msgspec.convert(tree, Config)
        return msgspec.structs.replace(core, parts=tuple(part for part in parts if part != type(part)()))


def _parents(name: str) -> Iterator[str]:
    """Yield the sections around a key, the outermost first."""
    parts = name.split(".")
    return (".".join(parts[:depth]) for depth in range(1, len(parts)))


def nearest(name: str, names: Iterable[str]) -> str:
    """Return the end of an error about an unknown name: what may have been meant."""
    return "; " + hint(name, list(names), "`penstock config show` lists them all")


def keys_of(tree: type[Section], prefix: str = "", names: Iterable[str] = ()) -> Iterator[Key]:
    """Yield the keys of a section and of those inside it, also of sections that have these names."""
    for field in msgspec.structs.fields(tree):
        if field.name == "parts" and tree is Config:
            continue
        if isinstance(field.type, type) and issubclass(field.type, Section):
            yield from keys_of(field.type, f"{field.name}.", names)
            continue
        if get_origin(field.type) is dict:
            for name in names:
                yield from keys_of(get_args(field.type)[1], f"{prefix}{field.name}.{name}.")
            continue
        kind = _kind(field.type)
        name = field.name.removesuffix("_ns") if kind == "duration" else field.name
        meta: Any = get_args(field.type)[1] if get_origin(field.type) is Annotated else msgspec.Meta()
        named = bool((meta.extra or {}).get("named"))
        default = {} if kind == "table" else field.default
        yield Key(prefix + name, prefix + field.name, field.type, kind, default, meta.ge, meta.le, named)


def _kind(type_: Any) -> str:
    if get_origin(type_) is Annotated:
        base, meta = get_args(type_)
        kind: str = (meta.extra or {}).get("kind") or _kind(base)
        return kind
    if get_origin(type_) is Literal:
        return "choice"
    return {int: "number", bool: "switch", str: "text", tuple[str, ...]: "list"}[type_]
