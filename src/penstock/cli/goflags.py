"""Command lines as Go's flag package reads them: `-flag=value`, `--flag value`, switches without a value.

Owns the syntax and the file that upstream's daemons take instead of flags. What a flag means is in the table it is
given, and which Penstock setting it sets.
Invariant: a flag that is in no table is an error, one without an effect is a warning, never silence.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from penstock.errors import ConfigError, hint

_FALSE = ("0", "f", "F", "false", "FALSE", "False")
#: Where no flag is like the one that was given.
_LISTED = "--help lists them all"


class Flag(NamedTuple):
    """One flag of upstream's."""

    help: str
    #: The setting it sets; empty where something else is done with it, or nothing.
    key: str = ""
    switch: bool = False
    repeats: bool = False
    #: Accepted, and nothing follows from it here: the reason.
    idle: str = ""
    #: Not accepted, because going on without it would be another thing than was asked for: the reason.
    refused: str = ""
    #: Turns upstream's text into ours.
    convert: Callable[[str], str] = str
    #: What the flag is called in upstream's configuration file, if not by its own name.
    in_file: str = ""


Flags = Mapping[str, Flag]
Given = dict[str, list[str]]


def parse(arguments: Sequence[str], flags: Flags) -> Given:
    """Return the values of every flag that was given, in order."""
    given: Given = {}
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.lstrip("-").partition("=")
        if not word.startswith("-") or word.startswith("---") or not name:
            raise ConfigError(f'"{word}" is not understood; only flags are, like --tcp-address=127.0.0.1:4150')
        flag = flags.get(name)
        if flag is None:
            raise ConfigError(f"there is no flag --{name}; {hint(name, flags, _LISTED, '--{}'.format)}")
        if not equals:
            if flag.switch:
                value = "true"
            elif not rest:
                raise ConfigError(f"--{name} needs a value: --{name}=...")
            else:
                value = rest.pop(0)
        given.setdefault(name, []).append(value)
    return given


def from_file(path: str, flags: Flags) -> Given:
    """Return what upstream's configuration file says, by flag."""
    try:
        with open(path, "rb") as file:
            tree = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"--config {path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {path} is not valid TOML: {error}") from error
    names = {flag.in_file or name.replace("-", "_"): name for name, flag in flags.items()}
    given: Given = {}
    for key, value in tree.items():
        if key not in names:
            raise ConfigError(f"--config {path}: there is no setting {key}; {hint(key, names, _LISTED)}")
        values = value if isinstance(value, list) else [value]
        given[names[key]] = [str(v).lower() if isinstance(v, bool) else str(v) for v in values]
    return given


def settings(given: Given, flags: Flags, warn: Callable[[str], None]) -> dict[str, object]:
    """Return the settings that the given flags set, by dotted name; say which flags change nothing."""
    chosen: dict[str, object] = {}
    for name, values in given.items():
        flag = flags[name]
        if flag.refused and not (flag.switch and not is_on(given, name)):
            raise ConfigError(f"--{name} cannot be had: {flag.refused}")
        if flag.idle:
            warn(f"--{name} has no effect: {flag.idle}")
        if flag.key:
            converted = [flag.convert(value) for value in values]
            if flag.switch:
                chosen[flag.key] = is_on(given, name)
            elif flag.repeats:
                # Upstream takes several in one, too.
                chosen[flag.key] = [part.strip() for value in converted for part in value.split(",") if part.strip()]
            else:
                chosen[flag.key] = converted[-1]
    return chosen


def is_on(given: Given, name: str) -> bool:
    """Tell whether a switch is on."""
    return name in given and given[name][-1] not in _FALSE


def address(name: str, text: str) -> tuple[str, int]:
    """Return host and port of a listener's flag; no host means every address of the machine, as for Go."""
    host, colon, port = text.rpartition(":")
    if not (colon and port.isascii() and port.isdigit() and len(port) <= 5 and int(port) < 65536):
        raise ConfigError(f'--{name} "{text}" is no address; write HOST:PORT, like 127.0.0.1:4150 (no unix sockets)')
    return host.removeprefix("[").removesuffix("]") or "0.0.0.0", int(port)


def one_host(hosts: Mapping[str, str]) -> str | None:
    """Return the host that all listeners share; by flag, None where none was given."""
    if len(set(hosts.values())) > 1:
        raise ConfigError(f"{' and '.join(f'--{name}' for name in hosts)} must name the same host: all listen on one")
    return next(iter(hosts.values()), None)


def usage(program: str, flags: Flags) -> str:
    """Return the list of flags."""
    width = max(map(len, flags)) + 2
    lines = [f"Usage of {program}:"]
    for name, flag in flags.items():
        note = " (not available)" if flag.refused else " (no effect)" if flag.idle and not flag.key else ""
        lines.append(f"  --{name:<{width}} {flag.help}{note}")
    return "\n".join(lines)


def warner(program: str) -> Callable[[str], None]:
    """Return what writes a program's warnings to standard error."""
    return lambda text: print(f"{program}: warning: {text}", file=sys.stderr)
