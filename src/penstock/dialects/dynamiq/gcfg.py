"""Dynamiq's own configuration file, config.gcfg, in the words of ours: text in, settings and a list of the rest out.

Invariant: everything the file says is a setting afterwards or named in the list.
"""

from __future__ import annotations

import re

from penstock.errors import ConfigError

#: Of a line: a section, or a name with its value, which may stand in quotes; comments begin with ; or #.
_SECTION = re.compile(r'\[\s*([\w-]+)\s*("[^"]*")?\s*\]\s*(?:[;#].*)?').fullmatch
_VALUE = re.compile(r'([\w-]+)\s*(?:=\s*(?:"((?:[^"\\]|\\.)*)"|([^";#]*?)))?\s*(?:[;#].*)?').fullmatch

_LEVELS = {"debug": "debug", "info": "info", "warn": "warning", "warning": "warning", "error": "error"}
_NO_GOSSIP = "there is no gossip: a node works by itself, or in a [cluster] that etcd keeps together"
_LEFT = {
    "core.port": _NO_GOSSIP,
    "core.seedserver": _NO_GOSSIP,
    "core.seedport": _NO_GOSSIP,
    "core.riaknodes": "messages are in data_dir; what is in Riak stays there",
    "core.backendconnectionpool": "messages are in data_dir; what is in Riak stays there",
}


def imported(text: str) -> tuple[dict[str, str | int], dict[str, str]]:
    """Return what a file says as settings by name, and what it says besides with the reason why that is none."""
    given = parse(text)
    settings: dict[str, str | int] = {}
    left: dict[str, str] = {}
    sends = given.get("stats.type", "").lower() == "statsd"
    for name, value in given.items():
        if name == "core.httpport":
            settings["dynamiq.port"] = _number(name, value, 65535)
        elif name == "core.name":
            settings["dynamiq.name"] = value
        elif name == "core.syncconfiginterval":
            settings["dynamiq.sync_interval"] = f"{_number(name, value)}ms"
        elif name == "core.loglevelstring":
            level = _LEVELS.get(value.lower())
            settings["log.level"] = level or "error"
            if level is None:
                left[name] = f"there is no level {value}; error is the highest"
        elif name.startswith("stats."):
            _statsd(settings, left, name, value, sends=sends)
        else:
            left[name] = _LEFT.get(name, "nothing here is set by it")
    left["the address"] = "it listens on 127.0.0.1 and not on all; docs/security.md tells how to open it"
    return settings, left


def _statsd(settings: dict[str, str | int], left: dict[str, str], name: str, value: str, *, sends: bool) -> None:
    kind = name.partition(".")[2]
    if kind == "type":
        if not sends:
            left[name] = f"type {value} sends nothing, nor does the node"
    elif not sends:
        left[name] = "stats.type is not statsd, so nothing is sent"
    elif kind == "address":
        settings["dynamiq.statsd_address"] = value
    elif kind == "prefix":
        settings["dynamiq.statsd_prefix"] = value
    elif kind == "flushinterval":
        settings["dynamiq.statsd_interval"] = f"{_number(name, value)}s"
    else:
        left[name] = "nothing here is set by it"


def parse(text: str) -> dict[str, str]:
    """Return the values of a file by section.name, in lower case; of a repeated one the last."""
    found: dict[str, str] = {}
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line[0] in ";#":
            continue
        if begun := _SECTION(line):
            section = begun[1].lower()
        elif (pair := _VALUE(line)) and section:
            quoted = re.sub(r"\\(.)", r"\1", pair[2]) if pair[2] is not None else None
            found[f"{section}.{pair[1].lower()}"] = quoted if quoted is not None else (pair[3] or "").strip()
        else:
            raise ConfigError(f"line {number} is not understood: {line}; write [section] or name = value")
    return found


def _number(name: str, value: str, most: int = 10**12) -> int:
    if not (value.isascii() and value.isdigit() and len(value) < 16 and int(value) <= most):
        raise ConfigError(f'{name} = "{value}" is no number to {most}; write digits')
    return int(value)
