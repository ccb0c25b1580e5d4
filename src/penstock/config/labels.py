"""Labels that every sample of `/metrics` has: which names may be chosen for them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from penstock.errors import ConfigError

LABELS_MAX = 10
NAME = re.compile("[a-zA-Z_][a-zA-Z0-9_]*")

#: What samples say of themselves; a constant label of the same name would hide it.
OWN = frozenset(
    {
        "brokers", "cluster", "code", "codec", "command", "consumer", "dialect", "direction", "event", "feed", "filter",
        "kind", "le", "listener", "name", "node", "op", "part", "partner", "pipeline", "quantile", "query", "reason",
        "route", "service", "shard", "state", "subscription", "target", "topic", "traffic_type", "type", "user",
        "version", "window",
    }
)  # fmt: skip


def check_labels(labels: Mapping[str, str]) -> None:
    """Refuse labels that Prometheus would not take, or that samples have themselves."""
    if len(labels) > LABELS_MAX:
        raise ConfigError(f"metrics.labels has {len(labels)} labels; at most {LABELS_MAX} are added to every sample")
    for name in labels:
        if not NAME.fullmatch(name):
            raise ConfigError(
                f'metrics.labels: "{name}" is no name of a label; it has letters, digits and _, no digit first'
            )
        if name.startswith("__"):
            raise ConfigError(
                f'metrics.labels: "{name}" begins with __, which Prometheus keeps for itself; choose another'
            )
        if name in OWN:
            raise ConfigError(f'metrics.labels: "{name}" is a label that samples have themselves; choose another name')
