"""Settings as a penstock.toml: what an import makes of another system's file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

#: What TOML takes without quotes as a name.
_BARE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")


def as_toml(settings: Mapping[str, object]) -> str:
    """Return settings by dotted name as a file; a list of tables becomes one [[table]] each."""
    sections: dict[str, list[str]] = {}
    tables: list[str] = []
    for name, value in settings.items():
        section, _, key = name.rpartition(".")
        if isinstance(value, Sequence) and not isinstance(value, str) and any(isinstance(each, dict) for each in value):
            tables += [f"[[{name}]]\n{_lines(each)}" for each in value]
        else:
            sections.setdefault(section, []).append(f"{_name(key)} = {_value(value)}\n")
    whole = [f"[{section}]\n{''.join(lines)}" if section else "".join(lines) for section, lines in sections.items()]
    return "\n".join([*whole, *tables])


def _lines(table: Mapping[str, object]) -> str:
    return "".join(f"{_name(key)} = {_value(value)}\n" for key, value in table.items())


def _name(name: str) -> str:
    return name if name and set(name) <= _BARE else _quoted(name)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_value, value))}]"
    return _quoted(value) if isinstance(value, str) else str(value)


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(each if each.isprintable() else f"\\U{ord(each):08x}" for each in escaped) + '"'
