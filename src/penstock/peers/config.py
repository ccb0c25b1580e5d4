"""What [cluster] says of the way between nodes; there is no section of its own."""

from __future__ import annotations

from penstock.config import Config, Section


class PeersConfig(Section, frozen=True, kw_only=True):
    """Nothing beside [cluster]."""


def check(config: Config) -> None:
    """Refuse nothing: [cluster] is looked at as a whole."""
