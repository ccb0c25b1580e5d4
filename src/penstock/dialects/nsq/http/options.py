"""Options over HTTP, /config/:opt: the value of any, and two that change while the node runs.

Owns nsqd's names and values for them. What is changed here is forgotten at the end of the process, as in nsqd.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

import msgspec

from penstock.config import Config, host_and_port
from penstock.config.keys import keys_of
from penstock.dialects.nsq.config import NsqConfig, endpoints
from penstock.dialects.nsq.http.words import Fault, document
from penstock.errors import ConfigError
from penstock.http import Response

#: nsqd's levels by their numbers there, and what they are here.
LEVELS = {
    "debug": (1, logging.DEBUG),
    "info": (2, logging.INFO),
    "warn": (3, logging.WARNING),
    "error": (4, logging.ERROR),
    "fatal": (5, logging.CRITICAL),
}
#: Shown to nobody.
SECRETS = {key.name for key in keys_of(NsqConfig) if key.kind == "secret"}
LOOKUPD, LOG_LEVEL = "nsqlookupd_tcp_addresses", "log_level"

#: Announces the node to these lookup services and no other.
Relookup = Callable[[Iterable[tuple[str, int]]], None]

_addresses = msgspec.json.Decoder(list[str]).decode


class Options:
    """What a running node was told to do."""

    def __init__(self, config: Config, relookup: Relookup | None = None) -> None:
        self._config = config
        self._relookup = relookup
        self._lookupd = list(config.of(NsqConfig).lookupd_tcp_addresses)
        self._log = logging.getLogger("penstock")

    def get(self, name: str) -> Response:
        """Return a value in JSON; durations are in nanoseconds."""
        nsq = self._config.of(NsqConfig)
        places = {endpoint.key: f"{endpoint.address}:{endpoint.port}" for endpoint in endpoints(self._config)}
        named: dict[str, object] = {
            LOOKUPD: self._lookupd,
            LOG_LEVEL: self._level(),
            "data_path": self._config.data_dir,
            **{f"{port}_address": places.get(f"nsq.{port}_port", "") for port in ("tcp", "http", "https")},
        }
        for key in (name, f"{name}_ns"):
            if key in nsq.__struct_fields__ and key not in SECRETS:
                named.setdefault(name, getattr(nsq, key))
        if name not in named:
            raise Fault(400, "INVALID_OPTION")
        return document(named[name])

    def put(self, name: str, value: bytes) -> Response:
        """Change a value and return it."""
        if name == LOOKUPD:
            self._set_lookupd(value)
        elif name == LOG_LEVEL:
            level = LEVELS.get(value.decode("latin-1").lower())
            if level is None:
                raise Fault(400, "INVALID_VALUE", f"levels are {', '.join(LEVELS)}")
            self._log.setLevel(level[1])
        else:
            raise Fault(400, "INVALID_OPTION")
        return self.get(name)

    def _set_lookupd(self, value: bytes) -> None:
        try:
            texts = _addresses(value)
            places = [host_and_port(text) for text in texts]
        except (msgspec.DecodeError, UnicodeDecodeError, ConfigError) as error:
            raise Fault(400, "INVALID_VALUE", str(error)) from None
        if self._relookup is not None:
            self._relookup(places)
        self._lookupd = texts

    def _level(self) -> int:
        now = self._log.getEffectiveLevel()
        return max((number for number, level in LEVELS.values() if level <= now), default=1)
