"""Keeping what a query still needs: the node holds its offsets against retention while it runs, and a day longer.

Owns when a hold is renewed. Knows nothing of how a node keeps it.
Invariant: what is held is never ahead of what Spark may ask for again after a restart.
"""

from __future__ import annotations

import logging
import time
import uuid

from penstock.client.wire import Hold
from penstock.pipeline.offsets import Positions
from penstock.pipeline.store import Store

RENEW_S = 60.0
#: How long what a query needs is kept after it was last heard of.
DEFAULT_S = 24 * 3600

_log = logging.getLogger(__name__)


class Keeper:
    """The holds of one query."""

    def __init__(self, name: str | None = None, seconds: int | None = None) -> None:
        # Spark does not tell a source which query it serves; after a restart a hold without a name runs out by itself.
        self._name = name or f"spark-{uuid.uuid4().hex}"
        self._ttl_ms = (seconds or DEFAULT_S) * 1000
        self._needed: Positions | None = None
        self._renewed_s = float("-inf")

    def needs(self, positions: Positions) -> None:
        """Say from where on a query may ask again; only the first time or after a commit."""
        self._needed = positions

    @property
    def told(self) -> bool:
        """Whether anything is held yet."""
        return self._needed is not None

    def renew(self, store: Store) -> None:
        """Renew the hold if it is time."""
        now = time.monotonic()
        if self._needed is None or now < self._renewed_s + RENEW_S:
            return
        self._renewed_s = now
        for name, position in self._needed.items():
            failed = store.hold(
                Hold(
                    name=self._name,
                    topic=name,
                    incarnation=position.incarnation,
                    offsets=list(position.offsets),
                    ttl_ms=self._ttl_ms,
                )
            )
            if failed:
                _log.warning("topic %s is not held against retention: %s", name, failed)
