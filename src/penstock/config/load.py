"""Loading: defaults < file (TOML) < environment < flags, with the origin of every value kept.

The only module that reads the environment. Errors name the source, the key, the reason and what to write instead.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, get_args

import msgspec

from penstock.config.check import check
from penstock.config.keys import ENVIRONMENT_PREFIX, Key, Keys, nearest
from penstock.config.part import Part
from penstock.config.tree import Config
from penstock.errors import ConfigError
from penstock.units.quantity import parse_duration, parse_size

DEFAULT_FILE = "penstock.toml"
#: Names the file itself, so it is no key of the tree.
ENVIRONMENT_FILE = "PENSTOCK_CONFIG"
#: Names the node that commands speak to; a node itself has no use for it.
ENVIRONMENT_URL = "PENSTOCK_URL"
ENVIRONMENT_CONTEXT = "PENSTOCK_CONTEXT"
#: Sections with names of the user's own.
ZONES = "etcd.zones"
COMMANDS = (ENVIRONMENT_FILE, ENVIRONMENT_URL, ENVIRONMENT_CONTEXT)


class Loaded(NamedTuple):
    """A configuration and the origin of each value, by dotted name."""

    config: Config
    origin: Mapping[str, str]
    keys: Keys
    #: Where values come from whose file nobody named; empty if there are none.
    unnamed: str = ""
    #: What that file says and may not.
    warnings: tuple[str, ...] = ()

    def rows(self) -> list[tuple[str, str, str]]:
        """Return (name, value as text, origin) of every key."""
        keys = self.keys
        return [(name, key.text(keys.value(self.config, name)), self.origin[name]) for name, key in keys.items()]


def load(
    parts: Sequence[Part],
    file: str | None = None,
    flags: Mapping[str, object] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Loaded:
    """Return the checked configuration: defaults < file < environment < flags (by dotted name).

    `parts` are those who listen; each brings a section.
    Without `file` the variable PENSTOCK_CONFIG names it, else ./penstock.toml is taken if it is there.
    """
    environment = os.environ if environment is None else environment
    named = file or environment.get(ENVIRONMENT_FILE)
    tree = _read(named or DEFAULT_FILE, required=bool(named))
    keys = Keys(parts, _zones(tree, flags or {}))
    values: dict[str, object] = {name: key.default for name, key in keys.items()}
    origin = dict.fromkeys(keys, "default")
    found = list(_from_file(keys, tree, f"file {named or DEFAULT_FILE}"))
    kept = (
        found if named else [each for each in found if not keys[each[0]].is_named or each[1] == keys[each[0]].default]
    )
    for name, value, source in (*kept, *_from_environment(keys, environment), *_from_flags(keys, flags or {})):
        values[name] = _converted(keys[name], value, source)
        origin[name] = source
    if origin["topic.retention_bytes"] != "default" and origin["topic.retention_hard"] == "default":
        values["topic.retention_hard"] = True
        origin["topic.retention_hard"] = "follows topic.retention_bytes"
    if values["token_file"] and not values["token"]:
        values["token"], origin["token"] = secret_in(str(values["token_file"])), origin["token_file"]
    config = keys.built(values)
    check(config, parts)
    unnamed = f"file {DEFAULT_FILE}" if kept and not named else ""
    return Loaded(config, origin, keys, unnamed, tuple(_ignored(each[0]) for each in found if each not in kept))


def secret_in(path: str, what: str = "token") -> str:
    """Return the first line of a file that holds a secret."""
    try:
        with open(path, encoding="utf-8") as file:
            secret = file.readline().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigError(f"{path}: the {what} cannot be read ({why})") from None
    if not secret:
        raise ConfigError(f"{path}: its first line is empty; it must be the {what}")
    return secret


def shown_token(environment: Mapping[str, str] | None = None) -> str:
    """Return the token that the environment holds, or names the file of; empty if neither."""
    environment = os.environ if environment is None else environment
    token, file = (environment.get(f"{ENVIRONMENT_PREFIX}{name}", "") for name in ("TOKEN", "TOKEN_FILE"))
    return token or (secret_in(file) if file else "")


def _ignored(name: str) -> str:
    return (
        f"{name} in ./{DEFAULT_FILE} is ignored: what runs programs, handles secrets or lets strangers in is taken "
        f"from a file that you name; --config {DEFAULT_FILE}, or {ENVIRONMENT_FILE}={DEFAULT_FILE}"
    )


def _read(path: str, *, required: bool) -> dict[str, object]:
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except FileNotFoundError:
        if required:
            raise ConfigError(f"{path}: no such file; name another with --config, or leave it out") from None
        return {}
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text at byte {error.start}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from error


def _zones(tree: Mapping[str, object], flags: Mapping[str, object]) -> list[str]:
    """Return the zones that somebody names."""
    named = [name.split(".")[2] for name in flags if name.startswith(f"{ZONES}.") and name.count(".") > 2]
    etcd = tree.get("etcd")
    zones = etcd.get("zones") if isinstance(etcd, dict) else None
    return [*(zones if isinstance(zones, dict) else ()), *named]


def _from_file(
    keys: Keys, tree: Mapping[str, object], source: str, section: str = ""
) -> Iterator[tuple[str, object, str]]:
    for inner, value in tree.items():
        name = f"{section}{inner}"
        if name in keys.sections:
            if not isinstance(value, dict):
                raise ConfigError(f"{source}: {name} is a section; write [{name}] and its keys below it")
            yield from _from_file(keys, value, source, f"{name}.")
        else:
            yield _known(keys, name, source), value, source


def _from_environment(keys: Keys, environment: Mapping[str, str]) -> Iterator[tuple[str, object, str]]:
    by_variable = {key.environment: name for name, key in keys.items()}
    for variable, text in sorted(environment.items()):
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in COMMANDS:
            continue
        source = f"environment {variable}"
        if variable not in by_variable:
            raise ConfigError(f"{source} is not a setting{nearest(variable, [*by_variable, ENVIRONMENT_FILE])}")
        yield by_variable[variable], text, source


def _from_flags(keys: Keys, flags: Mapping[str, object]) -> Iterator[tuple[str, object, str]]:
    for name, value in flags.items():
        yield _known(keys, name, "flag"), value, "flag"


def _known(keys: Keys, name: str, source: str) -> str:
    if name in keys:
        return name
    if name in keys.sections:
        inside = ", ".join(key for key in keys if key.startswith(f"{name}."))
        raise ConfigError(f"{source}: {name} is a section, not a setting; its settings are {inside}")
    raise ConfigError(f"{source}: {name} is not a setting{nearest(name, [*keys, *keys.sections])}")


def _converted(key: Key, value: object, source: str) -> object:
    # The environment and flags bring everything as text; a file says what it means.
    typed = source.startswith("file ")
    try:
        match value, key.kind:
            case (str(), "duration"):
                value = parse_duration(value)
            case (str(), "size"):
                value = parse_size(value)
            case (int() | float(), "duration") if value > 0 and not isinstance(value, bool):
                raise ConfigError(f'{value} has no unit; write a text like "{value}s"')
            case (str(), "switch") if not typed:
                value = {"true": True, "1": True, "false": False, "0": False}.get(value.lower(), value)
            case (str(), "list") if not typed:
                value = [part.strip() for part in value.split(",") if part.strip()]
            case (str(), "number") if not typed and value.isascii() and value.isdigit():
                value = int(value)
            case (str(), "table" | "tables") if not typed:
                value = msgspec.json.decode(value) if value else key.default
        return msgspec.convert(value, key.type)
    except msgspec.MsgspecError as error:
        if key.kind in ("table", "tables"):
            raise ConfigError(f"{source}: {key.name} is not what it must be: {error}") from None
        raise ConfigError(f"{source}: {key.name} {_shown(key, value)}; it must be {_wanted(key, value)}") from None
    except ConfigError as error:
        raise ConfigError(f"{source}: {key.name}: {error}") from None


def _wanted(key: Key, value: object) -> str:
    if key.kind == "choice":
        return "one of " + ", ".join(f'"{choice}"' for choice in get_args(key.type))
    if type(value) is int and key.least is not None and value < key.least:
        return f"at least {key.text(key.least)}"
    if type(value) is int and key.most is not None and value > key.most:
        return f"at most {key.text(key.most)}"
    return {
        "duration": 'a duration, like "30s"',
        "size": 'a size, like "64MiB"',
        "switch": "true or false",
        "number": "a whole number",
        "list": 'a list, like ["127.0.0.1:4160"]',
    }.get(key.kind, "text")


def _shown(key: Key, value: object) -> str:
    names = {str: "text", bool: "a switch", int: "a number", float: "a number", list: "a list", dict: "a section"}
    name = names.get(type(value), "a time")
    if key.kind == "secret":
        return f"is {name}"
    if type(value) is int and key.kind in ("duration", "size", "number"):
        return f"is {key.text(value)}"
    text = f'"{value}"' if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)
    return f"is {text}" if key.kind == "choice" else f"is {text}, {name}"
