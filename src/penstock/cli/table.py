"""Everything this program can serve: the admin API and the dialects; and the configuration of all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from penstock.api import API
from penstock.cli.printer import complain
from penstock.dialects import DIALECTS
from penstock.feeds import FEEDS
from penstock.peers import PEERS
from penstock.relays import RELAYS

if TYPE_CHECKING:
    from penstock.config import Loaded
    from penstock.dialect import Dialect

TABLE = (API, *DIALECTS, *RELAYS, *FEEDS, PEERS)


def load(
    file: str | None = None,
    flags: Mapping[str, object] | None = None,
    environment: Mapping[str, str] | None = None,
    table: Sequence[Dialect] = TABLE,
) -> Loaded:
    """Return the checked configuration: defaults < file < environment < flags (by dotted name)."""
    from penstock import config

    loaded = config.load(table, file, flags, environment)
    for warning in loaded.warnings:
        complain(warning)
    return loaded
